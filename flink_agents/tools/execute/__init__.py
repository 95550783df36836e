"""The execute tool: a model's code, run by a provider that can be stopped and leaves nothing behind."""

from __future__ import annotations

from flink_agents.tools.execute.keeper import ProviderBroken
from flink_agents.tools.execute.none import NoExecution
from flink_agents.tools.execute.options import ProcessOptions
from flink_agents.tools.execute.process import LocalProcess
from flink_agents.tools.execute.protocol import ExecuteProvider, ExecuteRequest, ExecuteResult
from flink_agents.tools.execute.session import JshellSession, PythonSession, SessionProvider
from flink_agents.tools.execute.tool import ExecuteTool

__all__ = [
    "ExecuteProvider",
    "ExecuteRequest",
    "ExecuteResult",
    "ExecuteTool",
    "JshellSession",
    "LocalProcess",
    "NoExecution",
    "ProcessOptions",
    "ProviderBroken",
    "PythonSession",
    "SessionProvider",
]
