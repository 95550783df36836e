"""From what the configuration says to an open journal and the process's writer for it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.journal.writer import JournalWriter
from flink_agents.errors import InvalidInput

__all__ = ["DAY_MS", "JournalSpec", "JournalType", "journal_writer", "open_journal"]

DAY_MS = 24 * 60 * 60 * 1000


class JournalType(str, Enum):
    """The kinds of journal."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True)
class JournalSpec:
    """Which journal; pickled with the operator. ``retention_ms`` is how long rows stay after the answer.

    ``path`` is an absolute path (SQLite). ``dsn`` is shown nowhere, but travels as it is; ``dsn_env`` names an
    environment variable that is read where the journal is opened, so that the secret does not travel.

    Raises:
        InvalidInput: if what the type needs is missing.
    """

    type: JournalType
    path: str | None = None
    dsn: str | None = field(default=None, repr=False)
    dsn_env: str | None = None
    retention_ms: int = DAY_MS

    def __post_init__(self) -> None:
        if self.type is JournalType.SQLITE and not self.path:
            msg = "a SQLite journal needs `path`"
            raise InvalidInput(msg)
        if self.type is JournalType.POSTGRESQL and (self.dsn is None) == (self.dsn_env is None):
            msg = "a PostgreSQL journal needs `dsn`: the text itself, or {env: NAME}"
            raise InvalidInput(msg)


def open_journal(spec: JournalSpec, *, create: bool = True) -> Journal:
    """Return the journal; it connects at its first use. Any thread.

    ``create``: whether a missing SQLite file is made, as the client does. A TaskManager that makes one would hide that
    it is on another machine.

    Raises:
        InvalidInput: if the driver is not installed, or the variable with the DSN is not set.
        JournalRefused: if the DSN cannot be read.
    """
    if spec.type is JournalType.SQLITE:
        return SqliteJournal(Path(str(spec.path)), create=create)
    try:
        from flink_agents.durable.journal.postgresql import PostgresqlJournal
    except ImportError as error:
        msg = f"a PostgreSQL journal needs the extra `postgresql` of this package, with psycopg and its pool ({error})"
        raise InvalidInput(msg) from error
    return PostgresqlJournal(_dsn(spec))


def _dsn(spec: JournalSpec) -> str:
    if spec.dsn is not None:
        return spec.dsn
    dsn = os.environ.get(str(spec.dsn_env))
    if not dsn:
        msg = f"the environment variable {spec.dsn_env}, which holds the journal's dsn, is not set in this process"
        raise InvalidInput(msg)
    return dsn


_writers: dict[JournalSpec, JournalWriter] = {}
_lock = threading.Lock()


def journal_writer(spec: JournalSpec) -> JournalWriter:
    """Return this process's writer for the journal, started at the first call; never creates a SQLite file. Any thread.

    All attempts and all jobs of the process share it: its thread never ends, and group commit is worth more the more
    there is to commit. Raises as ``open_journal`` does.
    """
    with _lock:
        writer = _writers.get(spec)
        if writer is None:
            writer = _writers[spec] = JournalWriter(open_journal(spec, create=False), retention_ms=spec.retention_ms)
        return writer
