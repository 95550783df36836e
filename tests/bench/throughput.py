"""Cells about rates: the operator beside a pass-through, and beside the schedule that the calls themselves allow."""

from __future__ import annotations

import math

from flink_agents.options import WorkerOptions
from tests.bench.cell import Bench, Cell
from tests.bench.rates import CALLS, KEYS, Variant, marginal, ratio, spent
from tests.bench.results import Measure, Target, measured

__all__ = ["CELLS", "beside_pass_through"]

WAIT_MS = 20
WAITING = 20_000
FEW = 100


def beside_pass_through(bench: Bench, tool: str, small: int, large: int, target: Target | None = None) -> list[Measure]:
    """Measure the operator with one tool beside the pass-through."""
    names = {"ours": False, "pass-through": True}
    rates = marginal(
        bench, [Variant(name, {"tool": tool, "pass_through": plain}) for name, plain in names.items()], small, large
    )
    ours, plain = (rates[name] for name in names)
    return [
        ratio("ours / pass-through", ours, plain, target=target),
        ours.measure(f"{CALLS} calls each, {KEYS} keys"),
        plain.measure(),
        ratio("ours / pass-through by processor time", ours, plain, unit="process_cpu_s", note="of the whole JVM"),
        ours.measure_cpu(),
        ours.measure_cpu("cpu_s"),
        plain.measure_cpu(),
    ]


def _inline(bench: Bench) -> list[Measure]:
    return beside_pass_through(bench, "inline", 10_000, 60_000, Target(0.5, at_least=True))


def _instant(bench: Bench) -> list[Measure]:
    return beside_pass_through(bench, "instant", 3_000, 18_000, Target(0.25, at_least=True))


def _thread(bench: Bench) -> list[Measure]:
    return beside_pass_through(bench, "quick", 2_000, 10_000)


def _floor(bench: Bench) -> list[Measure]:
    """Measure what writing the state and running the coroutines takes by itself, beside the pass-through and ours."""
    variants = [
        Variant("floor", {"tool": "instant", "floor": True}),
        Variant("pass-through", {"tool": "instant", "pass_through": True}),
        Variant("ours", {"tool": "instant"}),
    ]
    rates = marginal(bench, variants, 3_000, 18_000)
    floor, plain, ours = (rates[variant.name] for variant in variants)
    return [
        ratio("floor / pass-through", floor, plain),
        ratio("ours / floor", ours, floor),
        *(each.measure() for each in (floor, ours, plain)),
        *(each.measure_cpu() for each in (floor, ours, plain)),
    ]


def _waiting(bench: Bench) -> list[Measure]:
    """Measure the wall time of calls that wait, less that of a job with next to nothing to do."""
    count = bench.count(WAITING, 2 * FEW)
    ideal = _ideal(count)
    waits: dict[str, dict[str, float]] = {"wait": {"ms": WAIT_MS}, "instant": {}}
    walls: dict[str, list[float]] = {tool: [] for tool in waits}
    spent(bench, "instant (warm-up)", count // 4, tool="instant")
    for turn in range(bench.repeat):
        for tool in list(waits) if turn % 2 == 0 else reversed(waits):
            few, all_of_them = (spent(bench, tool, size, tool=tool, arguments=waits[tool]) for size in (FEW, count))
            walls[tool].append(all_of_them.s - few.s)
    ratios = [wall / max(ideal, instant) for wall, instant in zip(walls["wait"], walls["instant"], strict=True)]
    note = f"{count} requests of {CALLS} calls, {KEYS} keys, start-up apart"
    return [
        measured("wall / larger of the two below", ratios, "", target=Target(1.3), note=note),
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
    Cell("thread", "4 thread calls that return at once: rate beside a pass-through", _thread, 2),
    Cell(
        "floor", "the same state and coroutines without an engine: what is left of the pass-through's rate", _floor, 1
    ),
    Cell(
        "waiting",
        f"{WAITING} requests of 4 async calls of 20 ms: wall time beside the ideal schedule and calls at once",
        _waiting,
        2,
    ),
]
