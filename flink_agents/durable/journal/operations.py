"""What can be asked of a journal within a transaction; each may be asked again, because a commit's answer can be lost.

Asking a second time changes nothing and answers alike: rows are inserted only where none is, an outcome is never
replaced, counts are set to a value or made of names, never added to. That is what lets the writer repeat a batch of
which it cannot know whether it was committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flink_agents.durable.journal.rows import CallKey, RequestRow, StartAnswer
from flink_agents.durable.outcome import Outcome
from flink_agents.errors import RunInUse, RunUnknown

__all__ = [
    "Answered",
    "CallOperation",
    "Finish",
    "LookUp",
    "MarkFatal",
    "Operation",
    "PutRequest",
    "RenewLease",
    "Result",
    "Start",
    "StartAgain",
]


@dataclass(slots=True, unsafe_hash=True)
class PutRequest:
    """Record a request's number. Answers the ``RequestRow`` that stands under that number.

    If that is another request than this one, a later attempt gave the number away: the asking attempt is over.
    """

    request: RequestRow


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask for a call and change nothing. Answers a ``StartAnswer``; any started row is ``IN_DOUBT``."""

    call: CallKey


@dataclass(frozen=True, slots=True)
class Start:
    """The first touch of a call by this attempt, before its body begins. Answers a ``StartAnswer``.

    Inserts a started row if there is none (``FRESH``, one attempt) and else leaves the row as it is: it says
    ``IN_DOUBT`` until ``StartAgain`` or ``Finish`` decides.
    """

    call: CallKey
    attempt_id: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Body number ``attempts`` of the call is about to begin: a retry, or after a reconciler said NOT_STARTED.

    Takes the row over for this attempt. Answers a ``StartAnswer``: ``FRESH``, ``TERMINAL`` or ``SUPERSEDED``; only
    ``FRESH`` lets the body begin.
    """

    call: CallKey
    attempt_id: str
    attempts: int
    now_ms: int


@dataclass(slots=True, unsafe_hash=True)
class Finish:
    """Record how the call ended, if nothing is recorded yet. Answers a ``TERMINAL`` ``StartAnswer``: what stands.

    Where this outcome stands the answer holds this very object. Times are milliseconds since the epoch.
    """

    call: CallKey
    outcome: Outcome
    attempts: int
    attempt_id: str
    started_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class MarkFatal:
    """The call brought its task attempt down. Answers in how many attempts it did so (int), this one included."""

    call: CallKey
    attempt_id: str
    now_ms: int


@dataclass(slots=True, unsafe_hash=True)
class Answered:
    """The key's requests up to number ``intake`` are answered: their rows may go after the retention. Answers None.

    Requests of a key are answered in order, so a mark that was lost is made up for by the next one.
    """

    run_id: str
    key: str
    intake: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Keep the lease of a run. Answers None, or the ``RunInUse`` or ``RunUnknown`` that says why it is lost."""

    run_id: str
    owner: str
    ttl_ms: int
    now_ms: int


CallOperation: TypeAlias = "LookUp | Start | StartAgain | Finish | MarkFatal"
Operation: TypeAlias = "CallOperation | PutRequest | Answered | RenewLease"
Result: TypeAlias = "RequestRow | StartAnswer | int | RunInUse | RunUnknown | None"
