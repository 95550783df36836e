"""Cells about recovery: how long after a restore the last busy key is woken, and its last call begins again."""

from __future__ import annotations

from flink_agents.options import Limits, WorkerOptions
from tests.bench.bodies import hasty
from tests.bench.cell import Bench, Cell
from tests.bench.flink_statistics import running_since
from tests.bench.records import HOURS_MS, requests
from tests.bench.results import Measure, Target, measured
from tests.bench.topology import marks_of

__all__ = ["CELLS"]

KEYS = 2000
BUSY_KEYS, CALLS = 2500, 4
PROPORTION = (1_000, 10_000)


def wake_s(bench: Bench, keys: int, calls: int = 1, *, journaled: bool = False) -> tuple[float, float, float]:
    """Restore busy keys from a savepoint, and return three times in seconds.

    From the task's RUNNING until the last body began again (which is after its key had been woken, and its call looked
    up in the journal); from there until the last response left; and from the operator's ``open`` until the last body
    began again.
    """
    workers = WorkerOptions(async_limit=2 * keys * calls)
    limits = Limits(live_requests=2 * keys)
    journal = bench.journal("busy") if journaled else None
    job = bench.job("busy", follow=True, stamped=True, workers=workers, limits=limits, journal=journal)
    job.add("requests.jsonl", requests(range(keys), keys=keys, calls=calls, tool="wait", ms=HOURS_MS))
    submitted = job.submit()
    rest = job.cluster.rest
    job.until_in_flight(submitted, keys * calls)
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
    keys, runs = bench.count(KEYS, 20), []
    for _ in range(bench.repeat):
        runs.append(wake_s(bench, keys))
        bench.say("recovery: last key woken {0:.3f} s after RUNNING, {2:.3f} s after open".format(*runs[-1]))
    woken, answered, opened = (list(column) for column in zip(*runs, strict=True))
    return [
        measured("RUNNING to last key woken", woken, "s", target=Target(1), note=f"{keys} busy keys from a savepoint"),
        measured("open to last key woken", opened, "s", note="open lists the restored keys; it ends before RUNNING"),
        measured("last key woken to last response", answered, "s"),
    ]


def _calls(bench: Bench) -> list[Measure]:
    measures = []
    for journaled, kind in ((False, "no journal"), (True, "SQLite")):
        keys, runs = bench.count(BUSY_KEYS, 20), []
        for _ in range(bench.repeat):
            runs.append(wake_s(bench, keys, CALLS, journaled=journaled))
            bench.say(f"recovery, {kind}: last call begun again {runs[-1][0]:.3f} s after RUNNING")
        begun, answered, opened = (list(column) for column in zip(*runs, strict=True))
        note = f"{keys * CALLS} calls in flight, {keys} keys, from a savepoint"
        measures += [
            measured(f"RUNNING to last call begun again, {kind}", begun, "s", target=Target(2), note=note),
            measured(f"open to last call begun again, {kind}", opened, "s"),
            measured(f"last call begun again to last response, {kind}", answered, "s"),
        ]
    return measures


def _proportion(bench: Bench) -> list[Measure]:
    few, many = (bench.count(keys, 20) for keys in PROPORTION)
    times: dict[int, list[float]] = {few: [], many: []}
    wake_s(bench, few)
    for _ in range(bench.repeat):
        for keys, samples in times.items():
            samples.append(wake_s(bench, keys)[2])
            bench.say(f"restore: the last of {keys} busy keys is woken {samples[-1]:.3f} s after open")
    per_key = {keys: [1e6 * each / keys for each in samples] for keys, samples in times.items()}
    grown = [b / a for a, b in zip(per_key[few], per_key[many], strict=True)]
    note = "1 is proportional; --scale 10 restores 100,000"
    return [
        measured(f"time a key, {many:,} / {few:,} busy keys", grown, "", target=Target(1.2), note=note),
        *(measured(f"open to last key woken, {keys:,} keys", samples, "s") for keys, samples in times.items()),
        *(measured(f"time a key, {keys:,} keys", samples, "us") for keys, samples in per_key.items()),
    ]


CELLS = [
    Cell("recovery", "2,000 busy keys restored from a savepoint: time until the last one is woken", _recovery, 2),
    Cell("in_flight", "10,000 calls in flight at a savepoint: time until the last one begins again", _calls, 1),
    Cell("restore", "1,000 and 10,000 busy keys restored from a savepoint: time a key", _proportion, 1),
]
