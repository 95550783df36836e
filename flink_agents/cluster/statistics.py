"""Adds up the statistics records that left the operator with each response and reject: exact, unlike metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from flink_agents.errors import ClusterFault

__all__ = ["COUNTED", "StatisticsFolder"]

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


class StatisticsFolder:
    """The committed parts below one folder, each read once. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[str] = set()
        self._totals = dict.fromkeys(COUNTED, 0)

    def totals(self) -> Mapping[str, int]:
        """Return the sums of all records committed until now.

        Raises:
            ClusterFault: for a part that holds something else.
        """
        # A part has its final name, without a leading dot, only once a checkpoint has made it certain.
        for part in sorted(self._folder.glob("part-*.jsonl")):
            if part.name not in self._seen:
                self._add(part)
                self._seen.add(part.name)
        return dict(self._totals)

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
