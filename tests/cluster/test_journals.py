"""A run's row and its lease, as the client sees them before it submits a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flink_agents.cluster import journals
from flink_agents.cluster.journals import register_run
from flink_agents.cluster.runs import Ending, Run, create_run
from flink_agents.config.build import PreparedJob, prepare
from flink_agents.durable.journal.rows import Lease
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.errors import RunInUse, RunRefused

JOB = """
name: leased
source: {type: jsonl, path: requests.jsonl}
key_by: key
tools:
  - function: leased_tools:look
journal: {type: sqlite, path: journal.db}
sink: {type: print}
"""
OTHER = "Flink job " + "b" * 32


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedJob:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "leased_tools.py").write_text('def look() -> str:\n    """Look."""\n    return "seen"\n')
    (tmp_path / "requests.jsonl").touch()
    (tmp_path / "job.yaml").write_text(JOB)
    return prepare(tmp_path / "job.yaml")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = create_run(tmp_path / "runs", "leased", "digest")
    made.submitted("a" * 32, "digest", {"journal.type": '"sqlite"'}, "127.0.0.1:1")
    return made


@pytest.fixture
def journal(tmp_path: Path, prepared: PreparedJob, run: Run) -> Iterator[SqliteJournal]:
    """The job's journal, which knows the run."""
    register_run(prepared, run, goes_on=False, is_ours=True)
    opened = SqliteJournal(tmp_path / "journal.db")
    yield opened
    opened.close()


def now_ms() -> int:
    return round(time.time() * 1000)


@contextmanager
def renewed(journal: SqliteJournal, run: Run, owner: str) -> Iterator[None]:
    """Hold the lease as a live job does, only with less patience."""
    over = threading.Event()
    journal.acquire_lease(run.run_id, owner, 60_000, now_ms())

    def renew() -> None:
        while not over.wait(0.05):
            journal.renew_lease(run.run_id, owner, 60_000, now_ms())

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("is_ours", [False, True], ids=["unknown", "its last job is over"])
def test_a_run_on_which_another_job_works_is_refused_before_anything_is_submitted(
    prepared: PreparedJob, run: Run, journal: SqliteJournal, is_ours: bool
) -> None:
    said: list[str] = []
    with renewed(journal, run, OTHER), pytest.raises(RunRefused) as refused:
        register_run(prepared, run, goes_on=True, is_ours=is_ours, note=said.append)
    assert f"run {run.run_id} is live: {OTHER} works on it" in str(refused.value)
    assert not isinstance(refused.value, RunInUse)
    assert "stop that one first" in str(refused.value)
    assert len(said) == 1


def test_the_lease_of_a_dead_job_is_waited_for(prepared: PreparedJob, run: Run, journal: SqliteJournal) -> None:
    said: list[str] = []
    journal.acquire_lease(run.run_id, OTHER, 700, now_ms())
    lease = journal.find_lease(run.run_id)
    assert lease is not None
    register_run(prepared, run, goes_on=True, is_ours=False, note=said.append)
    assert now_ms() >= lease.until_ms
    assert len(said) == 1


def test_a_lease_without_an_end_in_sight_is_no_reason_to_wait_for_ever(
    prepared: PreparedJob, run: Run, journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "LEASE_S", 0.5)
    journal.acquire_lease(run.run_id, OTHER, 3_600_000, now_ms())
    with pytest.raises(RunRefused, match="is live"):
        register_run(prepared, run, goes_on=True, is_ours=False)


def test_the_lease_of_a_job_that_is_known_to_be_over_is_given_back(
    prepared: PreparedJob, run: Run, journal: SqliteJournal
) -> None:
    run.ended(Ending.STOPPED, None)
    journal.acquire_lease(run.run_id, f"Flink job {run.record.job_id}", 3_600_000, now_ms())
    said: list[Any] = []
    register_run(prepared, run, goes_on=True, is_ours=True, note=said.append)
    assert journal.find_lease(run.run_id) is None
    assert said == []


def test_a_lease_that_ran_out_is_still_shown(run: Run, journal: SqliteJournal) -> None:
    journal.acquire_lease(run.run_id, OTHER, 10, 5)
    assert journal.find_lease(run.run_id) == Lease(OTHER, 15)
