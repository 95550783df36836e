"""One life of a subtask between two failures: what fences the work of an old life from the new one."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from flink_agents.redaction import NO_SECRETS, Redaction

if TYPE_CHECKING:
    from flink_agents.scheduler.call import Completion

__all__ = ["Attempt", "CancellationToken"]


_tokens = threading.Lock()
"""Guards the callbacks of every token: they change rarely, and a lock of its own would cost more than a quick call."""


class CancellationToken:
    """Tells a running body that it should stop. Set from any thread, never cleared.

    A callback registered after the token was set is called at once, on the registering thread.
    """

    __slots__ = ("_callbacks", "_event", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        """Whether the stop was asked for."""
        self._event: threading.Event | None = None
        self._callbacks: dict[int, Callable[[], None]] | None = None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the token is set or the time is over; return whether it is set. Never on the task thread."""
        with _tokens:
            if self.cancelled:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(timeout_s)

    def cancel(self) -> None:
        """Ask for the stop; calls each registered callback once, on this thread."""
        with _tokens:
            self.cancelled = True
            callbacks = list((self._callbacks or {}).values())
            self._callbacks = None
            if self._event is not None:
                self._event.set()
        for callback in callbacks:
            callback()

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when the token is set; return a function that withdraws it."""
        with _tokens:
            if not self.cancelled:
                if self._callbacks is None:
                    self._callbacks = {}
                self._callbacks[id(callback)] = callback
                return lambda: self._withdraw(callback)
        callback()
        return _nothing

    def _withdraw(self, callback: Callable[[], None]) -> None:
        with _tokens:
            if self._callbacks is not None:
                self._callbacks.pop(id(callback), None)


class Cancellable(Protocol):
    """A running body: its call, or its token."""

    def cancel(self) -> None:
        """Ask it to stop. Any thread; does nothing the second time."""


def _nothing() -> None:
    """Withdraw nothing: the callback ran already."""


class Attempt:
    """One life of a subtask. Workers hold the attempt, never the operator.

    ``completions`` is the only way from a worker to the task thread: appended on any thread, drained by that one.
    ``notify`` is set by the runtime and tells the task thread that something lies there; it must be callable on any
    thread and must not raise. ``secrets`` are what must not be in the record of a failure.
    """

    __slots__ = (
        "__weakref__",
        "_lock",
        "_on_interrupt",
        "_running",
        "completions",
        "failure",
        "id",
        "interrupted",
        "notify",
        "secrets",
    )

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self.completions: deque[Completion] = deque()
        self.notify: Callable[[], None] = _nothing
        self.failure: BaseException | None = None
        self.interrupted = False
        self.secrets: Redaction = NO_SECRETS
        self._lock = threading.Lock()
        self._running: dict[int, Cancellable] = {}
        self._on_interrupt: list[Callable[[], None]] = []

    def on_interrupt(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the attempt is interrupted, on the interrupting thread. Any thread."""
        with self._lock:
            if not self.interrupted:
                self._on_interrupt.append(callback)
                return
        callback()

    def enter(self, body: Cancellable) -> None:
        """Register a body that is about to run; an attempt that is already interrupted stops it at once."""
        # Without the lock, once for every call: entered before the look, as ``interrupt`` looks after it has said so.
        self._running[id(body)] = body
        if self.interrupted:
            body.cancel()

    def leave(self, body: Cancellable) -> None:
        """Forget a body that ended."""
        self._running.pop(id(body), None)

    def deliver(self, completion: Completion) -> None:
        """Hand a body's end to the task thread. Any thread."""
        self.completions.append(completion)
        self.notify()

    def deliver_all(self, completions: Iterable[Completion]) -> None:
        """Hand the ends of several bodies to the task thread. Any thread."""
        self.completions.extend(completions)
        self.notify()

    def fail(self, failure: BaseException) -> None:
        """Have the task thread fail the task with this fault, which belongs to no single call. Any thread."""
        self.failure = failure
        self.notify()

    def interrupt(self) -> None:
        """Ask every running body of this attempt to stop; bodies that begin later are asked at once. Any thread."""
        with self._lock:
            self.interrupted = True
            bodies = list(self._running.values())
            callbacks, self._on_interrupt = self._on_interrupt, []
        for body in bodies:
            body.cancel()
        for callback in callbacks:
            callback()
