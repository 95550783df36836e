"""Between one attempt's calls and the journal: asks before a body begins, records before an outcome is handed over.

``look up or start -> body -> finish -> hand over``: whatever reaches the task thread through here is committed, so a
slot may lag the journal and never lead it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from flink_agents.clock import Clock
from flink_agents.durable.journal.operations import (
    Answered,
    Finish,
    LookUp,
    MarkFatal,
    Operation,
    PutRequest,
    Start,
    StartAgain,
)
from flink_agents.durable.journal.rows import CallKey, RequestRow, StartAnswer, StartStatus
from flink_agents.durable.outcome import Failed, Outcome
from flink_agents.errors import FatalAttempts, FrameworkFault, InDoubt, Interrupted, JournalLost
from flink_agents.options import Execution, OnInterrupt
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.call import Completion, Ending, RunningCall, says_cancelled
from flink_agents.scheduler.workers import Workers

__all__ = ["NOT_STARTED", "CallJournal", "NotStartedAnswer", "Writer"]


class NotStartedAnswer:
    """The type of ``NOT_STARTED``."""

    def __repr__(self) -> str:
        return "NOT_STARTED"

    def __reduce__(self) -> str:
        return "NOT_STARTED"


NOT_STARTED = NotStartedAnswer()
"""What a reconciler returns when the call certainly took no effect: its body runs then."""


class _BodyNeverBegan(Exception):
    """Carries ``NOT_STARTED`` out of a reconciler's body."""


def _ask(reconciler: Callable[[], Any]) -> Any:
    return _decided(reconciler())


async def _ask_on_loop(reconciler: Callable[[], Any]) -> Any:
    return _decided(await reconciler())


def _decided(answer: Any) -> Any:
    if answer is NOT_STARTED:
        raise _BodyNeverBegan
    return answer


class Writer(Protocol):
    """What this module needs of the journal's writer thread."""

    def submit(
        self,
        operation: Operation,
        on_done: Callable[[Any], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Apply the operation; ``on_done`` gets its answer after the commit, or a ``JournalLost``. Any thread.

        ``then`` is called once after the answers of all operations of that commit.
        """


class CallJournal:
    """The journal as one attempt's calls use it. ``start`` and the request rows on the task thread, the rest anywhere.

    After a restore the journal answers for what finished since the checkpoint. What a dead attempt's bodies return is
    still recorded here, where the first outcome stands, and reaches nothing else.
    """

    def __init__(self, writer: Writer, workers: Workers, attempt: Attempt, clock: Clock, fatal_attempts: int) -> None:
        self._writer = writer
        self._workers = workers
        self._attempt = attempt
        self._clock = clock
        self._fatal_attempts = fatal_attempts
        # The writer's thread alone: what it hands over together after a commit.
        self._standing: list[Completion] = []

    def put_request(self, row: RequestRow) -> None:
        """Record a request's number. Stands before all of its calls: the writer keeps the order of submission."""
        self._writer.submit(PutRequest(row), partial(self._request_stands, row))

    def answered(self, run_id: str, key: str, intake: int) -> None:
        """Note that a request is answered; its rows may go after the retention. Nobody waits for it."""
        self._writer.submit(Answered(run_id, key, intake, self._clock()))

    def note(self, row: CallKey, outcome: Outcome) -> None:
        """Record what the engine answered itself. Stands before whatever is made of it: the writer keeps the order."""
        now = self._clock()
        self._writer.submit(Finish(row, outcome, 1, self._attempt.id, now, now), partial(self._noted, outcome))

    def _noted(self, outcome: Outcome, standing: Any) -> None:
        if isinstance(standing, JournalLost):
            self._attempt.fail(standing)
        elif standing.outcome != outcome:
            # Calls were asked for with this one: another attempt's, which stands, is found when they are asked anew.
            self._attempt.fail(FrameworkFault("another attempt of the task has recorded another time for this action"))

    def start(self, calls: Sequence[RunningCall]) -> None:
        """Begin bodies, each as its tool says: after a look-up, after its started row is committed, or at once."""
        at_once = []
        for call in calls:
            call.deliver = self.finish
            if call.failed and call.failed == call.attempts - 1:
                # Every body that the slot knows of has failed; only a later checkpoint's would have known of others.
                if call.look_up:
                    self._submit(call, LookUp(call.row), partial(self._may_begin_again, call))
                else:
                    self._start_again(call)
            elif call.terms.on_interrupt is not OnInterrupt.RERUN:
                self._submit(call, Start(call.row, self._attempt.id, self._clock()), partial(self._may_begin, call))
            elif call.look_up:
                self._submit(call, LookUp(call.row), partial(self._may_begin, call))
            else:
                at_once.append(call)
        self._workers.start(at_once)

    def finish(self, completion: Completion) -> None:
        """Record how a body ended, then hand over what stands. Any thread."""
        call = completion.call
        stopped = call.expired and not call.concluded and says_cancelled(completion)
        if stopped or completion.ending in (Ending.INTERRUPTED, Ending.RETRY):
            self._attempt.deliver(completion)
        elif not call.conclude(lambda: self._record(completion)):
            # Its call went on without it: a further body may be about to begin.
            self._attempt.deliver(completion)

    def look(self, call: RunningCall) -> None:
        """Ask for the outcome of a call that will not begin any more; ``Ending.ABSENT`` if there is none.

        The completion then counts the bodies that an earlier attempt began, as far as the journal knows.
        """
        call.conclude(lambda: self._submit(call, LookUp(call.row), partial(self._looked, call)))

    def look_ahead(self, call: RunningCall) -> None:
        """Ask for the outcome of a call that waits for a worker, and needs none where it is recorded. Task thread.

        It is handed over as that of a successor, so that the call itself may begin meanwhile.
        """
        asking = call.successor()

        def looked(answer: StartAnswer) -> None:
            if answer.status is StartStatus.TERMINAL:
                self._settle(asking, answer)

        self._submit(asking, LookUp(call.row), looked)

    def _looked(self, call: RunningCall, answer: StartAnswer) -> None:
        if answer.status is StartStatus.TERMINAL:
            self._settle(call, answer)
        else:
            self._attempt.deliver(Completion(call, Ending.ABSENT, None, None, 0, attempts=answer.attempts))

    def _record(self, completion: Completion) -> None:
        call = completion.call
        if completion.outcome is None:
            fatal = MarkFatal(call.row, self._attempt.id, self._clock())
            self._submit(call, fatal, lambda _: self._attempt.deliver(completion))
        else:
            operation = self._finish_of(completion, completion.outcome)
            self._writer.submit(operation, partial(self._finished, completion), self._hand_over)

    def _finish_of(self, completion: Completion, outcome: Outcome) -> Finish:
        call, now = completion.call, self._clock()
        return Finish(call.row, outcome, call.attempts, self._attempt.id, now - completion.duration_ms, now)

    def _finished(self, completion: Completion, standing: StartAnswer | JournalLost) -> None:
        if isinstance(standing, JournalLost):
            completion = Completion(completion.call, Ending.FATAL, None, standing, 0)
        elif standing.outcome is not completion.outcome:
            # An attempt that was thought dead, or this one in an earlier life, was first: its outcome is the call's.
            is_ours = standing.attempt_id == self._attempt.id
            completion = completion.as_recorded(standing.outcome, standing.attempts, recorded=not is_ours)
        self._standing.append(completion)

    def _hand_over(self) -> None:
        """Give the task what one commit recorded, at once: it wakes once for all of it."""
        standing, self._standing = self._standing, []
        self._attempt.deliver_all(standing)

    def _start_again(self, call: RunningCall) -> None:
        """Count a further body in the journal, then begin it: the count must survive."""
        again = StartAgain(call.row, self._attempt.id, call.attempts, self._clock())
        self._submit(call, again, partial(self._may_begin, call))

    def _may_begin_again(self, call: RunningCall, answer: StartAnswer) -> None:
        """Begin a further body, unless the journal knows of one that the restored slot does not: that is in doubt."""
        is_known = answer.attempts < call.attempts or answer.attempt_id == self._attempt.id
        if is_known and answer.status in (StartStatus.FRESH, StartStatus.IN_DOUBT):
            self._start_again(call)
        else:
            self._may_begin(call, answer)

    def _may_begin(self, call: RunningCall, answer: StartAnswer) -> None:
        """Decide on the writer's thread what the journal's answer means for a call that is about to begin."""
        if answer.status is StartStatus.TERMINAL:
            self._settle(call, answer)
        elif answer.status is StartStatus.SUPERSEDED:
            self._never_begins(call)
            over = Interrupted(f"a later attempt has begun this call: attempt {self._attempt.id} is over")
            self._attempt.deliver(Completion(call, Ending.INTERRUPTED, None, over, 0))
        elif answer.fatal_attempts >= self._fatal_attempts:
            self._refuse(call, answer, FatalAttempts(_FATAL.format(answer.fatal_attempts)))
        elif answer.status is StartStatus.FRESH:
            self._workers.start([call])
        else:
            self._decide_doubt(call, answer)

    def _decide_doubt(self, call: RunningCall, answer: StartAnswer) -> None:
        reconcile = call.prepared.reconcile
        if call.terms.on_interrupt is OnInterrupt.RERUN:
            # The last of them was cut off, which is no failure of its own.
            call.set_attempts(max(call.attempts, answer.attempts + 1), answer.attempts - 1)
            self._workers.start([call])
        elif reconcile is None:
            self._refuse(call, answer, InDoubt(_IN_DOUBT.format(call.terms.on_interrupt.value)))
        else:
            # Its bodies never begin without a row, so the journal's count is exact; the slot has counted this look too.
            call.set_attempts(answer.attempts, answer.attempts - 1)
            self._reconcile(call, reconcile)

    def _refuse(self, call: RunningCall, answer: StartAnswer, error: InDoubt | FatalAttempts) -> None:
        self._never_begins(call)
        call.set_attempts(answer.attempts, answer.attempts - 1)
        self.finish(Completion(call, Ending.ENDED, Failed.of(error, self._attempt.secrets), None, 0))

    def _settle(self, call: RunningCall, answer: StartAnswer) -> None:
        self._never_begins(call)
        self._attempt.deliver(
            Completion(call, Ending.ENDED, answer.outcome, None, 0, attempts=answer.attempts, recorded=True)
        )

    def _reconcile(self, call: RunningCall, body: Callable[[], Any]) -> None:
        """Run the reconciler in the body's place; a value or an exception of its is the call's outcome."""
        execution = Execution.ASYNC if inspect.iscoroutinefunction(body) else Execution.THREAD
        ask = partial(_ask_on_loop if execution is Execution.ASYNC else _ask, body)
        if self._workers.permits(execution) is not self._workers.permits(call.terms.execution):
            # Taken for the body: the reconciler runs elsewhere, and the worker there gives back its own.
            self._never_begins(call)
        self._workers.start([call.with_body(ask, execution, partial(self._reconciled, call))])

    def _reconciled(self, call: RunningCall, completion: Completion) -> None:
        completion = completion.of_call(call)
        outcome = completion.outcome
        if call.fenced:
            self._attempt.deliver(completion)
        elif isinstance(outcome, Failed) and type(outcome.exception) is _BodyNeverBegan:
            call.set_attempts(call.attempts + 1, call.failed)
            # The reconciler gave the worker back; its body takes one anew and may exceed the pool by that one.
            self._start_again(call)
        else:
            self.finish(completion)

    def _never_begins(self, call: RunningCall) -> None:
        if call.admitted:
            self._workers.permits(call.terms.execution).give_back(self._attempt)

    def _submit(self, call: RunningCall, operation: Operation, on_done: Callable[[Any], None]) -> None:
        def done(answer: Any) -> None:
            if isinstance(answer, JournalLost):
                self._attempt.deliver(Completion(call, Ending.FATAL, None, answer, 0))
            else:
                on_done(answer)

        self._writer.submit(operation, done)

    def _request_stands(self, row: RequestRow, standing: Any) -> None:
        if isinstance(standing, JournalLost):
            self._attempt.fail(standing)
        elif standing != row:
            msg = (
                f"the journal holds another request {row.intake} of key {row.key}: a later attempt gave it that number"
            )
            self._attempt.fail(FrameworkFault(msg))


_IN_DOUBT = (
    "an earlier attempt began this call and left no outcome: it may have taken effect. "
    "The tool is declared on_interrupt: {}, and nothing decides about the call, so it does not run again"
)
_FATAL = "this call brought the task down in {} earlier attempts and is not started again (limits.fatal_attempts)"
