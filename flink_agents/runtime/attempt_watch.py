"""The one thread of a process that calls into Java from outside a task: posts wake-ups, sees attempts die.

A Java interrupt does not reach Python and ``close()`` is not called when a task fails or is cancelled, so an attempt
learns of its end only here. One thread that never ends does all this, because a Python thread that has called Java and
then ends can bring down the JVM at the next thread dump.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flink_agents.clock import monotonic_ms
from flink_agents.scheduler.attempt import Attempt

__all__ = ["TICK_MS", "AttemptWatch", "TaskPort", "WakeSignal", "process_watch"]

_log = logging.getLogger(__name__)

TICK_MS = 100.0
_REPOST_MS = 1000.0
_NEVER = float("inf")


class TaskPort(Protocol):
    """What the watch asks of one task. Holds the Java objects; only this thread and the task's call it."""

    def post(self) -> None:
        """Put a wake-up into the task's mailbox. Raises anything when the mailbox is closed."""

    def is_dead(self) -> bool:
        """Whether the task was cancelled, failed or ended."""

    def release(self) -> None:
        """Drop every Java object; called once, after the attempt's death."""


class WakeSignal:
    """What workers hold of an attempt's task: callable on any thread, coalescing, and without a Java object inside.

    Whoever drops the last reference to a Java object calls into Java, so what reaches workers must hold none.
    """

    __slots__ = ("_arrived", "_queue", "_sleeps_until_ms", "_wanted", "alarm_ms", "given", "pending", "posted_ms")

    def __init__(self, wake_queue: queue.SimpleQueue[WakeSignal | None], sleeps_until_ms: Callable[[], float]) -> None:
        self._queue = wake_queue
        self._sleeps_until_ms = sleeps_until_ms
        self.pending = self.given = False
        self.posted_ms = _NEVER
        self.alarm_ms = _NEVER
        self._wanted: Callable[[], bool] | None = None
        self._arrived = threading.Event()

    def __call__(self) -> None:
        """Have the task thread look at what is due; returns at once."""
        # Before the look at ``pending``: who holds notices back looks at it after that ended.
        self.given = True
        # Set before the queue, cleared by the mail before it looks: what was appended before this call is never missed.
        if not self.pending:
            self.pending = True
            self._queue.put(self)
        else:
            wanted = self._wanted
            if wanted is not None and wanted():
                self._arrived.set()

    def wait(self, wanted: Callable[[], bool], timeout_ms: float) -> None:
        """Wait on the task thread itself until the signal is given and ``wanted`` holds, or the time is over.

        No mail is posted meanwhile. ``wanted`` is called on whatever thread signals.
        """
        self.pending = True
        # Announced before the look, as whoever signals has appended before it.
        self._wanted = wanted
        if not wanted():
            self._arrived.wait(timeout_ms / 1000)
        self._wanted = None
        self._arrived.clear()

    def ring_at(self, monotonic: float) -> None:
        """Wake the task thread at a time of the monotonic clock, in milliseconds; replaces the time set before."""
        self.alarm_ms = monotonic
        # Set before the look: the watch says how long it will sleep before it looks at the alarms.
        if monotonic < self._sleeps_until_ms():
            # It would sleep past it: an entry in the queue makes it look at the times again.
            self._queue.put(None)


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    """One open attempt, as the watch knows it."""

    attempt: Attempt
    port: TaskPort
    signal: WakeSignal


class AttemptWatch:
    """Watches every open attempt of this process. One instance a process: see :func:`process_watch`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[WakeSignal | None] = queue.SimpleQueue()
        self._watched: dict[WakeSignal, _Watched] = {}
        self._tick_ms = 0.0
        self._sleeps_until_ms = _NEVER
        threading.Thread(target=self._run, name="flink-agents-watch", daemon=True).start()

    @property
    def open_attempts(self) -> int:
        """Attempts that are not known to be dead."""
        return len(self._watched)

    def signal(self) -> WakeSignal:
        """Return a new signal; it wakes nobody until it is registered."""
        return WakeSignal(self._queue, lambda: self._sleeps_until_ms)

    def register(self, attempt: Attempt, port: TaskPort, signal: WakeSignal) -> None:
        """Watch an attempt from now until its death. Task thread, in ``open()``; nothing needs to be undone."""
        self._watched[signal] = _Watched(attempt, port, signal)

    def _run(self) -> None:
        while True:
            signal = None
            with contextlib.suppress(queue.Empty):
                signal = self._queue.get(timeout=self._pause_s())
            try:
                self._step(signal)
            except Exception:  # the thread serves every job of the process and must outlive any of them
                _log.exception("the attempt watch goes on after a failure of its own")
            del signal

    def _pause_s(self) -> float:
        # Until the look is over, every new alarm may be one that it has missed.
        self._sleeps_until_ms = _NEVER
        alarms = [watched.signal.alarm_ms for watched in self._watched.copy().values()]
        self._sleeps_until_ms = until = min([self._tick_ms + TICK_MS, *alarms])
        return max(0.0, until - monotonic_ms()) / 1000

    def _step(self, signal: WakeSignal | None) -> None:
        if signal is not None and signal.pending:
            watched = self._watched.get(signal)
            if watched is not None:
                self._post(watched)
        now = monotonic_ms()
        for watched in self._watched.copy().values():
            if watched.signal.alarm_ms <= now:
                watched.signal.alarm_ms = _NEVER
                watched.signal.pending = True
                self._post(watched)
        if now >= self._tick_ms + TICK_MS:
            self._tick_ms = now
            for watched in self._watched.copy().values():
                self._tick(watched, now)

    def _tick(self, watched: _Watched, now: float) -> None:
        if watched.port.is_dead():
            self._bury(watched, "its task was cancelled, failed or ended")
        elif watched.attempt.completions and now - watched.signal.posted_ms > _REPOST_MS:
            _log.debug("attempt %s: wake-up not answered for a second, posting again", watched.attempt.id)
            watched.signal.pending = True
            self._post(watched)

    def _post(self, watched: _Watched) -> None:
        watched.signal.posted_ms = monotonic_ms()
        try:
            watched.port.post()
        except Exception as rejected:  # the mailbox says so with a Java exception of one of several classes
            _log.debug("wake-up rejected: %r", rejected)
            self._bury(watched, "its mailbox is closed")

    def _bury(self, watched: _Watched, why: str) -> None:
        self._watched.pop(watched.signal, None)
        _log.info("attempt %s is over: %s", watched.attempt.id, why)
        watched.attempt.interrupt()
        watched.port.release()


_process_watch: AttemptWatch | None = None
_lock = threading.Lock()


def process_watch() -> AttemptWatch:
    """Return the watch of this process, started at the first call. It outlives every job and every attempt."""
    global _process_watch
    with _lock:
        if _process_watch is None:
            _process_watch = AttemptWatch()
        return _process_watch
