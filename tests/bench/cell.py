"""What every cell gets: a cluster, a folder of its own for each job, and how large and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flink_agents.cluster.embedded import EmbeddedCluster
from tests.bench.results import Measure
from tests.bench.topology import BenchJob

__all__ = ["Bench", "Cell"]


@dataclass
class Bench:
    """The means of one run. ``scale`` shrinks the number of requests, ``say`` reports progress.

    With ``profiles``, a folder, cells about rates profile the operator's thread and put the profiles there.
    """

    cluster: EmbeddedCluster
    folder: Path
    repeat: int
    scale: float
    backend: str
    say: Callable[[str], None]
    profiles: Path | None = None
    jobs: int = 0

    def job(self, name: str, **options: Any) -> BenchJob:
        """Return a job in a new folder."""
        self.jobs += 1
        return BenchJob(self.cluster, self.folder / f"{self.jobs:03}-{name}", backend=self.backend, **options)

    def again(self, job: BenchJob, name: str, **options: Any) -> BenchJob:
        """Return a job like another one, in a new folder."""
        self.jobs += 1
        return replace(job, folder=self.folder / f"{self.jobs:03}-{name}", **options)

    def journal(self, name: str) -> Path:
        """Return the file of a journal that nobody has used yet."""
        self.jobs += 1
        return self.folder / f"{self.jobs:03}-{name}.db"

    def count(self, full: int, least: int = 1) -> int:
        """Return ``full`` shrunk by the scale."""
        return max(least, round(full * self.scale))


@dataclass(frozen=True)
class Cell:
    """A named benchmark. ``about`` is one line for ``--help``."""

    name: str
    about: str
    run: Callable[[Bench], list[Measure]]
