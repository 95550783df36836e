"""What an action may ask for while it runs."""

from __future__ import annotations

from typing import Any

from flink_agents.errors import InvalidArguments
from flink_agents.options import Execution, Limits, OnInterrupt
from flink_agents.records import parse_arguments
from flink_agents.scheduler.call import Prepared
from flink_agents.scheduler.handles import AsyncFuture, DurableFuture, GatherFuture, HandleState
from flink_agents.tools.base import Body, Tool
from flink_agents.tools.registry import ToolRegistry

__all__ = ["ActionContext", "ToolCallFuture"]

TOOL_KIND = "tool"


class ToolCallFuture(DurableFuture):
    """A handle on one call of a tool. Looking the tool up and checking the arguments is the call's preparation."""

    __slots__ = ("_limit", "_registry")

    def __init__(
        self, registry: ToolRegistry, limit: int, name: str, position: int, arguments: Any, call_id: Any
    ) -> None:
        # Not through the base class: a second constructor for each call would be felt.
        self.kind = TOOL_KIND
        self.name = name
        self.position = position
        self.arguments = arguments
        self.call_id = call_id
        self.state = HandleState.COLD
        self.slot = None
        self.outcome = None
        self._digest = None
        self._registry = registry
        self._limit = limit

    def prepare(self) -> Prepared:
        """Return the tool's body for these arguments. Each preparation reads them anew: a body gets its own copy."""
        tool = self._registry.get(self.name)
        spec = tool.spec
        body = self._body(tool)
        reconcile = None
        if spec.on_interrupt is OnInterrupt.RECONCILE:
            reconcile = tool.reconciler(parse_arguments(self.arguments, self._limit))
        return Prepared(body, spec.execution, spec.name, spec.max_concurrent, spec.on_interrupt, reconcile)

    def body_here(self) -> Body | None:
        """Return the body if the tool runs inline; otherwise None, and nothing is prepared."""
        tool = self._registry.find(self.name)
        return self._body(tool) if tool is not None and tool.spec.execution is Execution.INLINE else None

    def _body(self, tool: Tool) -> Body:
        try:
            given = parse_arguments(self.arguments, self._limit)
        except InvalidArguments as error:
            raise InvalidArguments(str(error), dict(tool.spec.parameters)) from None
        return tool.prepare(given)


class ActionContext:
    """Handed to an action. Task thread only; everything it offers is safe to replay."""

    __slots__ = ("_limit", "_registry")

    def __init__(self, registry: ToolRegistry, limits: Limits) -> None:
        self._registry = registry
        self._limit = limits.arguments

    def call_tool(self, name: str, arguments: Any, *, position: int = -1, call_id: Any = None) -> DurableFuture:
        """Return a cold handle on one call of a tool.

        ``arguments`` is an object or a JSON string of one and must not be changed afterwards; ``position`` is the
        call's place in its request, ``call_id`` what the request calls it. An unknown tool and arguments that do not
        fit are the call's own failure, when it is awaited.
        """
        return ToolCallFuture(self._registry, self._limit, name, position, arguments, call_id)

    def gather(self, *handles: AsyncFuture[Any], max_in_flight: int = 16) -> GatherFuture:
        """Return a handle on several calls: awaiting it gives their outcomes in the order of the arguments.

        At most ``max_in_flight`` of them run at once, in a sliding window; 1 means one after another.

        Raises:
            NestedGather: if one of the handles is a gather itself.
        """
        return GatherFuture(handles, max_in_flight)
