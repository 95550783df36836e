"""One running action of one key: drives its coroutine, reserves and records its slots, begins its calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from time import perf_counter_ns
from typing import Any, Protocol

from flink_agents.clock import Clock, monotonic_ms
from flink_agents.durable.outcome import Failed, Outcome
from flink_agents.durable.slot_log import SlotLog
from flink_agents.durable.slots import Slot, SlotStatus
from flink_agents.errors import FlinkAgentsError, ForeignAwaitable, FrameworkFault, HandleMisuse, Interrupted
from flink_agents.failures import capture
from flink_agents.faults import Fault, no_fault
from flink_agents.options import Execution, OnInterrupt
from flink_agents.scheduler.admission import Admission
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.call import (
    Completion,
    Ending,
    Prepared,
    RunningCall,
    carried,
    conclude_exception,
    is_fatal,
    is_interruption,
    run_body,
)
from flink_agents.scheduler.call_journal import CallJournal
from flink_agents.scheduler.handles import CallOutcome, DurableFuture, HandleState, Wait
from flink_agents.scheduler.tool_context import Origin, running_call

__all__ = ["ActionRun", "Counters", "RunStatus", "Services"]

_log = logging.getLogger(__name__)


def _never_prepared() -> None:
    """Stand in for the body of a call whose preparation failed."""


_UNPREPARED = Prepared(_never_prepared, Execution.INLINE, "")


def _since_ms(began_ns: int) -> int:
    return (perf_counter_ns() - began_ns + 500_000) // 1_000_000


class Counters(Protocol):
    """Where the engine counts. Task thread only."""

    def inc(self, name: str, n: int = 1) -> None:
        """Add ``n`` (may be negative) to the counter."""

    def latency(self, name: str, ms: float) -> None:
        """Record one duration in milliseconds."""


@dataclass(frozen=True, slots=True)
class Services:
    """What every action of one subtask shares."""

    attempt: Attempt
    admission: Admission
    clock: Clock
    counters: Counters
    fault: Fault
    result_limit: int
    journal: CallJournal | None = None


class RunStatus(Enum):
    """A run goes on, has returned, or was stopped by the runtime with its slots pending."""

    RUNNING = "running"
    DONE = "done"
    INTERRUPTED = "interrupted"


class ActionRun:
    """One action of one key, from its first turn to its return. Task thread only.

    The coroutine is driven by hand: it can await our handles only. ``started`` collects the calls that begin in this
    turn; the runtime hands them to the workers once the turn's state is written. After a restore the action runs again
    from its top and recorded slots answer at once.
    """

    def __init__(self, origin: Origin, log: SlotLog, services: Services) -> None:
        self.key = origin.key_text
        self.origin = origin
        self.log = log
        self.status = RunStatus.RUNNING
        self.result: Any = None
        self.started: list[RunningCall] = []
        self.reran = 0
        self._services = services
        # A dozen passings a call: where no test has armed any, not even an empty function is called.
        self._fault = None if services.fault is no_fault else services.fault
        self._coroutine: Coroutine[Wait, None, Any] | None = None
        self._wait: Wait | None = None
        self._reserved = 0
        self._running: dict[int, RunningCall] = {}
        self._queued: dict[int, RunningCall] = {}
        self._handles: dict[int, DurableFuture] = {}
        self._again: set[int] = set()

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run the action from its top to its first wait that needs a worker, or to its end.

        Calls of an earlier coroutine of this run that still run in workers are taken over by the new one's slots.
        """
        self._unwind(Interrupted())
        self._coroutine = coroutine
        self._wait = None
        self._reserved = 0
        self._handles.clear()
        self.status = RunStatus.RUNNING
        self._resume(self._send)
        self._advance()

    def deliver(self, completions: Sequence[Completion]) -> None:
        """Record how bodies ended, then go on.

        Every outcome of the batch is recorded before an interruption stops the action, and the interruption is looked
        for before the action sees any of them.

        Raises:
            BaseException: what a body raised, where it must fail the task.
        """
        interrupted = False
        fatal: BaseException | None = None
        for completion in completions:
            call = completion.call
            self._services.admission.ended(call)
            if completion.ending is Ending.FATAL:
                fatal = completion.exception
                continue
            if self._running.get(call.slot_index) is not call:
                continue  # its slot was dropped by a mismatch: nobody asks for this outcome any more
            del self._running[call.slot_index]
            if call.in_flight:
                self._services.counters.inc("in_flight", -1)
            if self._is_interrupted(completion):
                interrupted = True
            elif completion.outcome is not None:
                self._record(completion, completion.outcome)
        if fatal is not None:
            self._unwind(fatal)
            raise fatal
        if interrupted:
            self._interrupt()
        self._advance()

    def launch(self, calls: Sequence[RunningCall]) -> None:
        """Begin calls that waited for a worker and were granted one; a call nobody asks for any more gives it back."""
        self._services.counters.inc("queued", -len(calls))
        for call in calls:
            if self.status is RunStatus.RUNNING and self._queued.pop(call.slot_index, None) is call:
                self._begin_call(call)
            else:
                self._services.admission.withdraw(call)

    def close(self) -> None:
        """Drop the run and close its coroutine; its slots stay as they are."""
        self._unwind(Interrupted())

    def _advance(self) -> None:
        while (wait := self._wait) is not None:
            self._fill(wait)
            # Filling may have found an interruption, which takes the wait away.
            if self._wait is None or not wait.is_over:
                return
            self._resume(self._send)

    def _send(self) -> Any:
        return self._driven.send(None)

    @property
    def _driven(self) -> Coroutine[Wait, None, Any]:
        if self._coroutine is None:
            msg = f"the action of key {self.key} is driven without a coroutine"
            raise FrameworkFault(msg)
        return self._coroutine

    def _resume(self, step: Callable[[], Any]) -> None:
        """Run the coroutine to its next wait or its end."""
        fault = self._fault
        if fault is not None:
            fault("before:resumed")
        self._wait = None
        while True:
            try:
                awaited = step()
            except StopIteration as stop:
                self.status, self.result = RunStatus.DONE, stop.value
                break
            try:
                self._enter(awaited)
                break
            except FlinkAgentsError as error:
                # The action made the mistake, so the action gets the error, at the line that awaits.
                step = partial(self._driven.throw, error)
        if fault is not None:
            fault("after:resumed")

    def _enter(self, awaited: Any) -> None:
        """Reserve the slots of a wait in input order, before anything else happens for any of its calls."""
        if not isinstance(awaited, Wait):
            msg = (
                f"an action awaited {type(awaited).__name__ if awaited is not None else 'a bare yield'}: it can await "
                "only handles of its context, such as ctx.call_tool(...) and ctx.gather(...), not asyncio"
            )
            raise ForeignAwaitable(msg)
        for handle in awaited.handles:
            if handle.state is HandleState.CLOSED:
                msg = f"the handle of {handle.name!r} was closed before it had an outcome"
                raise HandleMisuse(msg)
        for handle in awaited.handles:
            if handle.state is HandleState.COLD:
                self._reserve(handle)
        self._wait = awaited

    def _reserve(self, handle: DurableFuture) -> None:
        services = self._services
        if self._fault is not None:
            self._fault("before:reserve")
        slot = self.log.reserve(self._reserved, handle)
        self._reserved += 1
        handle.slot = slot
        handle.state = HandleState.RESERVED
        if self._fault is not None:
            self._fault("after:reserve")
        if slot.outcome is not None:
            services.counters.inc("replayed")
            handle.settle(CallOutcome(slot.outcome, slot.attempts, slot.duration_ms, True))

    def _fill(self, wait: Wait) -> None:
        """Begin the next calls of the window, in order, while it has room."""
        handles, limit = wait.handles, wait.max_in_flight
        while wait.in_flight < limit and wait.cursor < len(handles) and self._wait is wait:
            handle = handles[wait.cursor]
            wait.cursor += 1
            if handle.outcome is None:
                wait.in_flight += 1
                self._start(handle)

    def _start(self, handle: DurableFuture) -> None:
        services, slot = self._services, handle.slot
        if slot is None:
            msg = f"the handle of {handle.name!r} has no slot"
            raise FrameworkFault(msg)
        index = slot.index
        self._handles[index] = handle
        if index in self._running or index in self._queued:
            return
        if services.attempt.interrupted:
            self._interrupt()
            return
        body = None
        try:
            if services.journal is None:
                body = handle.body_here()
            prepared = _UNPREPARED if body is not None else handle.prepare()
        except BaseException as exception:  # an ordinary exception while preparing is this slot's terminal failure
            self._not_prepared(handle, slot, exception)
            return
        call = RunningCall(self.origin, slot, prepared, services.attempt, services.result_limit, handle.call_id)
        if body is not None:
            self._run_here(call, slot, body, handle)
        elif prepared.execution is Execution.INLINE:
            self._begin_inline(call, slot)
        elif services.admission.admit(call):
            self._begin_call(call)
        else:
            self._queued[index] = call
            services.counters.inc("queued")

    def _not_prepared(self, handle: DurableFuture, slot: Slot, exception: BaseException) -> None:
        services = self._services
        if is_fatal(exception):
            self._unwind(exception)
            raise exception
        if is_interruption(exception, asked=services.attempt.interrupted):
            self._interrupt()
            return
        call = RunningCall(self.origin, slot, _UNPREPARED, services.attempt, services.result_limit, handle.call_id)
        self._ended(Completion(call, Ending.ENDED, Failed(capture(exception), exception), None, 0))

    def _begin_call(self, call: RunningCall) -> None:
        self._note_start(call, self.log[call.slot_index])
        call.in_flight = True
        self._services.counters.inc("in_flight")
        self._running[call.slot_index] = call
        self.started.append(call)

    def _run_here(self, call: RunningCall, slot: Slot, body: Callable[[], Any], handle: DurableFuture) -> None:
        """Run a body on the task thread and settle its call: the steps of every call, in one piece.

        Calls of microseconds would spend most of their time between the pieces that calls of workers go through. What
        does not simply succeed goes their way.
        """
        services, fault = self._services, self._fault
        self._note_start(call, slot)
        began = perf_counter_ns()
        entered = running_call.set(call)
        try:
            outcome = carried(body(), call.result_limit)
        except BaseException as exception:  # SystemExit and KeyboardInterrupt raised by a tool are that call's failure
            self._ended(conclude_exception(call, exception, _since_ms(began)))
            return
        finally:
            running_call.reset(entered)
        duration_ms = _since_ms(began)
        if fault is not None or call.slot_index in self._again or call.has_context:
            self._record(Completion(call, Ending.ENDED, outcome, None, duration_ms), outcome)
            return
        slot.settle(outcome, duration_ms)
        services.counters.inc("succeeded")
        services.counters.latency("call_ms", duration_ms)
        del self._handles[call.slot_index]
        handle.outcome = CallOutcome(outcome, slot.attempts, duration_ms, False)
        handle.state = HandleState.SETTLED
        if self._wait is not None:
            self._wait.in_flight -= 1

    def _begin_inline(self, call: RunningCall, slot: Slot) -> None:
        """Run the body here and now, unless the journal has to be asked first: then it runs on a worker's thread."""
        if call.look_up or call.prepared.on_interrupt is not OnInterrupt.RERUN:
            self._begin_call(call)
            return
        self._note_start(call, slot)
        self._ended(run_body(call, monotonic_ms))

    def _ended(self, completion: Completion) -> None:
        """Settle a call that ended on the task thread; with a journal, once that has recorded it."""
        call, journal = completion.call, self._services.journal
        if journal is not None:
            self._running[call.slot_index] = call
            journal.finish(completion)
        elif completion.outcome is not None and not self._is_interrupted(completion):
            self._record(completion, completion.outcome)
        elif completion.ending is Ending.FATAL and completion.exception is not None:
            self._unwind(completion.exception)
            raise completion.exception
        else:
            self._interrupt()

    def _note_start(self, call: RunningCall, slot: Slot) -> None:
        services = self._services
        if self._fault is not None:
            self._fault("before:start")
        if slot.attempts and slot.attempt_id != services.attempt.id:
            self._again.add(call.slot_index)
        self.log.start(slot, services.attempt.id, services.clock())
        if self._fault is not None:
            self._fault("after:start")

    def _record(self, completion: Completion, outcome: Outcome) -> None:
        """Write the outcome into the slot that was reserved for it, and settle its handle."""
        services, call = self._services, completion.call
        index, counters = call.slot_index, services.counters
        slot = self.log[index]
        if self._fault is not None:
            self._fault("before:recorded")
        if slot.attempt_id == services.attempt.id:
            slot.attempts = completion.attempts or call.attempts
        if completion.recorded:
            counters.inc("replayed")
        elif index in self._again and slot.attempts > 1:
            self.reran += 1
            counters.inc("reran")
        self.log.settle(slot, outcome, completion.duration_ms)
        counters.inc("succeeded" if slot.status is SlotStatus.SUCCEEDED else "failed")
        counters.latency("call_ms", completion.duration_ms)
        for name, n in call.counts.items():
            counters.inc(f"tool.{name}", n)
        if self._fault is not None:
            self._fault("after:recorded")
        handle = self._handles.pop(index, None)
        if handle is not None:
            handle.settle(CallOutcome(outcome, slot.attempts, completion.duration_ms, completion.recorded))
            if self._wait is not None:
                self._wait.in_flight -= 1

    def _is_interrupted(self, completion: Completion) -> bool:
        """Whether a body ended because the runtime asked, also where a worker called that an ordinary failure."""
        if completion.ending is Ending.INTERRUPTED:
            return True
        outcome = completion.outcome
        return (
            type(outcome) is Failed
            and outcome.exception is not None
            and is_interruption(outcome.exception, asked=self._services.attempt.interrupted)
        )

    def _interrupt(self) -> None:
        self._unwind(Interrupted())
        self.status = RunStatus.INTERRUPTED

    def _unwind(self, reason: BaseException) -> None:
        """Let the coroutine run its ``finally`` clauses; whatever it answers, it is not driven any further."""
        coroutine, self._coroutine = self._coroutine, None
        self._wait = None
        if coroutine is None:
            return
        try:
            coroutine.throw(reason)
        except BaseException as answer:  # the reason itself, or what a finally clause made of it: the reason stands
            if answer is not reason and not isinstance(answer, StopIteration):
                _log.warning("the action of key %s answered its end with %r", self.key, answer)
        finally:
            coroutine.close()
