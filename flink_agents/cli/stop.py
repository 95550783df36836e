"""``flink-agents stop``: a submitted job ends with a savepoint, and its run's record says where that is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from flink_agents.cli.jobmanager import JobManager, cluster_errors, jobmanager_rest
from flink_agents.cluster.live import note_end
from flink_agents.cluster.rest import FlinkRest, JobReport
from flink_agents.cluster.runs import Run, read_run
from flink_agents.errors import ClusterFault, InvalidInput, RunRefused
from flink_agents.runtime.job_parameters import RUN_FOLDER_PARAMETER

__all__ = ["stop"]

STOP_S = 600.0
DRAIN_S = 7 * 24 * 3600.0
END_S = 60.0
POLL_S = 0.1

JobId = Annotated[str, typer.Argument(metavar="JOB_ID", help="As `submit` printed it.", show_default=False)]
DrainFlag = Annotated[
    bool, typer.Option("--drain", help="Take in nothing more, and answer all that was taken in before the savepoint.")
]
SavepointFolder = Annotated[
    str | None,
    typer.Option("--savepoint-dir", metavar="D", help="Folder of the savepoint; without it, the run's own."),
]


def stop(
    job_id: JobId, jobmanager: JobManager, drain: DrainFlag = False, savepoint_dir: SavepointFolder = None
) -> None:
    """Stop a job with a savepoint, which `submit --resume` or `submit --savepoint` goes on from; prints its path.

    Calls in flight are in the savepoint. Exit code 0: stopped; 1: it was not running, or there is no savepoint: the job
    then goes on.
    """
    rest, address = jobmanager_rest(jobmanager)
    with rest, cluster_errors():
        report = rest.job(job_id)
        run = _run_of(rest, job_id)
        if report.ended:
            if run is not None and run.record.how is None and run.record.job_id == job_id:
                note_end(run, rest, report)
            msg = f"job {job_id} is not running: it is {report.state}"
            raise ClusterFault(msg)
        location = rest.stop_with_savepoint(
            job_id, _target(savepoint_dir, run), drain=drain, timeout_s=DRAIN_S if drain else STOP_S
        )
        savepoint = Path(location.removeprefix("file:"))
        report = _wait_ended(rest, job_id)
        if run is not None and run.record.job_id == job_id:
            note_end(run, rest, report, savepoint)
        else:
            typer.echo("the run's folder is not on this machine: its run.json does not know of the stop", err=True)
    typer.echo(f"job {job_id} at {address} is stopped", err=True)
    typer.echo(str(savepoint))


def _run_of(rest: FlinkRest, job_id: str) -> Run | None:
    """Return the run that a job works on, or None if its folder is not on this machine."""
    folder = rest.parameters(job_id).get(RUN_FOLDER_PARAMETER)
    try:
        return read_run(Path(folder)) if folder and Path(folder).is_dir() else None
    except RunRefused as error:
        typer.echo(str(error), err=True)
        return None


def _target(given: str | None, run: Run | None) -> str:
    if given is None and run is None:
        msg = "where the run has its savepoints is not known here: give --savepoint-dir, a folder of the cluster"
        raise InvalidInput(msg)
    if given is None and run is not None:
        return f"file://{run.savepoints}"
    folder = str(given)
    return folder if ":" in folder.split("/")[0] else f"file://{Path(folder).expanduser().absolute()}"


def _wait_ended(rest: FlinkRest, job_id: str) -> JobReport:
    deadline = time.monotonic() + END_S
    while True:
        report = rest.job(job_id)
        if report.ended:
            return report
        if time.monotonic() > deadline:
            msg = f"the savepoint is there, and job {job_id} is still {report.state} after {END_S:g} s"
            raise ClusterFault(msg)
        time.sleep(POLL_S)
