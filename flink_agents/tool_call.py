"""A handle on one call of a tool: looking the tool up and checking the arguments is the call's preparation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from flink_agents import codec
from flink_agents.errors import HandleMisuse, InvalidArguments
from flink_agents.options import Execution, OnInterrupt
from flink_agents.records import parse_arguments
from flink_agents.scheduler.call import CallTerms, Prepared
from flink_agents.scheduler.handles import AsyncFuture, DurableFuture, HandleState
from flink_agents.tools.async_tool import AsyncTool
from flink_agents.tools.base import Body, Tool, ToolSpec

if TYPE_CHECKING:
    from flink_agents.context import ActionContext, ContextParts

__all__ = ["ToolCallFuture", "ToolTerms"]

TOOL_KIND = "tool"


class ToolTerms:
    """The terms of each tool's calls, made once. Task thread only."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[ToolSpec, CallTerms]] = {}

    def of(self, spec: ToolSpec) -> CallTerms:
        """Return the terms on which calls of this tool run."""
        known = self._known.get(spec.name)
        if known is None or known[0] is not spec:
            terms = CallTerms(
                gate=spec.name,
                execution=spec.execution,
                max_concurrent=spec.max_concurrent,
                on_interrupt=spec.on_interrupt,
                timeout_ms=spec.timeout_ms,
                deadline_ms=spec.deadline_ms,
                retry=spec.retry,
                rate=spec.rate,
            )
            known = self._known[spec.name] = (spec, terms)
        return known[1]


class ToolCallFuture(DurableFuture):
    """A handle on one call of a tool. Made by ``ctx.call_tool``; an unknown tool fails when the call is prepared."""

    __slots__ = ("_context", "_parts")

    def __init__(
        self, parts: ContextParts, context: ActionContext, name: str, position: int, arguments: Any, call_id: Any
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
        self._parts = parts
        self._context = context

    def prepare(self) -> Prepared:
        """Return the tool's body for these arguments. Each preparation reads them anew: a body gets its own copy."""
        parts = self._parts
        tool = parts.registry.get(self.name)
        if isinstance(tool, AsyncTool):
            return self._submit(tool)
        spec = tool.spec
        body = self._body(tool)
        reconcile = None
        if spec.on_interrupt is OnInterrupt.RECONCILE:
            reconcile = tool.reconciler(parse_arguments(self.arguments, parts.limit))
        return Prepared(body, parts.terms.of(spec), reconcile)

    def body_here(self) -> Body | None:
        """Return the body if the tool runs inline and nothing bounds it; otherwise None, and nothing is prepared."""
        tool = self._parts.registry.find(self.name)
        if tool is None or tool.spec.execution is not Execution.INLINE or isinstance(tool, AsyncTool):
            return None
        return self._body(tool) if self._parts.terms.of(tool.spec).is_plain_inline else None

    def _body(self, tool: Tool) -> Body:
        return tool.prepare(self._given(tool))

    def _given(self, tool: Tool) -> dict[str, Any]:
        try:
            return parse_arguments(self.arguments, self._parts.limit)
        except InvalidArguments as error:
            raise InvalidArguments(str(error), dict(tool.spec.parameters)) from None

    def _submit(self, tool: AsyncTool) -> Prepared:
        """Ask an asynchronous tool for its handle, whose call becomes this one's body, in the slot reserved before."""
        handle: Any = tool.submit(self._context, self._given(tool))
        if not isinstance(handle, AsyncFuture):
            msg = f"the asynchronous tool {self.name!r} must return a handle of its context, not {handle!r}"
            raise HandleMisuse(msg)
        call = handle.call
        if call is None:
            return Prepared(lambda: handle.outcome_of().result(), CallTerms(self.name, Execution.INLINE))
        if call.state is not HandleState.COLD:
            msg = f"the asynchronous tool {self.name!r} must return a handle that nobody awaits yet"
            raise HandleMisuse(msg)
        prepared = call.prepare()
        # Its slot is this call's: the handle itself is used up.
        call.close()
        if call is handle:
            return prepared
        return _mapped(prepared, handle, call)


def _mapped(prepared: Prepared, handle: AsyncFuture[Any], call: DurableFuture) -> Prepared:
    """Apply the handle's mappings where the body ends, so that what is recorded is what the tool is said to return."""
    if prepared.terms.execution is Execution.ASYNC:

        async def body() -> Any:
            return handle.mapped(call, codec.decode(codec.encode(await prepared.body())))

        return prepared._replace(body=body)
    return prepared._replace(body=partial(_map_body, prepared.body, handle, call))


def _map_body(body: Body, handle: AsyncFuture[Any], call: DurableFuture) -> Any:
    return handle.mapped(call, codec.decode(codec.encode(body())))
