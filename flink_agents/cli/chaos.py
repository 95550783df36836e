"""``flink-agents chaos``: the job on a cluster of its own under SIGKILL, and whether what is promised holds."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flink_agents.chaos.conduct import ChaosOutcome, Settings, conduct
from flink_agents.chaos.expectations import read_records
from flink_agents.chaos.own_job import WorkFolder
from flink_agents.chaos.verdict import Result
from flink_agents.cli.arguments import JobFile, JsonFlag, Overrides, stdout_for_results
from flink_agents.cli.interrupts import Interrupts
from flink_agents.cli.jobmanager import EXIT_FAILED, cluster_errors
from flink_agents.config.build import PreparedJob, prepare_loaded
from flink_agents.config.loader import read
from flink_agents.errors import InvalidInput
from flink_agents.runtime.observation import Guarantee
from flink_agents.units import UnitError, parse_duration

__all__ = ["chaos"]

PER_KILL_MS = 15_000
LARGEST_SEED = 2**31

Kills = Annotated[int, typer.Option("--kills", min=1, max=10_000, metavar="N", help="Kills that have to count.")]
TaskManagers = Annotated[
    int | None,
    typer.Option("--taskmanagers", min=1, max=64, metavar="M", help="TaskManagers; without it, two or one a subtask."),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="S", help="Repeats plan and call times of another run.")]
Duration = Annotated[
    str | None, typer.Option("--duration", metavar="D", help="How long requests arrive; without it, 15s for each kill.")
]
CallTime = Annotated[str, typer.Option("--call-time", metavar="A..B", help="How much longer each body takes.")]
Break = Annotated[
    Guarantee | None, typer.Option("--break", help="Switch a guarantee off, to see that the verdict notices it.")
]
Folder = Annotated[
    Path | None, typer.Option("--dir", metavar="DIR", help="An empty folder to work in, which then stays.")
]


def chaos(
    job: JobFile,
    kills: Kills,
    taskmanagers: TaskManagers = None,
    seed: Seed = None,
    duration: Duration = None,
    call_time: CallTime = "50ms..2s",
    broken: Break = None,
    overrides: Overrides = None,
    directory: Folder = None,
    as_json: JsonFlag = False,
) -> None:
    """Run the job on a cluster of its own, kill its TaskManagers, and check that what is promised holds.

    The job's requests are read and its tools are called; its sinks, checkpoints and SQLite journal are left alone. Exit
    code 0: holds; 1: broken, or too few kills hit a call and an outcome that no checkpoint knew; 2: bad input.
    """
    duration_ms = PER_KILL_MS * kills if duration is None else _duration("--duration", duration)
    shortest_ms, longest_ms = _range(call_time)
    with stdout_for_results():
        prepared = prepare_loaded(read(job, overrides or ()))
    records = _records(prepared)
    settings = Settings(
        kills=kills,
        taskmanagers=_taskmanagers(taskmanagers, prepared),
        seed=random.randrange(LARGEST_SEED) if seed is None else seed,
        duration_s=duration_ms / 1000,
        shortest_ms=shortest_ms,
        longest_ms=longest_ms,
        broken=broken,
    )
    work = _work_folder(directory)
    _note(f"{len(records):,} records, seed {settings.seed}, everything of this run is in {work.folder}")
    try:
        # A command that is told to end still ends its cluster.
        with Interrupts(), cluster_errors():
            outcome = conduct(prepared, records, settings, work, _note)
    except InvalidInput:
        # Nothing began, so there is nothing to look at.
        if directory is None:
            shutil.rmtree(work.folder, ignore_errors=True)
        raise
    except OSError as error:
        msg = f"{work.folder} cannot be used: {error.strerror or error}"
        raise InvalidInput(msg) from error
    result = outcome.verdict.result
    if result is Result.HOLDS and directory is None:
        shutil.rmtree(work.folder, ignore_errors=True)
    _show(outcome, Console(stderr=as_json), settings)
    if as_json:
        typer.echo(json.dumps(_report(outcome, settings, work)))
    raise typer.Exit(0 if result is Result.HOLDS else EXIT_FAILED)


def _records(prepared: PreparedJob) -> list[str]:
    source = prepared.config.source
    place = prepared.config.place("source.path")
    try:
        records = list(read_records(source.path))
    except OSError as error:
        msg = f"{place}: source.path: {source.path} cannot be read: {error.strerror or error}"
        raise InvalidInput(msg) from error
    if not records:
        msg = f"{place}: source.path: {source.path} holds no records"
        raise InvalidInput(msg)
    return records


def _taskmanagers(given: int | None, prepared: PreparedJob) -> int:
    needed = prepared.config.flink.parallelism
    if given is not None and given < needed:
        msg = f"--taskmanagers {given}: the job has flink.parallelism {needed}, and a TaskManager has one slot"
        raise InvalidInput(msg)
    return given or max(2, needed)


def _work_folder(given: Path | None) -> WorkFolder:
    if given is None:
        return WorkFolder(Path(tempfile.mkdtemp(prefix="flink-agents-chaos-")))
    if given.exists() and (not given.is_dir() or any(given.iterdir())):
        msg = f"--dir {given}: is not an empty folder"
        raise InvalidInput(msg)
    return WorkFolder(given.absolute())


def _duration(option: str, text: str) -> int:
    try:
        return parse_duration(text)
    except UnitError as error:
        msg = f"{option} {text}: {error}; expected {error.expected}"
        raise InvalidInput(msg) from error


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("..")
    shortest, longest = _duration("--call-time", first), _duration("--call-time", last or first)
    if shortest > longest:
        msg = f"--call-time {text}: the first duration is longer than the second"
        raise InvalidInput(msg)
    return shortest, longest


def _show(outcome: ChaosOutcome, console: Console, settings: Settings) -> None:
    verdict = outcome.verdict
    table = Table(show_header=False, box=None, pad_edge=False)
    for check in verdict.checks:
        table.add_row("holds" if check.holds else "BROKEN", check.name, f"{check.broken:,} of {check.looked_at:,}")
    console.print(table)
    for check in verdict.checks:
        for problem in check.shown:
            console.print(f"  {check.name}: {problem}", markup=False, highlight=False, soft_wrap=True)
    summary = (
        f"{verdict.result.value}: {verdict.counted} of {verdict.asked} kills counted, {len(verdict.kills)} took place"
    )
    again = f"repeat it with --seed {settings.seed}"
    console.print(f"{summary}; {again}", markup=False, highlight=False, soft_wrap=True)


def _report(outcome: ChaosOutcome, settings: Settings, work: WorkFolder) -> dict[str, Any]:
    verdict = outcome.verdict
    return {
        "verdict": verdict.result.value,
        "asked": verdict.asked,
        "counted": verdict.counted,
        "kills": [{**vars(kill), "counted": kill.counted} for kill in verdict.kills],
        "checks": [
            {
                "name": check.name,
                "holds": check.holds,
                "looked_at": check.looked_at,
                "broken": check.broken,
                "shown": list(check.shown),
            }
            for check in verdict.checks
        ],
        "requests": outcome.expected.answers.total(),
        "rejects": outcome.expected.rejects.total(),
        "bodies": outcome.bodies,
        "seed": settings.seed,
        "broken_on_purpose": settings.broken.value if settings.broken else None,
        "run_id": outcome.run_id,
        "folder": str(work.folder) if work.folder.exists() else None,
        "wall_s": round(outcome.wall_s, 1),
    }


def _note(text: str) -> None:
    typer.echo(text, err=True)
