"""What an action may ask for while it runs."""

from __future__ import annotations

from typing import Any

from flink_agents import codec
from flink_agents.errors import InvalidArguments
from flink_agents.options import Limits, OnInterrupt
from flink_agents.records import parse_arguments
from flink_agents.scheduler.call import Prepared
from flink_agents.scheduler.handles import AsyncFuture, CallSpec, DurableFuture, GatherFuture
from flink_agents.tools.registry import ToolRegistry

__all__ = ["ActionContext"]

TOOL_KIND = "tool"


class ActionContext:
    """Handed to an action. Task thread only; everything it offers is safe to replay."""

    __slots__ = ("_limits", "_registry")

    def __init__(self, registry: ToolRegistry, limits: Limits) -> None:
        self._registry = registry
        self._limits = limits

    def call_tool(self, name: str, arguments: Any, *, position: int = -1, call_id: Any = None) -> DurableFuture:
        """Return a cold handle on one call of a tool.

        ``arguments`` is an object or a JSON string of one; ``position`` is the call's place in its request, ``call_id``
        what the request calls it. Looking up
        the tool and checking the arguments is the call's preparation: their failure is the call's own.
        """

        def prepare() -> Prepared:
            tool = self._registry.get(name)
            spec = tool.spec
            try:
                given = parse_arguments(arguments, self._limits.arguments)
            except InvalidArguments as error:
                raise InvalidArguments(str(error), dict(spec.parameters)) from None
            reconcile = None
            if spec.on_interrupt is OnInterrupt.RECONCILE:
                reconcile = tool.reconciler(parse_arguments(arguments, self._limits.arguments))
            return Prepared(
                tool.prepare(given), spec.execution, spec.name, spec.max_concurrent, spec.on_interrupt, reconcile
            )

        return DurableFuture(CallSpec(TOOL_KIND, name, position, codec.digest(arguments), prepare, call_id))

    def gather(self, *handles: AsyncFuture[Any], max_in_flight: int = 16) -> GatherFuture:
        """Return a handle on several calls: awaiting it gives their outcomes in the order of the arguments.

        At most ``max_in_flight`` of them run at once, in a sliding window; 1 means one after another.

        Raises:
            NestedGather: if one of the handles is a gather itself.
        """
        return GatherFuture(handles, max_in_flight)
