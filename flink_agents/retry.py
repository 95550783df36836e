"""When a failed attempt of a call is followed by another one, and after what wait: pure decisions, values layer."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from flink_agents.errors import CallError, CallTimeout, FlinkAgentsError, InvalidInput

__all__ = ["NonRetryable", "RetryLater", "RetryPolicy", "next_wait_ms"]

MAX_WAIT_MS = 24 * 60 * 60 * 1000


class RetryLater(Exception):
    """Raised by a tool to ask for another attempt, if its policy has one left, after ``after_s`` seconds.

    It goes before ``on``, and its wait before the backoff. Where no attempt is left it is the call's failure.
    """

    def __init__(self, after_s: float, message: str = "") -> None:
        super().__init__(after_s, message)
        self.after_s = after_s

    def __str__(self) -> str:
        return str(self.args[1]) or f"try again in {self.after_s} s"


class NonRetryable(Exception):
    """Raised by a tool whose call must not be tried again, whatever its policy says."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often and when a failed attempt is repeated.

    ``attempts`` bounds all bodies, the first included; the wait before body n + 1 is ``initial_ms * multiplier ** (n -
    1)``, at most ``max_ms``, changed by up to ``jitter`` (a fraction) either way. ``on`` are the exceptions that are
    worth another attempt; None is every ``Exception`` of the tool's own, but no time-out: an attempt that timed out is
    repeated only where ``on`` names ``TimeoutError``.

    Raises:
        InvalidInput: for a number out of range.
    """

    attempts: int = 1
    initial_ms: int = 200
    multiplier: float = 2.0
    max_ms: int = 5_000
    jitter: float = 0.2
    on: tuple[type[BaseException], ...] | None = None

    def __post_init__(self) -> None:
        wrong = (
            (self.attempts < 1, "attempts must be at least 1"),
            (self.initial_ms < 0, "initial must not be negative"),
            (not 1 <= self.multiplier < math.inf, "multiplier must be a number of at least 1"),
            (self.max_ms < self.initial_ms, "max must not be below initial"),
            (not 0 <= self.jitter <= 1, "jitter must be from 0 to 1"),
        )
        for is_wrong, message in wrong:
            if is_wrong:
                msg = f"retry: {message}"
                raise InvalidInput(msg)

    def backoff_ms(self, attempts: int, chance: float) -> int:
        """Return the wait after ``attempts`` bodies; ``chance`` from 0 to 1 places it within the jitter."""
        # The exponent is bounded: a float overflows long before the attempts of a patient policy are used up.
        try:
            wait = min(self.initial_ms * self.multiplier ** min(attempts - 1, 64), self.max_ms)
        except OverflowError:
            wait = self.max_ms if self.initial_ms else 0
        return round(wait * (1 + self.jitter * (2 * chance - 1)))


def next_wait_ms(
    policy: RetryPolicy | None, exception: BaseException, attempts: int, chance: float | None = None
) -> int | None:
    """Return how long to wait before the next body, in milliseconds; None where ``exception`` is the call's end.

    ``attempts`` counts the bodies that began. Errors of the engine about a call (arguments, codec, an unknown tool) are
    never worth another attempt: the next one would end alike.
    """
    if policy is None or attempts >= policy.attempts:
        return None
    # Not isinstance: that asks the exception for its ``__class__``, which may be code of the tool and raise.
    raised = type(exception)
    if issubclass(raised, NonRetryable):
        return None
    if issubclass(raised, RetryLater):
        return _asked_ms(exception)
    if not _is_worth(policy, raised):
        return None
    return policy.backoff_ms(attempts, random.random() if chance is None else chance)


def _is_worth(policy: RetryPolicy, raised: type[BaseException]) -> bool:
    if policy.on is not None:
        if issubclass(raised, CallTimeout):
            # A wider class such as OSError or Exception speaks of what the tool raises.
            return any(issubclass(named, TimeoutError) and issubclass(raised, named) for named in policy.on)
        return issubclass(raised, policy.on) and not issubclass(raised, CallError)
    return issubclass(raised, Exception) and not issubclass(raised, FlinkAgentsError)


def _asked_ms(exception: Any) -> int:
    # A subclass may have forgotten the constructor, and a tool may compute any number.
    after_s = getattr(exception, "after_s", 0)
    if not isinstance(after_s, (int, float)) or not after_s > 0:
        return 0
    return round(min(after_s * 1000, MAX_WAIT_MS))
