"""The two clocks: wall time for what is stored and compared across processes, monotonic for durations."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock", "monotonic_ms", "now_ms", "since_ms"]

Clock = Callable[[], int]
"""Returns milliseconds since the epoch; passed in wherever a decision depends on time, so tests can set it."""


def now_ms() -> int:
    """Return the wall time in milliseconds since the epoch. Any thread."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> float:
    """Return a monotonic time in milliseconds, for durations inside one process. Any thread."""
    return time.perf_counter_ns() / 1_000_000


def since_ms(began_ns: int) -> int:
    """Return the whole milliseconds since a ``time.perf_counter_ns``. Any thread."""
    return (time.perf_counter_ns() - began_ns + 500_000) // 1_000_000
