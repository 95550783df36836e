"""The cell about rest: what a subtask costs while its calls only wait."""

from __future__ import annotations

import time

from flink_agents.options import Limits, WorkerOptions
from tests.bench.cell import Bench, Cell
from tests.bench.cluster import cpu_s
from tests.bench.records import requests
from tests.bench.results import Measure, Target, measured
from tests.bench.topology import BenchJob

__all__ = ["CELLS"]

WAITING, CALLS = 10_000, 1
HOURS_MS = 3_600_000
SECONDS = 10
SETTLED_S = 2.0
CHECKPOINT_MS = 1000


def share(bench: Bench, job: BenchJob, ready: int) -> float:
    """Return the share of a core that the JVM takes in some seconds, once ``ready`` calls are under way."""
    submitted = job.submit()
    rest = job.cluster.rest
    if ready:
        job.until(lambda: rest.counters(submitted, frozenset({"in_flight"})).get("in_flight", 0) >= ready, submitted)
    else:
        job.until_answered(submitted, bench.count(WAITING, 100))
    time.sleep(SETTLED_S)
    seconds = max(2.0, SECONDS * min(1.0, bench.scale))
    before, began = sum(map(cpu_s, job.cluster.pids)), time.monotonic()
    time.sleep(seconds)
    taken = (sum(map(cpu_s, job.cluster.pids)) - before) / (time.monotonic() - began)
    job.cancel(submitted)
    return taken


def _idle(bench: Bench) -> list[Measure]:
    count = bench.count(WAITING, 100)
    shares: dict[str, list[float]] = {"pass-through": [], "ours": [], "ours, no checkpoints": []}
    for _ in range(bench.repeat):
        for name, samples in shares.items():
            plain = name == "pass-through"
            job = bench.job(
                "idle",
                follow=True,
                pass_through=plain,
                checkpoint_ms=HOURS_MS if name == "ours, no checkpoints" else CHECKPOINT_MS,
                workers=WorkerOptions(async_limit=2 * count),
                limits=Limits(live_requests=2 * count),
            )
            job.add("requests.jsonl", requests(range(count), keys=count, calls=CALLS, tool="wait", ms=HOURS_MS))
            samples.append(100 * share(bench, job, 0 if plain else count))
            bench.say(f"idle, {name}: {samples[-1]:.1f} % of a core")
    more = [ours - plain for ours, plain in zip(shares["ours"], shares["pass-through"], strict=True)]
    note = f"{count:,} waiting calls, a checkpoint every {CHECKPOINT_MS / 1000:g} s"
    return [
        measured("added to an idle pass-through", more, "% of a core", target=Target(5), note=note),
        measured("whole JVM", shares["ours"], "% of a core"),
        measured("whole JVM, without checkpoints", shares["ours, no checkpoints"], "% of a core"),
        measured("whole JVM, pass-through", shares["pass-through"], "% of a core", note="nothing waits; checkpoints"),
    ]


CELLS = [Cell("idle", "10,000 calls that only wait: processor time of the idle subtask", _idle, 1)]
