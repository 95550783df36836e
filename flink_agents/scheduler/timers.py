"""What is due when: the timers of one action, and the alarms of all busy keys of a subtask."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from heapq import heappop, heappush
from typing import Any, NamedTuple

__all__ = ["Alarms", "Due", "Timer", "Timers"]


class Due(Enum):
    """What a timer is for; ``subject`` is a slot's index, a running call, or a wait."""

    SLEEP = "sleep"
    RETRY = "retry"
    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    BATCH = "batch"


class Timer(NamedTuple):
    """One moment, in milliseconds since the epoch. ``order`` keeps timers of one moment in the order of making."""

    at_ms: int
    order: int
    due: Due
    subject: Any


class Timers:
    """The timers of one action, earliest first. Task thread only; lost with the attempt, made again on replay.

    A timer is never withdrawn: what it was for may be over when it is popped, and ``is_live`` tells.
    """

    __slots__ = ("_heap", "_made")

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._made = 0

    def set(self, at_ms: int, due: Due, subject: Any) -> None:
        """Add a timer."""
        self._made += 1
        heappush(self._heap, Timer(at_ms, self._made, due, subject))

    def next_ms(self, is_live: Callable[[Timer], bool]) -> int | None:
        """Return when the earliest live timer is due; None where there is none."""
        heap = self._heap
        while heap and not is_live(heap[0]):
            heappop(heap)
        return heap[0].at_ms if heap else None

    def pop_due(self, now_ms: int, is_live: Callable[[Timer], bool]) -> list[Timer]:
        """Take and return all live timers that are due, in order."""
        heap, due = self._heap, []
        while heap and heap[0].at_ms <= now_ms:
            timer = heappop(heap)
            if is_live(timer):
                due.append(timer)
        return due


class Alarms:
    """When each busy key wants its next turn. Task thread only.

    A key's alarm is moved by setting an earlier one; one that rings too early costs a look (``next_of``) and no turn.
    """

    def __init__(self, next_of: Callable[[str], int | None]) -> None:
        self._next_of = next_of
        self._heap: list[tuple[int, str]] = []
        self._set: dict[str, int] = {}

    def set(self, key: str, at_ms: int) -> None:
        """Have ``key`` reported at ``at_ms`` at the latest."""
        known = self._set.get(key)
        if known is None or at_ms < known:
            self._set[key] = at_ms
            heappush(self._heap, (at_ms, key))

    def next_ms(self) -> int | None:
        """Return when to look again; None while nothing is set."""
        heap = self._heap
        while heap and self._set.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ms: int) -> list[str]:
        """Take and return the keys whose time has come."""
        ringing = []
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            _, key = heappop(self._heap)
            del self._set[key]
            actual = self._next_of(key)
            if actual is None:
                continue
            if actual <= now_ms:
                ringing.append(key)
            else:
                self.set(key, actual)
        return ringing
