"""What the journal costs on this machine: shown with ``pytest -s``, never asserted."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flink_agents.durable.journal.operations import Finish, Start
from flink_agents.durable.journal.postgresql import PostgresqlJournal
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import CallKey, RunRow
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.journal.writer import JournalWriter
from flink_agents.durable.outcome import Succeeded

if TYPE_CHECKING:
    from tests.conftest import PostgresServer

SINGLE = 200
GROUPED = 4_000
PACED = 500
VALUE = Succeeded('{"order":"A-17","state":"shipped","lines":["' + "x" * 200 + '"]}')


@pytest.fixture(params=["sqlite", "postgresql"])
def synced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    """A journal whose commits reach the disk, as in production."""
    if request.param == "sqlite":
        journal: Journal = SqliteJournal(tmp_path / "journal.db")
    else:
        server: PostgresServer = request.getfixturevalue("own_postgres")
        journal = PostgresqlJournal(server.database())
    with closing(journal):
        journal.create_run(RunRow("run-1", "job", 1))
        yield journal


def timed(writer: JournalWriter, operations: list[Finish | Start], pause_s: float = 0.0) -> tuple[float, list[float]]:
    """Submit all; return the time until the last answer, and from each submission to its answer."""
    took: list[float] = []
    began = time.perf_counter()
    due = threading.Event()
    for number, operation in enumerate(operations):
        at = time.perf_counter()
        writer.submit(operation, lambda _, at=at: took.append(time.perf_counter() - at))  # type: ignore[misc]
        if pause_s:
            due.wait(max(0.0, began + (number + 1) * pause_s - time.perf_counter()))
    assert writer.wait(60)
    return time.perf_counter() - began, took


def test_show_what_commits_cost(synced: Journal, call_of: Callable[..., CallKey]) -> None:
    def finishes(intake: int, count: int) -> list[Finish | Start]:
        return [Finish(call_of(n, intake=intake), VALUE, 1, "first", 1, 2) for n in range(count)]

    alone: list[float] = []
    for operation in finishes(1, SINGLE):
        began = time.perf_counter()
        synced.apply([operation])
        alone.append(time.perf_counter() - began)
    writer = JournalWriter(synced)
    whole, _ = timed(writer, finishes(2, GROUPED))
    grouped = writer.statistics()
    _, paced = timed(writer, finishes(3, PACED), pause_s=0.001)
    shown = {
        "single_commit_p50_ms": round(statistics.median(alone) * 1e3, 2),
        "single_commits_per_s": round(SINGLE / sum(alone)),
        "grouped_rows_per_s": round(GROUPED / whole),
        "grouped_mean_batch": round(grouped.mean_batch),
        "answer_at_1000_per_s_p50_ms": round(statistics.median(paced) * 1e3, 2),
        "answer_at_1000_per_s_p99_ms": round(statistics.quantiles(paced, n=100)[98] * 1e3, 2),
    }
    sys.stdout.write(f"\n{type(synced).__name__}: {shown}\n")
    assert len(paced) == PACED
