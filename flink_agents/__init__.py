"""Durable tool calls for agents, as a keyed Apache Flink operator; the names that users write against.

Importing the package loads no Flink.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from flink_agents.errors import (
    CallError,
    FlinkAgentsError,
    InvalidArguments,
    InvalidInput,
    Uncapturable,
)
from flink_agents.options import Execution, Limits, Mode, OnMismatch, ToolCallOptions, WorkerOptions
from flink_agents.tools import FunctionTool, SchemaTool, Tool, ToolSpec, tool

__all__ = [
    "CallError",
    "Execution",
    "FlinkAgentsError",
    "FunctionTool",
    "InvalidArguments",
    "InvalidInput",
    "Limits",
    "Mode",
    "OnMismatch",
    "SchemaTool",
    "Tool",
    "ToolCallOptions",
    "ToolSpec",
    "Uncapturable",
    "WorkerOptions",
    "__version__",
    "tool",
]

try:
    __version__ = version("flink-agents-toolcall")
except PackageNotFoundError:
    # A source tree put on the path without being installed has no metadata, and need not stop working for it.
    __version__ = "0+uninstalled"
