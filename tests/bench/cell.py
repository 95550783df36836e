"""What every cell gets: a cluster of its own, a folder for each job, and how large and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.bench.cluster import BenchCluster
from tests.bench.results import Measure
from tests.bench.topology import BenchJob

__all__ = ["Bench", "Cell"]


@dataclass
class Bench:
    """The means of one cell. ``scale`` shrinks the number of requests, ``say`` reports progress.

    With ``profiles``, a folder, cells about rates profile the operator's thread and put the profiles there.
    """

    cluster: BenchCluster
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
        chosen = {"backend": self.backend, **options}
        return BenchJob(self.cluster, self.folder / f"{self.jobs:03}-{name}", **chosen)

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

    def on(self, cluster: BenchCluster, name: str) -> Bench:
        """Return the same means on another cluster."""
        self.jobs += 1
        return replace(self, cluster=cluster, folder=self.folder / f"{self.jobs:03}-{name}", jobs=0)


class NoCluster:
    """In the place of a cluster, for cells that need none or start their own."""

    pids: tuple[int, ...] = ()

    @property
    def rest(self) -> Any:
        """There is none."""
        raise LookupError("this cell has no cluster")

    def submit(self, name: str, options: Mapping[str, str], build: Callable[[Any], None]) -> str:
        """There is nobody to submit to."""
        raise LookupError("this cell has no cluster")


@dataclass(frozen=True)
class Cell:
    """A named benchmark. ``about`` is one line for ``--help``, ``repeat`` how often it measures unless told otherwise.

    ``options`` are Flink's for the cell's cluster; with None it gets none.
    """

    name: str
    about: str
    run: Callable[[Bench], list[Measure]]
    repeat: int = 3
    options: Mapping[str, str] | None = field(default_factory=dict)
