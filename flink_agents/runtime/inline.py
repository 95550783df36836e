"""Requests whose calls all run on the task thread: answered within the turn that takes them in, without slots.

Such a request begins and ends between two checkpoints, so there is nothing to reserve, wait for or replay, and calls of
microseconds would spend ten times their own time on it. Everything that is seen of a call is as for any other.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from flink_agents.clock import since_ms
from flink_agents.codec import encode
from flink_agents.durable.identity import Identity
from flink_agents.errors import FrameworkFault, Interrupted
from flink_agents.events import ToolCall, ToolRequestEvent, response_line, result_record
from flink_agents.failures import capture
from flink_agents.faults import no_fault
from flink_agents.options import OperatorOptions
from flink_agents.runtime.program import Answer
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.scheduler.call import closed, is_fatal, is_interruption
from flink_agents.scheduler.handles import DurableFuture
from flink_agents.scheduler.services import Services
from flink_agents.scheduler.tool_context import Origin, ToolContext, running_call
from flink_agents.tool_call import TOOL_KIND, ToolTerms, read_arguments
from flink_agents.tools.async_tool import AsyncTool
from flink_agents.tools.base import Tool
from flink_agents.tools.registry import ToolRegistry

__all__ = ["InlineRequests"]


class _Here:
    """The call whose body runs: what ``current_tool_context`` finds. Its context is made when it is asked for."""

    __slots__ = ("_context", "_origin", "call", "index")

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._context: ToolContext | None = None
        self.call: ToolCall | None = None
        self.index = 0

    def enter(self, index: int, call: ToolCall) -> None:
        """Stand for the next call."""
        self.index = index
        self.call = call
        self._context = None

    @property
    def context(self) -> ToolContext:
        """What the tool may know about this call."""
        call = self.call
        if self._context is None:
            if call is None:
                msg = "a context was asked for, and no call runs"
                raise FrameworkFault(msg)
            named = DurableFuture(TOOL_KIND, call.tool, call.position, call.arguments)
            identity = Identity(self.index, TOOL_KIND, call.tool, call.position, named.digest)
            self._context = ToolContext(self._origin, identity, call.call_id, 1, CancellationToken())
        return self._context

    @property
    def counts(self) -> dict[str, int]:
        """What the tool counted."""
        return {} if self._context is None else self._context.counts


class InlineRequests:
    """Answers requests of inline tools. Task thread only.

    Only where nothing else has a say: no journal, no deadline of the batch, no fault point armed, and tools that
    nothing bounds and nothing is injected into.
    """

    def __init__(self, registry: ToolRegistry, options: OperatorOptions, services: Services, terms: ToolTerms) -> None:
        self._services = services
        self._arguments_limit = options.limits.arguments
        self._result_limit = options.limits.result
        self._tools: dict[str, Tool] = {}
        if services.journal is None and services.fault is no_fault and options.tool_calls.timeout_ms is None:
            for tool in registry.tools():
                is_here = terms.of(tool.spec).is_plain_inline and not isinstance(tool, AsyncTool)
                if is_here and not tool.spec.inject:
                    self._tools[tool.spec.name] = tool

    def answer(self, request: ToolRequestEvent, run_id: str, key_text: str, intake: int) -> Answer | None:
        """Return the answer; None where a call of it is no business of this module, and nothing ran.

        Raises:
            BaseException: what a body raised that must fail the task.
        """
        known = self._tools
        tools = [known.get(call.tool) for call in request.calls]
        if None in tools or not tools or self._services.attempt.interrupted:
            return None
        here = _Here(Origin(run_id, request.key, key_text, request.request_id, intake))
        entered = running_call.set(here)
        try:
            results = [
                self._result(here, index, call, tool)
                for index, (call, tool) in enumerate(zip(request.calls, tools, strict=True))
                if tool is not None
            ]
        finally:
            running_call.reset(entered)
        failed = 0
        for result in results:
            failed += "error" in result
        counters = self._services.counters
        succeeded = len(results) - failed
        if succeeded:
            counters.inc("succeeded", succeeded)
        if failed:
            counters.inc("failed", failed)
        line = response_line(request.request_id, request.key, results, request.metadata)
        return Answer([line], len(results), succeeded, 0, 0, 0)

    def _result(self, here: _Here, index: int, call: ToolCall, tool: Tool) -> dict[str, Any]:
        here.enter(index, call)
        began_ns = 0
        text: str | None = None
        error: dict[str, Any] | None = None
        try:
            body = tool.prepare(read_arguments(tool, call.arguments, self._arguments_limit))
            began_ns = perf_counter_ns()
            text = encode(closed(body()), self._result_limit)
        except BaseException as exception:  # SystemExit and KeyboardInterrupt raised by a tool are that call's failure
            if is_fatal(exception):
                raise
            if is_interruption(exception, asked=self._services.attempt.interrupted):
                raise Interrupted from None
            error = capture(exception, self._services.attempt.secrets).error()
        duration_ms = since_ms(began_ns) if began_ns else 0
        counters = self._services.counters
        counters.latency("call_ms", duration_ms)
        if here.counts:
            for name, n in here.counts.items():
                counters.inc(f"tool.{name}", n)
        attempts = 1 if began_ns else 0
        return result_record(call.position, call.call_id, call.tool, text, error, attempts, False, duration_ms)
