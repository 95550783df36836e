"""A call on its way through the workers, how its body ended, and the pure rules that tell one ending from another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from flink_agents import codec
from flink_agents.durable.outcome import Failed, Outcome, Succeeded
from flink_agents.errors import FrameworkFault, Interrupted, Uncapturable
from flink_agents.failures import capture
from flink_agents.options import Execution
from flink_agents.scheduler.attempt import Attempt, CancellationToken

__all__ = ["Completion", "Ending", "Prepared", "RunningCall", "conclude", "conclude_exception", "is_fatal", "run_body"]

_CANCELLATIONS = (asyncio.CancelledError, concurrent.futures.CancelledError, Interrupted)
_FATAL = (MemoryError, Uncapturable, FrameworkFault)


class Prepared(NamedTuple):
    """What preparation of a call yields: a body that can run, and where and how many at once."""

    body: Callable[[], Any]
    execution: Execution
    gate: str
    max_concurrent: int | None = None


@dataclass(slots=True, eq=False)
class RunningCall:
    """One attempt of one call, as workers see it: never state, never the operator.

    ``result_limit`` is the largest result in bytes of its encoded text.
    """

    key: str
    slot_index: int
    attempt: Attempt
    prepared: Prepared
    token: CancellationToken
    result_limit: int


class Ending(Enum):
    """The four things that can come back from a worker."""

    ENDED = "ended"
    INTERRUPTED = "interrupted"
    FATAL = "fatal"


class Completion(NamedTuple):
    """How a body ended. ``outcome`` is set for ``ENDED``, ``exception`` for the other endings."""

    call: RunningCall
    ending: Ending
    outcome: Outcome | None
    exception: BaseException | None
    duration_ms: int


def is_fatal(exception: BaseException) -> bool:
    """Whether the exception must fail the task instead of the call."""
    return isinstance(exception, _FATAL)


def is_interruption(exception: BaseException, *, asked: bool) -> bool:
    """Whether a cancellation that the runtime asked for came back; one that nobody asked for is an ordinary failure."""
    return asked and isinstance(exception, _CANCELLATIONS)


def conclude(call: RunningCall, value: Any, duration_ms: int) -> Completion:
    """Turn a returned value into a completion: what the codec cannot carry is the call's failure. Any thread."""
    try:
        if inspect.iscoroutine(value):
            value.close()
        outcome: Outcome = Succeeded(codec.encode(value, call.result_limit))
    except BaseException as exception:  # a value's own methods run here, so anything can come out of it
        return conclude_exception(call, exception, duration_ms)
    return Completion(call, Ending.ENDED, outcome, None, duration_ms)


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
    try:
        value = call.prepared.body()
    except BaseException as exception:  # SystemExit and KeyboardInterrupt raised by a tool are that call's failure
        return conclude_exception(call, exception, round(elapsed_ms() - began))
    return conclude(call, value, round(elapsed_ms() - began))
