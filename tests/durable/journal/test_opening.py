"""From a specification to a journal; secrets stay where they are."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from flink_agents.durable.journal import opening
from flink_agents.durable.journal.opening import JournalSpec, JournalType, journal_writer, open_journal
from flink_agents.durable.journal.operations import PutRequest
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import RequestRow, RunRow
from flink_agents.durable.journal.writer import JournalWriter
from flink_agents.errors import InvalidInput, JournalRefused


def test_one_writer_for_a_process_and_journal(tmp_path: Path) -> None:
    spec = JournalSpec(JournalType.SQLITE, path=str(tmp_path / "journal.db"))
    with pytest.raises(
        JournalRefused, match=r"there is no journal .* on this machine\. .* `journal: \{type: postgresql"
    ):
        journal_writer(spec).journal.find_run("run-1")
    client = open_journal(spec)
    client.create_run(RunRow("run-1", "job", 1))
    client.close()
    writer = journal_writer(pickle.loads(pickle.dumps(spec)))
    assert writer is journal_writer(spec)
    assert writer.journal.open_attempt("run-1", "a", 0, 1)
    writer.submit(PutRequest(RequestRow("run-1", "1", 1, "a", "d")))
    assert writer.wait(30)
    assert [row.request_id for row in writer.journal.requests_from("run-1", "1", 1)] == ["a"]
    writer.journal.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"type": JournalType.SQLITE}, "a SQLite journal needs `path`"),
        ({"type": JournalType.SQLITE, "path": ""}, "a SQLite journal needs `path`"),
        (
            {"type": JournalType.POSTGRESQL},
            "a PostgreSQL journal needs `dsn`: the text itself, or {env: NAME}",
        ),
        (
            {"type": JournalType.POSTGRESQL, "dsn": "x", "dsn_env": "X"},
            "a PostgreSQL journal needs `dsn`: the text itself, or {env: NAME}",
        ),
    ],
)
def test_what_a_type_needs(values: dict[str, JournalType], message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        JournalSpec(**values)  # type: ignore[arg-type]
    assert str(raised.value) == message


def test_the_writer_keeps_rows_as_long_as_the_specification_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int | None]] = []

    def make(journal: Journal, *, retention_ms: int | None = None) -> JournalWriter:
        made.append((journal.place, retention_ms))
        return JournalWriter(journal, retention_ms=retention_ms)

    monkeypatch.setattr(opening, "JournalWriter", make)
    path = str(tmp_path / "journal.db")
    journal_writer(JournalSpec(JournalType.SQLITE, path=path, retention_ms=1_000))
    assert made == [(path, 1_000)]


def test_the_dsn_is_read_from_the_environment_where_the_journal_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = JournalSpec(JournalType.POSTGRESQL, dsn_env="JOURNAL_DSN")
    monkeypatch.delenv("JOURNAL_DSN", raising=False)
    with pytest.raises(InvalidInput, match="JOURNAL_DSN, which holds the journal's dsn, is not set"):
        open_journal(spec)
    monkeypatch.setenv("JOURNAL_DSN", "postgresql://someone:s3cret@db.example/journal")
    assert open_journal(spec).place == "postgresql://someone@db.example/journal"
    assert b"s3cret" not in pickle.dumps(spec)


def test_the_dsn_is_not_shown() -> None:
    spec = JournalSpec(JournalType.POSTGRESQL, dsn="postgresql://someone:s3cret@db.example/journal")
    assert "s3cret" not in repr(spec)
    assert "s3cret" not in repr(open_journal(spec))


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flink_agents.durable.journal.postgresql", None)
    with pytest.raises(InvalidInput, match="needs the extra `postgresql` of this package"):
        open_journal(JournalSpec(JournalType.POSTGRESQL, dsn="dbname=x"))
