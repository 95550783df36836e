"""The journal of one machine: a SQLite file with a write-ahead log, every commit synced to the disk."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flink_agents.durable.journal import sqlite_schema as sql
from flink_agents.durable.journal.operations import (
    Answered,
    CallOperation,
    Finish,
    LookUp,
    MarkFatal,
    Operation,
    PutRequest,
    RenewLease,
    Result,
    Start,
    StartAgain,
)
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import CallFilter, CallKey, CallRow, Lease, RequestRow, RunRow, key_hash
from flink_agents.durable.journal.sqlite_errors import translated
from flink_agents.durable.journal.stored import (
    ONE_MACHINE,
    Stored,
    answer,
    call_columns,
    call_row,
    check_format,
    finished,
    id_text,
    outcome_from,
    place_columns,
    request_row,
    run_in_use,
    run_unknown,
    where_of,
)
from flink_agents.durable.outcome import Outcome
from flink_agents.errors import JournalCorrupt, JournalError, JournalRefused, RunInUse, RunUnknown

__all__ = ["SqliteJournal"]

LOCKED_WAIT_S = 0.01
ROWS = 50
"""In one statement: older releases of SQLite take 999 values."""


class SqliteJournal(Journal):
    """A journal in the file ``path``, which is created at the first use unless ``create`` is False.

    ``busy_ms`` is how long a transaction waits for another process before it is ``JournalUnavailable``. One connection
    writes, behind a lock; ``requests_from`` has one of its own, which no writer makes wait.
    """

    def __init__(self, path: Path, *, create: bool = True, busy_ms: int = 2000) -> None:
        self.path = path
        self._create = create
        self._busy_ms = busy_ms
        self._writing = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._reading = threading.Lock()
        self._reader: sqlite3.Connection | None = None

    @property
    def place(self) -> str:  # noqa: D102 - as the protocol says
        return str(self.path)

    def check_file(self) -> None:
        """Look whether the file, if there is one, can be this journal; makes and changes nothing. Any thread.

        Raises:
            JournalError: saying what is wrong with it.
        """
        self._prepare_folder(create=False, missing_ok=True)
        try:
            if not self.path.exists() or self.path.stat().st_size == 0:
                return
            # Without a log nobody uses it, and to be read as any other it would be given one.
            how = "mode=ro" if Path(f"{self.path}-wal").exists() else "immutable=1"
            uri = f"file:{quote(str(self.path))}?{how}"
            with closing(sqlite3.connect(uri, uri=True, timeout=self._busy_ms / 1000)) as connection:
                # One without tables is left by a process that ended while it made them; the next one makes them.
                self._check(connection, create=False, empty_ok=True)
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    def create_run(self, run: RunRow) -> None:  # noqa: D102
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO runs (run_id, job, created_ms) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (run.run_id, run.job, run.created_ms),
            )

    def find_run(self, run_id: str) -> RunRow | None:  # noqa: D102
        with self._transaction() as connection:
            found = connection.execute("SELECT run_id, job, created_ms FROM runs WHERE run_id = ?", (run_id,))
            row = found.fetchone()
        return None if row is None else RunRow(*row)

    def open_attempt(self, run_id: str, attempt_id: str, subtask: int, parallelism: int) -> bool:  # noqa: D102
        with self._transaction() as connection:
            if connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (run_id,)).fetchone() is None:
                raise run_unknown(run_id, self.place)
            connection.execute(
                "INSERT INTO attempts (attempt_id, run_id, subtask, parallelism) VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (attempt_id, run_id, subtask, parallelism),
            )
            earlier = connection.execute(
                "SELECT 1 FROM attempts WHERE run_id = ? AND (subtask = ? OR parallelism <> ?) "
                "AND opened < (SELECT opened FROM attempts WHERE attempt_id = ?) LIMIT 1",
                (run_id, subtask, parallelism, attempt_id),
            ).fetchone()
        return earlier is None

    def apply(self, operations: Sequence[Operation]) -> list[Result]:  # noqa: D102
        if self._are_first(operations):
            return [_of_first(operation) for operation in operations]
        with self._transaction() as connection:
            return [self._apply(connection, operation) for operation in operations]

    def _are_first(self, operations: Sequence[Operation]) -> bool:
        """Do a batch of new requests, new outcomes and marks, as most are; False where one of them has a row already.

        The batch is to be applied once more then. Each statement hands the interpreter to other threads and waits to
        get it back, which in a busy process takes longer than the commit: these are few, and a single one needs no
        more to be a transaction.
        """
        puts = [_request_columns(operation.request) for operation in operations if isinstance(operation, PutRequest)]
        ends = [_columns(operation) for operation in operations if isinstance(operation, Finish)]
        marks = [_mark_columns(operation) for operation in operations if isinstance(operation, Answered)]
        if not operations or len(puts) + len(ends) + len(marks) < len(operations):
            return False
        inserts = [
            (f"{into} VALUES {_places(part)} ON CONFLICT DO NOTHING", part)
            for into, rows in ((sql.INSERT_REQUESTS, puts), (sql.FINISH_FIRST, ends))
            for part in _parts(rows)
        ]
        # Last, as they concern requests that the batch may put first.
        updates = [(sql.ANSWERED_ALL.format(_places(part)), part) for part in _parts(marks)]
        alone = len(inserts) + len(updates) == 1
        with self._connection() as connection:
            if not alone:
                connection.execute("BEGIN IMMEDIATE")
            inserted = sum(connection.execute(text, [*chain(*part)]).rowcount for text, part in inserts)
            is_done = inserted == len(puts) + len(ends)
            if is_done:
                for text, part in updates:
                    connection.execute(text, [*chain(*part)])
            if not alone:
                connection.execute("COMMIT" if is_done else "ROLLBACK")
        return is_done

    def _apply(self, connection: sqlite3.Connection, operation: Operation) -> Result:
        match operation:
            case PutRequest(request):
                return self._put(connection, request)
            case Answered(run_id, key, intake, now_ms):
                connection.execute(sql.ANSWERED, (now_ms, key_hash(run_id, key), intake))
                return None
            case RenewLease(run_id, owner, ttl_ms, now_ms):
                try:
                    self._renew(connection, run_id, owner, ttl_ms, now_ms)
                except (RunInUse, RunUnknown) as error:
                    return error
                return None
            case _:
                return self._apply_to_call(connection, operation)

    def _put(self, connection: sqlite3.Connection, request: RequestRow) -> RequestRow:
        row = _request_columns(request)
        if connection.execute(sql.INSERT_REQUEST, row).rowcount:
            return request
        found = connection.execute(f"{sql.REQUESTS_FROM} AND intake = ?", (row[0], request.key, request.intake))
        return request_row(found.fetchone())

    def _apply_to_call(self, connection: sqlite3.Connection, operation: CallOperation) -> Result:
        place = place_columns(operation.call)
        attempt_id = ""
        if not isinstance(operation, LookUp):
            attempt_id = operation.attempt_id
            done = connection.execute(_STATEMENTS[type(operation)], _columns(operation)).rowcount
            if done and isinstance(operation, Finish):
                row = connection.execute(sql.STORED_COUNTS, place[:3]).fetchone()
                return finished(operation, *row)
        row = connection.execute(sql.STORED, (attempt_id, attempt_id, *place[:3])).fetchone()
        return answer(operation, None if row is None else Stored(*row))

    def requests_from(  # noqa: D102
        self, run_id: str, key: str, intake: int, also: Collection[int] = ()
    ) -> list[RequestRow]:
        # The numbers are asked for one by one: a statement has a limit on its places, and they are few.
        hashed = key_hash(run_id, key)
        with self._reading, self._errors():
            reader = self._read_connection()
            found = reader.execute(f"{sql.REQUESTS_FROM} AND intake >= ?", (hashed, key, intake)).fetchall()
            for number in also:
                if number < intake:
                    found += reader.execute(f"{sql.REQUESTS_FROM} AND intake = ?", (hashed, key, number))
        return sorted((request_row(row) for row in found), key=lambda row: row.intake)

    def outcome_of(self, call: CallKey) -> Outcome | None:  # noqa: D102
        with self._reading, self._errors():
            found = self._read_connection().execute(sql.OUTCOME, place_columns(call)[:3]).fetchone()
        return None if found is None or found[1] is None else outcome_from(*found)

    def _read_connection(self) -> sqlite3.Connection:
        if self._reader is None:
            self._reader = self._open(reads_only=True)
        return self._reader

    def calls(self, wanted: CallFilter = CallFilter()) -> Iterator[CallRow]:  # noqa: B008, D102
        where, values = where_of(wanted, "?")
        with self._errors():
            connection = self._open(reads_only=True)
            try:
                for row in connection.execute(
                    f"{sql.CALLS} {where} ORDER BY c.run_id, c.key, c.intake, c.slot", values
                ):
                    yield call_row(row)
            finally:
                connection.close()

    def find_lease(self, run_id: str) -> Lease | None:  # noqa: D102
        with self._transaction() as connection:
            row = connection.execute(sql.LEASE, (run_id,)).fetchone()
        return None if row is None else Lease(*row)

    def acquire_lease(self, run_id: str, owner: str, ttl_ms: int, now_ms: int) -> None:  # noqa: D102
        with self._transaction() as connection:
            held, until_ms = self._lease(connection, run_id)
            if held not in (None, owner) and (until_ms or 0) > now_ms:
                raise run_in_use(run_id, held, until_ms, now_ms)
            self._set_lease(connection, run_id, owner, now_ms + ttl_ms)

    def renew_lease(self, run_id: str, owner: str, ttl_ms: int, now_ms: int) -> None:  # noqa: D102
        with self._transaction() as connection:
            self._renew(connection, run_id, owner, ttl_ms, now_ms)

    def release_lease(self, run_id: str, owner: str) -> None:  # noqa: D102
        with self._transaction() as connection:
            connection.execute(
                "UPDATE runs SET lease_owner = NULL, lease_until_ms = NULL WHERE run_id = ? AND lease_owner = ?",
                (run_id, owner),
            )

    def _renew(self, connection: sqlite3.Connection, run_id: str, owner: str, ttl_ms: int, now_ms: int) -> None:
        held, until_ms = self._lease(connection, run_id)
        if held != owner:
            raise run_in_use(run_id, held, until_ms, now_ms)
        self._set_lease(connection, run_id, owner, now_ms + ttl_ms)

    def _lease(self, connection: sqlite3.Connection, run_id: str) -> tuple[str | None, int | None]:
        found = connection.execute("SELECT lease_owner, lease_until_ms FROM runs WHERE run_id = ?", (run_id,))
        row: tuple[str | None, int | None] | None = found.fetchone()
        if row is None:
            raise run_unknown(run_id, self.place)
        return row

    @staticmethod
    def _set_lease(connection: sqlite3.Connection, run_id: str, owner: str, until_ms: int) -> None:
        connection.execute(
            "UPDATE runs SET lease_owner = ?, lease_until_ms = ? WHERE run_id = ?", (owner, until_ms, run_id)
        )

    def prune(self, now_ms: int, retention_ms: int, limit: int = 500) -> int:  # noqa: D102
        with self._transaction() as connection:
            rows = connection.execute(sql.PRUNABLE, (now_ms - retention_ms, limit)).fetchall()
            connection.executemany("DELETE FROM calls WHERE key_hash = ? AND intake = ?", rows)
            connection.executemany("DELETE FROM requests WHERE key_hash = ? AND intake = ?", rows)
            connection.execute(sql.PRUNE_ATTEMPTS)
        return len(rows)

    def close(self) -> None:  # noqa: D102
        with self._writing:
            self._drop_writer()
        with self._reading:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the writing connection within a transaction; commit at the end, undo everything on an error."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Give the writing connection, each statement a transaction of its own; undo what is open on an error."""
        with self._writing, self._errors():
            connection = self._connected()
            try:
                yield connection
            except sqlite3.OperationalError as error:
                self._undo(connection)
                if "I/O" in str(error):
                    # What the connection believes to be on the disk may not be there: the next one reads it anew.
                    self._drop_writer()
                raise
            except BaseException:
                self._undo(connection)
                raise

    @staticmethod
    def _undo(connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            # Where even that fails, closing or the next process undoes it: what has no commit mark is not there.
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")

    def _connected(self) -> sqlite3.Connection:
        if self._writer is None:
            self._writer = self._open()
            self._file = self._file_on_disk()
        elif self._file_on_disk() != self._file:
            # SQLite would go on writing to the file that no longer has a name.
            self._drop_writer()
            msg = f"the journal {self.path} was removed or replaced while in use"
            raise JournalCorrupt(msg)
        return self._writer

    def _file_on_disk(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _drop_writer(self) -> None:
        if self._writer is not None:
            with suppress(sqlite3.Error):
                self._writer.close()
            self._writer = None

    def _open(self, *, reads_only: bool = False) -> sqlite3.Connection:
        self._prepare_folder(create=self._create and not reads_only)
        connection = sqlite3.connect(
            self.path, timeout=self._busy_ms / 1000, isolation_level=None, check_same_thread=False
        )
        try:
            self._set_up(connection, reads_only=reads_only)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare_folder(self, *, create: bool, missing_ok: bool = False) -> None:
        try:
            if self.path.is_dir():
                msg = f"the journal {self.path} is a folder; `path` must name a file"
                raise JournalRefused(msg)
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            elif not missing_ok and not self.path.exists():
                msg = f"there is no journal {self.path} on this machine. " + ONE_MACHINE
                raise JournalRefused(msg)
        except OSError as error:
            msg = f"the journal {self.path}: {error.strerror} ({error.filename})"
            raise JournalRefused(msg) from error

    def _set_up(self, connection: sqlite3.Connection, *, reads_only: bool) -> None:
        if reads_only:
            connection.execute("PRAGMA query_only = ON")
            self._check(connection, create=False)
            return
        mode = self._write_ahead(connection)
        if mode != "wal":
            msg = f"the journal {self.path}: its file system does not allow a write-ahead log (mode {mode})"
            raise JournalRefused(msg)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._check(connection, create=True)
            connection.execute("COMMIT")
        except BaseException:
            self._undo(connection)
            raise

    def _write_ahead(self, connection: sqlite3.Connection) -> str:
        deadline = time.monotonic() + self._busy_ms / 1000
        while True:
            try:
                return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
            except sqlite3.OperationalError as error:
                # Two processes that create the file: SQLite refuses this switch at once instead of waiting.
                if "is locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(LOCKED_WAIT_S)

    def _check(self, connection: sqlite3.Connection, *, create: bool, empty_ok: bool = False) -> None:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "journal_format" in tables:
            row = connection.execute("SELECT max(version) FROM journal_format").fetchone()
            check_format(int(row[0]), self.place)
        elif tables:
            msg = f"{self.path} is a database of something else (table {min(tables)}); choose another path"
            raise JournalCorrupt(msg)
        elif create:
            for statement in sql.CREATE.split(";\n"):
                connection.execute(statement)
        elif not empty_ok:
            msg = f"the journal {self.path} is empty"
            raise JournalError(msg)


def _columns(operation: Start | StartAgain | Finish | MarkFatal) -> tuple[Any, ...]:
    return (*place_columns(operation.call), *call_columns(operation))


def _request_columns(request: RequestRow) -> tuple[Any, ...]:
    row = (key_hash(request.run_id, request.key), request.intake, request.run_id, request.key)
    return (*row, id_text(request.request_id), request.content_digest)


def _mark_columns(mark: Answered) -> tuple[Any, ...]:
    return key_hash(mark.run_id, mark.key), mark.intake, mark.now_ms


def _parts(rows: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    return [rows[i : i + ROWS] for i in range(0, len(rows), ROWS)]


def _places(rows: list[tuple[Any, ...]]) -> str:
    """Return what follows VALUES for these rows."""
    return ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))


def _of_first(operation: Operation) -> Result:
    """Return the answer to an operation that made its row."""
    if isinstance(operation, Finish):
        return finished(operation, operation.attempts, "")
    return operation.request if isinstance(operation, PutRequest) else None


_STATEMENTS: dict[type, str] = {
    Start: sql.START,
    StartAgain: sql.START_AGAIN,
    Finish: sql.FINISH,
    MarkFatal: sql.MARK_FATAL,
}
