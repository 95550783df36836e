"""A call on its way through the workers, how its body ended, and the pure rules that tell one ending from another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from types import CoroutineType
from typing import Any

from flink_agents import codec
from flink_agents.clock import Clock, now_ms
from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.rows import CallKey
from flink_agents.durable.outcome import Failed, Outcome, Succeeded
from flink_agents.durable.slots import Slot
from flink_agents.errors import FrameworkFault, Interrupted, Uncapturable
from flink_agents.options import Execution
from flink_agents.retry import next_wait_ms
from flink_agents.scheduler.attempt import Attempt, CancellationToken
from flink_agents.scheduler.prepared import Prepared
from flink_agents.scheduler.tool_context import Origin, ToolContext, running_call

__all__ = [
    "Completion",
    "Ending",
    "RunningCall",
    "carried",
    "closed",
    "conclude",
    "conclude_exception",
    "is_cancellation",
    "is_fatal",
    "is_interruption",
    "run_body",
    "says_cancelled",
]

_CANCELLATIONS = (asyncio.CancelledError, concurrent.futures.CancelledError, Interrupted)
_FATAL = (MemoryError, Uncapturable, FrameworkFault)


_fencing = threading.Lock()
"""Orders the fence of a body and the hand-over of its end to the journal; held for nothing else."""


class RunningCall:
    """One attempt of one call, as workers see it: never state, never the operator.

    ``deliver`` takes the body's end, on the thread that ran it (None: the attempt does); ``attempts`` counts the bodies
    begun, this one included, ``failed`` those that failed; ``result_limit`` is the largest result in bytes of its
    encoded text; ``in_line`` says that it waits for a worker, ``admitted`` that one was taken for it. What only some
    calls need (token, context, journal row) is made when it is asked for.

    A body begins once (``try_begin``, on its worker) or is forestalled (``forestall``, on the task thread): one of the
    two wins, for good. What a fenced body returns reaches neither state nor journal. ``concluded``: its end is with
    the journal, and what that records is what stands. ``stand_in`` is what runs in its place: its reconciler.
    """

    cancelled = False
    stop: Callable[[], None] | None = None
    in_line = False
    in_flight = False
    fenced = False
    concluded = False
    expired = False
    is_stray = False
    has_ended = False
    begun_ms: int | None = None
    stand_in: RunningCall | None = None
    _token: CancellationToken | None = None
    _context: ToolContext | None = None
    _row: CallKey | None = None

    def __init__(
        self,
        origin: Origin,
        slot: Slot,
        prepared: Prepared,
        attempt: Attempt,
        result_limit: int,
        call_id: Any = None,
        clock: Clock = now_ms,
        *,
        admitted: bool = False,
    ) -> None:
        self.admitted = admitted
        self.origin = origin
        self.key = origin.key_text
        self.slot_index = slot.index
        self.prepared = prepared
        self.terms = prepared.terms
        self.attempt = attempt
        self.deliver: Callable[[Completion], None] | None = None
        self.result_limit = result_limit
        self.attempts = slot.attempts + 1
        self.failed = slot.failed
        self.call_id = call_id
        self._clock = clock
        # Kept for its identity, which never changes; workers look at nothing else of it.
        self._slot = slot
        self._chance = [True]

    @property
    def identity(self) -> Identity:
        """Whom the call's slot belongs to."""
        return self._slot.identity

    @property
    def look_up(self) -> bool:
        """Whether an earlier attempt may have left something of this call in the journal."""
        return self.origin.look_up

    @property
    def token(self) -> CancellationToken:
        """What tells the body to stop; made when somebody wants to look at it."""
        if self._token is None:
            self._token = CancellationToken()
            if self.cancelled:
                self._token.cancel()
        return self._token

    def cancel(self) -> None:
        """Ask the body to stop: sets the token, and ``stop`` is called where a worker has set it. Any thread."""
        # First, as whoever makes the token or sets ``stop`` looks at this afterwards.
        self.cancelled = True
        if self._token is not None:
            self._token.cancel()
        # Read once: the thread of the body takes it away when the body has ended.
        stop = self.stop
        if stop is not None:
            stop()
        if self.stand_in is not None:
            self.stand_in.cancel()

    def stopped_by(self, stop: Callable[[], None]) -> None:
        """Have ``stop`` called when the body is to stop; at once, if that was asked for already. Any thread."""
        self.stop = stop
        if self.cancelled:
            stop()

    @property
    def context(self) -> ToolContext:
        """What the tool may know about this call."""
        if self._context is None:
            self._context = ToolContext(
                self.origin, self.identity, self.call_id, self.attempts, self.token, self.remaining_s
            )
        return self._context

    @property
    def has_context(self) -> bool:
        """Whether the tool asked for its context."""
        return self._context is not None

    @property
    def counts(self) -> dict[str, int]:
        """What the tool counted."""
        return {} if self._context is None else self._context.counts

    @property
    def row(self) -> CallKey:
        """The call's name in the journal."""
        if self._row is None:
            origin = self.origin
            self._row = CallKey.of(origin.run_id, origin.key_text, origin.intake, self.identity)
        return self._row

    @property
    def ends_ms(self) -> int | None:
        """When what runs times out, in milliseconds since the epoch; None where nothing does, and without a bound.

        That is the body or, before it, the reconciler that decides whether it runs.
        """
        timeout, begun_ms, reconciler = self.terms.timeout_ms, self.begun_ms, self.stand_in
        if begun_ms is None and reconciler is not None and not reconciler.has_ended:
            begun_ms = reconciler.begun_ms
        return None if timeout is None or begun_ms is None else begun_ms + timeout

    def remaining_s(self) -> float | None:
        """Return the seconds until time-out, deadline or the batch's, at least 0; None without any. Any thread."""
        bounds = [at for at in (self.ends_ms, self._slot.until_ms, self._slot.batch_ms) if at]
        return max(0, min(bounds) - self._clock()) / 1000 if bounds else None

    def try_begin(self) -> bool:
        """Return whether the body may begin now: not where it was forestalled. On the thread that runs it."""
        try:
            self._chance.pop()
        except IndexError:
            return False
        self.begun_ms = self._clock()
        return True

    def fence(self) -> bool:
        """Let nothing of this body reach state or journal any more. Task thread.

        Does nothing and returns False where its end is with the journal already.
        """
        with _fencing:
            self.fenced = not self.concluded
        return self.fenced

    def forestall(self) -> bool:
        """Let the body never begin; return False where it has begun already. Task thread."""
        try:
            self._chance.pop()
        except IndexError:
            return False
        return True

    def conclude(self, step: Callable[[], None]) -> bool:
        """Do ``step``, which hands the body's end to the journal; return False if the body is fenced. Any thread."""
        with _fencing:
            if self.fenced:
                return False
            self.concluded = True
            step()
            return True

    def set_attempts(self, attempts: int, failed: int) -> None:
        """Correct the number of this body, and of those that failed before it, by what the journal knows."""
        self.failed = max(self.failed, failed)
        self.attempts = attempts
        self.context.attempt = attempts

    def with_body(
        self, body: Callable[[], Any], execution: Execution, deliver: Callable[[Completion], None]
    ) -> RunningCall:
        """Return this call with something else to run in its place, with the same token; without retries."""
        other = self.successor()
        other._token = self.token
        other.terms = replace(self.terms, execution=execution, retry=None)
        other.prepared = self.prepared.with_body(body, other.terms)
        other.deliver = deliver
        other.admitted = self.admitted
        self.stand_in = other
        return other

    def successor(self) -> RunningCall:
        """Return what stands for this call once its body is fenced: nothing has begun for it, no worker was taken."""
        other = RunningCall(
            self.origin, self._slot, self.prepared, self.attempt, self.result_limit, self.call_id, self._clock
        )
        other.terms, other.deliver = self.terms, self.deliver
        other.attempts, other.failed = self.attempts, self.failed
        other._token, other._context, other._row = self._token, self._context, self._row
        return other


class Ending(Enum):
    """What can come back from a worker or from the journal."""

    ENDED = "ended"
    """With an outcome, which is the call's."""
    RETRY = "retry"
    """With a failure that is worth another attempt."""
    INTERRUPTED = "interrupted"
    FATAL = "fatal"
    ABSENT = "absent"
    """The journal was asked for an outcome, and neither that nor a begun body is there."""


class Completion:
    """How a body ended. ``outcome`` is set for ``ENDED`` and ``RETRY``, ``exception`` for fatal ends and cancellations.

    ``recorded`` says that the outcome was in the journal before this attempt had one; ``attempts`` then counts the
    bodies it took. ``retry_ms`` is the wait before the next body, for ``RETRY``. Nothing changes it.
    """

    __slots__ = ("attempts", "call", "duration_ms", "ending", "exception", "outcome", "recorded", "retry_ms")

    def __init__(
        self,
        call: RunningCall,
        ending: Ending,
        outcome: Outcome | None,
        exception: BaseException | None,
        duration_ms: int,
        attempts: int = 0,
        recorded: bool = False,
        retry_ms: int = 0,
    ) -> None:
        self.call = call
        self.ending = ending
        self.outcome = outcome
        self.exception = exception
        self.duration_ms = duration_ms
        self.attempts = attempts
        self.recorded = recorded
        self.retry_ms = retry_ms

    def of_call(self, call: RunningCall, ending: Ending | None = None) -> Completion:
        """Return this as the end of another call, and another ending where it is given."""
        return Completion(
            call,
            ending or self.ending,
            self.outcome,
            self.exception,
            self.duration_ms,
            self.attempts,
            self.recorded,
            self.retry_ms,
        )

    def as_recorded(self, outcome: Outcome | None, attempts: int, *, recorded: bool) -> Completion:
        """Return this with the outcome that the journal holds."""
        return Completion(
            self.call, self.ending, outcome, self.exception, self.duration_ms, attempts, recorded, self.retry_ms
        )


def is_fatal(exception: BaseException) -> bool:
    """Whether the exception must fail the task instead of the call."""
    return _is_a(exception, _FATAL)


def is_interruption(exception: BaseException, *, asked: bool) -> bool:
    """Whether a cancellation that the runtime asked for came back; one that nobody asked for is an ordinary failure."""
    return asked and is_cancellation(exception)


def says_cancelled(completion: Completion) -> bool:
    """Whether a body ended by a cancellation, also where a worker called that an ordinary failure."""
    outcome, exception = completion.outcome, completion.exception
    if exception is None and type(outcome) is Failed:
        exception = outcome.exception
    return exception is not None and is_cancellation(exception)


def is_cancellation(exception: BaseException) -> bool:
    """Whether the exception says that something was cancelled, whoever asked for it."""
    return _is_a(exception, _CANCELLATIONS)


def _is_a(exception: BaseException, classes: tuple[type[BaseException], ...]) -> bool:
    # Not isinstance: that asks the exception for its `__class__`, which may be code of the tool and raise.
    return issubclass(type(exception), classes)


def conclude(call: RunningCall, value: Any, duration_ms: int) -> Completion:
    """Turn a returned value into a completion: what the codec cannot carry is the call's failure. Any thread."""
    try:
        outcome = carried(value, call.result_limit)
    except BaseException as exception:  # a value's own methods run here, so anything can come out of it
        return conclude_exception(call, exception, duration_ms)
    return Completion(call, Ending.ENDED, outcome, None, duration_ms)


def carried(value: Any, result_limit: int) -> Succeeded:
    """Return the value as the codec writes it, in at most ``result_limit`` bytes. Raises what the codec raises."""
    return Succeeded(codec.encode(closed(value), result_limit))


def closed(value: Any) -> Any:
    """Return the value; a coroutine, which the codec refuses and nothing would ever run, is closed first."""
    if type(value) is CoroutineType:
        value.close()
    return value


def conclude_exception(call: RunningCall, exception: BaseException, duration_ms: int) -> Completion:
    """Turn what a body raised into a completion. Any thread."""
    if is_fatal(exception):
        return Completion(call, Ending.FATAL, None, exception, duration_ms)
    if is_interruption(exception, asked=call.attempt.interrupted):
        return Completion(call, Ending.INTERRUPTED, None, exception, duration_ms)
    failed = Failed.of(exception, call.attempt.secrets)
    wait_ms = next_wait_ms(call.terms.retry, exception, call.failed + 1)
    if wait_ms is None or call.expired:
        # An outcome does not keep an exception that tells a secret.
        cancelled = exception if is_cancellation(exception) else None
        return Completion(call, Ending.ENDED, failed, cancelled, duration_ms)
    return Completion(call, Ending.RETRY, failed, None, duration_ms, retry_ms=wait_ms)


def run_body(call: RunningCall, elapsed_ms: Callable[[], float]) -> Completion:
    """Run a synchronous body to its end, on the calling thread; not if it was fenced before. Raises nothing.

    ``elapsed_ms`` is a monotonic clock in milliseconds.
    """
    if not call.try_begin():
        return Completion(call, Ending.INTERRUPTED, None, Interrupted(), 0)
    began = elapsed_ms()
    entered = running_call.set(call)
    try:
        outcome = carried(call.prepared.body(), call.result_limit)
    except BaseException as exception:  # SystemExit and KeyboardInterrupt raised by a tool are that call's failure
        return conclude_exception(call, exception, round(elapsed_ms() - began))
    finally:
        running_call.reset(entered)
    return Completion(call, Ending.ENDED, outcome, None, round(elapsed_ms() - began))
