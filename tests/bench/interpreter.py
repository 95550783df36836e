"""The cell about the interpreter's switch interval: rates and wake-ups at several values, each in a JVM of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from flink_agents.runtime.process import SWITCH_INTERVAL_S, SWITCH_INTERVAL_VARIABLE
from tests.bench.apart import apart
from tests.bench.cell import Bench, Cell
from tests.bench.cluster import embedded
from tests.bench.rates import CALLS, rate, spent
from tests.bench.records import requests
from tests.bench.results import Measure, measured, percentile

__all__ = ["CELLS"]

INTERVALS_S = (0.005, SWITCH_INTERVAL_S, 0.00005)
SMALL, LARGE = 2_000, 10_000
PER_SECOND = 50
SECONDS = 4
SHORTEST_MS = 20


@contextmanager
def switching_every(interval_s: float) -> Iterator[None]:
    """Have TaskManagers that start in the meantime take another switch interval."""
    before = os.environ.get(SWITCH_INTERVAL_VARIABLE)
    os.environ[SWITCH_INTERVAL_VARIABLE] = f"{interval_s:f}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH_INTERVAL_VARIABLE]
        else:
            os.environ[SWITCH_INTERVAL_VARIABLE] = before


def picked_up_ms(bench: Bench) -> list[float]:
    """Return how long responses take from the end of their body, while another tool computes all the time."""
    count = bench.count(PER_SECOND * SECONDS, 20)
    computing_ms = 1000 * count / PER_SECOND + 2000
    job = bench.job("pickup", follow=True, paced=True, stamped=True)
    submitted = job.submit()
    job.add("0.jsonl", requests([count], keys=count + 1, calls=1, tool="compute", ms=computing_ms))
    job.until_in_flight(submitted, 1)
    gap_ms = 1000 / PER_SECOND
    job.add("1.jsonl", requests(range(count), keys=count + 1, calls=1, tool="wait", gap_ms=gap_ms, ms=SHORTEST_MS))
    job.until_answered(submitted, count + 1)
    job.cancel(submitted)
    stamped = [each for each in job.responses() if each.response["request_id"] != f"r{count}"]
    return [(each.at_ns - max(each.values)) / 1e6 for each in stamped]


def _at(bench: Bench, interval: float) -> tuple[float, float]:
    """Return the rate and the median of the latency that is added, at one switch interval."""
    name = f"{interval * 1000:g} ms"
    with switching_every(interval), embedded(bench.folder / "flink") as cluster:
        there = bench.on(cluster, "switching")
        sizes = there.count(SMALL, 50), there.count(LARGE, 300)
        spent(there, f"{name} (warm-up)", sizes[0], tool="instant")
        small, large = (spent(there, name, size, tool="instant").s for size in sizes)
        half = percentile(picked_up_ms(there), 0.5)
    bench.say(f"{name}: a response leaves {half:.2f} ms after its call, beside a busy tool")
    return rate((sizes[0], small), (sizes[1], large)), half


def _interpreter(bench: Bench) -> list[Measure]:
    rates: dict[float, list[float]] = {interval: [] for interval in INTERVALS_S}
    halves: dict[float, list[float]] = {interval: [] for interval in INTERVALS_S}
    for turn in range(bench.repeat):
        for interval in INTERVALS_S if turn % 2 == 0 else reversed(INTERVALS_S):
            there = bench.on(bench.cluster, f"{interval:g}")
            each, half = apart(_at, there, interval)
            rates[interval].append(each)
            halves[interval].append(half)
    measures = []
    for interval in INTERVALS_S:
        name = f"{interval * 1000:g} ms{', as set' if interval == SWITCH_INTERVAL_S else ''}"
        note = f"{CALLS} async calls that return at once"
        measures += [
            measured(f"rate, {name}", rates[interval], "requests/s", note=note),
            measured(f"added latency p50, {name}", halves[interval], "ms", note="one tool computes all the time"),
        ]
    return measures


CELLS = [
    Cell("switching", "the interpreter's switch interval: rates and wake-ups at several values", _interpreter, 1, None)
]
