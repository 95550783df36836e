"""Cells about state: the backends beside each other, many keys, and a key with a long queue."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from flink_agents.options import Limits
from tests.bench.cell import Bench, Cell
from tests.bench.rates import CALLS, KEYS, Variant, marginal, ratio
from tests.bench.records import requests
from tests.bench.results import Measure, Target, measured

__all__ = ["CELLS", "gated"]

BACKENDS = ("hashmap", "rocksdb")
KINDS = {"inline": "inline", "async": "instant"}

FEW_KEYS = 1_000
MANY_KEYS = (100_000, 1_000_000)
SEGMENT = 10_000

SHORT, QUEUED = 1_000, 10_000
TAKEN_IN_PER_S = 2_000


def _backends(bench: Bench) -> list[Measure]:
    measures = []
    for kind, tool in KINDS.items():
        variants = [Variant(f"{kind}, {backend}", {"tool": tool, "backend": backend}) for backend in BACKENDS]
        rates = marginal(bench, variants, 2_000, 12_000)
        hashmap, rocksdb = rates.values()
        note = f"{CALLS} calls each, {KEYS} keys"
        measures += [ratio(f"{kind}: rocksdb / hashmap", rocksdb, hashmap), *(e.measure(note) for e in rates.values())]
    return measures


def micros_of_keys(bench: Bench, keys: int) -> dict[str, float]:
    """Return the time a request takes, in microseconds, where as many keys have state; one number a kind of call.

    Each key is there by a request of its own. What is measured goes to keys drawn by chance, in one job.
    """
    segment = bench.count(SEGMENT, 200)
    dice = random.Random(keys)
    job = bench.job(f"keys-{keys}", follow=True, stamped=True, backend="rocksdb")
    submitted = job.submit()
    job.add("heads.jsonl", requests(range(keys), keys=keys, calls=1, tool="inline"))
    answered = keys
    job.until_answered(submitted, answered)
    micros = {}
    for kind, tool in KINDS.items():
        for name in ("warm-up", "measured"):
            drawn = (dice.randrange(keys) for _ in range(segment))
            job.add(f"{kind}-{name}.jsonl", requests(drawn, keys=keys, calls=CALLS, tool=tool))
            job.until_answered(submitted, answered + segment)
            times = sorted(job.times_ns())[answered:]
            answered += segment
            micros[kind] = (times[-1] - times[0]) / 1000 / (segment - 1)
    job.cancel(submitted)
    bench.say(f"{keys} keys: " + ", ".join(f"{kind} {value:.0f} us a request" for kind, value in micros.items()))
    return micros


def _keys(bench: Bench) -> list[Measure]:
    sizes = [bench.count(keys, 100) for keys in (FEW_KEYS, *MANY_KEYS)]
    micros_of_keys(bench, sizes[0])
    taken = [{keys: micros_of_keys(bench, keys) for keys in sizes} for _ in range(bench.repeat)]
    measures = []
    for kind in KINDS:
        for keys in sizes:
            note = f"rocksdb, {CALLS} calls each, keys drawn by chance"
            samples = [each[keys][kind] for each in taken]
            measures.append(measured(f"{kind}, {keys:,} keys", samples, "us a request", note=note))
        for keys in sizes[1:]:
            grown = [each[keys][kind] / each[sizes[0]][kind] for each in taken]
            measures.append(measured(f"{kind}, {keys:,} / {sizes[0]:,} keys", grown, "", target=Target(1.2)))
    return measures


def gated(count: int, *, keys: int, gate_ms: float) -> Iterator[str]:
    """Yield requests whose calls return at once, but for those of the first, which take ``gate_ms``."""
    gate: Iterable[float] = iter([gate_ms] * CALLS)

    def first_waits() -> dict[str, float]:
        return {"ms": next(iter(gate), 0)}

    return requests(range(count), keys=keys, calls=CALLS, tool="wait", each=first_waits)


def _behind_a_gate(count: int) -> Iterator[str]:
    return gated(count, keys=1, gate_ms=1000 * max(1.0, count / TAKEN_IN_PER_S))


def _each_alone(count: int) -> Iterator[str]:
    return gated(count, keys=count, gate_ms=0)


def _queue(bench: Bench) -> list[Measure]:
    limits = Limits(live_requests=2 * bench.count(QUEUED, 300))
    measures = []
    for backend in BACKENDS:
        options = {"tool": "wait", "backend": backend, "limits": limits}
        variants = [
            Variant(f"all in one key, {backend}", {**options, "lines": _behind_a_gate}),
            Variant(f"a key each, {backend}", {**options, "lines": _each_alone}),
        ]
        rates = marginal(bench, variants, SHORT, QUEUED)
        queued, alone = rates.values()
        note = f"{queued.sizes[1] - queued.sizes[0]:,} requests more in the queue of one key, or each in its own"
        # By processor time, because the queue builds up while its first request waits.
        measures += [
            ratio(
                f"one queue / a key each, {backend}",
                alone,
                queued,
                target=Target(1.2),
                note="processor time of the JVM a request",
                unit="process_cpu_s",
            ),
            *(each.measure_cpu(note=note) for each in (queued, alone)),
            *(each.measure_cpu("cpu_s") for each in (queued, alone)),
        ]
    return measures


CELLS = [
    Cell("backends", "hashmap and RocksDB in one run, inline and async", _backends, 1),
    Cell(
        "keys",
        "RocksDB with 1,000 to 1,000,000 keys: time a request",
        _keys,
        1,
        {"taskmanager.memory.managed.size": "512m"},
    ),
    Cell("queue", "10,000 requests queued in one key beside as many keys with one each: cost a request", _queue, 1),
]
