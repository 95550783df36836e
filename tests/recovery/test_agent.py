"""An agent in a running job that crashes in the middle of its actions: time, memory, sleeps and calls go on."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from flink_agents import ActionContext, Agent, InputEvent, OutputEvent
from flink_agents.durable.journal.opening import JournalSpec, JournalType
from flink_agents.testing.crash_file import CrashFile

if TYPE_CHECKING:
    from tests.recovery.conftest import RecoveryJob

pytest.importorskip("pyflink")
cloudpickle.register_pickle_by_value(sys.modules[__name__])

REQUESTS, KEYS = 30, 6


def stamping(folder: Path) -> Agent:
    """Return an agent that takes durable steps of each kind, and notes what runs."""
    runs = str(folder / "steps.txt")
    agent = Agent()

    def step(number: int, name: str, at_ms: int) -> str:
        with open(runs, "a", encoding="utf-8") as lines:
            lines.write(f"{number} {name} {at_ms}\n")
        return f"{number} {name}"

    async def step_later(number: int, name: str, at_ms: int) -> str:
        return step(number, name, at_ms)

    async def act(event: InputEvent, ctx: ActionContext) -> None:
        number = event.input["number"]
        begun = ctx.now()
        at_ms = int(begun.timestamp() * 1000)
        first = await ctx.durable_execute(step, number, "first", at_ms)
        await ctx.sleep("100ms")
        batch = [
            ctx.durable_execute(step_later, number, "second", at_ms),
            ctx.durable_execute(step, number, "third", at_ms).map(str.upper),
            ctx.call_tool("wait", {"call": f"{number}/0", "ms": 30}),
        ]
        outcomes = await ctx.gather(*batch, timeout="60s")
        ctx.memory.set("seen.count", ctx.memory.get("seen.count", 0) + 1)
        slept_ms = (ctx.now() - begun).total_seconds() * 1000
        said = [first, *(outcome.result() for outcome in outcomes), slept_ms >= 100, ctx.memory.get("seen.count")]
        ctx.send_event(OutputEvent({"said": said, "id": str(ctx.uuid())}))

    agent.action(InputEvent)(act)
    return agent


def check(job: RecoveryJob) -> None:
    """Assert one line for each record, in each key's order, with a memory that counted each once."""
    lines = job.responses()
    assert Counter(line["request_id"] for line in lines) == Counter(f"r{n}" for n in range(REQUESTS))
    seen: Counter[str] = Counter()
    for line in lines:
        number, key = int(line["request_id"][1:]), line["key"]
        seen[key] += 1
        said = [f"{number} first", f"{number} second", f"{number} THIRD", f"value of {number}/0", True, seen[key]]
        assert line["output"]["said"] == said
    assert len({line["output"]["id"] for line in lines}) == REQUESTS


@pytest.mark.flink
@pytest.mark.rule(9, 29, 48, 49, 51)
@pytest.mark.parametrize("with_journal", [False, True], ids=["checkpoints", "journal"])
def test_an_agent_goes_on_where_it_was(
    recovery_job: Callable[..., RecoveryJob], tmp_path: Path, with_journal: bool
) -> None:
    points = ("after:recorded", "before:emitted")
    plan = CrashFile(str(tmp_path), points, nth=20)
    journal = JournalSpec(JournalType.SQLITE, path=str(tmp_path / "state" / "journal.db")) if with_journal else None
    job = recovery_job(fault=plan, journal=journal, agent=stamping(tmp_path), interval_s=0.0 if with_journal else 0.03)
    records: list[Any] = [{"id": f"r{n}", "key": f"k{n % KEYS}", "number": n} for n in range(REQUESTS)]
    job.add("a.jsonl", [json.dumps(record) for record in records])
    # Without a checkpoint in between, everything that stands after the crash is the journal's.
    job.submit(restarts=len(points), execution_checkpointing_interval="10 min" if with_journal else "200 ms")
    job.finish()
    assert (plan.crashes, job.restarts) == (len(points), len(points))
    check(job)
    runs = (tmp_path / "steps.txt").read_text(encoding="utf-8").splitlines()
    if with_journal:
        # The time is an argument: had it been lost, the calls would be others, and would have run again as such.
        assert len({run.rpartition(" ")[0] for run in runs}) == len(set(runs)) == 3 * REQUESTS
        # What a crash cut off runs again; what had ended does not.
        assert len(runs) - 3 * REQUESTS <= 2 * KEYS * 3
        assert job.statistics()["replayed"] > 0
