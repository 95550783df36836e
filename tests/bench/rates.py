"""Marginal rates: what a job takes at two sizes, variant beside variant, so that starting it costs none of them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.cell import Bench
from tests.bench.records import requests
from tests.bench.results import Measure, Target, measured, median
from tests.bench.topology import marks_of

__all__ = ["CALLS", "KEYS", "Rates", "Spent", "Variant", "marginal", "rate", "ratio", "spent"]

KEYS = 1000
CALLS = 4


@dataclass(frozen=True)
class Spent:
    """What a job took from the operator's opening until its last record had gone into the sink, in seconds.

    ``cpu_s`` is processor time of the task's thread, ``process_cpu_s`` that of the whole JVM. Other work on the machine
    disturbs them less than the time by the clock, ``s``.
    """

    s: float
    cpu_s: float
    process_cpu_s: float


def spent(
    bench: Bench,
    name: str,
    count: int,
    *,
    tool: str,
    keys: int = KEYS,
    calls: int = CALLS,
    arguments: Mapping[str, Any] | None = None,
    lines: Callable[[int], Iterable[str]] | None = None,
    journal: Path | None = None,
    **options: Any,
) -> Spent:
    """Run one job of ``count`` requests, check how many records came out, and return what it took.

    ``arguments`` are those of every call, ``options`` those of ``BenchJob``; with ``lines`` that makes the requests.
    """
    job = bench.job(f"{tool}-{count}", profile=bench.profiles is not None, journal=journal, **options)
    if lines is None:
        job.add("requests.jsonl", requests(range(count), keys=keys, calls=calls, tool=tool, **(arguments or {})))
    else:
        job.add("requests.jsonl", lines(count))
    job.wait(job.submit())
    if (answered := job.lines_out()) != count:
        msg = f"{count} requests went in and {answered} records came out"
        raise RuntimeError(msg)
    opened, drained = (marks_of(job.folder)[point] for point in ("after:open", "after:drain"))
    if bench.profiles is not None and not job.floor:
        bench.profiles.mkdir(parents=True, exist_ok=True)
        shutil.copy(job.folder / "operator.pstats", bench.profiles / f"{job.folder.name}.pstats")
    # Flink may still be removing its last checkpoint there.
    shutil.rmtree(job.folder, ignore_errors=True)
    took = Spent(**{unit: drained[unit] - opened[unit] for unit in ("s", "cpu_s", "process_cpu_s")})
    bench.say(f"{name}: {count} requests in {took.s:.2f} s, {took.cpu_s:.2f} s of processor time on the task's thread")
    return took


def rate(small: tuple[int, float], large: tuple[int, float]) -> float:
    """Return the marginal rate of two sizes, so that what a job costs once is in neither; NaN if noise is larger."""
    taken = large[1] - small[1]
    return (large[0] - small[0]) / taken if taken > 0 else math.nan


@dataclass(frozen=True)
class Variant:
    """One way of doing the work that is measured beside others; ``options`` are those of ``spent``."""

    name: str
    options: Mapping[str, Any]
    journaled: bool = False


@dataclass
class Rates:
    """What one variant took, for each repetition at both sizes."""

    name: str
    sizes: tuple[int, int]
    pairs: list[tuple[Spent, Spent]] = field(default_factory=list)

    def each(self, unit: str = "s") -> list[float]:
        """Return the requests a second of each repetition, by the clock (``s``) or by processor time."""
        small, large = self.sizes
        return [rate((small, getattr(a, unit)), (large, getattr(b, unit))) for a, b in self.pairs]

    def micros(self, unit: str = "s") -> list[float]:
        """Return the microseconds a request of each repetition."""
        return [1e6 / each for each in self.each(unit)]

    def measure(self, note: str = "") -> Measure:
        """Return the rate by the clock as a measure."""
        each = self.each()
        words = f"{1e6 / median(each):.0f} us a request"
        return measured(self.name, each, "requests/s", note=f"{words}, {note}" if note else words)

    def measure_cpu(self, unit: str = "process_cpu_s", note: str = "") -> Measure:
        """Return the processor time of a request as a measure: of the whole JVM, or of the task's thread."""
        of = "JVM" if unit == "process_cpu_s" else "task's thread"
        return measured(f"{self.name}, processor time of the {of}", self.micros(unit), "us a request", note=note)


def ratio(
    name: str, above: Rates, below: Rates, *, target: Target | None = None, note: str = "", unit: str = "s"
) -> Measure:
    """Return how the rate of one variant stands to that of another, taken in the same turn."""
    samples = [a / b for a, b in zip(above.each(unit), below.each(unit), strict=True)]
    return measured(name, samples, "", target=target, note=note)


def marginal(bench: Bench, variants: Sequence[Variant], small: int, large: int) -> dict[str, Rates]:
    """Measure all variants in turns, every second turn in the other order, after each was warmed up once.

    ``small`` and ``large`` are numbers of requests, which the scale shrinks.
    """
    sizes = bench.count(small, 50), bench.count(large, 300)
    rates = {variant.name: Rates(variant.name, sizes) for variant in variants}
    for variant in variants:
        _take(bench, variant, sizes[0], " (warm-up)")
    for turn in range(bench.repeat):
        for variant in variants if turn % 2 == 0 else reversed(variants):
            first, second = (_take(bench, variant, size) for size in sizes)
            rates[variant.name].pairs.append((first, second))
    return rates


def _take(bench: Bench, variant: Variant, count: int, more: str = "") -> Spent:
    journal = bench.journal("rates") if variant.journaled else None
    return spent(bench, f"{variant.name}{more}", count, journal=journal, **variant.options)
