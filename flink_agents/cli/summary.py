"""What a run did, in numbers: as a table for people and as one JSON object for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from flink_agents.cluster.runs import Totals

__all__ = ["Summary"]


@dataclass(frozen=True)
class Summary:
    """Counts of the exactly-once statistics, and what Flink counted, both over all jobs of the run."""

    counts: Mapping[str, int]
    totals: Totals

    def to_json(self) -> dict[str, Any]:
        """Return the summary with its documented keys."""
        requests, wall_s = self.counts["requests"], self.totals.wall_s
        return {
            **self.counts,
            "restarts": self.totals.restarts,
            "checkpoints": self.totals.checkpoints,
            "wall_s": round(wall_s, 3),
            "requests_per_s": round(requests / wall_s, 1) if wall_s > 0 else 0.0,
        }

    def show(self, console: Console) -> None:
        """Print the summary as a table."""
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in self.to_json().items():
            table.add_row(name.replace("_", " "), f"{value:,}")
        console.print(table)
