"""``flink-agents submit``: the job to a cluster that runs already, under a run id, and the line that stops it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from flink_agents.cli.arguments import JobFile, Overrides, stdout_for_results
from flink_agents.cli.jobmanager import JobManager, cluster_errors, jobmanager_rest
from flink_agents.cluster.lock import JobLock
from flink_agents.cluster.submission import Submission, check_cluster
from flink_agents.config.remote import prepare_for_cluster
from flink_agents.errors import ClusterFault, InvalidInput
from flink_agents.job import refused_option
from flink_agents.units import UnitError, parse_duration

__all__ = ["submit"]

SavepointOption = Annotated[
    str | None,
    typer.Option("--savepoint", metavar="PATH", help="Go on from this savepoint, and with the run that it is of."),
]
ResumeFlag = Annotated[
    bool, typer.Option("--resume", help="Go on with the last run, from its newest checkpoint or savepoint.")
]
WaitOption = Annotated[
    str,
    typer.Option("--wait", metavar="DURATION", help="How long the job may wait for free slots."),
]


def submit(
    job: JobFile,
    jobmanager: JobManager,
    savepoint: SavepointOption = None,
    resume: ResumeFlag = False,
    overrides: Overrides = None,
    wait: WaitOption = "30s",
) -> None:
    """Submit the job to a Flink cluster; prints its job id and the line that stops it.

    The YAML, the Python modules beside it and schema files travel along. Paths of source, sink and journal are the
    cluster's. Exit code 0: every subtask is at work; 1: the job did not begin; 2: bad input.
    """
    if savepoint and resume:
        msg = "--savepoint and --resume exclude each other"
        raise InvalidInput(msg)
    restored = _local(savepoint) if savepoint else None
    slots_ms = _duration(wait)
    rest, address = jobmanager_rest(jobmanager)
    with stdout_for_results():
        prepared = prepare_for_cluster(job, overrides or ())
    config = prepared.config
    with rest, cluster_errors():
        check_cluster(rest, config.flink.parallelism, _note)
        submission = Submission(prepared, rest, address, _note, slots_ms=slots_ms)
        root = config.flink.checkpoints.directory
        try:
            with JobLock(root / config.name):
                run, found = submission.choose(savepoint=restored, resume=resume)
                job_id = submission.submit(run, found)
        except ClusterFault as error:
            if (refused := refused_option(config, str(error))) is not None:
                raise refused from error
            raise
        except OSError as error:
            place = config.place("flink.checkpoints.directory")
            msg = f"{place}: flink.checkpoints.directory: {root} cannot be used: {error.strerror or error}"
            raise InvalidInput(msg) from error
    origin = f" goes on from {found}" if found else " started"
    _note(f"job '{config.name}'{origin}, run {run.run_id}")
    typer.echo(job_id)
    typer.echo(shlex.join(["flink-agents", "stop", job_id, "--jobmanager", address]))


def _local(path: str) -> Path:
    folder = Path(path.removeprefix("file://").removeprefix("file:")).expanduser().absolute()
    # Flink prints the folder, others know the file in it.
    folder = folder.parent if folder.name == "_metadata" else folder
    if not folder.is_dir():
        msg = f"--savepoint {path}: there is no such folder"
        raise InvalidInput(msg)
    return folder


def _duration(text: str) -> int:
    try:
        return parse_duration(text)
    except UnitError as error:
        msg = f"--wait {text}: {error}; expected {error.expected}"
        raise InvalidInput(msg) from error


def _note(text: str) -> None:
    typer.echo(text, err=True)
