"""Waits that a cancellation can end: permits for executions, and one turn after the other for each key."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from flink_agents.errors import Interrupted
from flink_agents.scheduler.attempt import CancellationToken

__all__ = ["CANCELLED", "Permits", "Turns"]

CANCELLED = "Execute: cancelled"


class Permits:
    """So many executions at once, first come, first served. Any thread."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._free = limit
        self._waiters: deque[threading.Event] = deque()
        self._granted: set[threading.Event] = set()

    @property
    def free(self) -> int:
        """Permits that nobody holds or waits for."""
        return self._free

    @property
    def waiting(self) -> int:
        """Threads that wait for a permit."""
        return len(self._waiters)

    @contextmanager
    def held(self, token: CancellationToken) -> Iterator[None]:
        """Hold a permit; wait for one first.

        Raises:
            Interrupted: the token was set before or while it waited; it then holds none.
        """
        if token.cancelled:
            raise Interrupted(CANCELLED)
        self._acquire(token)
        try:
            yield
        finally:
            self._release()

    def _acquire(self, token: CancellationToken) -> None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            waiter = threading.Event()
            self._waiters.append(waiter)
        withdraw = token.on_cancel(waiter.set)
        try:
            waiter.wait()
        finally:
            withdraw()
        with self._lock:
            granted = waiter in self._granted
            if granted:
                self._granted.remove(waiter)
            else:
                self._waiters.remove(waiter)
        if token.cancelled or not granted:
            if granted:
                self._release()
            raise Interrupted(CANCELLED)

    def _release(self) -> None:
        with self._lock:
            if not self._waiters:
                self._free += 1
                return
            waiter = self._waiters.popleft()
            self._granted.add(waiter)
        waiter.set()


class Turns:
    """One execution at a time for each key, in the order in which they came; different keys do not wait. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[Hashable, tuple[Permits, int]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @contextmanager
    def held(self, key: Hashable, token: CancellationToken) -> Iterator[None]:
        """Hold the turn of a key; wait for it first.

        Raises:
            Interrupted: the token was set before or while it waited.
        """
        with self._lock:
            permits, users = self._turns.get(key) or (Permits(1), 0)
            self._turns[key] = (permits, users + 1)
        try:
            with permits.held(token):
                yield
        finally:
            with self._lock:
                _, users = self._turns[key]
                if users == 1:
                    del self._turns[key]
                else:
                    self._turns[key] = (permits, users - 1)
