"""``flink-agents run`` with its journal: killed and resumed, a journal that is not the run's, one out of reach."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from flink_agents.durable.journal.rows import CallFilter
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.outcome import Succeeded
from flink_agents.errors import JournalError

if TYPE_CHECKING:
    from tests.cli.conftest import Job

WAIT_S = 90.0
REQUESTS = 40


def recorded(job: Job) -> set[int]:
    """Return the numbers of the calls whose outcome the journal holds."""
    path = job.folder / "state" / "journal.db"
    if not path.exists():
        return set()
    with closing(SqliteJournal(path, create=False)) as journal:
        rows = list(journal.calls(CallFilter()))
    return {int(row.outcome.text) for row in rows if isinstance(row.outcome, Succeeded)}


def has_recorded(job: Job, count: int) -> bool:
    """Return whether a run that may only just begin has recorded so many."""
    try:
        return len(recorded(job)) >= count
    except JournalError:
        return False  # the file is there a moment before its tables are


@pytest.mark.flink
@pytest.mark.rule(1, 48, 49)
def test_what_a_killed_run_had_recorded_does_not_run_again_when_it_is_resumed(job: Job) -> None:
    # No checkpoint completes: the journal is all there is.
    flink = {**job.flink, "checkpoints": {"interval": "10m", "directory": "state"}}
    requests = [job.request(n, "count", number=n, seconds=0.2) for n in range(REQUESTS)]
    job.write(*requests, flink=flink, workers={"threads": 4})
    process = job.start()
    job.until(lambda: has_recorded(job, 8))
    process.kill()
    process.wait(WAIT_S)
    job.until(lambda: job.jvms() == [])
    before = recorded(job)
    assert 8 <= len(before) < REQUESTS

    journal = job.folder / "state" / "journal.db"
    for name in ("", "-wal", "-shm"):
        file = journal.with_name(journal.name + name)
        if file.exists():
            file.rename(job.folder / file.name)
    assert job.run("--resume")[0] == 2
    assert f"there is no journal {journal}" in job.stderr
    SqliteJournal(journal).prune(0, 0)
    assert job.run("--resume")[0] == 2
    assert "does not know run" in job.stderr
    assert "would run again" in job.stderr
    for file in (job.folder / "state").glob("journal.db*"):
        file.unlink()
    for file in job.folder.glob("journal.db*"):
        file.rename(job.folder / "state" / file.name)

    assert job.run("--resume", "--set", "workers.threads=32")[0] == 0
    assert job.responses() == sorted(f"r{n}" for n in range(REQUESTS))
    times = Counter(job.ran())
    assert {times[number] for number in before} == {1}
    assert set(times) == set(range(REQUESTS))
    assert recorded(job) == set(range(REQUESTS))


@pytest.mark.parametrize(
    ("dsn", "message"),
    [
        ("'postgresql://somebody:n0t-for-logs@127.0.0.1:1/none'", "the server cannot be reached"),
        ("{env: NO_SUCH_DSN}", "the environment variable NO_SUCH_DSN, which holds the journal's dsn, is not set"),
    ],
)
def test_a_journal_out_of_reach_starts_nothing(job: Job, dsn: str, message: str) -> None:
    job.write(job.request(1, "echo", text="a"))
    code, out = job.run("--json", "--set", f"journal={{type: postgresql, dsn: {dsn}}}")
    assert (code, out) == (2, [])
    assert message in job.stderr
    assert "n0t-for-logs" not in job.stderr
    assert not list(job.folder.rglob("flink.log"))


def test_a_file_that_is_no_journal_starts_nothing(job: Job) -> None:
    job.write(job.request(1, "echo", text="a"), journal={"type": "sqlite", "path": "run_tools.py"})
    code, out = job.run()
    assert (code, out) == (2, [])
    assert "no SQLite database" in job.stderr
