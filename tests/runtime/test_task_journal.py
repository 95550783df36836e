"""The journal as an attempt opens it: who holds the run, what is waited for, and what fails the task."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.opening import JournalSpec, JournalType, journal_writer
from flink_agents.durable.journal.operations import Finish
from flink_agents.durable.journal.rows import CallFilter, CallKey, RunRow
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.outcome import Succeeded
from flink_agents.errors import FrameworkFault, InvalidInput, JournalError, RunInUse, RunUnknown
from flink_agents.runtime import journal as task_journal
from flink_agents.runtime.journal import TaskJournal, open_journal_of
from flink_agents.scheduler.attempt import Attempt
from flink_agents.testing.harness import CountingCounters

DEADLINE_S = 30.0


@pytest.fixture
def spec(tmp_path: Path) -> JournalSpec:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.create_run(RunRow("run-1", "job", 0))
    journal.close()
    return JournalSpec(JournalType.SQLITE, path=str(path))


def opened(
    spec: JournalSpec, attempt: Attempt, *, owner: str = "job 1", run_id: str = "run-1", **place: Any
) -> TaskJournal:
    return open_journal_of(spec, run_id, attempt, owner=owner, **{"subtask": 0, "parallelism": 1, **place})


def call_of(index: int) -> CallKey:
    return CallKey.of("run-1", '"k"', 1, Identity(index, "tool", "t", index, "d"))


def test_only_the_first_attempt_of_a_subtask_needs_no_look_up(spec: JournalSpec) -> None:
    assert opened(spec, Attempt()).port.first_attempt
    assert not opened(spec, Attempt()).port.first_attempt
    assert not opened(spec, Attempt(), subtask=1, parallelism=2).port.first_attempt


@pytest.mark.rule(24)
def test_what_an_earlier_attempt_handed_over_is_there_before_anything_is_read(spec: JournalSpec) -> None:
    writer = journal_writer(spec)
    for index in range(500):
        writer.submit(Finish(call_of(index), Succeeded("1"), 1, "earlier", 0, 1))
    journal = opened(spec, Attempt()).port.writer.journal  # type: ignore[attr-defined]
    assert len(list(journal.calls(CallFilter()))) == 500


@pytest.mark.rule(54)
def test_a_run_that_another_job_works_on_is_refused(spec: JournalSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_journal, "OPEN_S", 0.2)
    opened(spec, Attempt(), owner="job 1")
    opened(spec, Attempt(), owner="job 1")
    with pytest.raises(RunInUse, match="in use by job 1"):
        opened(spec, Attempt(), owner="job 2")


def test_the_lease_of_a_dead_job_is_waited_for(spec: JournalSpec) -> None:
    journal = SqliteJournal(Path(str(spec.path)))
    until_ms = round(time.time() * 1000) + 300
    journal.acquire_lease("run-1", "a dead job", 300, until_ms - 300)
    journal.close()
    opened(spec, Attempt(), owner="job 2")
    assert time.time() * 1000 >= until_ms


@pytest.mark.rule(54)
def test_a_lost_lease_fails_the_task_and_an_ended_attempt_renews_none(
    spec: JournalSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_journal, "RENEW_S", 0.02)
    monkeypatch.setattr(task_journal, "_kept_leases", [])
    notified = threading.Event()
    ended, attempt = Attempt(), Attempt()
    attempt.notify = notified.set
    for one in (ended, attempt):
        opened(spec, one)
    ended.interrupt()
    journal = SqliteJournal(Path(str(spec.path)))
    journal.release_lease("run-1", "job 1")
    journal.acquire_lease("run-1", "job 2", 60_000, round(time.time() * 1000))
    journal.close()
    assert notified.wait(DEADLINE_S)
    assert isinstance(attempt.failure, FrameworkFault)
    assert "another job has taken this one's run" in str(attempt.failure)
    assert ended.failure is None


def test_what_cannot_be_opened_says_what_to_do(spec: JournalSpec, tmp_path: Path) -> None:
    with pytest.raises(RunUnknown, match="was submitted with another journal"):
        opened(spec, Attempt(), run_id="run-9")
    with pytest.raises(InvalidInput, match="a journal needs a run id"):
        opened(spec, Attempt(), run_id="")
    elsewhere = JournalSpec(JournalType.SQLITE, path=str(tmp_path / "none.db"))
    with pytest.raises(JournalError, match=r"there is no journal .* on this machine"):
        opened(elsewhere, Attempt())


def test_the_writers_work_is_counted_once_whoever_reports_it(
    spec: JournalSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_journal, "REPORT_S", 0.0)
    first, second = opened(spec, Attempt()), opened(spec, Attempt())
    writer = journal_writer(spec)
    for index in range(10):
        writer.submit(Finish(call_of(index), Succeeded("1"), 1, "a", 0, 1))
    assert writer.wait(DEADLINE_S)
    counters = CountingCounters()
    for _ in range(3):
        for one in (first, second):
            one.report(counters)
    counted = Counter(counters.counts)
    assert counted["journal_operations"] == 10
    assert 1 <= counted["journal_commits"] <= 10
    assert set(counted) == {"journal_operations", "journal_commits"}
