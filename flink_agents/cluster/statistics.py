"""Adds up the statistics records that left the operator with each response and reject: exact, unlike metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import orjson

from flink_agents.errors import ClusterFault

__all__ = ["COUNTED", "FOLDED", "StatisticsFolder"]

# Name in the summary, name in a statistics record.
COUNTED = {
    "requests": "request",
    "responses": "response",
    "rejects": "reject",
    "calls": "calls",
    "succeeded": "succeeded",
    "failed": "failed",
    "timed_out": "timed_out",
    "replayed": "replayed",
    "reran": "reran",
}

FOLDED = "folded.json"
FOLD_ABOVE = 500


class StatisticsFolder:
    """The committed parts below one folder, each read once. Used by one thread, and one object at a time per folder.

    There is one part for each checkpoint and subtask with responses, so they are folded into one file of sums. That
    file also names the parts it was made of: one that a crash left behind is not counted again. Names of parts are
    never used twice, and Flink does nothing about a committed part that is gone when it restores.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[str] | None = None
        self._totals = dict.fromkeys(COUNTED, 0)

    def totals(self) -> Mapping[str, int]:
        """Return the sums of all records committed until now.

        Raises:
            ClusterFault: for a part that holds something else.
        """
        seen = self._begin() if self._seen is None else self._seen
        # A part has its final name, without a leading dot, only once a checkpoint has made it certain.
        for part in sorted(self._folder.glob("part-*.jsonl")):
            if part.name not in seen:
                self._add(part)
                seen.add(part.name)
        if len(seen) > FOLD_ABOVE:
            self.fold()
        return dict(self._totals)

    def fold(self, *, over: bool = False) -> None:
        """Put all committed parts into one file; with ``over``, when no job can go on here, leave nothing but that.

        Raises:
            ClusterFault: for a part that holds something else, or a folder that cannot be written.
        """
        seen = self._begin() if self._seen is None else self._seen
        parts = [part for part in self._folder.glob("part-*.jsonl") if part.name in seen]
        try:
            if parts:
                self._write(sorted(part.name for part in parts))
            leftovers = self._folder.glob(".part-*") if over else ()
            for file in (*parts, *leftovers):
                file.unlink(missing_ok=True)
        except OSError as error:
            msg = f"the statistics in {self._folder} cannot be folded: {error.strerror or error}"
            raise ClusterFault(msg) from error
        seen.intersection_update(part.name for part in self._folder.glob("part-*.jsonl"))

    def _begin(self) -> set[str]:
        self._seen = set()
        file = self._folder / FOLDED
        try:
            folded = orjson.loads(file.read_bytes())
            for name in COUNTED:
                self._totals[name] += folded["counts"].get(name, 0)
            self._seen.update(folded["parts"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f"{file} holds no statistics: {error}"
            raise ClusterFault(msg) from error
        return self._seen

    def _write(self, parts: list[str]) -> None:
        draft = self._folder / f"{FOLDED}.new"
        with draft.open("wb") as file:
            file.write(orjson.dumps({"counts": self._totals, "parts": parts}))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._folder / FOLDED)

    def _add(self, part: Path) -> None:
        sums = dict.fromkeys(COUNTED, 0)
        with part.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    record = orjson.loads(line)
                    for name, field in COUNTED.items():
                        sums[name] += record.get(field, 0)
                except (ValueError, TypeError, AttributeError) as error:
                    msg = f"{part}:{number} is no statistics record: {error}"
                    raise ClusterFault(msg) from error
        for name, value in sums.items():
            self._totals[name] += value
