"""The cell about recovery: how long after a restore the last busy key is woken."""

from __future__ import annotations

from flink_agents.options import Limits, WorkerOptions
from tests.bench.cell import Bench, Cell
from tests.bench.flink_statistics import running_since
from tests.bench.records import requests
from tests.bench.results import Measure, Target, measured
from tests.bench.topology import hasty, marks_of

__all__ = ["CELLS"]

KEYS = 2000
HOURS_MS = 3_600_000


def wake_s(bench: Bench) -> tuple[float, float, float]:
    """Restore busy keys from a savepoint, and return three times in seconds.

    From the task's RUNNING until the last body began again (which is when its key had been woken); from there until
    the last response left; and from the operator's ``open`` until the last body began again.
    """
    keys = bench.count(KEYS, 20)
    workers = WorkerOptions(async_limit=2 * KEYS)
    limits = Limits(live_requests=2 * KEYS)
    job = bench.job("busy", follow=True, stamped=True, workers=workers, limits=limits)
    job.add("requests.jsonl", requests(range(keys), keys=keys, calls=1, tool="wait", ms=HOURS_MS))
    submitted = job.submit()
    rest = job.cluster.rest
    job.until(lambda: rest.counters(submitted, frozenset({"in_flight"})).get("in_flight", 0) >= keys, submitted)
    savepoint = rest.stop_with_savepoint(submitted, f"file://{job.folder}/savepoints")
    resumed = bench.again(job, "resumed", tools=hasty, savepoint=savepoint, checkpoint_ms=200)
    submitted = resumed.submit()
    resumed.until_answered(submitted, keys)
    running = running_since(rest.address, submitted, "tool calls")
    resumed.cancel(submitted)
    responses = resumed.responses()
    began = max(max(stamped.values) for stamped in responses) / 1e9
    left = max(stamped.epoch_s for stamped in responses)
    opened = marks_of(resumed.folder)["before:open"]["epoch_s"]
    return began - running, left - began, began - opened


def _recovery(bench: Bench) -> list[Measure]:
    runs = []
    for _ in range(bench.repeat):
        runs.append(wake_s(bench))
        bench.say("recovery: last key woken {0:.3f} s after RUNNING, {2:.3f} s after open".format(*runs[-1]))
    woken, answered, opened = (list(column) for column in zip(*runs, strict=True))
    keys = bench.count(KEYS, 20)
    return [
        measured("RUNNING to last key woken", woken, "s", target=Target(1), note=f"{keys} busy keys from a savepoint"),
        measured("open to last key woken", opened, "s", note="open lists the restored keys; it ends before RUNNING"),
        measured("last key woken to last response", answered, "s"),
    ]


CELLS = [Cell("recovery", "2,000 busy keys restored from a savepoint: time until the last one is woken", _recovery)]
