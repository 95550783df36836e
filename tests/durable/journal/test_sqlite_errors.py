"""What SQLite says, told as the project's errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from flink_agents.durable.journal.sqlite_errors import translated
from flink_agents.errors import JournalCorrupt, JournalError, JournalFull, JournalRefused, JournalUnavailable


@pytest.mark.parametrize(
    ("said", "kind", "reason"),
    [
        ("database is locked", JournalUnavailable, "another process has it locked; end that process"),
        ("database table is locked: calls", JournalUnavailable, "another process has it locked; end that process"),
        ("locking protocol", JournalUnavailable, "another process has it locked"),
        (
            "attempt to write a readonly database",
            JournalRefused,
            "the file or its folder is read-only for this user",
        ),
        (
            "unable to open database file",
            JournalRefused,
            "it cannot be opened or created: check the rights on the file and its folder",
        ),
        (
            "database or disk is full",
            JournalFull,
            "no space is left where it lies; make room, then resume the job",
        ),
        (
            "file is not a database",
            JournalCorrupt,
            "the file is no SQLite database; move it away, or choose another path",
        ),
        (
            "database disk image is malformed",
            JournalCorrupt,
            "the file is damaged; move it away, then resume the job from a checkpoint",
        ),
        (
            "no such table: calls",
            JournalCorrupt,
            "its tables are gone; move the file away, then resume the job from a checkpoint",
        ),
    ],
)
def test_each_kind_of_trouble_is_told_by_its_own_error(said: str, kind: type[JournalError], reason: str) -> None:
    error = translated(sqlite3.OperationalError(said), Path("/state/journal.db"))
    assert type(error) is kind
    assert str(error) == f"the journal /state/journal.db: {reason} (SQLite: {said})"


def test_what_is_not_known_is_quoted() -> None:
    error = translated(sqlite3.OperationalError("disk I/O error"), Path("/state/journal.db"))
    assert type(error) is JournalError
    assert str(error) == "the journal /state/journal.db failed (SQLite: disk I/O error)"
