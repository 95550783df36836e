"""Journals of both kinds for one suite: SQLite in a folder, PostgreSQL on the session's server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.postgresql import PostgresqlJournal
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import CallKey, RunRow
from flink_agents.durable.journal.sqlite import SqliteJournal


@pytest.fixture(params=["sqlite", "postgresql"])
def open_another(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Journal]]:
    """Open the test's journal once more, with connections of its own, as another process would."""
    opened: list[Journal] = []
    make: Callable[[], Journal]
    if request.param == "sqlite":
        path = tmp_path / "state" / "journal.db"
        make = lambda: SqliteJournal(path)  # noqa: E731
    else:
        dsn = request.getfixturevalue("postgres").database()
        make = lambda: PostgresqlJournal(dsn)  # noqa: E731

    def open_one() -> Journal:
        opened.append(make())
        return opened[-1]

    yield open_one
    for journal in opened:
        journal.close()


RUN = "run-1"


@pytest.fixture
def journal(open_another: Callable[[], Journal]) -> Journal:
    """A journal with one run and three attempts, opened one after the other: first, second and third."""
    opened = open_another()
    opened.create_run(RunRow(RUN, "support-tools", 1_000))
    for attempt_id in ("first", "second", "third"):
        opened.open_attempt(RUN, attempt_id, 0, 1)
    return opened


@pytest.fixture
def call_of() -> Callable[..., CallKey]:
    """Name a call: by its slot, and by key and intake where that matters."""

    def name(index: int = 0, *, key: str = '"k"', intake: int = 1, run_id: str = RUN, tool: str = "refund") -> CallKey:
        return CallKey.of(run_id, key, intake, Identity(index, "tool", tool, index, "ab" * 32))

    return name
