"""``flink-agents run``: the job on an embedded mini-cluster, from its YAML to the summary."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer
from rich.console import Console

from flink_agents.cli.arguments import JobFile, JsonFlag, Overrides, stdout_for_results
from flink_agents.cli.execution import Execution, Outcome
from flink_agents.cli.output import JvmOutput
from flink_agents.cli.progress import Progress
from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.cluster.runs import Ending, Run, create_run, digest
from flink_agents.config.build import prepare
from flink_agents.config.schema import JobConfig
from flink_agents.errors import InvalidInput

__all__ = ["run"]

EXIT_CODES = {Ending.FINISHED: 0, Ending.FAILED: 1, Ending.STOPPED: 130}


def run(job: JobFile, overrides: Overrides = None, as_json: JsonFlag = False) -> None:
    """Run the job on an embedded mini-cluster until its input ends; Ctrl-C stops it.

    Progress and summary go to stderr. Exit code 0: done; 1: the job failed; 2: bad input; 130: stopped by Ctrl-C.
    """
    with stdout_for_results():
        prepared = prepare(job, overrides or ())
    config = prepared.config
    run_of_job = _new_run(config)
    console = Console(stderr=True)
    with _sigterm_like_ctrl_c(), Progress(console) as progress:
        output = JvmOutput(progress)
        cluster = EmbeddedCluster(
            run_of_job.logs, slots=config.flink.parallelism, options=config.flink.options, on_output=output
        )
        outcome = Execution(cluster, prepared, run_of_job, output, progress).run()
        run_of_job.ended(outcome.how, outcome.checkpoint)
    _report(console, config.name, cluster, outcome)
    if as_json:
        output.result(json.dumps(outcome.summary.to_json()))
    raise typer.Exit(EXIT_CODES[outcome.how])


def _new_run(config: JobConfig) -> Run:
    root = config.flink.checkpoints.directory
    try:
        return create_run(root, config.name, digest(config.model_dump_json()))
    except OSError as error:
        place = config.place("flink.checkpoints.directory")
        msg = f"{place}: flink.checkpoints.directory: {root} cannot be used: {error.strerror or error}"
        raise InvalidInput(msg) from error


def _report(console: Console, name: str, cluster: EmbeddedCluster, outcome: Outcome) -> None:
    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    if outcome.how is Ending.FAILED:
        if outcome.cause:
            say(outcome.cause.text)
        restarts = outcome.summary.restarts
        after = f" after {restarts} restart{'s' if restarts != 1 else ''}" if restarts else ""
        say(f"job '{name}' failed{after}: {outcome.failure or 'Flink reported no cause'}")
        say(f"Flink's log: {cluster.log_file}")
    if outcome.started:
        outcome.summary.show(console)
    if outcome.uncertain:
        seen = ", ".join(f"{value:,} {what}" for what, value in outcome.uncertain.items())
        say(f"not counted, because no completed checkpoint holds them: {seen}")


@contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
