"""Planned crashes at named fault points."""

from __future__ import annotations

from flink_agents.faults import FAULT_POINTS, TIMED_FAULT_POINTS

__all__ = ["CrashAt", "PlannedCrash", "check_point"]


class PlannedCrash(BaseException):
    """Raised at an armed fault point; the harness answers with a crash and a restore."""


def check_point(point: str) -> None:
    """Return if there is such a fault point.

    Raises:
        ValueError: with the points that there are.
    """
    when, _, name = point.partition(":")
    points = (*FAULT_POINTS, *TIMED_FAULT_POINTS)
    if when not in ("before", "after") or name not in points:
        msg = f"no fault point {point!r}; a point is before: or after: one of {', '.join(points)}"
        raise ValueError(msg)


class CrashAt:
    """Crash at the n-th passing of a fault point, such as ``CrashAt("after:recorded", nth=2)``; once.

    Raises:
        ValueError: if there is no such point.
    """

    def __init__(self, point: str, nth: int = 1) -> None:
        check_point(point)
        self.point = point
        self.remaining = nth

    def __call__(self, point: str) -> None:
        """Count the passing, and crash at the armed one."""
        if point == self.point and self.remaining > 0:
            self.remaining -= 1
            if self.remaining == 0:
                msg = f"planned crash at {point}"
                raise PlannedCrash(msg)
