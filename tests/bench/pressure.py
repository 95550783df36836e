"""The cell about back-pressure: ten times more requests than the workers can serve, for as long as it lasts."""

from __future__ import annotations

import time

from flink_agents.options import Limits, WorkerOptions
from tests.bench.cell import Bench, Cell
from tests.bench.checkpointing import CALLS, KEYS, WAIT_MS, Load
from tests.bench.cluster import resident_mib
from tests.bench.records import HOURS_MS
from tests.bench.results import Measure, Target, measured, median

__all__ = ["CELLS"]

AT_ONCE = 20
CAPACITY_PER_S = AT_ONCE * 1000 / WAIT_MS / CALLS
OFFERED = 10
SECONDS = 20.0
HEAP_MIB = 512
LIVE = Limits().live_requests


def _holding(bench: Bench) -> float:
    """Return the time in ms of a checkpoint of as many unanswered requests as under pressure, with nothing to do."""
    load = Load(bench, workers=WorkerOptions(async_limit=CALLS * LIVE))
    load.busy("heads", KEYS, 0)
    load.offer("held", LIVE, 0, wait_ms=HOURS_MS)
    load.until_in_flight(CALLS * LIVE)
    load.idle("holding")
    return median(load.end()["holding"].took_ms)


def _once(bench: Bench) -> tuple[float, float, float, list[float], list[float]]:
    """Return checkpoints in ms, unloaded and under pressure, the share of the capacity used, memory by halves."""
    seconds = max(4.0, SECONDS * min(1.0, bench.scale))
    load = Load(bench, workers=WorkerOptions(async_limit=AT_ONCE))
    (pid,) = load.job.cluster.pids
    load.busy("heads", KEYS, 0)
    load.idle("before")
    load.offer("pressure", round(OFFERED * CAPACITY_PER_S * (seconds + 10)), 1000 / (OFFERED * CAPACITY_PER_S))
    resident: list[float] = []
    # The limit on unanswered requests is reached within the first second.
    load.during("pressure", seconds, lambda: resident.append(resident_mib(pid)), until=round(CAPACITY_PER_S))
    until = time.time()
    phases = load.end()
    times = [each.epoch_s for each in load.job.responses()]
    served = sum(until - seconds <= each <= until - 1 for each in times) / (seconds - 1) / CAPACITY_PER_S
    free, loaded = (median(phases[name].took_ms) for name in ("before", "pressure"))
    bench.say(f"pressure: checkpoints {free:.0f} ms, then {loaded:.0f} ms; up to {max(resident):.0f} MiB")
    half = len(resident) // 2
    return free, loaded, served, resident[:half], resident[half:]


def _pressure(bench: Bench) -> list[Measure]:
    runs = [_once(bench) for _ in range(bench.repeat)]
    holding = [_holding(bench) for _ in range(bench.repeat)]
    free, loaded, served, first, second = zip(*runs, strict=True)
    note = f"{OFFERED} times what {AT_ONCE} calls of {WAIT_MS} ms at once can serve"
    return [
        measured(
            "checkpoint, under pressure / unloaded",
            [a / b for a, b in zip(loaded, free, strict=True)],
            "",
            target=Target(2),
            note=note,
        ),
        measured(
            "checkpoint, under pressure / with as many requests waiting",
            [a / b for a, b in zip(loaded, holding, strict=True)],
            "",
            target=Target(2),
            note=f"{LIVE} unanswered requests of {CALLS} calls in both",
        ),
        measured("checkpoint, under pressure", loaded, "ms"),
        measured("checkpoint, unloaded", free, "ms"),
        measured("checkpoint, requests waiting", holding, "ms"),
        measured(
            "memory, second half / first half",
            [max(b) / max(a) for a, b in zip(first, second, strict=True)],
            "",
            target=Target(1.1),
            note=f"resident, largest of each half of {SECONDS:g} s; Java's heap is {HEAP_MIB} MiB from the start",
        ),
        measured("memory, largest", [max(a + b) for a, b in zip(first, second, strict=True)], "MiB"),
        measured("served / capacity of the workers", served, "", note=f"{CAPACITY_PER_S:.0f} requests/s"),
    ]


CELLS = [
    Cell(
        "pressure",
        "ten times more requests than workers can serve: memory, and checkpoints beside unloaded ones",
        _pressure,
        1,
        {"env.java.opts.all": f"-Xms{HEAP_MIB}m -Xmx{HEAP_MIB}m -XX:+AlwaysPreTouch"},
    )
]
