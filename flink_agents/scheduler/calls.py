"""The calls of one running action, from their turn in the batch to their outcome: begin, retry, record, hand over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

from flink_agents.clock import monotonic_ms, since_ms
from flink_agents.durable.outcome import Failed, Outcome
from flink_agents.durable.slot_log import SlotLog
from flink_agents.durable.slots import Slot, SlotStatus
from flink_agents.errors import CallError, CallTimeout, FrameworkFault, Interrupted, NotStarted
from flink_agents.faults import no_fault
from flink_agents.options import Execution, OnInterrupt
from flink_agents.scheduler.call import (
    Completion,
    Ending,
    RunningCall,
    carried,
    conclude_exception,
    is_fatal,
    is_interruption,
    run_body,
    says_cancelled,
)
from flink_agents.scheduler.handles import CallOutcome, DurableFuture, SleepFuture, Wait
from flink_agents.scheduler.prepared import UNPREPARED, Prepared
from flink_agents.scheduler.services import Services
from flink_agents.scheduler.timers import Due, Timers
from flink_agents.scheduler.tool_context import Origin, running_call

__all__ = ["ActionCalls"]

_STRAYS = "more thread bodies outlived their time-outs than workers.max_strays replaces: none begins until some return"
_NOT_BEGUN = "the deadline of its batch passed before it began"


class ActionCalls:
    """Begins and ends the calls of one action. Task thread only; decides nothing about the action itself.

    A call is in one of these places: *running* (its body was handed to a worker, or its outcome to the journal),
    *queued* (it waits for a worker), *paused* (it sleeps, or waits before its next body). ``started`` collects the
    calls that begin in this turn. Its methods raise ``Interrupted`` where the runtime asked for the end, and whatever
    must fail the task.
    """

    def __init__(self, origin: Origin, log: SlotLog, services: Services) -> None:
        self.origin = origin
        self.log = log
        self.started: list[RunningCall] = []
        self.reran = self.replayed = 0
        self.wait = Wait((), 0)
        self.timers = Timers()
        self._services = services
        # A dozen passings a call: where no test has armed any, not even an empty function is called.
        self._fault = None if services.fault is no_fault else services.fault
        self._handles: dict[int, DurableFuture] = {}
        self._running: dict[int, RunningCall] = {}
        self._queued: dict[int, RunningCall] = {}
        self._paused: set[int] = set()
        self._again: set[int] = set()

    def forget_handles(self) -> None:
        """Let a new coroutine of the action ask anew for the calls that are under way."""
        self._handles.clear()

    def start(self, handle: DurableFuture) -> None:
        """Begin the call of a reserved slot, or take over one that is under way."""
        services, slot = self._services, handle.slot
        if slot is None:
            msg = f"the handle of {handle.name!r} has no slot"
            raise FrameworkFault(msg)
        index = slot.index
        self._handles[index] = handle
        if index in self._running or index in self._queued or index in self._paused:
            return
        if services.attempt.interrupted:
            raise Interrupted
        if type(handle) is SleepFuture:
            self._sleep(handle, slot)
            return
        if self.origin.look_up and handle.submits and self._is_recorded(handle, slot):
            return
        body = None
        try:
            if services.journal is None:
                body = handle.body_here()
            prepared = UNPREPARED if body is not None else handle.prepare()
        except BaseException as exception:  # an ordinary exception while preparing is this slot's terminal failure
            self._not_prepared(handle, slot, exception)
            return
        call = self._call(handle, slot, prepared)
        if body is not None:
            self._run_here(call, slot, body, handle)
        elif not self._waits(call, slot):
            self._submit(call, slot)

    def _is_recorded(self, handle: DurableFuture, slot: Slot) -> bool:
        """Settle a call that ended in an earlier attempt, as the journal says, before its preparation does anything."""
        call = self._call(handle, slot, UNPREPARED)
        known = self._services.recorded(call.row)
        if known is not None:
            self._record(Completion(call, Ending.ENDED, known, None, 0, recorded=True), known)
        return known is not None

    def launch(self, calls: Sequence[RunningCall]) -> None:
        """Begin calls that waited for a worker and were granted one; a call nobody asks for any more gives it back."""
        if self._services.attempt.interrupted:
            self.withdraw(calls)
            raise Interrupted
        for call in calls:
            if self._queued.get(call.slot_index) is not call:
                self._services.admission.withdraw(call)
                continue
            del self._queued[call.slot_index]
            self._services.counters.inc("queued", -1)
            if call.admitted:
                self._begin(call)
            else:
                self._refuse(call)

    def withdraw(self, calls: Sequence[RunningCall]) -> None:
        """Give back what calls were granted that will not begin, because the action is over."""
        for call in calls:
            if self._queued.pop(call.slot_index, None) is call:
                self._services.counters.inc("queued", -1)
            self._services.admission.withdraw(call)

    def take(self, completions: Sequence[Completion]) -> None:
        """Record how bodies ended. Every outcome of the batch is recorded before an interruption stops the action."""
        services = self._services
        interrupted = False
        fatal: BaseException | None = None
        for completion in completions:
            call = completion.call
            services.admission.ended(call)
            if call.is_stray:
                services.counters.inc("strays", -1)
            if call.fenced:
                continue  # its call went on without it
            if completion.ending is Ending.FATAL:
                fatal = completion.exception
                continue
            waiting = self._queued.get(call.slot_index) if completion.recorded else None
            if waiting is not None and waiting.row == call.row and completion.outcome is not None:
                self._unqueue(waiting)  # it waited for a worker, and the journal knows it
                self._record(completion, completion.outcome)
                continue
            if self._running.get(call.slot_index) is not call:
                continue  # its slot was dropped by a mismatch: nobody asks for this outcome any more
            if call.expired and not call.concluded and says_cancelled(completion):
                continue  # stopped because its time is over, which is recorded as just that
            self._leave(call)
            if self._is_interrupted(completion):
                interrupted = True
            elif completion.ending is Ending.RETRY:
                self._failed_for_now(completion)
            elif completion.outcome is None:
                self._absent(completion)
            else:
                self._record(completion, completion.outcome)
        if fatal is not None:
            raise fatal
        if interrupted:
            raise Interrupted

    def _unqueue(self, call: RunningCall) -> None:
        """Let a call never begin that waits for a worker."""
        del self._queued[call.slot_index]
        call.fence()
        call.forestall()
        self._services.admission.forget(call)
        self._services.counters.inc("queued", -1)

    def settle_now(self, handle: DurableFuture, slot: Slot, outcome: Outcome) -> None:
        """Record what the engine itself answers, such as the time, and settle its handle."""
        self.log.settle(slot, outcome, 0)
        handle.settle(CallOutcome(outcome, slot.attempts, 0, False))

    def _call(self, handle: DurableFuture, slot: Slot, prepared: Prepared) -> RunningCall:
        services = self._services
        return RunningCall(
            self.origin, slot, prepared, services.attempt, services.result_limit, handle.call_id, services.clock
        )

    def _waits(self, call: RunningCall, slot: Slot) -> bool:
        """Set the call's deadline when its turn comes; return whether it must not begin now."""
        deadline_ms = call.terms.deadline_ms
        if deadline_ms is None and not slot.until_ms and not slot.retry_ms:
            return False
        now = self._services.clock()
        if deadline_ms is not None and not slot.until_ms:
            slot.until_ms = now + deadline_ms
            self.log.touch(slot)
        if slot.until_ms:
            self.timers.set(slot.until_ms, Due.DEADLINE, slot.index)
            if slot.until_ms <= now:
                self._paused.add(slot.index)
                return True
        if slot.retry_ms > now:
            self._paused.add(slot.index)
            self.timers.set(slot.retry_ms, Due.RETRY, slot.index)
            return True
        slot.retry_ms = 0
        return False

    def _submit(self, call: RunningCall, slot: Slot) -> None:
        terms, admission = call.terms, self._services.admission
        is_bounded = terms.rate is not None or terms.max_concurrent is not None
        if terms.execution is Execution.INLINE and not is_bounded and not _asks_first(call):
            self._note_start(call, slot)
            self._ended(run_body(call, monotonic_ms))
        elif admission.is_refused(terms.execution):
            self._refuse(call)
        elif admission.admit(call):
            self._begin(call)
        else:
            self._queued[call.slot_index] = call
            self._services.counters.inc("queued")
            if call.look_up and self._services.journal is not None:
                self._services.journal.look_ahead(call)

    def _begin(self, call: RunningCall) -> None:
        self._note_start(call, self.log[call.slot_index])
        call.in_flight = True
        self._services.counters.inc("in_flight")
        self._running[call.slot_index] = call
        self.started.append(call)
        timeout_ms = call.terms.timeout_ms
        if timeout_ms is not None:
            self.timers.set(self._services.clock() + timeout_ms, Due.TIMEOUT, call)

    def _refuse(self, call: RunningCall) -> None:
        self._services.counters.inc("refused_strays")
        call.attempts -= 1
        self._fail(call, NotStarted(_STRAYS))

    def _not_prepared(self, handle: DurableFuture, slot: Slot, exception: BaseException) -> None:
        if is_fatal(exception):
            raise exception
        if is_interruption(exception, asked=self._services.attempt.interrupted):
            raise Interrupted
        call = self._call(handle, slot, UNPREPARED)
        call.attempts = slot.attempts
        self._ended(Completion(call, Ending.ENDED, self._failure(exception), None, 0))

    def _run_here(self, call: RunningCall, slot: Slot, body: Callable[[], object], handle: DurableFuture) -> None:
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
            self._ended(conclude_exception(call, exception, since_ms(began)))
            return
        finally:
            running_call.reset(entered)
        duration_ms = since_ms(began)
        if fault is not None or call.slot_index in self._again or call.has_context:
            self._record(Completion(call, Ending.ENDED, outcome, None, duration_ms), outcome)
            return
        slot.settle(outcome, duration_ms)
        services.counters.inc("succeeded")
        services.counters.latency("call_ms", duration_ms)
        del self._handles[call.slot_index]
        handle.settle(CallOutcome(outcome, slot.attempts, duration_ms, False))
        self.wait.in_flight -= 1

    def _ended(self, completion: Completion) -> None:
        """Settle a call that ended on the task thread; with a journal, once that has recorded it."""
        call, journal = completion.call, self._services.journal
        if completion.ending is Ending.RETRY:
            self._failed_for_now(completion)
        elif journal is not None:
            self._running[call.slot_index] = call
            journal.finish(completion)
        elif completion.outcome is not None and not self._is_interrupted(completion):
            self._record(completion, completion.outcome)
        elif completion.ending is Ending.FATAL and completion.exception is not None:
            raise completion.exception
        else:
            raise Interrupted

    def _failure(self, exception: BaseException) -> Failed:
        return Failed.of(exception, self._services.attempt.secrets)

    def _fail(self, call: RunningCall, error: CallError) -> None:
        """Have the call end in a failure of the engine's own: what is recorded already stands."""
        self._ended(Completion(call, Ending.ENDED, self._failure(error), None, 0))

    def _note_start(self, call: RunningCall, slot: Slot) -> None:
        services = self._services
        if self._fault is not None:
            self._fault("before:start")
        if slot.attempts and slot.attempt_id != services.attempt.id:
            self._again.add(call.slot_index)
        self.log.start(slot, services.attempt.id, services.clock())
        if self._fault is not None:
            self._fault("after:start")

    def _failed_for_now(self, completion: Completion) -> None:
        """Wait before the next body; where a deadline comes before it, this failure was the call's last."""
        call, slot = completion.call, self.log[completion.call.slot_index]
        due_ms = self._services.clock() + completion.retry_ms
        if any(0 < at_ms <= due_ms for at_ms in (slot.until_ms, slot.batch_ms)):
            self._ended(completion.of_call(call.successor(), Ending.ENDED))
            return
        slot.attempts = max(slot.attempts, call.attempts)
        slot.failed = call.failed + 1
        slot.retry_ms = due_ms
        self.log.touch(slot)
        self._services.counters.inc("retried")
        self._paused.add(slot.index)
        self.timers.set(due_ms, Due.RETRY, slot.index)

    def _record(self, completion: Completion, outcome: Outcome) -> None:
        """Write the outcome into the slot that was reserved for it, and settle its handle."""
        services, call = self._services, completion.call
        index, counters = call.slot_index, services.counters
        slot = self.log[index]
        if self._fault is not None:
            self._fault("before:recorded")
        if completion.attempts:
            slot.attempts = completion.attempts
        elif slot.attempt_id == services.attempt.id:
            slot.attempts = call.attempts
        if completion.recorded:
            self.replayed += 1
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
        self._settle(index, CallOutcome(outcome, slot.attempts, completion.duration_ms, completion.recorded))

    def _settle(self, index: int, outcome: CallOutcome) -> None:
        handle = self._handles.pop(index, None)
        if handle is not None:
            handle.settle(outcome)
            self.wait.in_flight -= 1

    def _leave(self, call: RunningCall) -> None:
        del self._running[call.slot_index]
        if call.in_flight:
            self._services.counters.inc("in_flight", -1)

    def _is_interrupted(self, completion: Completion) -> bool:
        """Whether a body ended because the runtime asked, also where a worker called that an ordinary failure."""
        if completion.ending is Ending.INTERRUPTED:
            return True
        return self._services.attempt.interrupted and says_cancelled(completion)

    def _sleep(self, handle: SleepFuture, slot: Slot) -> None:
        if not slot.until_ms:
            slot.until_ms = self._services.clock() + handle.sleep_ms
            self.log.touch(slot)
        self._paused.add(slot.index)
        self.timers.set(slot.until_ms, Due.SLEEP, slot.index)

    def _absent(self, completion: Completion) -> None:
        """Take the journal's word that a call which will not begin any more has no outcome."""
        call, slot = completion.call.successor(), self.log[completion.call.slot_index]
        if completion.attempts:
            slot.attempts = call.attempts = completion.attempts
            self._fail(call, CallTimeout("its deadline passed while the job was down"))
        else:
            self._not_begun(call, slot)

    def _not_begun(self, call: RunningCall, slot: Slot) -> None:
        """Give a call that never began its outcome. That of an expired batch is not recorded, that of its own is."""
        if 0 < slot.until_ms <= self._services.clock():
            self._fail(call, NotStarted("its deadline passed before a worker was free for it"))
        else:
            self._leave_unrecorded(slot.index, NotStarted(_NOT_BEGUN))

    def _leave_unrecorded(self, index: int, error: CallError) -> None:
        """Settle a handle whose slot stays pending: nothing happened that a replay could contradict."""
        self._settle(index, CallOutcome(self._failure(error), self.log[index].attempts, 0, False))


def _asks_first(call: RunningCall) -> bool:
    """Whether the journal has to be asked before the body begins: then it runs on a worker's thread."""
    return call.look_up or call.terms.on_interrupt is not OnInterrupt.RERUN
