"""Durable tool calls for agents, as a keyed Apache Flink operator; the names that users write against.

Importing the package loads no Flink; calling ``tool_calls`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from flink_agents.agent import Agent, AgentSource, InputEvent, OutputEvent, action
from flink_agents.context import ActionContext
from flink_agents.errors import (
    CallError,
    CallTimeout,
    FlinkAgentsError,
    HandleMisuse,
    InDoubt,
    InvalidArguments,
    InvalidInput,
    NotStarted,
    Uncapturable,
)
from flink_agents.events import ToolCall, ToolRequestEvent, ToolResponseEvent
from flink_agents.options import (
    Execution,
    Limits,
    Mode,
    OnInterrupt,
    OnMismatch,
    Rate,
    ToolCallOptions,
    WorkerOptions,
)
from flink_agents.retry import NonRetryable, RetryLater, RetryPolicy
from flink_agents.scheduler.call_journal import NOT_STARTED
from flink_agents.scheduler.handles import AsyncFuture, CallOutcome, DurableFuture
from flink_agents.scheduler.tool_context import ToolContext, current_tool_context
from flink_agents.tools import FunctionTool, SchemaTool, Tool, ToolSpec, tool
from flink_agents.tools.async_tool import AsyncTool
from flink_agents.tools.registry import ClassDeclaration, Declaration, FunctionDeclaration, SchemaDeclaration

if TYPE_CHECKING:
    from flink_agents.datastream import ToolCallStreams

__all__ = [
    "NOT_STARTED",
    "ActionContext",
    "Agent",
    "AsyncFuture",
    "AsyncTool",
    "CallError",
    "CallOutcome",
    "CallTimeout",
    "ClassDeclaration",
    "DurableFuture",
    "Execution",
    "FlinkAgentsError",
    "FunctionDeclaration",
    "FunctionTool",
    "HandleMisuse",
    "InDoubt",
    "InputEvent",
    "InvalidArguments",
    "InvalidInput",
    "Limits",
    "Mode",
    "NonRetryable",
    "NotStarted",
    "OnInterrupt",
    "OnMismatch",
    "OutputEvent",
    "Rate",
    "RetryLater",
    "RetryPolicy",
    "SchemaDeclaration",
    "SchemaTool",
    "Tool",
    "ToolCall",
    "ToolCallOptions",
    "ToolContext",
    "ToolRequestEvent",
    "ToolResponseEvent",
    "ToolSpec",
    "Uncapturable",
    "WorkerOptions",
    "__version__",
    "action",
    "current_tool_context",
    "tool",
    "tool_calls",
]

try:
    __version__ = version("flink-agents-toolcall")
except PackageNotFoundError:
    # A source tree put on the path without being installed has no metadata, and need not stop working for it.
    __version__ = "0+uninstalled"


def tool_calls(
    stream: Any,
    *,
    key_by: str,
    tools: Sequence[Declaration] = (),
    agent: AgentSource | None = None,
    **options: Any,
) -> ToolCallStreams:
    """Answer every request of a ``DataStream`` by running the tool calls in it, or by the actions of an agent.

    Call it on the client, while the job is built; the tools run on the TaskManagers, in PyFlink's thread mode. Each
    request gets exactly one response. After a restore, calls whose outcome a checkpoint or the journal holds are not
    run again.

    Args:
        stream: a ``DataStream`` of requests, as JSON strings or as dicts.
        key_by: field of a request whose value is its key (dotted path allowed). One key's requests run in order.
        tools: functions, ``"module:function"`` texts, ready tools, or declarations.
        agent: an ``Agent``, its class, or ``"module:object"`` of either: its actions take the records, and its tools
            are there beside ``tools``, which may then be left out.
        options: ``tool_calls``, ``workers``, ``limits``, ``config`` and ``journal``, each a dict with the names and
            units of the job YAML; and ``run_id``, which names the life of the job's state: a job with a journal needs
            it, here or as the job parameter ``flink-agents.run-id``.

    Returns:
        The streams ``responses`` and ``rejects``, of JSON strings.

    Raises:
        InvalidInput: for an option or a tool that is wrong; names every wrong option and the nearest right name.
        JournalError: if the journal cannot be reached or used.
    """
    # Tool modules import this package on every TaskManager and in tests; only who builds a job needs PyFlink for it.
    from flink_agents import datastream

    return datastream.tool_calls(stream, key_by=key_by, tools=tools, agent=agent, **options)
