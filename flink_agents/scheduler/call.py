"""A call on its way through the workers, how its body ended, and the pure rules that tell one ending from another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
from collections.abc import Callable
from enum import Enum
from types import CoroutineType
from typing import Any, NamedTuple

from flink_agents import codec
from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.rows import CallKey
from flink_agents.durable.outcome import Failed, Outcome, Succeeded
from flink_agents.durable.slots import Slot
from flink_agents.errors import FrameworkFault, Interrupted, Uncapturable
from flink_agents.failures import capture
from flink_agents.options import Execution, OnInterrupt
from flink_agents.scheduler.attempt import Attempt, CancellationToken
from flink_agents.scheduler.tool_context import Origin, ToolContext, running_call

__all__ = [
    "Completion",
    "Ending",
    "Prepared",
    "RunningCall",
    "carried",
    "conclude",
    "conclude_exception",
    "is_fatal",
    "is_interruption",
    "run_body",
]

_CANCELLATIONS = (asyncio.CancelledError, concurrent.futures.CancelledError, Interrupted)
_FATAL = (MemoryError, Uncapturable, FrameworkFault)


class Prepared(NamedTuple):
    """What preparation of a call yields: a body that can run, and where and how many at once."""

    body: Callable[[], Any]
    execution: Execution
    gate: str
    max_concurrent: int | None = None
    on_interrupt: OnInterrupt = OnInterrupt.RERUN
    reconcile: Callable[[], Any] | None = None


class RunningCall:
    """One attempt of one call, as workers see it: never state, never the operator.

    ``deliver`` takes the body's end, on the thread that ran it; ``attempts`` counts the bodies begun, this one
    included; ``result_limit`` is the largest result in bytes of its encoded text; ``admitted`` says that a worker was
    taken for it. What only some calls need (token, context, journal row) is made when it is asked for.
    """

    admitted = False
    in_flight = False
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
    ) -> None:
        self.origin = origin
        self.key = origin.key_text
        self.slot_index = slot.index
        self.prepared = prepared
        self.attempt = attempt
        self.deliver: Callable[[Completion], None] = attempt.deliver
        self.result_limit = result_limit
        self.attempts = slot.attempts + 1
        self.call_id = call_id
        # Kept for its identity, which never changes; workers look at nothing else of it.
        self._slot = slot

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
        """What tells the body to stop."""
        if self._token is None:
            self._token = CancellationToken()
        return self._token

    @property
    def context(self) -> ToolContext:
        """What the tool may know about this call."""
        if self._context is None:
            self._context = ToolContext(self.origin, self.identity, self.call_id, self.attempts, self.token)
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

    def set_attempts(self, attempts: int) -> None:
        """Correct the number of this body by what the journal knows."""
        self.attempts = attempts
        self.context.attempt = attempts

    def with_body(
        self, body: Callable[[], Any], execution: Execution, deliver: Callable[[Completion], None]
    ) -> RunningCall:
        """Return this call with something else to run in its place, with the same token."""
        other = copy.copy(self)
        other._token = self.token
        other.prepared = self.prepared._replace(body=body, execution=execution)
        other.deliver = deliver
        return other


class Ending(Enum):
    """The four things that can come back from a worker."""

    ENDED = "ended"
    INTERRUPTED = "interrupted"
    FATAL = "fatal"


class Completion(NamedTuple):
    """How a body ended. ``outcome`` is set for ``ENDED``, ``exception`` for the other endings.

    ``recorded`` says that the outcome was in the journal before this attempt had one; ``attempts`` then counts the
    bodies it took.
    """

    call: RunningCall
    ending: Ending
    outcome: Outcome | None
    exception: BaseException | None
    duration_ms: int
    attempts: int = 0
    recorded: bool = False


def is_fatal(exception: BaseException) -> bool:
    """Whether the exception must fail the task instead of the call."""
    return _is_a(exception, _FATAL)


def is_interruption(exception: BaseException, *, asked: bool) -> bool:
    """Whether a cancellation that the runtime asked for came back; one that nobody asked for is an ordinary failure."""
    return asked and _is_a(exception, _CANCELLATIONS)


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
    if type(value) is CoroutineType:
        value.close()
    return Succeeded(codec.encode(value, result_limit))


def conclude_exception(call: RunningCall, exception: BaseException, duration_ms: int) -> Completion:
    """Turn what a body raised into a completion. Any thread."""
    if is_fatal(exception):
        return Completion(call, Ending.FATAL, None, exception, duration_ms)
    if is_interruption(exception, asked=call.attempt.interrupted):
        return Completion(call, Ending.INTERRUPTED, None, exception, duration_ms)
    return Completion(call, Ending.ENDED, Failed(capture(exception), exception), None, duration_ms)


def run_body(call: RunningCall, elapsed_ms: Callable[[], float]) -> Completion:
    """Run a synchronous body to its end, on the calling thread. Raises nothing.

    ``elapsed_ms`` is a monotonic clock in milliseconds.
    """
    began = elapsed_ms()
    entered = running_call.set(call)
    try:
        outcome = carried(call.prepared.body(), call.result_limit)
    except BaseException as exception:  # SystemExit and KeyboardInterrupt raised by a tool are that call's failure
        return conclude_exception(call, exception, round(elapsed_ms() - began))
    finally:
        running_call.reset(entered)
    return Completion(call, Ending.ENDED, outcome, None, round(elapsed_ms() - began))
