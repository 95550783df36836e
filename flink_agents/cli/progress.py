"""How far a job is, on stderr: one line that changes on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.status import Status

__all__ = ["Progress"]

PLAIN_EVERY_S = 10.0


class Progress:
    """Shows counts while a job runs; a context manager. Used by one thread; ``note`` by any."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = Status("starting Flink", console=console) if console.is_terminal else None
        self._said = ""
        self._said_s = time.monotonic()

    def __enter__(self) -> Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, state: str, counts: Mapping[str, int]) -> None:
        """Show the job's state and counts; off a terminal only when they changed, and not too often."""
        numbers = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in counts.items())
        text = f"{state}: {numbers}" if numbers else state
        if self._status:
            self._status.update(text)
        elif text != self._said and time.monotonic() - self._said_s >= PLAIN_EVERY_S:
            self.note(text)
            self._said, self._said_s = text, time.monotonic()
