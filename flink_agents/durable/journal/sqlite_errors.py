"""SQLite's errors as the project's: what it is, where, and what to do about it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from flink_agents.errors import JournalCorrupt, JournalError, JournalFull, JournalRefused, JournalUnavailable

__all__ = ["translated"]

# Their texts are constants of SQLite; the error numbers came to Python with 3.11 only.
_KNOWN: tuple[tuple[str, type[JournalError], str], ...] = (
    (
        "is locked",
        JournalUnavailable,
        "another process has it locked; end that process",
    ),
    ("locking protocol", JournalUnavailable, "another process has it locked"),
    ("readonly database", JournalRefused, "the file or its folder is read-only for this user"),
    (
        "unable to open",
        JournalRefused,
        "it cannot be opened or created: check the rights on the file and its folder",
    ),
    (
        "is full",
        JournalFull,
        "no space is left where it lies; make room, then resume the job",
    ),
    ("not a database", JournalCorrupt, "the file is no SQLite database; move it away, or choose another path"),
    ("malformed", JournalCorrupt, "the file is damaged; move it away, then resume the job from a checkpoint"),
    (
        "no such table",
        JournalCorrupt,
        "its tables are gone; move the file away, then resume the job from a checkpoint",
    ),
)


def translated(error: sqlite3.Error, path: Path) -> JournalError:
    """Return the error to raise from ``error``. Any thread."""
    text = str(error)
    for part, cls, reason in _KNOWN:
        if part in text:
            return cls(f"the journal {path}: {reason} (SQLite: {text})")
    return JournalError(f"the journal {path} failed (SQLite: {text})")
