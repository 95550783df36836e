"""Moves a job's records into the folder that it follows, a few at a time, for as long as kills are to come."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Feeder", "due"]

TICK_S = 0.25


def due(left: int, remaining_s: float, tick_s: float, carried: float) -> tuple[int, float]:
    """Return how many of ``left`` records go now, and the fraction of one that is carried over to the next tick.

    They are spread over what remains, so a run that takes longer than planned goes on with fewer and never runs dry
    at once.
    """
    wanted = carried + left * tick_s / max(remaining_s, tick_s)
    now = min(left, int(wanted))
    return now, wanted - now


class Feeder:
    """Feeds on a thread of its own between ``start`` and ``finish``; ``proven`` is set from outside.

    Args:
        records: the lines, in order.
        source: the folder that the job follows; files appear in it whole.
        kills: how many kills are to count.
        per_kill_s: how long records arrive for each of them, in seconds.
    """

    def __init__(self, records: Sequence[str], source: Path, *, kills: int, per_kill_s: float) -> None:
        self._records = records
        self._source = source
        self._kills = kills
        self._per_kill_s = per_kill_s
        self._next = 0
        self._files = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-feeder", daemon=True)
        self.proven = 0
        """How many kills have counted so far."""
        self.failure: BaseException | None = None

    @property
    def left(self) -> int:
        """How many records have not been moved yet."""
        return len(self._records) - self._next

    def start(self) -> None:
        """Begin to feed."""
        self._thread.start()

    def finish(self) -> None:
        """Move all that is left in.

        Raises:
            OSError: if the folder cannot be written, now or before.
        """
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        self._move(self.left)

    def _run(self) -> None:
        carried, before, began = 0.0, self.proven, time.monotonic()
        while not self._stop.wait(TICK_S):
            if self.proven != before:
                before, began = self.proven, time.monotonic()
            # Of the present kill's share no less than half remains, however long it is waited for.
            share = max(self._per_kill_s / 2, self._per_kill_s - (time.monotonic() - began))
            others = max(0, self._kills - self.proven - 1) * self._per_kill_s
            count, carried = due(self.left, others + share, TICK_S, carried)
            try:
                self._move(count)
            except OSError as error:
                self.failure = error
                return

    def _move(self, count: int) -> None:
        if count == 0:
            return
        self._files += 1
        name = f"{self._files:06d}.jsonl"
        # Names with a dot in front are not read.
        draft = self._source / f".{name}"
        lines = self._records[self._next : self._next + count]
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        draft.rename(self._source / name)
        self._next += count
