"""The time limits of one action's calls: what is due when, and how a call ends whose time is over."""

from __future__ import annotations

from flink_agents.durable.outcome import Succeeded
from flink_agents.durable.slots import Slot
from flink_agents.errors import CallTimeout, Interrupted
from flink_agents.options import Execution
from flink_agents.retry import next_wait_ms
from flink_agents.scheduler.call import Completion, Ending, RunningCall
from flink_agents.scheduler.calls import ActionCalls
from flink_agents.scheduler.handles import CallOutcome, SleepFuture, Wait
from flink_agents.scheduler.prepared import UNPREPARED
from flink_agents.scheduler.timers import Due, Timer

__all__ = ["TimedCalls"]

_BATCH_OVER = "the deadline of its batch passed before it ended"
_RECONCILER_OVER = "the reconciler ran longer than the tool's timeout of {} ms: the call may have taken effect"


class TimedCalls(ActionCalls):
    """The calls of one action with their time limits. Task thread only.

    Timers are set where a call begins or waits; here they are looked at. They are lost with the attempt and made again
    on replay, from the absolute times in the slots.
    """

    def next_ms(self) -> int | None:
        """Return when ``expire`` has something to do, in milliseconds since the epoch; None without a timer."""
        return self.timers.next_ms(self._is_live)

    def expire(self, now_ms: int) -> None:
        """Do what is due: wake sleepers, begin further bodies, end what has run out of time."""
        if self._services.attempt.interrupted:
            raise Interrupted
        overdue: list[tuple[int, Due]] = []
        for timer in self.timers.pop_due(now_ms, self._is_live):
            if timer.due is Due.SLEEP:
                self._awake(timer.subject)
            elif timer.due is Due.RETRY:
                self._paused.discard(timer.subject)
                self.start(self._handles[timer.subject])
            elif timer.due is Due.BATCH:
                overdue += self._end_batch(timer.subject)
            elif timer.due is Due.TIMEOUT:
                if self._has_timed_out(timer.subject, now_ms):
                    overdue.append((timer.subject.slot_index, Due.TIMEOUT))
            else:
                overdue.append((timer.subject, Due.DEADLINE))
        if overdue:
            self._end(dict(overdue))

    def expire_wait(self, wait: Wait) -> None:
        """End a wait whose deadline had passed before it began: a replay after it. Nothing of it starts."""
        self._end(dict(self._end_batch(wait)))

    def _awake(self, index: int) -> None:
        self._paused.discard(index)
        outcome = Succeeded("null")
        self.log.settle(self.log[index], outcome, 0)
        self._settle(index, CallOutcome(outcome, 0, 0, False))

    def _is_live(self, timer: Timer) -> bool:
        """Whether a timer still means something: what it was for may be over."""
        if timer.due is Due.BATCH:
            wait: Wait = timer.subject
            return self.wait is wait and not wait.is_expired
        if timer.due is Due.TIMEOUT:
            return self._running.get(timer.subject.slot_index) is timer.subject
        if timer.due is Due.DEADLINE:
            return timer.subject in self._handles
        return timer.subject in self._paused and timer.subject in self._handles

    def _has_timed_out(self, call: RunningCall, now_ms: int) -> bool:
        """Whether the body ran for its whole time-out; where it began later than it was handed over, look again."""
        timeout_ms = call.terms.timeout_ms or 0
        at_ms = now_ms + timeout_ms if call.ends_ms is None else call.ends_ms
        if at_ms > now_ms:
            self.timers.set(at_ms, Due.TIMEOUT, call)
        return at_ms <= now_ms

    def _end_batch(self, wait: Wait) -> list[tuple[int, Due]]:
        """Let nothing more of a batch start; return its calls without an outcome."""
        wait.is_expired = True
        for handle in wait.handles[wait.cursor :]:
            if handle.outcome is None and handle.slot is not None:
                self._handles[handle.slot.index] = handle
                wait.in_flight += 1
        wait.cursor = len(wait.handles)
        return [(handle.slot.index, Due.BATCH) for handle in wait.handles if handle.outcome is None and handle.slot]

    def _end(self, overdue: dict[int, Due]) -> None:
        """End calls whose time is over.

        What waits is fenced before anything is cancelled, so nothing starts in a place that a cancelled body leaves.
        After the cancellation everything is looked at once more: a body that finished keeps its outcome.
        """
        services = self._services
        running = [call for index in overdue if (call := self._running.get(index)) is not None]
        for index in overdue:
            if (waiting := self._queued.get(index)) is not None:
                self._unqueue(waiting)
        for call in running:
            call.expired = True
        for call in running:
            call.cancel()
        if self._fault is not None:
            self._fault("before:expired")
        self.take(services.sweep(self.origin.key_text))
        if services.attempt.interrupted:
            raise Interrupted
        for index, due in overdue.items():
            self._end_one(index, due)
        if self._fault is not None:
            self._fault("after:expired")

    def _end_one(self, index: int, due: Due) -> None:
        slot, call, handle = self.log[index], self._running.get(index), self._handles.get(index)
        if slot.status.is_terminal or handle is None or (call is None and due is Due.TIMEOUT):
            return  # the second look found its outcome, or a failure that is worth another attempt
        if call is not None and not call.fence():
            return  # its end is with the journal already: what that records is what stands
        self._paused.discard(index)
        in_doubt = False
        if call is None:
            call = self._call(handle, slot, UNPREPARED)
        else:
            in_doubt = self._stop(call, slot)
            call = call.successor()
        if not in_doubt:  # else the count is what the journal answered: the slot may not know of the body in doubt
            call.attempts = slot.attempts
        journal = self._services.journal
        if type(handle) is SleepFuture:
            self._end_sleep(slot)
        elif call.attempts:
            self._time_out(call, slot, due, in_doubt=in_doubt)
        elif journal is not None and call.look_up:
            self._running[index] = call
            journal.look(call)
        else:
            self._not_begun(call, slot)

    def _stop(self, call: RunningCall, slot: Slot) -> bool:
        """Leave a fenced body behind. One that had not begun never does; a thread's that goes on is a stray.

        Returns whether it had not begun and a reconciler was asked about it: only that may run then.
        """
        self._leave(call)
        body, reconciler = call, call.stand_in
        if call.forestall():
            self.log.unstart(slot)
            if call in self.started:
                # It was to begin in this very turn: neither worker nor journal hears of it.
                self.started.remove(call)
                self._services.admission.withdraw(call)
            if reconciler is None or reconciler.forestall():
                return reconciler is not None
            body = reconciler
        if body.terms.execution is not Execution.ASYNC and self._services.note_stray(body):
            call.is_stray = True
            self._services.counters.inc("strays")
        return body is not call

    def _end_sleep(self, slot: Slot) -> None:
        """End a sleep whose batch is over; one that was to end before that has ended, if only in a later life."""
        if 0 < slot.until_ms <= slot.batch_ms:
            self._awake(slot.index)
        else:
            self._leave_unrecorded(slot.index, CallTimeout(_BATCH_OVER))

    def _time_out(self, call: RunningCall, slot: Slot, due: Due, *, in_doubt: bool) -> None:
        """End a call that began; where nobody knows whether it took effect, no other attempt may follow."""
        if due is Due.TIMEOUT and in_doubt:
            error = CallTimeout(_RECONCILER_OVER.format(call.terms.timeout_ms))
        elif due is Due.TIMEOUT:
            error = CallTimeout(f"the attempt ran longer than its timeout of {call.terms.timeout_ms} ms")
        else:
            error = CallTimeout(_BATCH_OVER if due is Due.BATCH else "the call's deadline passed before it ended")
        duration_ms = max(0, self._services.clock() - slot.started_ms) if slot.started_ms else 0
        failed = self._failure(error)
        is_retried = due is Due.TIMEOUT and not in_doubt
        wait_ms = next_wait_ms(call.terms.retry, error, call.failed + 1) if is_retried else None
        if wait_ms is None:
            attempts = call.attempts if in_doubt else 0
            self._ended(Completion(call, Ending.ENDED, failed, None, duration_ms, attempts=attempts))
        else:
            self._failed_for_now(Completion(call, Ending.RETRY, failed, None, duration_ms, retry_ms=wait_ms))
