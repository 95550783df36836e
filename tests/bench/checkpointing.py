"""The cell about checkpoints: how long they take under load, and how large the state is before, during and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.bench.cell import Bench, Cell
from tests.bench.flink_statistics import Checkpoint, checkpoints
from tests.bench.records import requests
from tests.bench.results import Measure, Target, measured, median
from tests.bench.topology import BenchJob

__all__ = ["CELLS", "INTERVAL_MS", "Load", "Phase"]

KEYS = 1000
CALLS = 4
WAIT_MS = 20
INTERVAL_MS = 200
IDLE_CHECKPOINTS = 15
STEADY_PER_SECOND = 400
STEADY = 4_000
FULL = 20_000


@dataclass(frozen=True)
class Phase:
    """The checkpoints that were begun while the job did one thing."""

    took_ms: list[float]
    state_bytes: list[int]


def _phase(done: list[Checkpoint], since: float, until: float) -> Phase:
    within = [checkpoint for checkpoint in done if since <= checkpoint.begun_s <= until]
    return Phase([checkpoint.took_ms for checkpoint in within], [checkpoint.state_bytes for checkpoint in within])


class Load:
    """One job that is idle and busy in turns, with calls of 20 ms; ``options`` are those of ``BenchJob``."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        self._bench = bench
        self._answered = 0
        given = {"follow": True, "paced": True, "stamped": True, "checkpoint_ms": INTERVAL_MS, **options}
        self.job: BenchJob = bench.job("checkpoints", **given)
        self._id = self.job.submit()
        self._spans: list[tuple[str, float, float]] = []

    def busy(self, name: str, count: int, gap_ms: float) -> None:
        """Have requests answered; the span is from the first response to the last."""
        before = time.time()
        self.offer(name, count, gap_ms)
        self._answered += count
        self.job.until_answered(self._id, self._answered)
        times = [stamped.epoch_s for stamped in self.job.responses() if stamped.epoch_s >= before]
        self._spans.append((name, min(times), max(times)))

    def offer(self, name: str, count: int, gap_ms: float, *, wait_ms: int = WAIT_MS) -> None:
        """Put requests before the source."""
        numbers = range(self._answered, self._answered + count)
        lines = requests(numbers, keys=KEYS, calls=CALLS, tool="wait", gap_ms=gap_ms, ms=wait_ms)
        self.job.add(f"{name}.jsonl", lines)

    def during(self, name: str, seconds: float, look: Callable[[], None], *, until: int = 0) -> None:
        """Let the job go on for some seconds from when it has answered ``until`` more, and look every half second."""
        self.job.until_answered(self._id, self._answered + until)
        began = time.time()
        while (now := time.time()) < began + seconds:
            look()
            time.sleep(min(0.5, began + seconds - now))
        self._spans.append((name, began, time.time()))

    def until_in_flight(self, count: int) -> None:
        """Wait until so many calls are running."""
        self.job.until_in_flight(self._id, count)

    def idle(self, name: str) -> None:
        """Let some checkpoints pass in which nothing happens; those that still clear the sink are left out."""
        seen = len(checkpoints(self.job.cluster.rest.address, self._id))
        since = time.time() + 2 * INTERVAL_MS / 1000
        wanted = seen + self._bench.count(IDLE_CHECKPOINTS, 5) + 3
        self.job.until(lambda: len(checkpoints(self.job.cluster.rest.address, self._id)) >= wanted, self._id)
        self._spans.append((name, since, time.time()))

    def end(self) -> dict[str, Phase]:
        """End the job and return its phases."""
        done = checkpoints(self.job.cluster.rest.address, self._id)
        self.job.cancel(self._id)
        return {name: _phase(done, since, until) for name, since, until in self._spans}


def _once(bench: Bench) -> dict[str, Phase]:
    load = Load(bench)
    # One request of each key first, so that the heads are there.
    load.busy("heads", KEYS, 0)
    load.idle("before")
    load.busy("steady", bench.count(STEADY, 100), 1000 / STEADY_PER_SECOND)
    load.idle("between")
    load.busy("full", bench.count(FULL, 500), 0)
    load.idle("after")
    phases = load.end()
    for name, phase in phases.items():
        bench.say(f"checkpoints: {len(phase.took_ms)} {name}, median {median(phase.took_ms):.0f} ms")
    return phases


def _checkpoints(bench: Bench) -> list[Measure]:
    runs = [_once(bench) for _ in range(bench.repeat)]
    unloaded = [median(run["before"].took_ms + run["between"].took_ms + run["after"].took_ms) for run in runs]
    baseline = [median(run["before"].state_bytes) for run in runs]
    after = [run["after"].state_bytes[-1] / base for run, base in zip(runs, baseline, strict=True)]
    measures = []
    for name, note in (("steady", f"{STEADY_PER_SECOND} requests/s"), ("full", "the source as fast as it is let in")):
        took = [median(run[name].took_ms) for run in runs]
        counted = sum(len(run[name].took_ms) for run in runs)
        measures += [
            measured(
                f"checkpoint, {name} load / unloaded",
                [loaded / free for loaded, free in zip(took, unloaded, strict=True)],
                "",
                target=Target(2),
                note=f"{note}, {CALLS} calls of {WAIT_MS} ms, {KEYS} keys",
            ),
            measured(f"checkpoint, {name} load", took, "ms", note=f"{counted} checkpoints"),
        ]
    largest = [max(run["full"].state_bytes, default=0) / 1024 for run in runs]
    return [
        *measures,
        measured("checkpoint, unloaded", unloaded, "ms"),
        measured("state after / before, heads in both", after, "", target=Target(2)),
        measured("state before", [size / 1024 for size in baseline], "KiB", note=f"{KEYS} heads"),
        measured("state, largest under full load", largest, "KiB", note="with records in flight, where unaligned"),
    ]


CELLS = [
    Cell("checkpoints", "duration under load beside unloaded; the state's size after beside before", _checkpoints, 1)
]
