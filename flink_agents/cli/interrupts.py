"""Ctrl-C and SIGTERM of a command that has something to finish first."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupts"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context manager that decides what Ctrl-C means; main thread only.

    At first it raises ``KeyboardInterrupt``, as always. While ``orderly`` is true, the first one only sets ``asked``;
    the second one raises. After ``ending`` was called nothing is raised any more: what is left takes seconds.
    """

    def __init__(self) -> None:
        self.orderly = False
        self.asked = False
        self._ending = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def ending(self) -> None:
        """Let what is left run to its end, whatever signal comes."""
        self._ending = True

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        if self._ending:
            return
        if self.orderly and not self.asked:
            self.asked = True
            return
        self._ending = True
        raise KeyboardInterrupt
