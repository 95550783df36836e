"""An orderly stop in every state that a job can be in, on a cluster that answers as told."""

from __future__ import annotations

from pathlib import Path

import pytest

from flink_agents.cli import stopping
from flink_agents.cli.stopping import DRAINING, Stop, stop
from flink_agents.cluster.rest import FlinkRest, JobReport
from flink_agents.cluster.runs import Ending
from flink_agents.errors import ClusterFault

FAULT = ClusterFault("no savepoint")


class Told(FlinkRest):
    """A cluster with one job: ``after`` is its state once it was asked to stop; a cancel always works."""

    def __init__(self, after: str, *, savepoint: str | None = None, draining: bool = False) -> None:
        super().__init__("http://127.0.0.1:9")
        self.state = "RUNNING"
        self.after = after
        self.savepoint = savepoint
        self.draining = draining
        self.waited_s = 0.0

    def job(self, job_id: str) -> JobReport:
        return JobReport(job_id, "job", self.state, 0, None, (), input_ended=self.draining)

    def stop_with_savepoint(self, job_id: str, directory: str, *, drain: bool = False, timeout_s: float = 0.0) -> str:
        self.waited_s = timeout_s
        self.state = self.after
        if self.savepoint is None:
            raise FAULT
        return self.savepoint

    def cancel(self, job_id: str) -> None:
        self.state = "CANCELED"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (Told("FINISHED", savepoint="file:/s/1"), Stop(Ending.STOPPED, Path("/s/1"))),
        # It came to its own end before the savepoint did.
        (Told("FINISHED"), Stop(Ending.FINISHED)),
        (Told("FINISHED", savepoint="file:/s/1", draining=True), Stop(Ending.FINISHED)),
        (Told("FAILED"), Stop(Ending.FAILED)),
        (Told("RUNNING"), Stop(Ending.STOPPED, None, "no savepoint")),
        (Told("RESTARTING"), Stop(Ending.STOPPED, None, "no savepoint")),
        (Told("RUNNING", draining=True), Stop(Ending.STOPPED, None, DRAINING)),
        # The savepoint is there, and the job would not end by itself.
        (Told("RUNNING", savepoint="file:/s/1"), Stop(Ending.STOPPED, Path("/s/1"))),
    ],
)
def test_every_way_to_stop(told: Told, expected: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "CANCEL_S", 0.0)
    with told:
        assert stop(told, "id", Path("/s")) == expected
    assert told.state in ("FINISHED", "FAILED", "CANCELED")
    assert told.waited_s == (stopping.DRAIN_S if told.draining else stopping.SAVEPOINT_S)
