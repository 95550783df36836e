"""What the journal holds and answers, as frozen values: runs, requests, calls, and the key that names a call."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from flink_agents import codec
from flink_agents.durable.identity import Identity
from flink_agents.durable.outcome import Outcome
from flink_agents.durable.slots import SlotStatus

# Some are not frozen although nothing changes them: each call makes one, which takes three times as long if it is.

__all__ = [
    "CallFilter",
    "CallKey",
    "CallRow",
    "Lease",
    "RequestRow",
    "RunRow",
    "StartAnswer",
    "StartStatus",
    "idempotency_key",
    "key_hash",
]

IDENTITY_VERSION = 1


def idempotency_key(run_id: str, key: str, intake: int, index: int, kind: str, tool: str, digest: str) -> str:
    """Return the SHA-256, in hexadecimal, that names one call of one run: the same on every attempt and failover.

    ``key`` is the canonical text of the key, so 1 and ``"1"`` give different calls; ``intake`` is the request's number,
    ``index`` the slot's. Any thread; the same in every process and release.
    """
    # The canonical text of the list of all these, of which ``key`` is a part already.
    parts = f"[{IDENTITY_VERSION},{_quoted(run_id)},{key},{intake},{index},{_quoted(kind)},{_quoted(tool)},"
    return hashlib.sha256(f'{parts}"{digest}"]'.encode()).hexdigest()


@lru_cache(1024)
def _quoted(name: str) -> str:
    """Return a name as canonical text: the same few, for every call."""
    return codec.canonical(name)


@lru_cache(256)
def key_hash(run_id: str, key: str) -> str:
    """Return what the rows of one key of one run are found by: keys are of any length, what an index holds is not.

    Canonical text has no line break, so the two parts cannot be mistaken for each other.
    """
    return hashlib.sha256(f"{run_id}\n{key}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class RunRow:
    """One life of a job's state. ``job`` is the job's name, ``created_ms`` milliseconds since the epoch."""

    run_id: str
    job: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Who works on a run, as messages name it, and until when by that one's clock, in milliseconds since the epoch."""

    owner: str
    until_ms: int


@dataclass(slots=True, unsafe_hash=True)
class RequestRow:
    """One request: the number it got at intake, its id and the digest of its content."""

    run_id: str
    key: str
    intake: int
    request_id: str
    content_digest: str


@dataclass(slots=True, unsafe_hash=True)
class CallKey:
    """One call of one run; ``idempotency_key`` is made of all the other fields."""

    idempotency_key: str
    run_id: str
    key: str
    intake: int
    index: int
    kind: str
    tool: str
    digest: str

    @classmethod
    def of(cls, run_id: str, key: str, intake: int, identity: Identity) -> CallKey:
        """Return the key of the call in the slot of this identity. Any thread."""
        index, kind, tool, digest = identity.index, identity.kind, identity.name, identity.digest
        name = idempotency_key(run_id, key, intake, index, kind, tool, digest)
        return cls(name, run_id, key, intake, index, kind, tool, digest)


class StartStatus(Enum):
    """What the journal knows of a call."""

    FRESH = "fresh"
    """No attempt but the asking one has begun it."""
    IN_DOUBT = "in_doubt"
    """An earlier attempt began it and left no outcome: it may have taken effect."""
    TERMINAL = "terminal"
    """Its outcome is recorded, for good."""
    SUPERSEDED = "superseded"
    """A *later* attempt has begun it: the asking attempt is over and must not run it."""


@dataclass(slots=True, unsafe_hash=True)
class StartAnswer:
    """The answer about one call.

    ``attempts`` counts the bodies begun as far as the journal knows, ``fatal_attempts`` the task attempts that the call
    brought down, ``attempt_id`` names the attempt that began it last (``TERMINAL``: whose outcome stands), empty where
    none did. ``outcome`` is set for ``TERMINAL`` only.
    """

    status: StartStatus
    attempts: int = 0
    fatal_attempts: int = 0
    attempt_id: str = ""
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Which calls to list; None matches all. ``key`` is canonical text."""

    run_id: str | None = None
    key: str | None = None
    request_id: str | None = None
    status: SlotStatus | None = None


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call as the journal holds it, for people to read.

    ``status`` is started, succeeded or failed. A ``first_attempt_id`` other than ``attempt_id`` says that the call
    began in an attempt that was cut off. Times are milliseconds since the epoch; ``ended_ms`` is 0 without an outcome.
    """

    call: CallKey
    request_id: str | None
    status: SlotStatus
    attempts: int
    fatal_attempts: int
    first_attempt_id: str
    attempt_id: str
    first_started_ms: int
    started_ms: int
    ended_ms: int
    outcome: Outcome | None
