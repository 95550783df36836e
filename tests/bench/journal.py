"""Cells about the journal: what it adds to a call, and to the throughput of calls that take their time."""

from __future__ import annotations

import random

from tests.bench.cell import Bench, Cell
from tests.bench.rates import CALLS, KEYS, Variant, marginal, ratio
from tests.bench.records import requests
from tests.bench.results import Measure, Target, measured, percentile

__all__ = ["CELLS"]

CALLS_PER_SECOND = 1000
SECONDS = 10
SHORTEST_MS, LONGEST_MS = 5, 50
WAIT_MS = 20
KINDS: dict[str, tuple[str, dict[str, float], int, int]] = {
    "async": ("wait", {"ms": WAIT_MS}, 1_000, 12_000),
    "threads": ("block", {"ms": WAIT_MS}, 500, 5_000),
    "inline": ("inline", {}, 2_000, 10_000),
}


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
    for kind, (tool, arguments, small, large) in KINDS.items():
        options = {"tool": tool, "arguments": arguments}
        names = {f"{kind}, SQLite": True, f"{kind}, no journal": False}
        variants = [Variant(name, options, journaled=journaled) for name, journaled in names.items()]
        with_it, without = marginal(bench, variants, small, large).values()
        # An inline call waits for nothing but its journal: what that costs is reported, not bounded.
        target = None if kind == "inline" else Target(0.8, at_least=True)
        note = "" if kind == "inline" else f"calls of {WAIT_MS} ms"
        measures += [
            ratio(f"SQLite / no journal, {kind}", with_it, without, target=target, note=note),
            *(each.measure(f"{CALLS} calls each") for each in (with_it, without)),
            *(each.measure_cpu() for each in (with_it, without)),
        ]
    return measures


CELLS = [
    Cell("journal", f"{CALLS_PER_SECOND} calls/s: latency that a SQLite journal adds to a call", _steady, 2),
    Cell(
        "journaled",
        f"calls of {WAIT_MS} ms, and inline calls: rate with a SQLite journal beside without",
        _throughput,
        1,
    ),
]
