"""Cells about the journal: what it adds to a call, and to the throughput of calls that take their time."""

from __future__ import annotations

import random

from tests.bench.cell import Bench, Cell
from tests.bench.records import requests
from tests.bench.results import Measure, Target, measured, percentile
from tests.bench.throughput import spent

__all__ = ["CELLS"]

KEYS = 1000
CALLS = 4
CALLS_PER_SECOND = 1000
SECONDS = 20
SHORTEST_MS, LONGEST_MS = 5, 50
WAIT_MS = 20
WAITING = {"wait": 20_000, "block": 10_000}
FEW = 100


def response_ms(bench: Bench, seed: int, *, journaled: bool) -> list[float]:
    """Return, for each request, the time from the end of its last body to its response behind the operator."""
    count = bench.count(CALLS_PER_SECOND * SECONDS // CALLS, 20)
    dice = random.Random(seed)
    journal = bench.journal("steady") if journaled else None
    job = bench.job("steady", follow=True, paced=True, stamped=True, journal=journal)
    submitted = job.submit()
    lines = requests(
        range(count),
        keys=KEYS,
        calls=CALLS,
        tool="wait",
        gap_ms=1000 * CALLS / CALLS_PER_SECOND,
        # Each its own: calls of a request that end together would wait for each other's commits.
        each=lambda: {"ms": round(dice.uniform(SHORTEST_MS, LONGEST_MS), 1)},
    )
    job.add("requests.jsonl", lines)
    job.until_answered(submitted, count)
    job.cancel(submitted)
    return [(stamped.at_ns - max(stamped.values)) / 1e6 for stamped in job.responses()]


def _steady(bench: Bench) -> list[Measure]:
    """Measure in pairs, every second one in the other order."""
    both: dict[bool, list[list[float]]] = {False: [], True: []}
    response_ms(bench, seed=-1, journaled=True)
    for turn in range(bench.repeat):
        for journaled in (False, True) if turn % 2 == 0 else (True, False):
            samples = response_ms(bench, seed=turn, journaled=journaled)
            both[journaled].append(samples)
            p50, p99 = (percentile(samples, share) for share in (0.5, 0.99))
            bench.say(f"steady, {'SQLite' if journaled else 'no journal'}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    halves, tails = (
        {journaled: [percentile(samples, share) for samples in each] for journaled, each in both.items()}
        for share in (0.5, 0.99)
    )
    note = f"{CALLS_PER_SECOND} calls/s in requests of {CALLS}, calls of {SHORTEST_MS} to {LONGEST_MS} ms"
    added = [a - b for a, b in zip(halves[True], halves[False], strict=True)]
    return [
        measured("added by SQLite, p50", added, "ms", target=Target(0.5), note=note),
        measured("last body to response p50, SQLite", halves[True], "ms"),
        measured("last body to response p50, no journal", halves[False], "ms"),
        measured("last body to response p99, SQLite", tails[True], "ms"),
        measured("last body to response p99, no journal", tails[False], "ms"),
    ]


def _throughput(bench: Bench) -> list[Measure]:
    measures = []
    for tool, kind in (("wait", "async"), ("block", "threads")):
        count = bench.count(WAITING[tool], 2 * FEW)
        spent(bench, f"{kind} (warm-up)", FEW, tool=tool, ms=WAIT_MS, journal=bench.journal(tool))
        walls: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(bench.repeat):
            for journaled in (False, True) if turn % 2 == 0 else (True, False):
                name = f"{kind}, {'SQLite' if journaled else 'no journal'}"
                few, full = (
                    spent(
                        bench,
                        name,
                        size,
                        tool=tool,
                        ms=WAIT_MS,
                        journal=bench.journal(tool) if journaled else None,
                    ).s
                    for size in (FEW, count)
                )
                walls[journaled].append(full - few)
        ratios = [without / with_it for without, with_it in zip(walls[False], walls[True], strict=True)]
        calls = CALLS * (count - FEW)
        measures += [
            measured(f"SQLite / no journal, {kind}", ratios, "", target=Target(0.8, at_least=True)),
            measured(f"SQLite, {kind}", [calls / wall for wall in walls[True]], "calls/s", note=f"of {WAIT_MS} ms"),
            measured(f"no journal, {kind}", [calls / wall for wall in walls[False]], "calls/s"),
        ]
    return measures


CELLS = [
    Cell("journal", f"{CALLS_PER_SECOND} calls/s: latency that a SQLite journal adds to a call", _steady),
    Cell("journaled", f"calls of {WAIT_MS} ms: throughput with a SQLite journal beside that without", _throughput),
]
