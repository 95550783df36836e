"""What became of a job that was submitted to a cluster, where no command of ours waited for its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flink_agents.cluster.rest import FlinkRest, JobReport
from flink_agents.cluster.runs import Ending, Run, Totals
from flink_agents.cluster.statistics import StatisticsFolder
from flink_agents.errors import CannotRestore, ClusterFault, JobNotFound, RunRefused

__all__ = ["note_end", "refuse_vanished", "settle"]

ENDINGS = {"FINISHED": Ending.FINISHED, "FAILED": Ending.FAILED, "CANCELED": Ending.STOPPED}
ASK_S = 5.0


def settle(run: Run, note: Callable[[str], None]) -> None:
    """Note in a run how its job ended, if it was submitted to a cluster and that still knows.

    A cluster that does not answer, or has forgotten the job, leaves the run as it is: cut off.

    Raises:
        RunRefused: if the job is still alive there: two jobs on one run would both write its state and its output.
    """
    record = run.record
    if record.jobmanager is None or record.job_id is None or record.how is not None:
        return
    with FlinkRest(f"http://{record.jobmanager}", timeout_s=ASK_S) as rest:
        try:
            report = rest.job(record.job_id)
            if report.ended:
                note_end(run, rest, report)
                return
        except JobNotFound:
            note(f"the cluster at {record.jobmanager} does not know job {record.job_id} any more: it counts as cut off")
            return
        except ClusterFault as error:
            note(f"job {record.job_id} of run {run.run_id} counts as cut off: {error}")
            return
    msg = (
        f"run {run.run_id} of job '{record.job}' is live: Flink job {record.job_id} is {report.state}; stop it first: "
        f"flink-agents stop {record.job_id} --jobmanager {record.jobmanager}"
    )
    raise RunRefused(msg)


def note_end(run: Run, rest: FlinkRest, report: JobReport, savepoint: Path | None = None) -> None:
    """Write into the run's record how its job ended. ``savepoint``: what it was stopped with, as far as is known."""
    wall_s = ((report.ended_ms or report.started_ms) - report.started_ms) / 1000
    run.progress(Totals(rest.restarts(report.job_id), rest.completed_checkpoints(report.job_id), wall_s))
    how = ENDINGS.get(report.state, Ending.CUT_OFF)
    location = rest.stopped_with(report.job_id) if how is Ending.FINISHED and savepoint is None else None
    if location is not None:
        savepoint = Path(location.removeprefix("file:"))
    if savepoint is not None:
        # Flink calls a job that was stopped with a savepoint finished.
        how = Ending.STOPPED
    elif how is not Ending.FINISHED:
        kept = rest.latest_checkpoint(report.job_id)
        savepoint = Path(kept.removeprefix("file:")) if kept else None
    run.ended(how, str(savepoint) if savepoint else None)


def refuse_vanished(run: Run) -> None:
    """Refuse to begin a run's work again that has answered requests and kept no state to go on from.

    Raises:
        CannotRestore: if so. Its job finished, and Flink removed the checkpoints; or somebody else did.
    """
    if StatisticsFolder(run.statistics).totals()["responses"]:
        msg = (
            f"run {run.run_id} has answered requests and has no checkpoint: its job finished, or its state is gone. "
            "To begin anew, submit it without --resume"
        )
        raise CannotRestore(msg)
