"""Requests whose calls all begin at once and are bounded by nothing: run without an action's coroutine and its handles.

What is written and when, what workers and journal see, and what is answered are as for any other request. A restored
request goes the ordinary way: its state is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flink_agents import codec
from flink_agents.durable.identity import Identity
from flink_agents.durable.outcome import Failed, Outcome, Succeeded
from flink_agents.durable.slot_log import SlotLog
from flink_agents.durable.slots import Slot
from flink_agents.errors import Interrupted
from flink_agents.events import ToolRequestEvent, response_line, result_record
from flink_agents.faults import no_fault
from flink_agents.options import Mode, OnMismatch, OperatorOptions
from flink_agents.records import is_flat
from flink_agents.runtime.program import Answer
from flink_agents.scheduler.call import Completion, Ending, RunningCall, is_fatal, is_interruption, says_cancelled
from flink_agents.scheduler.handles import arguments_digest
from flink_agents.scheduler.prepared import UNPREPARED, CallTerms, Prepared
from flink_agents.scheduler.run import RunStatus
from flink_agents.scheduler.services import Services
from flink_agents.scheduler.tool_context import Origin
from flink_agents.tool_call import TOOL_KIND, ToolTerms, read_arguments
from flink_agents.tools.async_tool import AsyncTool
from flink_agents.tools.base import Tool
from flink_agents.tools.registry import ToolRegistry

__all__ = ["SideBySide", "SideBySideRun"]


class SideBySide:
    """Begins requests of plain tools. Task thread only.

    Plain: the body runs on a worker, its first end is the call's, and after an interruption it runs again.
    """

    def __init__(self, registry: ToolRegistry, options: OperatorOptions, services: Services, terms: ToolTerms) -> None:
        self._services = services
        self._limit = options.limits.arguments
        calls = options.tool_calls
        self._at_once = 1 if calls.mode is Mode.SEQUENTIAL else calls.max_in_flight
        self._on_mismatch = calls.on_mismatch
        self._tools: dict[str, tuple[Tool, CallTerms]] = {}
        if calls.timeout_ms is None:
            for tool in registry.tools():
                of_tool = terms.of(tool.spec)
                if of_tool.is_plain_worker and not isinstance(tool, AsyncTool) and not tool.spec.inject:
                    self._tools[tool.spec.name] = tool, of_tool

    def begin(self, request: ToolRequestEvent, origin: Origin) -> SideBySideRun | None:
        """Begin a request that no attempt has begun before; None where it has to go the ordinary way.

        Raises:
            BaseException: what preparing a call raised that must fail the task.
        """
        known, services, calls = self._tools, self._services, request.calls
        if not 0 < len(calls) <= self._at_once or services.attempt.interrupted:
            return None
        tools: list[tuple[Tool, CallTerms]] = []
        for call in calls:
            found = known.get(call.tool)
            if found is None:
                return None
            tools.append(found)
        if not services.admission.admit_all(services.attempt, [terms for _, terms in tools]):
            return None
        ready: list[Prepared | Failed] = []
        identities: list[Identity] = []
        for index, (call, (tool, terms)) in enumerate(zip(calls, tools, strict=True)):
            try:
                prepared, digest = self._prepare(call.arguments, tool, terms)
            except Interrupted:
                return None  # what was admitted has been reclaimed; the ordinary way ends in good order
            ready.append(prepared)
            identities.append(Identity(index, TOOL_KIND, call.tool, call.position, digest))
        return SideBySideRun(request, origin, services, self._on_mismatch, ready, identities)

    def _prepare(self, asked: Any, tool: Tool, terms: CallTerms) -> tuple[Prepared | Failed, str]:
        """Return the body, or how preparing failed, which is the call's outcome; and the digest of what was asked."""
        digest = ""
        try:
            if type(asked) is dict and is_flat(asked, self._limit):
                digest = codec.flat_digest(asked)
                return Prepared(tool.prepare(asked.copy()), terms), digest
            return Prepared(tool.prepare(read_arguments(tool, asked, self._limit)), terms), arguments_digest(asked)
        except BaseException as exception:  # an ordinary exception while preparing is this slot's terminal failure
            attempt, admission = self._services.attempt, self._services.admission
            admission.give_back(attempt, terms)
            if is_fatal(exception):
                raise
            if is_interruption(exception, asked=attempt.interrupted):
                raise Interrupted from None
            return Failed.of(exception, attempt.secrets), digest or arguments_digest(asked)


class SideBySideRun:
    """The calls of one request, all of which begin now, from here to its answer. Task thread only."""

    __slots__ = ("_fault", "_left", "_recorded", "_request", "_services", "log", "origin", "started", "status")

    def __init__(
        self,
        request: ToolRequestEvent,
        origin: Origin,
        services: Services,
        on_mismatch: OnMismatch,
        ready: Sequence[Prepared | Failed],
        identities: Sequence[Identity],
    ) -> None:
        self.origin = origin
        self.status = RunStatus.RUNNING
        self.log = log = SlotLog(origin.intake, on_mismatch)
        self._request = request
        self._services = services
        self._fault = None if services.fault is no_fault else services.fault
        self._left = len(ready)
        self._recorded: set[int] | None = None
        self.started: list[RunningCall] = []
        self._begin(ready, log.reserve_all(identities))

    def _begin(self, ready: Sequence[Prepared | Failed], slots: Sequence[Slot]) -> None:
        services, origin, log = self._services, self.origin, self.log
        attempt, limit, clock, now = services.attempt, services.result_limit, services.clock, services.clock()
        self._at("before:reserve", "after:reserve", "before:start")
        for prepared, slot, asked in zip(ready, slots, self._request.calls, strict=True):
            if type(prepared) is Prepared:
                call = RunningCall(origin, slot, prepared, attempt, limit, asked.call_id, clock, admitted=True)
                call.in_flight = True
                log.start(slot, attempt.id, now)
                self.started.append(call)
        self._at("after:start")
        services.counters.inc("in_flight", len(self.started))
        for prepared, slot, asked in zip(ready, slots, self._request.calls, strict=True):
            if isinstance(prepared, Failed):
                call = RunningCall(origin, slot, UNPREPARED, attempt, limit, asked.call_id, clock)
                call.attempts = 0
                ended = Completion(call, Ending.ENDED, prepared, None, 0)
                if services.journal is None:
                    self.deliver([ended])
                else:
                    services.journal.finish(ended)

    def deliver(self, completions: Sequence[Completion]) -> None:
        """Record how bodies of this request ended; once all have, the request is done.

        Raises:
            BaseException: what a body raised, where it must fail the task.
        """
        services = self._services
        attempt, admission, counters = services.attempt, services.admission, services.counters
        interrupted = False
        fatal: BaseException | None = None
        failed = succeeded = in_flight = 0
        for completion in completions:
            call, outcome = completion.call, completion.outcome
            admission.ended(call)
            in_flight += call.in_flight
            if completion.ending is Ending.FATAL:
                fatal = completion.exception
            elif outcome is None or (attempt.interrupted and says_cancelled(completion)):
                interrupted = True
            else:
                if type(outcome) is Failed:
                    failed += 1
                else:
                    succeeded += 1
                self._record(completion, outcome)
        for name, n in (("in_flight", -in_flight), ("failed", failed), ("succeeded", succeeded)):
            if n:
                counters.inc(name, n)
        if fatal is not None:
            raise fatal
        if interrupted:
            self.status = RunStatus.INTERRUPTED
        elif self._left == 0:
            self._at("before:resumed")
            self.status = RunStatus.DONE
            self._at("after:resumed")

    def launch(self, calls: Sequence[RunningCall]) -> None:
        """Give back what calls were granted: none of this run ever waits for a worker."""
        for call in calls:
            self._services.admission.withdraw(call)

    def expire(self, now_ms: int) -> None:
        """Do nothing: no time bounds these calls."""

    def next_ms(self) -> int | None:
        """Return None: no time bounds these calls."""
        return None

    def close(self) -> None:
        """Drop the run; its slots stay as they are."""
        self.status = RunStatus.INTERRUPTED

    def answer(self) -> Answer:
        """Return the response, once the run is done."""
        recorded = self._recorded or ()
        results: list[dict[str, Any]] = []
        succeeded = timed_out = 0
        for call, slot in zip(self._request.calls, self.log, strict=True):
            outcome = slot.outcome
            text = error = None
            if isinstance(outcome, Succeeded):
                text = outcome.text
                succeeded += 1
            elif outcome is not None:
                error = outcome.failure.error()
                timed_out += error["kind"] == "timeout"
            replayed = slot.index in recorded
            results.append(
                result_record(
                    call.position, call.call_id, call.tool, text, error, slot.attempts, replayed, slot.duration_ms
                )
            )
        request = self._request
        line = response_line(request.request_id, request.key, results, request.metadata)
        return Answer([line], len(results), succeeded, timed_out, len(recorded), 0)

    def _record(self, completion: Completion, outcome: Outcome) -> None:
        call, counters = completion.call, self._services.counters
        self._at("before:recorded")
        slot = self.log[call.slot_index]
        slot.attempts = completion.attempts or call.attempts
        if completion.recorded:
            self._recorded = {slot.index, *(self._recorded or ())}
            counters.inc("replayed")
        self.log.settle(slot, outcome, completion.duration_ms)
        counters.latency("call_ms", completion.duration_ms)
        if call.has_context:
            for name, n in call.counts.items():
                counters.inc(f"tool.{name}", n)
        self._left -= 1
        self._at("after:recorded")

    def _at(self, *points: str) -> None:
        if self._fault is not None:
            for point in points:
                self._fault(point)
