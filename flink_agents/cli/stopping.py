"""An orderly stop: a savepoint, if one can be had in bounded time, else the last checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from flink_agents.cluster.rest import FlinkRest
from flink_agents.cluster.runs import Ending
from flink_agents.errors import ClusterFault

__all__ = ["Stop", "stop"]

POLL_S = 0.1
SAVEPOINT_S = 60.0
# Once the input has ended, no savepoint completes before the last call has.
DRAIN_S = 5.0
CANCEL_S = 15.0

DRAINING = f"the input has ended, and its last calls did not within {DRAIN_S:g} s"


@dataclass(frozen=True)
class Stop:
    """How a stop went. ``reason`` says why there is no savepoint."""

    how: Ending
    savepoint: Path | None = None
    reason: str | None = None


def stop(rest: FlinkRest, job_id: str, savepoints: Path) -> Stop:
    """Stop the job with a savepoint below ``savepoints``; cancel it if none comes in time. Returns once it ended.

    A job that comes to its own end meanwhile has finished, or failed. One that holds its task thread may not have
    ended when this returns.

    Raises:
        ClusterFault: if the cluster cannot be reached.
    """
    draining = False
    savepoint = reason = None
    began = time.monotonic()
    try:
        trigger = rest.begin_stop(job_id, f"file://{savepoints}")
        while (location := rest.savepoint(job_id, trigger)) is None:
            # Asked again and again: the cluster learns it some hundred milliseconds late.
            draining = draining or rest.input_ended(job_id)
            if time.monotonic() - began > (DRAIN_S if draining else SAVEPOINT_S):
                break
            time.sleep(POLL_S)
        if location is None:
            reason = DRAINING if draining else f"it was not complete after {SAVEPOINT_S:g} s"
        else:
            savepoint = Path(location.removeprefix("file:"))
            _wait(rest, job_id)
    except ClusterFault as error:
        reason = str(error)
    state = rest.job(job_id).state
    if state == "FAILED":
        return Stop(Ending.FAILED)
    # What was being worked off at the end of the input is done when the job is.
    if state == "FINISHED" and (draining or savepoint is None):
        return Stop(Ending.FINISHED)
    if state != "FINISHED":
        rest.cancel(job_id)
        _wait(rest, job_id)
    return Stop(Ending.STOPPED, savepoint, reason)


def _wait(rest: FlinkRest, job_id: str) -> None:
    deadline = time.monotonic() + CANCEL_S
    while not rest.job(job_id).ended and time.monotonic() < deadline:
        time.sleep(POLL_S)
