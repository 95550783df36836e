"""The cell about sparse load: how much later a response leaves than its last call ended."""

from __future__ import annotations

import random

from flink_agents.options import WorkerOptions
from tests.bench.cell import Bench, Cell
from tests.bench.records import requests
from tests.bench.results import Measure, Target, measured, percentile

__all__ = ["CELLS"]

KEYS = 1000
PER_SECOND = 100
SECONDS = 12
SHORTEST_MS, LONGEST_MS = 50, 2000


def added_ms(bench: Bench, tool: str, seed: int) -> list[float]:
    """Return, for each request, the time from the return of its body to its response behind the operator.

    The body returns the time of its end, and a map chained behind the operator notes when the response is handed to it:
    one clock, one process. In between lie the value's encoding, the wake-up, the record in state and the response.
    """
    count = bench.count(PER_SECOND * SECONDS, 20)
    dice = random.Random(seed)
    job = bench.job(f"sparse-{tool}", follow=True, paced=True, stamped=True, workers=WorkerOptions(threads=400))
    submitted = job.submit()
    lines = [
        line
        for number in range(count)
        for line in requests(
            [number],
            keys=KEYS,
            calls=1,
            tool=tool,
            gap_ms=1000 / PER_SECOND,
            ms=round(dice.uniform(SHORTEST_MS, LONGEST_MS), 1),
        )
    ]
    job.add("requests.jsonl", lines)
    job.until_answered(submitted, count)
    job.cancel(submitted)
    return [(stamped.at_ns - max(stamped.values)) / 1e6 for stamped in job.responses()]


def _sparse(bench: Bench) -> list[Measure]:
    measures = []
    for tool, kind in (("wait", "async"), ("block", "thread")):
        halves, tails, worst = [], [], []
        for turn in range(bench.repeat):
            samples = added_ms(bench, tool, seed=turn)
            halves.append(percentile(samples, 0.5))
            tails.append(percentile(samples, 0.99))
            worst.append(max(samples))
            bench.say(f"sparse ({kind}): p50 {halves[-1]:.2f} ms, p99 {tails[-1]:.2f} ms, max {worst[-1]:.1f} ms")
        note = f"{PER_SECOND} requests/s, calls of {SHORTEST_MS} ms to {LONGEST_MS / 1000:g} s"
        measures += [
            measured(f"added latency p50, {kind}", halves, "ms", target=Target(0.5), note=note),
            measured(f"added latency p99, {kind}", tails, "ms", target=Target(5)),
            measured(f"added latency max, {kind}", worst, "ms"),
        ]
    return measures


CELLS = [Cell("sparse", "100 requests/s with calls of 50 ms to 2 s: latency that the operator adds", _sparse, 2)]
