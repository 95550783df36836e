"""A cell about one key alone: durable steps of an action, one after the other, with bodies that do nothing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped]

from flink_agents import ActionContext, Agent, InputEvent, OutputEvent
from tests.bench.cell import Bench, Cell
from tests.bench.results import Measure, Target, measured
from tests.bench.topology import marks_of

__all__ = ["CELLS"]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS = 100
SMALL, LARGE = 20, 120

TARGETS = {"thread": 2_000, "inline": 5_000, "thread with a journal": 1_000}


def nothing(step: int) -> int:
    """Answer at once."""
    return step


def stepping(execution: str) -> Agent:
    """Return an agent that takes ``STEPS`` durable steps for each record."""
    agent = Agent()

    async def act(event: InputEvent, ctx: ActionContext) -> None:
        last = 0
        for step in range(STEPS):
            last = await ctx.durable_execute(nothing, step, execution=execution)
        ctx.send_event(OutputEvent(last))

    agent.action(InputEvent)(act)
    return agent


def took(bench: Bench, name: str, count: int, execution: str, journal: Path | None) -> float:
    """Run one job of one key and return the seconds from the operator's opening to the end of its work."""
    job = bench.job(f"steps-{count}", agent=stepping(execution), journal=journal, profile=bench.profiles is not None)
    job.add("requests.jsonl", [f'{{"id": "r{number}", "key": "k"}}' for number in range(count)])
    job.wait(job.submit())
    if (lines := job.lines_out()) != count:
        msg = f"{count} records went in and {lines} came out"
        raise RuntimeError(msg)
    marks = marks_of(job.folder)
    seconds = marks["after:drain"]["s"] - marks["after:open"]["s"]
    if bench.profiles is not None:
        bench.profiles.mkdir(parents=True, exist_ok=True)
        shutil.copy(job.folder / "operator.pstats", bench.profiles / f"{job.folder.name}.pstats")
    shutil.rmtree(job.folder, ignore_errors=True)
    bench.say(f"{name}: {count * STEPS} steps in {seconds:.2f} s")
    return seconds


def _steps(bench: Bench) -> list[Measure]:
    measures = []
    small, large = bench.count(SMALL), bench.count(LARGE, 2)
    for name, target in TARGETS.items():
        execution, _, journaled = name.partition(" with ")
        rates = []
        for _ in range(bench.repeat):
            seconds = [
                took(bench, name, count, execution, bench.journal("steps") if journaled else None)
                for count in (small, large)
            ]
            gained = seconds[1] - seconds[0]
            rates.append((large - small) * STEPS / gained if gained > 0 else float("nan"))
        measures.append(measured(f"steps: {name}", rates, "steps/s", target=Target(target, at_least=True)))
    return measures


CELLS = [Cell("steps", "durable steps of one key in a row: threads, inline, threads with SQLite", _steps, 1)]
