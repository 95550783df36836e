"""Makes the stored savepoint of the present state format: with live work of every sort, and heads of idle keys.

    python tests/savepoints/make.py tests/savepoints/data/v1

Source and sinks are none that keep a path in their state, so the files hold no place of the machine they came from.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cloudpickle  # type: ignore[import-untyped]

from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.errors import ClusterFault
from flink_agents.options import OperatorOptions
from tests.savepoints.contents import Held, held_in

cloudpickle.register_pickle_by_value(sys.modules[__name__])

__all__ = ["IDLE", "PENDING", "RECORDS", "check", "make", "tools_noting"]

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0


def _calls(*calls: tuple[str, Any]) -> dict[str, Any]:
    wanted = [{"id": f"c{i}", "function": {"name": name, "arguments": given}} for i, (name, given) in enumerate(calls)]
    return {"tool_calls": wanted}


RECORDS: list[dict[str, Any]] = [
    {
        "id": "a1",
        "key": "alpha",
        **_calls(
            ("recall", {"text": "alpha"}),
            ("ledger", {"day": "2024-02-29"}),
            ("refuse", {"reason": "no such account"}),
            ("hold", {"text": "a1"}),
            ("absent", {"text": "alpha"}),
            ("recall", {"txt": "alpha"}),
        ),
        "metadata": {"trace": [1, 2.5, None]},
    },
    # Waits for its turn behind the one before.
    {"id": "a2", "key": "alpha", **_calls(("hold", {"text": "a2"}), ("recall", {"text": "a2"}))},
    {"id": "b1", "key": "bravo", **_calls(("hold", json.dumps({"text": "b1"})), ("recall", {"text": "b1"}))},
    {"id": "n1", "key": 7, **_calls(("refuse", {"reason": "seven"}), ("hold", {"text": "n1"}))},
    {
        "id": "m1",
        "key": "message",
        "role": "assistant",
        "content": [
            {"type": "text", "text": "One moment."},
            {"type": "tool_use", "id": "u1", "name": "hold", "input": {"text": "m1"}},
        ],
    },
    {"id": "k1", "key": "kilo", **_calls(("linger", {"text": "k1"}))},
    {"key": "idle", **_calls(("recall", {"text": "first"}))},
    {"key": "idle", **_calls(("recall", {"text": "second"}))},
    {"key": True, **_calls(("recall", {"text": "yes"}))},
]
"""What the job of the savepoint was asked."""

IDLE = {'"idle"': 2, "true": 1}
"""Keys that have no live work, and how many of their requests are answered."""

PENDING = {"a1": "alpha", "a2": "alpha", "b1": "bravo", "n1": 7, "m1": "message", "k1": "kilo"}
"""Requests that are not answered, and their keys."""

_HEADS = {
    '"alpha"': (3, 0),
    '"bravo"': (2, 0),
    "7": (2, 0),
    '"message"': (2, 0),
    '"kilo"': (2, 0),
    '"idle"': (3, 2),
    "true": (2, 1),
}
_BODIES = 13
"""How many bodies begin: one for each call that names a tool, has right arguments and need not wait its turn."""

_SLOTS = {"started": 5, "succeeded": 3, "failed": 4}


def tools_noting(note: Callable[[str], None]) -> list[Any]:
    """Return the tools of the savepoint's job; each notes that its body began."""

    def recall(text: str) -> str:
        """Return what it was given."""
        note(f"recall {text}")
        return text

    def ledger(day: str) -> dict[str, Any]:
        """Return values that JSON has no form of its own for."""
        note(f"ledger {day}")
        first = date.fromisoformat(day)
        return {
            "day": first,
            "at": datetime(first.year, first.month, first.day, 12, tzinfo=timezone.utc),
            "total": Decimal("12.30"),
            "pair": (1, 2),
            "raw": b"\x00\xff",
        }

    def refuse(reason: str) -> None:
        """Fail."""
        note(f"refuse {reason}")
        raise LookupError(reason)

    async def hold(text: str) -> str:
        """Never return."""
        note(f"hold {text}")
        await asyncio.Event().wait()
        return text

    async def linger(text: str) -> str:
        """Never return either."""
        note(f"linger {text}")
        await asyncio.Event().wait()
        return text

    return [recall, ledger, refuse, hold, linger]


def records_then_nothing(number: int) -> Iterator[str]:
    """Yield the records, one for each of the first numbers, and then wait a little at each."""
    if number < len(RECORDS):
        yield json.dumps(RECORDS[number])
    else:
        time.sleep(0.02)


def make(cluster: EmbeddedCluster, target: Path) -> Path:
    """Run the job, stop it with a savepoint and put that into ``target``, as ``savepoint``; return its path.

    Raises:
        ValueError: if the savepoint does not hold what it is meant to hold.
    """
    with tempfile.TemporaryDirectory() as scratch:
        bodies = Path(scratch, "bodies.txt")
        bodies.touch()
        options = {
            "parallelism.default": "1",
            "execution.checkpointing.interval": "100 ms",
            "restart-strategy.type": "none",
        }
        job = cluster.submit("stored savepoint", options, lambda env: _build(env, str(bodies)))
        wanted = {"requests": len(RECORDS), "responses": sum(IDLE.values())}
        _until(cluster, job, lambda: cluster.rest.counters(job, frozenset(wanted)) == wanted)
        _until(cluster, job, lambda: bodies.read_text(encoding="utf-8").count("\n") == _BODIES)
        # Outcomes of the quick bodies are recorded by the turns that begin before these checkpoints.
        checkpoints = cluster.rest.completed_checkpoints(job) + 3
        _until(cluster, job, lambda: cluster.rest.completed_checkpoints(job) >= checkpoints)
        taken = cluster.rest.stop_with_savepoint(job, f"file://{scratch}/taken").removeprefix("file:")
        check(held_in(*Path(taken).iterdir()))
        made = target / "savepoint"
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(taken, made)
    for file in made.iterdir():
        file.write_bytes(_without_places(file.read_bytes()))
    return made


def _without_places(data: bytes) -> bytes:
    """Make the paths in recorded traces relative, each as long as before: lengths stand in front of texts."""
    for place in (str(ROOT), sys.prefix, sys.base_prefix):
        data = data.replace(place.encode(), ("./" * len(place))[: len(place)].encode())
    return data


def _build(env: Any, bodies: str) -> None:
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    from flink_agents.datastream import attach

    def note(text: str) -> None:
        with open(bodies, "a", encoding="utf-8") as lines:
            lines.write(f"{text}\n")

    numbers = env.from_source(
        NumberSequenceSource(0, 2**40), WatermarkStrategy.no_watermarks(), "numbers", type_info=Types.LONG()
    ).uid("numbers")
    records = numbers.flat_map(records_then_nothing, output_type=Types.STRING())
    attach(records, OperatorOptions("key"), tools_noting(note), run_id="stored")


def _until(cluster: EmbeddedCluster, job: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if cluster.rest.job(job).ended or time.monotonic() > deadline:
            msg = f"the job of the savepoint does not come to where it should: {cluster.rest.failure(job)}"
            raise ClusterFault(msg)
        time.sleep(0.05)


def check(held: Held) -> None:
    """Compare what a savepoint holds with what the job was asked.

    Raises:
        ValueError: if the two differ.
    """
    heads = {key: (head["next"], head["answered"]) for key, head in held.heads.items()}
    requests = {record["id"]: record["key"] for records in held.requests.values() for record in records}
    if (heads, requests, held.slots_by_status()) != (_HEADS, PENDING, _SLOTS):
        msg = f"the savepoint holds heads {heads}, requests {requests} and slots {held.slots_by_status()}"
        raise ValueError(msg)


def main(target: Path) -> None:
    """Start a cluster for the one job."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedCluster(Path(folder), slots=1) as cluster:
        make(cluster, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
