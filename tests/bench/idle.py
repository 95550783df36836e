"""The cell about rest: what a subtask costs while its calls only wait."""

from __future__ import annotations

import time
from typing import Any

from flink_agents.options import Limits, WorkerOptions
from tests.bench.cell import Bench, Cell
from tests.bench.cluster import cpu_s
from tests.bench.records import HOURS_MS, requests
from tests.bench.results import Measure, Target, measured
from tests.bench.topology import BenchJob

__all__ = ["CELLS"]

WAITING, CALLS = 10_000, 1
SECONDS = 10
SETTLED_S = 6.0
CHECKPOINT_MS = 1000


def share(bench: Bench, job: BenchJob, ready: int) -> float:
    """Return the share of a core that the JVM takes in some seconds, once ``ready`` calls are under way."""
    submitted = job.submit()
    if ready:
        job.until_in_flight(submitted, ready)
    else:
        job.until_answered(submitted, bench.count(WAITING, 100))
    time.sleep(SETTLED_S)
    seconds = max(2.0, SECONDS * min(1.0, bench.scale))
    before, began = sum(map(cpu_s, job.cluster.pids)), time.monotonic()
    time.sleep(seconds)
    taken = (sum(map(cpu_s, job.cluster.pids)) - before) / (time.monotonic() - began)
    job.cancel(submitted)
    return taken


VARIANTS: dict[str, dict[str, Any]] = {
    "pass-through": {"pass_through": True},
    "ours": {},
    "ours, RocksDB": {"backend": "rocksdb"},
    "ours, no checkpoints": {"checkpoint_ms": HOURS_MS},
}


def _idle(bench: Bench) -> list[Measure]:
    count = bench.count(WAITING, 100)
    shares: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(bench.repeat):
        for name, options in VARIANTS.items():
            workers, limits = WorkerOptions(async_limit=2 * count), Limits(live_requests=2 * count)
            given = {"checkpoint_ms": CHECKPOINT_MS, "workers": workers, "limits": limits, **options}
            job = bench.job("idle", follow=True, **given)
            job.add("requests.jsonl", requests(range(count), keys=count, calls=CALLS, tool="wait", ms=HOURS_MS))
            shares[name].append(100 * share(bench, job, 0 if job.pass_through else count))
            bench.say(f"idle, {name}: {shares[name][-1]:.1f} % of a core")
    more = [ours - plain for ours, plain in zip(shares["ours"], shares["pass-through"], strict=True)]
    unit, target = "% of a core", Target(5)
    note = f"{count:,} waiting calls"
    written = "each checkpoint writes every request"
    return [
        measured("without checkpoints", shares["ours, no checkpoints"], unit, target=target, note=f"{note}, whole JVM"),
        measured("added to an idle pass-through", more, unit, target=target, note=f"a checkpoint a second; {written}"),
        measured("whole JVM", shares["ours"], unit, note="a checkpoint a second"),
        measured("whole JVM, RocksDB", shares["ours, RocksDB"], unit, note="a checkpoint a second, incremental"),
        measured("whole JVM, pass-through", shares["pass-through"], unit, note="a checkpoint a second, of no state"),
    ]


CELLS = [Cell("idle", "10,000 calls that only wait: processor time of the idle subtask", _idle, 1)]
