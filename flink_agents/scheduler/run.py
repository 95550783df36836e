"""One running action of one key: drives its coroutine from wait to wait and reserves the slots of each."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from functools import partial
from typing import Any

from flink_agents.durable.journal.rows import CallKey
from flink_agents.durable.outcome import Succeeded
from flink_agents.durable.slot_log import SlotLog
from flink_agents.errors import FlinkAgentsError, ForeignAwaitable, Interrupted
from flink_agents.faults import no_fault
from flink_agents.redaction import Redaction
from flink_agents.scheduler.call import Completion, RunningCall, is_fatal, is_interruption
from flink_agents.scheduler.handles import CallOutcome, DurableFuture, HandleState, Wait
from flink_agents.scheduler.loop_guard import explained, guarding
from flink_agents.scheduler.services import Counters, Services
from flink_agents.scheduler.time_limits import TimedCalls
from flink_agents.scheduler.timers import Due
from flink_agents.scheduler.tool_context import Origin

__all__ = ["CALL_KINDS", "ActionRun", "Counters", "RunStatus", "Services"]

CALL_KINDS = ("tool", "call")
"""Kinds of slots that stand for calls; the others are what the engine answers itself."""

_log = logging.getLogger(__name__)


class RunStatus(Enum):
    """A run goes on, has returned, has raised, or was stopped by the runtime with its slots pending."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class ActionRun:
    """One action of one key, from its first turn to its return. Task thread only.

    The coroutine is driven by hand: it can await our handles only. What it raises fails the task (the built-in action),
    or is kept in ``error`` (``guarded``: a user's action). After a restore the action runs again from its top and
    recorded slots answer at once.
    """

    def __init__(self, origin: Origin, log: SlotLog, services: Services, *, guarded: bool = False) -> None:
        self.key = origin.key_text
        self.origin = origin
        self.status = RunStatus.RUNNING
        self.result: Any = None
        self.error: BaseException | None = None
        self.calls = TimedCalls(origin, log, services)
        self._services = services
        self._fault = None if services.fault is no_fault else services.fault
        self._guarded = guarded
        self._coroutine: Coroutine[Wait, None, Any] | None = None
        self._wait: Wait | None = None
        self._nothing = self.calls.wait
        self._reserved = 0
        self._broken: BaseException | None = None
        self._replayed = 0

    @property
    def log(self) -> SlotLog:
        """The slots of the request."""
        return self.calls.log

    @log.setter
    def log(self, log: SlotLog) -> None:
        self.calls.log = log

    @property
    def started(self) -> list[RunningCall]:
        """The calls that begin in this turn; the runtime hands them to the workers once its state is written."""
        return self.calls.started

    @property
    def reran(self) -> int:
        """How many calls ran again after they had been cut off."""
        return self.calls.reran

    @property
    def replayed(self) -> int:
        """How many calls were answered by what an earlier attempt recorded."""
        return self._replayed + self.calls.replayed

    @property
    def secrets(self) -> Redaction:
        """What must not be in the record of a failure."""
        return self._services.attempt.secrets

    @property
    def is_replaying(self) -> bool:
        """Whether the action asks for calls that it asked for before a restore, and has not come to a new one."""
        return self._reserved < len(self.log)

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run the action from its top to its first wait that needs a worker, or to its end.

        Calls of an earlier coroutine of this run that still run in workers are taken over by the new one's slots.
        """
        self._unwind(Interrupted())
        self._coroutine = coroutine
        self._send, self._throw = partial(coroutine.send, None), coroutine.throw
        self._set_wait(None)
        self._reserved = 0
        self._replayed = 0
        self.calls.forget_handles()
        self.status = RunStatus.RUNNING
        self._resume(self._send)
        self._guard(None)

    def deliver(self, completions: Sequence[Completion]) -> None:
        """Record how bodies ended, then go on.

        Every outcome of the batch is recorded before an interruption stops the action, and the interruption is looked
        for before the action sees any of them.

        Raises:
            BaseException: what a body raised, where it must fail the task.
        """
        self._guard(lambda: self.calls.take(completions))

    def launch(self, calls: Sequence[RunningCall]) -> None:
        """Begin calls that waited for a worker and were granted one; a call nobody asks for any more gives it back."""
        if self.status is RunStatus.RUNNING:
            self._guard(lambda: self.calls.launch(calls))
        else:
            self.calls.withdraw(calls)

    def expire(self, now_ms: int) -> None:
        """Do what is due by this time, then go on.

        Raises:
            BaseException: what a body raised in the last moment, where it must fail the task.
        """
        if self.status is RunStatus.RUNNING:
            self._guard(lambda: self.calls.expire(now_ms))

    def next_ms(self) -> int | None:
        """Return when ``expire`` has something to do next, in milliseconds since the epoch."""
        return self.calls.next_ms() if self.status is RunStatus.RUNNING else None

    def close(self) -> None:
        """Drop the run and close its coroutine; its slots stay as they are."""
        self._unwind(Interrupted())

    def now_ms(self) -> int:
        """Return the time as recorded in a slot of its own, in milliseconds since the epoch. Called by the action."""
        outcome = self._answer_now(DurableFuture("now", "now", -1, {}), self._read_clock)
        return int(outcome.result())

    def uuid(self) -> uuid.UUID:
        """Return a UUID made of the name of a slot of its own: the same in every life. Called by the action."""
        outcome = self._answer_now(DurableFuture("uuid", "uuid", -1, {}), _uuid_of)
        return uuid.UUID(outcome.result())

    def _read_clock(self, row: CallKey) -> Succeeded:
        services = self._services
        if self.origin.look_up and isinstance(known := services.recorded(row), Succeeded):
            # Calls that the journal knows may have got this time as an argument.
            return known
        now = Succeeded(str(services.clock()))
        if services.journal is not None:
            services.journal.note(row, now)
        return now

    def _answer_now(self, handle: DurableFuture, answer: Callable[[CallKey], Succeeded]) -> CallOutcome:
        """Reserve a slot for what the engine answers itself, and record that; return what is recorded already."""
        try:
            self._reserve(handle)
            slot = handle.slot
            if handle.outcome is None and slot is not None:
                origin = self.origin
                row = CallKey.of(origin.run_id, origin.key_text, origin.intake, slot.identity)
                self.calls.settle_now(handle, slot, answer(row))
        except BaseException as fault:
            # Within the action, which may catch it: the task fails all the same.
            self._broken = fault
            raise
        return handle.outcome_of()

    def _guard(self, step: Callable[[], None] | None) -> None:
        """Do ``step`` and let the action go on; an interruption stops it, and what must fail the task unwinds it."""
        try:
            if step is not None:
                step()
            self._advance()
        except Interrupted:
            self._unwind(Interrupted())
            self.status = RunStatus.INTERRUPTED
        except BaseException as fatal:
            self._unwind(fatal)
            raise

    def _advance(self) -> None:
        while (wait := self._wait) is not None:
            self._fill(wait)
            if not wait.is_over:
                return
            self._resume(self._send)

    def _resume(self, step: Callable[[], Any]) -> None:
        """Run the coroutine to its next wait or its end."""
        fault = self._fault
        if fault is not None:
            fault("before:resumed")
        self._set_wait(None)
        while True:
            try:
                awaited = guarding(step) if self._guarded else step()
            except StopIteration as stop:
                self.status, self.result = RunStatus.DONE, stop.value
            except BaseException as error:  # SystemExit and KeyboardInterrupt raised by an action are its failure
                if not self._guarded or self._ends_more_than_the_action(error):
                    raise
                self.status, self.error = RunStatus.FAILED, explained(error)
            if self._broken is not None:
                raise self._broken
            if self.status is not RunStatus.RUNNING:
                break
            try:
                self._enter(awaited)
                break
            except FlinkAgentsError as error:
                # The action made the mistake, so the action gets the error, at the line that awaits.
                step = partial(self._throw, error)
        if fault is not None:
            fault("after:resumed")

    def _ends_more_than_the_action(self, error: BaseException) -> bool:
        return is_fatal(error) or is_interruption(error, asked=self._services.attempt.interrupted)

    def _enter(self, awaited: Any) -> None:
        """Reserve the slots of a wait in input order, before anything else happens for any of its calls."""
        if not isinstance(awaited, Wait):
            msg = (
                f"an action awaited {type(awaited).__name__ if awaited is not None else 'a bare yield'}: it can await "
                "only handles of its context, such as ctx.call_tool(...) and ctx.gather(...), not asyncio"
            )
            raise ForeignAwaitable(msg)
        for handle in awaited.handles:
            if handle.state is not HandleState.COLD or handle.owner is not self:
                handle.check_usable(self)
        for handle in awaited.handles:
            self._reserve(handle)
        if awaited.timeout_ms is not None:
            self._set_deadline(awaited, awaited.timeout_ms)
        self._set_wait(awaited)

    def _set_wait(self, wait: Wait | None) -> None:
        self._wait = wait
        self.calls.wait = self._nothing if wait is None else wait

    def _set_deadline(self, wait: Wait, timeout_ms: int) -> None:
        """Give the batch its absolute deadline: the recorded one if an earlier attempt began this wait."""
        slots = [handle.slot for handle in wait.handles if handle.slot is not None]
        recorded = [slot.batch_ms for slot in slots if slot.batch_ms]
        wait.until_ms = min(recorded) if recorded else self._services.clock() + timeout_ms
        for slot in slots:
            if not slot.batch_ms and slot.outcome is None:
                slot.batch_ms = wait.until_ms
                self.log.touch(slot)
        self.calls.timers.set(wait.until_ms, Due.BATCH, wait)

    def _reserve(self, handle: DurableFuture) -> None:
        if self._fault is not None:
            self._fault("before:reserve")
        slot = self.log.reserve(self._reserved, handle)
        self._reserved += 1
        handle.slot = slot
        handle.state = HandleState.RESERVED
        if self._fault is not None:
            self._fault("after:reserve")
        if slot.outcome is not None:
            self._replayed += handle.kind in CALL_KINDS
            self._services.counters.inc("replayed")
            handle.settle(CallOutcome(slot.outcome, slot.attempts, slot.duration_ms, True))

    def _fill(self, wait: Wait) -> None:
        """Begin the next calls of the window, in order, while it has room."""
        handles, limit, calls = wait.handles, wait.max_in_flight, self.calls
        if wait.until_ms is not None and not wait.is_expired and wait.until_ms <= self._services.clock():
            calls.expire_wait(wait)
        while wait.in_flight < limit and wait.cursor < len(handles):
            handle = handles[wait.cursor]
            wait.cursor += 1
            if handle.outcome is None:
                wait.in_flight += 1
                calls.start(handle)

    def _unwind(self, reason: BaseException) -> None:
        """Let the coroutine run its ``finally`` clauses; whatever it answers, it is not driven any further."""
        coroutine, self._coroutine = self._coroutine, None
        self._set_wait(None)
        if coroutine is None:
            return
        throw = partial(coroutine.throw, reason)
        try:
            if self._guarded:
                guarding(throw)
            else:
                throw()
            _log.warning("the action of key %s awaits something after its end; it is not driven any further", self.key)
        except BaseException as answer:  # the reason itself, or what a finally clause made of it: the reason stands
            if answer is not reason and not isinstance(answer, StopIteration):
                _log.warning("the action of key %s answered its end with %r", self.key, answer)
        try:
            coroutine.close()
        except BaseException as answer:
            _log.warning("the action of key %s does not let itself be ended: %r", self.key, answer)


def _uuid_of(row: CallKey) -> Succeeded:
    name = hashlib.sha256(f"uuid {row.idempotency_key}".encode()).digest()[:16]
    return Succeeded(f'"{uuid.UUID(bytes=name, version=4)}"')
