"""The cell about scaling: one and two TaskManagers, each with its own workers, and calls that wait for something."""

from __future__ import annotations

from flink_agents.options import WorkerOptions
from tests.bench.apart import apart
from tests.bench.cell import Bench, Cell
from tests.bench.cluster import standalone
from tests.bench.rates import CALLS, KEYS, Rates, Variant, marginal, ratio
from tests.bench.results import Measure

__all__ = ["CELLS"]

WAIT_MS = 20
AT_ONCE = 32
SIZES = {1: (500, 4_000), 2: (1_000, 8_000)}
SIZES_AT_ONCE = (2_000, 10_000)


def _on(bench: Bench, taskmanagers: int) -> tuple[Rates, Rates]:
    """Return the rates of calls that wait and of calls at once, on as many TaskManagers."""
    name = f"{taskmanagers} TaskManager{'s' if taskmanagers > 1 else ''}"
    with standalone(bench.folder / "standalone", taskmanagers) as cluster:
        there = bench.on(cluster, "jobs")
        workers = WorkerOptions(async_limit=AT_ONCE)
        waits = {"tool": "wait", "arguments": {"ms": WAIT_MS}, "workers": workers, "parallelism": taskmanagers}
        (waiting,) = marginal(there, [Variant(name, waits)], *SIZES[taskmanagers]).values()
        at_once = {"tool": "instant", "parallelism": taskmanagers}
        variant = Variant(f"{name}, calls at once", at_once)
        (instant,) = marginal(there, [variant], *SIZES_AT_ONCE).values()
    return waiting, instant


def _scaling(bench: Bench) -> list[Measure]:
    taken = {each: apart(_on, bench.on(bench.cluster, f"with-{each}"), each) for each in SIZES}
    waiting, instant = ({each: pair[side] for each, pair in taken.items()} for side in (0, 1))
    ideal = AT_ONCE * 1000 / WAIT_MS / CALLS
    note = f"{CALLS} calls of {WAIT_MS} ms, {AT_ONCE} at once a TaskManager, {KEYS} keys; ideal {ideal:.0f} each"
    return [
        ratio("2 / 1 TaskManagers, calls that wait", waiting[2], waiting[1]),
        *(each.measure(note) for each in waiting.values()),
        ratio("2 / 1 TaskManagers, calls at once", instant[2], instant[1], note="bound by the cores"),
        *(each.measure() for each in instant.values()),
    ]


CELLS = [Cell("scaling", "one and two TaskManagers with calls that wait: ratio of the rates", _scaling, 1, None)]
