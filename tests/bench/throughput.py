"""Cells about rates: the operator beside a pass-through, and beside the schedule that the calls themselves allow."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flink_agents.options import WorkerOptions
from tests.bench.cell import Bench, Cell
from tests.bench.records import requests
from tests.bench.results import Measure, Target, measured, median
from tests.bench.topology import marks_of

__all__ = ["CELLS", "spent"]

KEYS = 1000
CALLS = 4
SMALL, LARGE = 10_000, 60_000
WAIT_MS = 20
WAITING = 20_000
FEW = 100


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
    pass_through: bool = False,
    floor: bool = False,
    ms: float | None = None,
    journal: Path | None = None,
) -> Spent:
    """Run one job, check how many records came out, and return what it took; ``ms`` is how long a call takes."""
    job = bench.job(
        f"{tool}-{count}",
        pass_through=pass_through,
        floor=floor,
        profile=bench.profiles is not None,
        journal=journal,
    )
    arguments: dict[str, Any] = {} if ms is None else {"ms": ms}
    job.add("requests.jsonl", requests(range(count), keys=KEYS, calls=CALLS, tool=tool, **arguments))
    job.wait(job.submit())
    if (lines := job.lines_out()) != count:
        msg = f"{count} requests went in and {lines} records came out"
        raise RuntimeError(msg)
    opened, drained = (marks_of(job.folder)[point] for point in ("after:open", "after:drain"))
    if bench.profiles is not None and not floor:
        bench.profiles.mkdir(parents=True, exist_ok=True)
        shutil.copy(job.folder / "operator.pstats", bench.profiles / f"{job.folder.name}.pstats")
    # Flink may still be removing its last checkpoint there.
    shutil.rmtree(job.folder, ignore_errors=True)
    spent = Spent(**{name: drained[name] - opened[name] for name in ("s", "cpu_s", "process_cpu_s")})
    bench.say(
        f"{name}: {count} requests in {spent.s:.2f} s, {spent.cpu_s:.2f} s of processor time on the task's thread"
    )
    return spent


def rate(small: tuple[int, float], large: tuple[int, float]) -> float:
    """Return the marginal rate of two sizes, so that what a job costs once is in neither; NaN if noise is larger."""
    taken = large[1] - small[1]
    return (large[0] - small[0]) / taken if taken > 0 else math.nan


class _Pairs:
    """The operator and the pass-through, measured in turns: every second pair in the other order."""

    def __init__(self, bench: Bench, tool: str) -> None:
        self._bench = bench
        self._tool = tool
        self._sizes = (bench.count(SMALL, 200), bench.count(LARGE, 1200))
        for name in ("ours", "pass-through"):
            self._spent(f"{name} (warm-up)", self._sizes[0], name == "pass-through")

    def measure(self, turn: int) -> tuple[list[Spent], list[Spent]]:
        """Return what each size took, ours and then the pass-through."""
        both: dict[bool, list[Spent]] = {False: [], True: []}
        for size in self._sizes:
            for plain in (False, True) if turn % 2 == 0 else (True, False):
                both[plain].append(self._spent("pass-through" if plain else "ours", size, plain))
        return both[False], both[True]

    def rate(self, pair: list[Spent], unit: str) -> float:
        """Return the marginal rate, by the clock (``s``) or by processor time."""
        return rate((self._sizes[0], getattr(pair[0], unit)), (self._sizes[1], getattr(pair[1], unit)))

    def _spent(self, name: str, size: int, plain: bool) -> Spent:
        return spent(self._bench, f"{self._tool}, {name}", size, tool=self._tool, pass_through=plain)


def beside_pass_through(bench: Bench, tool: str, target: Target) -> list[Measure]:
    """Measure the operator with one tool beside the pass-through."""
    pairs = _Pairs(bench, tool)
    taken = [pairs.measure(turn) for turn in range(bench.repeat)]
    ours, plain = ([pairs.rate(pair[side], "s") for pair in taken] for side in (0, 1))
    by_processor = [pairs.rate(pair[0], "process_cpu_s") / pairs.rate(pair[1], "process_cpu_s") for pair in taken]
    return [
        measured("ours / pass-through", [a / b for a, b in zip(ours, plain, strict=True)], "", target=target),
        measured("ours", ours, "requests/s", note=f"{_micros(ours)} a request, {CALLS} calls each, {KEYS} keys"),
        measured("pass-through", plain, "requests/s", note=f"{_micros(plain)} a record"),
        measured("ours / pass-through by processor time", by_processor, "", note="of the whole JVM"),
        measured(
            "processor time of the task's thread",
            [1e6 / pairs.rate(pair[0], "cpu_s") for pair in taken],
            "us a request",
        ),
    ]


def _micros(rates: list[float]) -> str:
    return f"{1e6 / median(rates):.0f} us"


def _inline(bench: Bench) -> list[Measure]:
    return beside_pass_through(bench, "inline", Target(0.3, at_least=True))


def _instant(bench: Bench) -> list[Measure]:
    return beside_pass_through(bench, "instant", Target(0.15, at_least=True))


def _floor(bench: Bench) -> list[Measure]:
    """Measure what writing the state and running the coroutines takes by itself, beside the pass-through and ours."""
    sizes = (bench.count(SMALL, 200), bench.count(LARGE, 1200))
    names = ["floor", "pass-through", "ours"]

    def take(name: str, size: int, label: str) -> float:
        is_floor, is_plain = name == "floor", name == "pass-through"
        return spent(bench, label, size, tool="instant", floor=is_floor, pass_through=is_plain).s

    for name in names:
        take(name, sizes[0], f"{name} (warm-up)")
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(bench.repeat):
        for name in names if turn % 2 == 0 else reversed(names):
            small, large = (take(name, size, name) for size in sizes)
            rates[name].append(rate((sizes[0], small), (sizes[1], large)))
    floor, plain, ours = (rates[name] for name in names)
    return [
        measured("floor / pass-through", [a / b for a, b in zip(floor, plain, strict=True)], ""),
        measured("ours / floor", [a / b for a, b in zip(ours, floor, strict=True)], ""),
        measured("floor", floor, "requests/s", note=_micros(floor)),
        measured("ours", ours, "requests/s", note=_micros(ours)),
        measured("pass-through", plain, "requests/s", note=_micros(plain)),
    ]


def _waiting(bench: Bench) -> list[Measure]:
    """Measure the wall time of calls that wait, less that of a job with next to nothing to do."""
    count, ideal = bench.count(WAITING, 2 * FEW), _ideal(bench.count(WAITING, 2 * FEW))
    waits: dict[str, float | None] = {"wait": WAIT_MS, "instant": None}
    walls: dict[str, list[float]] = {tool: [] for tool in waits}
    spent(bench, "instant (warm-up)", min(count, SMALL), tool="instant")
    for turn in range(bench.repeat):
        for tool in list(waits) if turn % 2 == 0 else reversed(waits):
            few, all_of_them = (spent(bench, tool, size, tool=tool, ms=waits[tool]) for size in (FEW, count))
            walls[tool].append(all_of_them.s - few.s)
    ratios = [wall / max(ideal, instant) for wall, instant in zip(walls["wait"], walls["instant"], strict=True)]
    note = f"{count} requests of {CALLS} calls, {KEYS} keys, start-up apart"
    return [
        measured("wall / larger of the two below", ratios, "", target=Target(1.5), note=note),
        measured("wall, calls at once", walls["instant"], "s"),
        Measure(
            "wall, ideal schedule", ideal, "s", note=f"{WorkerOptions().async_limit} calls of {WAIT_MS} ms at once"
        ),
        measured("wall", walls["wait"], "s"),
    ]


def _ideal(count: int) -> float:
    """Return the shortest time that the limits allow: workers always busy, or the longest chain of one key."""
    at_once = min(WorkerOptions().async_limit, KEYS * CALLS)
    return max(count * CALLS / at_once, math.ceil(count / KEYS)) * WAIT_MS / 1000


CELLS = [
    Cell("inline", "4 inline calls a request: rate beside a pass-through", _inline),
    Cell("instant", "4 async calls that return at once: rate beside a pass-through", _instant),
    Cell("floor", "the same state and coroutines without an engine: what is left of the pass-through's rate", _floor),
    Cell(
        "waiting", "4 async calls of 20 ms: wall time beside the ideal schedule and calls that return at once", _waiting
    ),
]
