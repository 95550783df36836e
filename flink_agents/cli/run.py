"""``flink-agents run``: the job on an embedded mini-cluster, from its YAML to the summary."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flink_agents.cli.arguments import JobFile, JsonFlag, Overrides, stdout_for_results
from flink_agents.cli.execution import Execution, Outcome
from flink_agents.cli.interrupts import Interrupts
from flink_agents.cli.output import JvmOutput
from flink_agents.cli.progress import Progress
from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.cluster.journals import register_run
from flink_agents.cluster.live import settle
from flink_agents.cluster.lock import JobLock
from flink_agents.cluster.resume import Wish, compare, refuse_changes, resumes, settings
from flink_agents.cluster.runs import Ending, Run, create_run, digest, last_run
from flink_agents.cluster.snapshots import Snapshot, check, newest
from flink_agents.config.build import PreparedJob, journal_spec, prepare
from flink_agents.config.schema import JobConfig, JsonlSink
from flink_agents.errors import CannotRestore, InvalidInput
from flink_agents.job import refused_option

__all__ = ["run"]

EXIT_CODES = {Ending.FINISHED: 0, Ending.FAILED: 1, Ending.STOPPED: 130, Ending.CUT_OFF: 130}

ResumeFlag = Annotated[
    bool, typer.Option("--resume", help="Go on with the last run, from its newest checkpoint or savepoint.")
]
FreshFlag = Annotated[bool, typer.Option("--fresh", help="Begin anew, whatever became of the last run.")]


def run(
    job: JobFile,
    overrides: Overrides = None,
    resume: ResumeFlag = False,
    fresh: FreshFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Run the job on an embedded mini-cluster until its input ends; Ctrl-C stops it so that --resume can go on.

    Progress and summary go to stderr. Exit code 0: done; 1: the job failed; 2: bad input; 130: stopped by Ctrl-C.
    """
    if resume and fresh:
        msg = "--resume and --fresh exclude each other"
        raise InvalidInput(msg)
    wish = Wish.RESUME if resume else Wish.FRESH if fresh else Wish.PLAIN
    with stdout_for_results():
        prepared = prepare(job, overrides or ())
    console = Console(stderr=True)
    with ExitStack() as held:
        held.enter_context(_ways_on())
        run_of_job, restore, lock = _begin(prepared.config, wish, held, console)
        record = run_of_job.record
        # The lock says that no job of an earlier `run` works on it any more, but nothing of one that was submitted.
        over = record.jobmanager is None or record.how is not None
        known = record.job_id is not None
        register_run(prepared, run_of_job, goes_on=known, is_ours=over, note=partial(_say, console))
        outcome = _execute(prepared, run_of_job, restore, lock, console, as_json)
    if outcome.snapshot or outcome.how in (Ending.STOPPED, Ending.CUT_OFF):
        again = ["flink-agents", "run", str(job), *(word for o in overrides or () for word in ("--set", o)), "--resume"]
        _say(console, f"go on with: {shlex.join(again)}")
    raise typer.Exit(EXIT_CODES[outcome.how])


@contextmanager
def _ways_on() -> Iterator[None]:
    try:
        yield
    except CannotRestore as error:
        msg = f"{error}\nPut it back as it was, or leave that run and begin anew by --fresh."
        raise CannotRestore(msg) from error


def _begin(config: JobConfig, wish: Wish, held: ExitStack, console: Console) -> tuple[Run, Snapshot | None, JobLock]:
    """Return the run to work on, what it goes on from, and the job's lock, held until ``held`` is closed."""
    root = config.flink.checkpoints.directory
    folder = root / config.name
    try:
        lock = held.enter_context(JobLock(folder))
        last = last_run(folder) if wish is not Wish.FRESH else None
        if last is not None:
            settle(last, partial(_say, console))
        found = newest(last) if last and last.record.how is not Ending.FINISHED else None
        goes_on = resumes(config.name, last.record if last else None, found is not None, wish)
        if last is None or not goes_on:
            return create_run(root, config.name, digest(config.model_dump_json())), None, lock
    except OSError as error:
        place = config.place("flink.checkpoints.directory")
        msg = f"{place}: flink.checkpoints.directory: {root} cannot be used: {error.strerror or error}"
        raise InvalidInput(msg) from error
    changes = compare(last.record.settings, settings(config), savepoint=bool(found and found.savepoint))
    refuse_changes(last.run_id, changes.fatal)
    if changes.noted:
        _say(console, f"changed since run {last.run_id} was last started: {', '.join(changes.noted)}")
    if found:
        check(found)
    else:
        kept = "" if journal_spec(config.journal) is None else "; calls that its journal has do not run again"
        _say(console, f"run {last.run_id} has completed no checkpoint: its requests are read again{kept}")
    return last, found, lock


def _execute(
    prepared: PreparedJob, run_of_job: Run, restore: Snapshot | None, lock: JobLock, console: Console, as_json: bool
) -> Outcome:
    config = prepared.config
    before = run_of_job.record
    with Interrupts() as interrupts, Progress(console) as progress:
        output = JvmOutput(progress)
        cluster = EmbeddedCluster(
            run_of_job.logs,
            slots=config.flink.parallelism,
            options=config.flink.options,
            on_output=output,
            keep_open=(lock.descriptor,),
        )
        execution = Execution(
            cluster, prepared, run_of_job, restore, interrupts=interrupts, output=output, progress=progress
        )
        try:
            outcome = execution.run()
        except CannotRestore:
            run_of_job.put_back(before)
            raise
        run_of_job.ended(outcome.how, str(outcome.snapshot) if outcome.snapshot else None)
    if outcome.cause is None and (refused := refused_option(config, outcome.failure or "")) is not None:
        raise refused
    _report(console, config.name, cluster.log_file, outcome)
    if outcome.how is Ending.FINISHED:
        _say(console, _places(config))
    if as_json:
        output.result(json.dumps(outcome.summary.to_json()))
    return outcome


def _report(console: Console, name: str, log_file: Path, outcome: Outcome) -> None:
    if outcome.how is Ending.FAILED:
        if outcome.cause:
            _say(console, outcome.cause.text)
        restarts = outcome.restarts
        after = f" after {restarts} restart{'s' if restarts != 1 else ''}" if restarts else ""
        _say(console, f"job '{name}' failed{after}: {outcome.failure or 'Flink reported no cause'}")
        _say(console, f"Flink's log: {log_file}")
    if outcome.started:
        outcome.summary.show(console)
    elif outcome.how in (Ending.STOPPED, Ending.CUT_OFF):
        _say(console, f"job '{name}' was stopped before it started")
    stopped = outcome.stopped
    if stopped and stopped.savepoint:
        _say(console, f"stopped with savepoint {stopped.savepoint}")
        waiting = outcome.uncertain.get("requests", 0)
        if waiting:
            _say(console, f"taken in and not answered yet, so not counted but in the savepoint: {waiting:,} requests")
        if outcome.hidden:
            _say(console, f"responses in no closed file yet become visible in {outcome.hidden} when the run goes on")
        return
    if outcome.how in (Ending.STOPPED, Ending.CUT_OFF) and outcome.started:
        why = f" ({stopped.reason})" if stopped and stopped.reason else ""
        left = (
            f"the state is that of checkpoint {outcome.snapshot}" if outcome.snapshot else "no checkpoint had completed"
        )
        _say(console, f"{outcome.how.value} without a savepoint{why}: {left}")
    if outcome.uncertain:
        seen = ", ".join(f"{value:,} {what}" for what, value in outcome.uncertain.items())
        _say(console, f"not counted, because no completed checkpoint holds them: {seen}")


def _places(config: JobConfig) -> str:
    places = (
        f"{name} in {sink.path}" if isinstance(sink, JsonlSink) else f"{name} on standard output"
        for name, sink in (("responses", config.sink), ("rejects", config.rejects))
    )
    return ", ".join(places)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
