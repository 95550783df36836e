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

    def __init__(
        self, after: str, *, location: str | None = None, draining: bool = False, endless: bool = False
    ) -> None:
        super().__init__("http://127.0.0.1:9")
        self.state = "RUNNING"
        self.after = after
        self.location = location
        self.draining = draining
        self.endless = endless

    def job(self, job_id: str) -> JobReport:
        return JobReport(job_id, "job", self.state, 0, None, ())

    def input_ended(self, job_id: str) -> bool:
        return self.draining

    def begin_stop(self, job_id: str, directory: str, *, drain: bool = False) -> str:
        return "trigger"

    def savepoint(self, job_id: str, trigger: str) -> str | None:
        self.state = self.after
        if self.location is None and not self.endless:
            raise FAULT
        return self.location

    def cancel(self, job_id: str) -> None:
        self.state = "CANCELED"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (Told("FINISHED", location="file:/s/1"), Stop(Ending.STOPPED, Path("/s/1"))),
        # It came to its own end before the savepoint did.
        (Told("FINISHED"), Stop(Ending.FINISHED)),
        (Told("FAILED"), Stop(Ending.FAILED)),
        (Told("RUNNING"), Stop(Ending.STOPPED, None, "no savepoint")),
        (Told("RESTARTING"), Stop(Ending.STOPPED, None, "no savepoint")),
        (Told("RUNNING", draining=True, endless=True), Stop(Ending.STOPPED, None, DRAINING)),
        (Told("RUNNING", endless=True), Stop(Ending.STOPPED, None, "it was not complete after 0.3 s")),
        # The savepoint is there, and the job would not end by itself.
        (Told("RUNNING", location="file:/s/1"), Stop(Ending.STOPPED, Path("/s/1"))),
    ],
)
def test_every_way_to_stop(told: Told, expected: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "CANCEL_S", 0.0)
    monkeypatch.setattr(stopping, "DRAIN_S", 0.1)
    monkeypatch.setattr(stopping, "SAVEPOINT_S", 0.3)
    with told:
        assert stop(told, "id", Path("/s")) == expected
    assert told.state in ("FINISHED", "FAILED", "CANCELED")
