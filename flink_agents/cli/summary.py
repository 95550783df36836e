"""What a run did, in numbers: as a table for people and as one JSON object for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["Summary"]


@dataclass(frozen=True)
class Summary:
    """Counts of the exactly-once statistics, and the job's restarts, completed checkpoints and wall time."""

    counts: Mapping[str, int]
    restarts: int
    checkpoints: int
    wall_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the summary with its documented keys."""
        requests = self.counts["requests"]
        return {
            **self.counts,
            "restarts": self.restarts,
            "checkpoints": self.checkpoints,
            "wall_s": round(self.wall_s, 3),
            "requests_per_s": round(requests / self.wall_s, 1) if self.wall_s > 0 else 0.0,
        }

    def show(self, console: Console) -> None:
        """Print the summary as a table."""
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in self.to_json().items():
            table.add_row(name.replace("_", " "), f"{value:,}")
        console.print(table)
