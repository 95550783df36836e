"""The rules all journals share, as pure functions of what a row holds: what it answers, how outcomes are stored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from flink_agents import codec
from flink_agents.durable.journal.operations import (
    Answered,
    CallOperation,
    Finish,
    MarkFatal,
    Operation,
    PutRequest,
    RenewLease,
    Result,
    Start,
    StartAgain,
)
from flink_agents.durable.journal.rows import (
    CallFilter,
    CallKey,
    CallRow,
    RequestRow,
    StartAnswer,
    StartStatus,
    key_hash,
)
from flink_agents.durable.outcome import Failed, Outcome, Succeeded
from flink_agents.durable.slots import SlotStatus
from flink_agents.errors import JournalFormat, RunInUse, RunUnknown, StateFormat
from flink_agents.failures import RecordedFailure

__all__ = [
    "FORMAT_VERSION",
    "ONE_MACHINE",
    "STARTED",
    "CallColumns",
    "PlaceColumns",
    "Stored",
    "answer",
    "call_columns",
    "call_row",
    "check_format",
    "count_fatal",
    "finished",
    "id_text",
    "outcome_from",
    "outcome_text",
    "place_columns",
    "request_row",
    "rounds",
    "run_in_use",
    "run_unknown",
    "status_text",
    "where_of",
]

FORMAT_VERSION = 1
STARTED: str = SlotStatus.STARTED.value
SUCCEEDED: str = SlotStatus.SUCCEEDED.value
FAILED: str = SlotStatus.FAILED.value


class Stored(NamedTuple):
    """A call's row, as far as answers need it; ``later``: it was begun by a later attempt than the asking one.

    ``fatal`` is the ids of the attempts that the call brought down, parted by spaces.
    """

    status: str
    outcome: str | None
    attempts: int
    attempt_id: str
    fatal: str
    later: bool


def check_format(version: int, place: str) -> None:
    """Refuse a journal of a newer release.

    Raises:
        JournalFormat: naming both versions.
    """
    if version > FORMAT_VERSION:
        msg = (
            f"the journal {place} has format {version}, this release reads up to {FORMAT_VERSION}: "
            "use the release that wrote it, or a newer one"
        )
        raise JournalFormat(msg)


def where_of(wanted: CallFilter, mark: str) -> tuple[str, list[str]]:
    """Return the WHERE clause for the wanted calls, or nothing, and its values; ``mark`` stands for each of them."""
    columns = {
        "c.run_id": wanted.run_id,
        "c.key": wanted.key,
        "r.request_id": None if wanted.request_id is None else id_text(wanted.request_id),
        "c.status": None if wanted.status is None else wanted.status.value,
    }
    asked = {column: value for column, value in columns.items() if value is not None}
    conditions = " AND ".join(f"{column} = {mark}" for column in asked)
    return (f"WHERE {conditions}" if conditions else ""), list(asked.values())


@lru_cache(1024)
def id_text(value: str) -> str:
    """Return an id or a name as it is stored: as a JSON string, since a database's text cannot hold every character."""
    return codec.dumps(value)


def status_text(outcome: Outcome) -> str:
    """Return the status of a row with this outcome."""
    return SUCCEEDED if isinstance(outcome, Succeeded) else FAILED


def outcome_text(outcome: Outcome) -> str:
    """Return the outcome as it is stored: a value's own text, or the record of a failure."""
    return outcome.text if isinstance(outcome, Succeeded) else codec.dumps(outcome.failure.to_json())


def outcome_from(status: str, text: str) -> Outcome:
    """Return the outcome that ``outcome_text`` wrote; a value's text comes back as it was.

    Raises:
        StateFormat: if the text is none.
    """
    if status == SlotStatus.SUCCEEDED.value:
        return Succeeded(text)
    try:
        return Failed(RecordedFailure.from_json(codec.loads(text)))
    except ValueError as error:
        msg = f"an outcome in the journal cannot be read: {error}"
        raise StateFormat(msg) from error


def count_fatal(fatal: str) -> int:
    """Return how many attempts the stored text names."""
    return len(fatal.split()) if fatal else 0


def answer(operation: CallOperation, stored: Stored | None) -> Result:
    """Return what the row, as it stands now, answers to an operation that did not change it."""
    if stored is None:
        return 0 if isinstance(operation, MarkFatal) else StartAnswer(StartStatus.FRESH)
    fatal = count_fatal(stored.fatal)
    if isinstance(operation, MarkFatal):
        return fatal
    if stored.outcome is not None:
        own = operation.outcome if isinstance(operation, Finish) else None
        # A repeated batch finds its own outcome there: its caller gets the object it gave, as the first time.
        if own is None or stored.status != status_text(own) or stored.outcome != outcome_text(own):
            own = outcome_from(stored.status, stored.outcome)
        return StartAnswer(StartStatus.TERMINAL, stored.attempts, fatal, stored.attempt_id, own)
    if stored.attempt_id == getattr(operation, "attempt_id", None):
        status = StartStatus.FRESH
    else:
        status = StartStatus.SUPERSEDED if stored.later else StartStatus.IN_DOUBT
    return StartAnswer(status, stored.attempts, fatal, stored.attempt_id)


def finished(operation: Finish, attempts: int, fatal: str) -> StartAnswer:
    """Return the answer to a ``Finish`` whose outcome stands."""
    return StartAnswer(StartStatus.TERMINAL, attempts, count_fatal(fatal), operation.attempt_id, operation.outcome)


ONE_MACHINE = (
    "A SQLite journal is a file of one machine: a job on a cluster needs `journal: {type: postgresql, dsn: ...}`"
)


def run_unknown(run_id: str, place: str) -> RunUnknown:
    """Return the error for a run the journal has no row of, with the fix."""
    return RunUnknown(
        f"the journal {place} does not know run {run_id}: the job was submitted with another journal. " + ONE_MACHINE
    )


def run_in_use(run_id: str, owner: str | None, until_ms: int | None, now_ms: int) -> RunInUse:
    """Return the error for a lease that somebody else holds, or nobody any more."""
    if owner is None:
        return RunInUse(f"the lease of run {run_id} was given back: nobody holds it")
    left_s = max(0, (until_ms or 0) - now_ms) / 1000
    return RunInUse(
        f"run {run_id} is in use by {owner}; its lease runs for another {left_s:.1f} s unless it is renewed: "
        "stop that job, or wait until its lease ends"
    )


PlaceColumns: TypeAlias = "tuple[str, int, str, str, str, int, str, str, str]"
CallColumns: TypeAlias = "tuple[str, str | None, int, str, str, str, int, int, int]"


def place_columns(call: CallKey) -> PlaceColumns:
    """Return the columns that say which call a row is; the first three are its primary key."""
    return (
        key_hash(call.run_id, call.key),
        call.intake,
        call.idempotency_key,
        call.run_id,
        call.key,
        call.index,
        call.kind,
        id_text(call.tool),
        call.digest,
    )


def call_columns(operation: Start | StartAgain | Finish | MarkFatal) -> CallColumns:
    """Return the other columns, as the operation would insert them."""
    by = operation.attempt_id
    if isinstance(operation, Finish):
        outcome, started_ms = operation.outcome, operation.started_ms
        head = status_text(outcome), outcome_text(outcome), operation.attempts
        return (*head, by, by, "", started_ms, started_ms, operation.ended_ms)
    match operation:
        case StartAgain(_, _, attempts, now_ms):
            return STARTED, None, attempts, by, by, "", now_ms, now_ms, 0
        case MarkFatal(now_ms=now_ms):
            return STARTED, None, 1, by, by, by, now_ms, now_ms, 0
        case _:
            return STARTED, None, 1, by, by, "", operation.now_ms, operation.now_ms, 0


def request_row(columns: Sequence[Any]) -> RequestRow:
    """Return a request's row; the columns in the order of the fields."""
    run_id, key, intake, request_id, content_digest = columns
    return RequestRow(run_id, key, intake, codec.loads(request_id), content_digest)


def rounds(operations: Sequence[Operation]) -> list[dict[type, list[int]]]:
    """Part a batch into rounds, each the positions of its operations by kind, so that a kind is one statement.

    Operations on the same row keep their order by being in different rounds; all others do not depend on each other,
    but ``Answered`` has a round of its own at the end, since it concerns rows that the batch may put first.
    """
    parted: list[dict[type, list[int]]] = []
    answered: list[int] = []
    seen: dict[object, int] = {}
    for position, operation in enumerate(operations):
        row: object
        match operation:
            case Answered():
                answered.append(position)
                continue
            case PutRequest(request):
                row = (request.run_id, request.key, request.intake)
            case RenewLease(run_id):
                row = run_id
            case _:
                row = operation.call.idempotency_key
        turn = seen.get(row, 0)
        seen[row] = turn + 1
        if turn == len(parted):
            parted.append({})
        parted[turn].setdefault(type(operation), []).append(position)
    return [*parted, {Answered: answered}] if answered else parted


def call_row(columns: Sequence[Any]) -> CallRow:
    """Return a listed row; the columns in the order in which both journals select them."""
    run_id, key, intake, slot, kind, tool, digest, name, request_id, status, outcome, fatal, *numbers = columns
    attempts, attempt_id, first_attempt_id, first_started_ms, started_ms, ended_ms = numbers
    return CallRow(
        call=CallKey(name, run_id, key, intake, slot, kind, codec.loads(tool), digest),
        request_id=None if request_id is None else codec.loads(request_id),
        status=SlotStatus(status),
        attempts=attempts,
        fatal_attempts=count_fatal(fatal),
        first_attempt_id=first_attempt_id,
        attempt_id=attempt_id,
        first_started_ms=first_started_ms,
        started_ms=started_ms,
        ended_ms=ended_ms,
        outcome=None if outcome is None else outcome_from(status, outcome),
    )
