"""A handle on one call of a tool: looking the tool up and checking the arguments is the call's preparation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flink_agents import codec
from flink_agents.errors import InvalidArguments
from flink_agents.options import Execution, OnInterrupt
from flink_agents.records import parse_arguments
from flink_agents.scheduler.call_journal import NOT_STARTED
from flink_agents.scheduler.handles import AsyncFuture, DurableFuture, HandleState
from flink_agents.scheduler.prepared import CallTerms, Prepared
from flink_agents.tools.async_tool import AsyncTool
from flink_agents.tools.base import Body, Tool, ToolSpec
from flink_agents.tools.callables import is_async
from flink_agents.tools.injection import injected

if TYPE_CHECKING:
    from flink_agents.context import ActionContext, ContextParts
    from flink_agents.scheduler.run import ActionRun

__all__ = ["TOOL_KIND", "ToolCallFuture", "ToolTerms", "read_arguments"]

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


def read_arguments(tool: Tool, asked: Any, limit: int) -> dict[str, Any]:
    """Return a call's own copy of its arguments, of at most ``limit`` bytes of JSON. Any thread; pure.

    Raises:
        InvalidArguments: for anything that is no JSON object; ``expected`` is a copy of the tool's schema.
        TooLarge: over the limit.
    """
    try:
        return parse_arguments(asked, limit)
    except InvalidArguments as error:
        raise InvalidArguments(str(error), dict(tool.spec.parameters)) from None


class ToolCallFuture(DurableFuture):
    """A handle on one call of a tool. Made by ``ctx.call_tool``; an unknown tool fails when the call is prepared."""

    __slots__ = ("_context", "_parts")

    def __init__(
        self,
        parts: ContextParts,
        context: ActionContext,
        owner: ActionRun,
        name: str,
        position: int,
        arguments: Any,
        call_id: Any,
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
        self.owner = owner
        self._digest = None
        self._parts = parts
        self._context = context

    def prepare(self) -> Prepared:
        """Return the tool's body for these arguments. Each preparation reads them anew: a body gets its own copy."""
        parts = self._parts
        tool = parts.registry.get(self.name)
        if isinstance(tool, AsyncTool):
            return self._submit(tool)
        body, spec = self._body(tool), tool.spec
        reconcile = None
        if spec.on_interrupt is OnInterrupt.RECONCILE:
            reconcile = tool.reconciler(self._given(tool))
        return Prepared(body, parts.terms.of(spec), reconcile)

    @property
    def submits(self) -> bool:
        """Whether preparing it is the tool's own code, which must not run for a call that has ended."""
        return isinstance(self._parts.registry.find(self.name), AsyncTool)

    def body_here(self) -> Body | None:
        """Return the body if the tool runs inline and nothing bounds it; otherwise None, and nothing is prepared."""
        tool = self._parts.registry.find(self.name)
        if tool is None or tool.spec.execution is not Execution.INLINE or isinstance(tool, AsyncTool):
            return None
        return self._body(tool) if self._parts.terms.of(tool.spec).is_plain_inline else None

    def _body(self, tool: Tool) -> Body:
        return tool.prepare(self._given(tool))

    def _given(self, tool: Tool) -> dict[str, Any]:
        """Return this call's own copy of the arguments, with what the job injects."""
        parts = self._parts
        asked = read_arguments(tool, self.arguments, parts.limit)
        return injected(tool.spec, asked, parts.config, self._context.remembered)

    def _submit(self, tool: AsyncTool) -> Prepared:
        """Ask an asynchronous tool for its handle, whose call becomes this one's body, in the slot reserved before."""
        handle = self._context.submitted(tool, self._given(tool))
        call = handle.call
        if call is None:
            ready = CallTerms(self.name, Execution.INLINE)
            return Prepared(lambda: handle.outcome_of().result(), self._bounded(tool, ready))
        prepared = call.prepare()
        # Its slot is this call's: the handle itself is used up.
        call.close()
        reconcile, spec = prepared.reconcile, tool.spec
        if spec.on_interrupt is OnInterrupt.RECONCILE:
            reconcile = tool.reconciler(self._given(tool))
        elif reconcile is not None and call is not handle:
            reconcile = _map_answer(reconcile, handle, call)
        body = prepared.body if call is handle else _mapped(prepared.body, prepared.terms.execution, handle, call)
        return Prepared(body, self._bounded(tool, prepared.terms), reconcile)

    def _bounded(self, tool: AsyncTool, terms: CallTerms) -> CallTerms:
        """Return the terms of the call behind an asynchronous tool, with what the tool's own specification says."""
        own = self._parts.terms.of(tool.spec)
        said = {name: value for name in _BOUNDS if (value := getattr(own, name)) is not None}
        if own.max_concurrent is not None or own.rate is not None:
            said["gate"] = own.gate
        if own.on_interrupt is not OnInterrupt.RERUN:
            said["on_interrupt"] = own.on_interrupt
        return replace(terms, **said)


_BOUNDS = ("max_concurrent", "timeout_ms", "deadline_ms", "retry", "rate")


def _mapped(body: Body, execution: Execution, handle: AsyncFuture[Any], call: DurableFuture) -> Body:
    """Apply the handle's mappings where the body ends, so that what is recorded is what the tool is said to return."""
    if execution is not Execution.ASYNC:
        return partial(_map_body, body, handle, call)

    async def mapped() -> Any:
        return _map(handle, call, await body())

    return mapped


def _map_body(body: Body, handle: AsyncFuture[Any], call: DurableFuture) -> Any:
    return _map(handle, call, body())


def _map(handle: AsyncFuture[Any], call: DurableFuture, value: Any) -> Any:
    # Through the codec, as a mapping has it everywhere.
    return handle.mapped(call, codec.decode(codec.encode(value)))


def _map_answer(reconcile: Callable[[], Any], handle: AsyncFuture[Any], call: DurableFuture) -> Callable[[], Any]:
    """Apply the handle's mappings to what a reconciler found."""
    if is_async(reconcile):

        async def found() -> Any:
            answer = await reconcile()
            return answer if answer is NOT_STARTED else _map(handle, call, answer)

        return found

    def found_here() -> Any:
        answer = reconcile()
        return answer if answer is NOT_STARTED else _map(handle, call, answer)

    return found_here
