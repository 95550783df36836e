"""The execution logs of a chaos run: read while it goes on, and what they say about each kill."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson

__all__ = ["Event", "ExecutionLogs", "Kill", "weigh"]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a log. ``at`` is in nanoseconds of the machine's monotonic clock, ``pid`` the TaskManager's.

    ``kind``: ``open`` (an attempt), ``look`` (the journal is asked for a call), ``begin`` and ``end`` (of a body),
    ``commit`` (the answer to a finished body), ``found`` (the answer to a look-up that had an outcome). ``by`` is the
    attempt whose outcome stands, ``value`` the outcome's digest.
    """

    at: int
    pid: int
    kind: str
    attempt: str
    call: str = ""
    by: str = ""
    value: str = ""


class ExecutionLogs:
    """Reads what is new in the logs of one folder; for one thread. ``events`` is all that was read, by file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._opens: list[Event] = []
        self._begun: set[str] = set()
        self.events: list[Event] = []
        self.running: dict[int, set[str]] = {}
        """Calls whose body has begun and not ended, by process."""
        self.last_commit = 0
        """When an outcome was last recorded."""

    def update(self) -> None:
        """Read on. A line that is not whole yet is left for the next time."""
        for file in sorted(self._folder.glob("*.jsonl")):
            with file.open("rb") as lines:
                lines.seek(self._read.get(file, 0))
                text = lines.read()
            whole = text.rpartition(b"\n")[0]
            if whole:
                self._read[file] = self._read.get(file, 0) + len(whole) + 1
                for line in whole.split(b"\n"):
                    self._take(int(file.stem), line)

    def opened_since(self, at: int) -> set[int]:
        """Return the processes in which attempts have opened since a moment."""
        return {event.pid for event in self._opens if event.at > at}

    def begun_since(self, at: int) -> set[int]:
        """Return the processes in which attempts that have opened since a moment have begun a body."""
        return {event.pid for event in self._opens if event.at > at and event.attempt in self._begun}

    def opens_since(self, at: int) -> int:
        """Return how many attempts have opened since a moment."""
        return sum(event.at > at for event in self._opens)

    def _take(self, pid: int, line: bytes) -> None:
        entry = orjson.loads(line)
        event = Event(
            entry["t"], pid, entry["e"], entry["a"], entry.get("c", ""), entry.get("by", ""), entry.get("v", "")
        )
        self.events.append(event)
        running = self.running.setdefault(pid, set())
        if event.kind == "begin":
            running.add(event.call)
            self._begun.add(event.attempt)
        elif event.kind == "end":
            running.discard(event.call)
        elif event.kind == "open":
            self._opens.append(event)
        elif event.kind == "commit":
            self.last_commit = max(self.last_commit, event.at)


@dataclass(frozen=True)
class Kill:
    """One kill that took place. ``at_s``: seconds after the start of the run.

    ``running``: calls whose bodies ran on the killed TaskManager. ``recorded``: calls whose outcome had been recorded
    after the newest completed checkpoint, so that nothing but the journal knew of it.
    """

    number: int
    moment: str
    taskmanager: int
    pid: int
    at_s: float
    running: int
    recorded: int

    @property
    def counted(self) -> bool:
        """Whether it could have broken something."""
        return self.running > 0 and self.recorded > 0


def weigh(events: Iterable[Event], pid: int, at: int, checkpoint: int) -> tuple[int, int]:
    """Return how many calls ran in a process that was killed at ``at``, and how many outcomes no checkpoint knew.

    ``checkpoint`` is when the newest completed checkpoint was, 0 without one; all in nanoseconds of one clock. What
    ended or was recorded at the very moment of the kill does not count.
    """
    began: set[tuple[str, str]] = set()
    ended: set[tuple[str, str]] = set()
    recorded: dict[str, int] = {}
    for event in events:
        if event.kind == "commit":
            recorded[event.call] = min(event.at, recorded.get(event.call, event.at))
        elif event.pid == pid and event.kind == "begin" and event.at < at:
            began.add((event.call, event.attempt))
        elif event.pid == pid and event.kind == "end":
            ended.add((event.call, event.attempt))
    return len(began - ended), sum(checkpoint < when < at for when in recorded.values())
