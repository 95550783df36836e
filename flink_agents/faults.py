"""Named fault points: places where a test may crash the process; inert in production."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["FAULT_POINTS", "TIMED_FAULT_POINTS", "Fault", "engine_part", "no_fault"]

FAULT_POINTS = (
    "reserve",
    "start",
    "body_ended",
    "outcome_queued",
    "recorded",
    "resumed",
    "emitted",
    "cleaned",
    "timer",
    "drain",
    "open",
)
"""In the order in which a request meets them; each is announced as ``before:NAME`` and ``after:NAME``."""

TIMED_FAULT_POINTS = ("expired",)
"""Met only by requests that run out of time: between the last look at their calls and the record of what that found."""

Fault = Callable[[str], None]
"""Called with ``before:NAME`` or ``after:NAME``; raises (or kills the process) to simulate a crash there."""


def no_fault(point: str) -> None:
    """Do nothing: the fault points of a job that is not under test."""


def engine_part(fault: Fault) -> Fault:
    """Return what the engine and the workers call; nothing, for a fault whose attribute ``shell_only`` is true.

    A measurement that only wants to know when an operator opens and ends must not slow down every call.
    """
    return no_fault if getattr(fault, "shell_only", False) else fault
