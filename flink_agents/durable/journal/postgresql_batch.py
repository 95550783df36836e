"""A batch of operations on a PostgreSQL connection: one statement for all of a kind, none waits for the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg

from flink_agents import codec
from flink_agents.durable.journal import postgresql_schema as sql
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
from flink_agents.durable.journal.rows import RequestRow, StartAnswer, StartStatus, key_hash
from flink_agents.durable.journal.stored import (
    Stored,
    answer,
    call_columns,
    count_fatal,
    finished,
    id_text,
    place_columns,
    request_row,
    rounds,
    run_in_use,
    run_unknown,
)
from flink_agents.errors import RunInUse, RunUnknown

__all__ = ["Batch", "renew_lease"]

_CURSOR = psycopg.Cursor[tuple[Any, ...]]
_Kind = TypeVar("_Kind")
_Change: TypeAlias = "Start | StartAgain | Finish | MarkFatal"
_CHANGES: tuple[type[_Change], ...] = (Start, StartAgain, Finish, MarkFatal)
_CALL_OPERATIONS: tuple[type[CallOperation], ...] = (*_CHANGES, LookUp)
_STATEMENTS: dict[type, str] = {
    Start: sql.START,
    StartAgain: sql.START_AGAIN,
    Finish: sql.FINISH,
    MarkFatal: sql.MARK_FATAL,
}


class Batch:
    """The operations of one transaction, on one thread. ``run`` once, within the transaction."""

    def __init__(self, connection: psycopg.Connection, operations: Sequence[Operation], place: str) -> None:
        self._connection = connection
        self._operations = operations
        self._place = place
        self._results: list[Result] = [None] * len(operations)
        # What changed nothing is answered by the row that stands; the rows are read together, at the end.
        self._calls_to_read: list[int] = []
        self._requests_to_read: list[int] = []

    def run(self) -> list[Result]:
        """Do the batch; the answers hold once the transaction is committed."""
        sent = [
            (kind, positions, self._send(kind, positions))
            for parted in rounds(self._operations)
            for kind, positions in parted.items()
        ]
        for kind, positions, cursor in sent:
            self._take(kind, positions, cursor)
        self._read_requests()
        self._read_calls()
        return self._results

    def _send(self, kind: type, positions: list[int]) -> _CURSOR | None:
        if kind in (LookUp, RenewLease):
            return None
        cursor = self._connection.cursor()
        if kind is PutRequest:
            rows = [_request_columns(operation.request) for _, operation in self._of(PutRequest, positions)]
            cursor.execute(sql.INSERT_REQUESTS, _json(sql.REQUEST_COLUMNS, rows))
        elif kind is Answered:
            marks = [(key_hash(op.run_id, op.key), op.intake, op.now_ms) for _, op in self._of(Answered, positions)]
            cursor.execute(sql.ANSWERED, _json(("key_hash", "intake", "now_ms"), marks))
        else:
            calls = [(*place_columns(op.call), *call_columns(op)) for _, op in self._of(_CHANGES, positions)]
            # Processes that write the same rows in the same order wait for each other instead of locking up.
            calls.sort(key=lambda row: row[:3])
            cursor.execute(_STATEMENTS[kind], _json(sql.CALL_COLUMNS, calls))
        return cursor

    def _take(self, kind: type, positions: list[int], cursor: _CURSOR | None) -> None:
        if kind is RenewLease:
            for position, lease in self._of(RenewLease, positions):
                self._results[position] = renew_lease(self._connection, lease, self._place)
        elif cursor is None:
            self._calls_to_read += positions
        elif kind is PutRequest:
            inserted = set(cursor.fetchall())
            for position, operation in self._of(PutRequest, positions):
                if _request_columns(operation.request)[:2] in inserted:
                    self._results[position] = operation.request
                else:
                    self._requests_to_read.append(position)
        elif kind is not Answered:
            changed = {name: (attempts, fatal) for name, attempts, fatal in cursor.fetchall()}
            for position, change in self._of(_CHANGES, positions):
                row = changed.get(change.call.idempotency_key)
                if row is None:
                    self._calls_to_read.append(position)
                else:
                    self._results[position] = _changed(change, *row)

    def _read_requests(self) -> None:
        if not self._requests_to_read:
            return
        asked = self._of(PutRequest, self._requests_to_read)
        rows = [(*_request_columns(operation.request)[:2], n) for n, (_, operation) in enumerate(asked)]
        found = self._connection.execute(sql.REQUESTS, _json(("key_hash", "intake", "n"), rows))
        for number, *columns in found:
            self._results[asked[number][0]] = request_row(columns)

    def _read_calls(self) -> None:
        if not self._calls_to_read:
            return
        asked = self._of(_CALL_OPERATIONS, self._calls_to_read)
        rows = [
            (*place_columns(operation.call)[:3], getattr(operation, "attempt_id", ""), n)
            for n, (_, operation) in enumerate(asked)
        ]
        names = ("key_hash", "intake", "idempotency_key", "asking", "n")
        stored = {n: Stored(*columns) for n, *columns in self._connection.execute(sql.STORED, _json(names, rows))}
        for n, (position, operation) in enumerate(asked):
            self._results[position] = answer(operation, stored.get(n))

    def _of(self, kinds: type[_Kind] | tuple[type[_Kind], ...], positions: list[int]) -> list[tuple[int, _Kind]]:
        return [(n, operation) for n in positions if isinstance(operation := self._operations[n], kinds)]


def renew_lease(connection: psycopg.Connection, lease: RenewLease, place: str) -> RunInUse | RunUnknown | None:
    """Renew the lease within the current transaction; return what stands against it."""
    found = connection.execute(
        "SELECT lease_owner, lease_until_ms FROM flink_agents.runs WHERE run_id = %s FOR UPDATE", (lease.run_id,)
    ).fetchone()
    if found is None:
        return run_unknown(lease.run_id, place)
    held, until_ms = found
    if held != lease.owner:
        return run_in_use(lease.run_id, held, until_ms, lease.now_ms)
    connection.execute(
        "UPDATE flink_agents.runs SET lease_until_ms = %s WHERE run_id = %s",
        (lease.now_ms + lease.ttl_ms, lease.run_id),
    )
    return None


def _changed(operation: _Change, attempts: int, fatal: str) -> Result:
    if isinstance(operation, Finish):
        return finished(operation, attempts, fatal)
    if isinstance(operation, MarkFatal):
        return count_fatal(fatal)
    return StartAnswer(StartStatus.FRESH, attempts, count_fatal(fatal), operation.attempt_id)


def _request_columns(request: RequestRow) -> tuple[str, int, str, str, str, str]:
    hashed = key_hash(request.run_id, request.key)
    return (
        hashed,
        request.intake,
        request.run_id,
        request.key,
        id_text(request.request_id),
        request.content_digest,
    )


def _json(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> tuple[str]:
    return (codec.dumps([dict(zip(names, row, strict=True)) for row in rows]),)
