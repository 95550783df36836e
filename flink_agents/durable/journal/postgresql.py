"""The journal of a cluster: tables in a PostgreSQL database that every TaskManager reaches. Needs psycopg 3."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import psycopg
from psycopg import IsolationLevel, Pipeline
from psycopg_pool import ConnectionPool, PoolTimeout

from flink_agents.durable.journal import postgresql_schema as sql
from flink_agents.durable.journal.operations import Operation, RenewLease, Result
from flink_agents.durable.journal.postgresql_batch import Batch, renew_lease
from flink_agents.durable.journal.postgresql_errors import Address, translated
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import CallFilter, CallKey, CallRow, Lease, RequestRow, RunRow, key_hash
from flink_agents.durable.journal.stored import (
    call_row,
    check_format,
    outcome_from,
    place_columns,
    request_row,
    run_in_use,
    run_unknown,
    where_of,
)
from flink_agents.durable.outcome import Outcome
from flink_agents.errors import JournalError, JournalUnavailable

__all__ = ["PostgresqlJournal"]

Connection = psycopg.Connection[tuple[Any, ...]]

# A peer that vanished without a word is noticed after these; `connect_timeout` is in seconds, as all but the last.
_CONNECT = {
    "application_name": "flink-agents",
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class PostgresqlJournal(Journal):
    """A journal in the schema ``flink_agents`` of the database that ``dsn`` names; created at the first use.

    ``dsn`` is a libpq URI or list of key=value pairs; what it leaves out comes from libpq's environment variables and
    password file. One connection writes, behind a lock, and is opened anew after it was lost; a small pool serves
    ``requests_from`` and ``outcome_of``, which wait for at most ``read_timeout_s``. Neither password nor DSN appears in
    errors or logs.

    Raises:
        JournalRefused: if the DSN cannot be read.
    """

    def __init__(self, dsn: str, *, read_timeout_s: float = 5.0) -> None:
        self._address = Address(dsn)
        self._read_timeout_s = read_timeout_s
        self._writing = threading.RLock()
        self._writer: Connection | None = None
        self._pool_lock = threading.Lock()
        self._pool: ConnectionPool[Connection] | None = None
        self._has_tables = False

    @property
    def place(self) -> str:  # noqa: D102 - as the protocol says
        return self._address.place

    def create_run(self, run: RunRow) -> None:  # noqa: D102
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO flink_agents.runs (run_id, job, created_ms) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
                (run.run_id, run.job, run.created_ms),
            )

    def find_run(self, run_id: str) -> RunRow | None:  # noqa: D102
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT run_id, job, created_ms FROM flink_agents.runs WHERE run_id = %s", (run_id,)
            ).fetchone()
        return None if row is None else RunRow(*row)

    def open_attempt(self, run_id: str, attempt_id: str, subtask: int, parallelism: int) -> bool:  # noqa: D102
        with self._transaction() as connection:
            # The run's row is locked, so that attempts are numbered in the order in which they become visible.
            self._lease(connection, run_id)
            connection.execute(sql.OPEN_ATTEMPT, (attempt_id, run_id, subtask, parallelism))
            earlier = connection.execute(sql.EARLIER_ATTEMPT, (run_id, subtask, parallelism, attempt_id)).fetchone()
        return earlier is None

    def apply(self, operations: Sequence[Operation]) -> list[Result]:  # noqa: D102
        with self._writing, self._errors(), self._connected() as connection:
            # A pipeline sends statements without waiting for those before; its end waits for the commit's answer.
            with connection.pipeline() if Pipeline.is_supported() else nullcontext():
                connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                results = Batch(connection, operations, self.place).run()
                ended = connection.execute("COMMIT")
            if ended.statusmessage != "COMMIT":
                msg = f"the journal {self.place}: the server answered {ended.statusmessage} to a commit"
                raise JournalError(msg)
            return results

    def requests_from(  # noqa: D102
        self, run_id: str, key: str, intake: int, also: Collection[int] = ()
    ) -> list[RequestRow]:
        asked = {"hash": key_hash(run_id, key), "key": key, "intake": intake, "also": list(also)}
        return [request_row(row) for row in self._read(sql.REQUESTS_FROM, asked)]

    def outcome_of(self, call: CallKey) -> Outcome | None:  # noqa: D102
        found = self._read(sql.OUTCOME, place_columns(call)[:3])
        return next((outcome_from(status, text) for status, text in found if text is not None), None)

    def _read(self, statement: str, asked: Mapping[str, Any] | Sequence[Any]) -> list[tuple[Any, ...]]:
        if not self._has_tables:
            with self._errors():
                self._connect().close()
        deadline = time.monotonic() + self._read_timeout_s
        while True:
            try:
                with self._errors(), self._reader(deadline) as connection:
                    return connection.execute(statement, asked).fetchall()
            except JournalUnavailable:
                # After the server was restarted the pool's connections are dead: it replaces those it finds so.
                if time.monotonic() >= deadline:
                    raise
                self._open_pool().check()

    def calls(self, wanted: CallFilter = CallFilter()) -> Iterator[CallRow]:  # noqa: B008, D102
        where, values = where_of(wanted, "%s")
        order = 'ORDER BY c.run_id, c.key COLLATE "C", c.intake, c.slot'
        with self._errors():
            connection = self._connect()
            try:
                with connection.transaction(), connection.cursor("calls") as cursor:
                    cursor.itersize = 500
                    cursor.execute(f"{sql.CALLS} {where} {order}", values)
                    for row in cursor:
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
            connection.execute(
                "UPDATE flink_agents.runs SET lease_owner = %s, lease_until_ms = %s WHERE run_id = %s",
                (owner, now_ms + ttl_ms, run_id),
            )

    def renew_lease(self, run_id: str, owner: str, ttl_ms: int, now_ms: int) -> None:  # noqa: D102
        with self._transaction() as connection:
            refused = renew_lease(connection, RenewLease(run_id, owner, ttl_ms, now_ms), self.place)
        if refused is not None:
            raise refused

    def release_lease(self, run_id: str, owner: str) -> None:  # noqa: D102
        with self._transaction() as connection:
            connection.execute(
                "UPDATE flink_agents.runs SET lease_owner = NULL, lease_until_ms = NULL "
                "WHERE run_id = %s AND lease_owner = %s",
                (run_id, owner),
            )

    def _lease(self, connection: Connection, run_id: str) -> tuple[str | None, int | None]:
        row = connection.execute(
            "SELECT lease_owner, lease_until_ms FROM flink_agents.runs WHERE run_id = %s FOR UPDATE", (run_id,)
        ).fetchone()
        if row is None:
            raise run_unknown(run_id, self.place)
        return row[0], row[1]

    def prune(self, now_ms: int, retention_ms: int, limit: int = 500) -> int:  # noqa: D102
        with self._transaction() as connection:
            connection.execute(sql.PRUNE_ATTEMPTS)
            return connection.execute(sql.PRUNE, (now_ms - retention_ms, limit)).rowcount

    def close(self) -> None:  # noqa: D102
        with self._writing:
            self._drop_writer()
        with self._pool_lock:
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeout as error:
            failure: JournalError = self._unreachable(error)
        except psycopg.Error as error:
            failure = translated(error, self._address)
        else:
            return
        # Outside the clauses: what the driver said hangs on no error, as far as it is not in the redacted message.
        raise failure

    def _unreachable(self, error: PoolTimeout) -> JournalError:
        msg = f"the journal {self.place}: the server cannot be reached within {self._read_timeout_s} s"
        return JournalUnavailable(msg)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Give the writing connection within a transaction; commit at the end, undo everything on an error."""
        with self._writing, self._errors(), self._connected() as connection, connection.transaction():
            yield connection

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Give the writing connection; drop it, and so undo what it left open, unless it comes back as it was given."""
        if self._writer is None:
            self._writer = self._connect()
        connection = self._writer
        try:
            yield connection
        finally:
            if connection.closed or connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
                self._drop_writer()

    def _drop_writer(self) -> None:
        if self._writer is not None:
            with suppress(psycopg.Error):
                self._writer.close()
            self._writer = None

    def _connect(self) -> Connection:
        connection = psycopg.connect(self._address.dsn, autocommit=True, **self._settings())
        try:
            self._configure(connection)
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _settings(self) -> dict[str, Any]:
        given = psycopg.conninfo.conninfo_to_dict(self._address.dsn)
        return {name: value for name, value in _CONNECT.items() if name not in given}

    @staticmethod
    def _configure(connection: Connection) -> None:
        # Whatever the database's defaults are: a row that another transaction wrote must be seen after waiting for it.
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        connection.execute(sql.SESSION)

    def _set_up(self, connection: Connection) -> None:
        with connection.transaction():
            has_schema, has_tables = _first(connection.execute(sql.FORMAT))
            if not has_tables:
                connection.execute(sql.LOCK_SETUP)
                has_schema, has_tables = _first(connection.execute(sql.FORMAT))
            if not has_schema:
                connection.execute(sql.CREATE_SCHEMA)
            if not has_tables:
                connection.execute(sql.CREATE)
            (version,) = _first(connection.execute("SELECT max(version) FROM flink_agents.journal_format"))
        check_format(version, self.place)
        self._has_tables = True

    @contextmanager
    def _reader(self, deadline: float) -> Iterator[Connection]:
        with self._open_pool().connection(timeout=max(0.05, deadline - time.monotonic())) as connection:
            yield connection

    def _open_pool(self) -> ConnectionPool[Connection]:
        with self._pool_lock:
            if self._pool is None:
                self._pool = ConnectionPool(
                    self._address.dsn,
                    kwargs={"autocommit": True, **self._settings()},
                    min_size=1,
                    max_size=4,
                    num_workers=1,
                    reconnect_timeout=self._read_timeout_s,
                    configure=self._configure,
                    name="flink-agents-journal",
                    open=True,
                )
            return self._pool


def _first(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the row of a query that always has one."""
    row = cursor.fetchone()
    return () if row is None else row
