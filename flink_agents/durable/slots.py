"""One call's durable life: a slot, its four states and the moves between them."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Any, Protocol

from flink_agents import codec
from flink_agents.durable.identity import Identity
from flink_agents.durable.outcome import Failed, Outcome, Succeeded
from flink_agents.errors import IllegalMove, StateFormat
from flink_agents.failures import RecordedFailure

__all__ = ["MOVES", "Named", "Slot", "SlotStatus"]

SLOT_VERSION = 1


@lru_cache(1024)
def _quoted(name: str) -> str:
    """Return a tool's name as JSON: the same few, for every call."""
    return codec.dumps(name)


class SlotStatus(str, Enum):
    """Where a call stands. Pending means reserved or started; the other two are terminal."""

    RESERVED = "reserved"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    # Enum's own hash is a Python function; these are dict keys on the path of every call.
    __hash__ = str.__hash__

    @property
    def is_terminal(self) -> bool:
        """Whether the outcome is recorded, for good."""
        return self in _TERMINAL


_TERMINAL = frozenset({SlotStatus.SUCCEEDED, SlotStatus.FAILED})

MOVES: dict[SlotStatus, frozenset[SlotStatus]] = {
    # A call can end without having begun: its preparation failed, or a record elsewhere answers for it.
    SlotStatus.RESERVED: frozenset({SlotStatus.STARTED, SlotStatus.SUCCEEDED, SlotStatus.FAILED}),
    # Started again: a retry, or a new attempt of the task after the earlier one was cut off.
    # Reserved again: the body that was to begin never did, and never will.
    SlotStatus.STARTED: frozenset(
        {SlotStatus.RESERVED, SlotStatus.STARTED, SlotStatus.SUCCEEDED, SlotStatus.FAILED},
    ),
    SlotStatus.SUCCEEDED: frozenset(),
    SlotStatus.FAILED: frozenset(),
}


class Named(Protocol):
    """What names a call: ``digest`` may be computed when it is asked for, and is the same at every time."""

    @property
    def kind(self) -> str:
        """What sort of call it is."""

    @property
    def name(self) -> str:
        """The tool's name."""

    @property
    def position(self) -> int:
        """The call's place in its request, or -1."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical JSON of the arguments as asked."""


class Slot:
    """The record of one call. Changed on the task thread only, through ``start`` and ``settle``.

    ``attempts`` counts the bodies begun, ``attempt_id`` names the task attempt that began the last one, times are
    milliseconds since the epoch, ``duration_ms`` is the last body's running time. ``failed`` counts the bodies that
    ended in a failure worth another attempt, ``retry_ms`` is when that begins; ``until_ms`` is the call's deadline (or
    a sleep's end), ``batch_ms`` the deadline of the batch it was asked in; 0 where there is none. The identity of a new
    slot is made when it is stored or compared: a call that begins and ends within a turn of its request needs none.
    """

    __slots__ = (
        "_call",
        "_identity",
        "attempt_id",
        "attempts",
        "batch_ms",
        "duration_ms",
        "failed",
        "index",
        "outcome",
        "retry_ms",
        "started_ms",
        "status",
        "until_ms",
    )

    def __init__(self, index: int, call: Named) -> None:
        self.index = index
        self._call = call
        self._identity: Identity | None = None
        self.status = SlotStatus.RESERVED
        self.attempts = 0
        self.attempt_id = ""
        self.started_ms = 0
        self.duration_ms = 0
        self.failed = self.retry_ms = self.until_ms = self.batch_ms = 0
        self.outcome: Outcome | None = None

    @property
    def identity(self) -> Identity:
        """Whom the slot belongs to."""
        if self._identity is None:
            call = self._call
            self._identity = Identity(self.index, call.kind, call.name, call.position, call.digest)
            # A handle holds its slot: only a cycle that is broken is freed at once.
            self._call = self._identity
        return self._identity

    def start(self, attempt_id: str, now_ms: int) -> None:
        """Record that a body begins.

        Raises:
            IllegalMove: if the slot is terminal.
        """
        if SlotStatus.STARTED not in MOVES[self.status]:
            raise self._illegal(SlotStatus.STARTED)
        self.status = SlotStatus.STARTED
        self.attempts += 1
        self.attempt_id = attempt_id
        self.started_ms = now_ms

    def unstart(self) -> None:
        """Take the last ``start`` back: its body never began.

        Raises:
            IllegalMove: if the slot is not started.
        """
        if SlotStatus.RESERVED not in MOVES[self.status]:
            raise self._illegal(SlotStatus.RESERVED)
        self.attempts -= 1
        self.status = SlotStatus.STARTED if self.attempts else SlotStatus.RESERVED

    def settle(self, outcome: Outcome, duration_ms: int) -> None:
        """Record the outcome, for good.

        Raises:
            IllegalMove: if the slot has an outcome already: a recorded outcome is never replaced.
        """
        status = SlotStatus.SUCCEEDED if type(outcome) is Succeeded else SlotStatus.FAILED
        if status not in MOVES[self.status]:
            raise self._illegal(status)
        self.status = status
        self.outcome = outcome
        self.duration_ms = duration_ms

    def _illegal(self, status: SlotStatus) -> IllegalMove:
        return IllegalMove(f"{self.identity} is {self.status.value} and cannot become {status.value}")

    def to_text(self) -> str:
        """Return the slot as it is stored: one JSON object with a version."""
        identity, outcome = self.identity, self.outcome
        if outcome is None and not (self.failed or self.until_ms or self.batch_ms):
            # What almost every slot is written as: all numbers and text that needs no escape, except for the name.
            text = (
                f'{{"v":{SLOT_VERSION},"s":"{self.status.value}","k":"{identity.kind}","n":{_quoted(identity.name)},'
                f'"p":{identity.position},"d":"{identity.digest}"'
            )
            if not self.attempts:
                return text + "}"
            return f'{text},"a":{self.attempts},"by":"{self.attempt_id}","at":{self.started_ms}}}'
        record: dict[str, Any] = {
            "v": SLOT_VERSION,
            "s": self.status.value,
            "k": identity.kind,
            "n": identity.name,
            "p": identity.position,
            "d": identity.digest,
        }
        if self.attempts:
            record |= {"a": self.attempts, "by": self.attempt_id, "at": self.started_ms}
        if self.failed or self.until_ms or self.batch_ms:
            timed = {"fa": self.failed, "rt": self.retry_ms, "u": self.until_ms, "b": self.batch_ms}
            record |= {name: number for name, number in timed.items() if number}
        if outcome is None:
            return codec.dumps(record)
        record["ms"] = self.duration_ms
        if isinstance(outcome, Failed):
            record["f"] = outcome.failure.to_json()
            return codec.dumps(record)
        # The value's text is JSON already: it is put in as it stands instead of being parsed and written again.
        return f'{codec.dumps(record)[:-1]},"o":{outcome.text}}}'

    @classmethod
    def from_text(cls, index: int, text: str) -> Slot:
        """Read a stored slot.

        Raises:
            StateFormat: if the text is no slot, or one of a version this release does not know.
        """
        try:
            record = codec.loads(text)
            if record["v"] != SLOT_VERSION:
                msg = f"slot {index} has format version {record['v']}, this release reads {SLOT_VERSION}"
                raise StateFormat(msg)
            slot = cls(index, Identity(index, record["k"], record["n"], record["p"], record["d"]))
            slot.status = SlotStatus(record["s"])
            slot.attempts, slot.attempt_id = record.get("a", 0), record.get("by", "")
            slot.started_ms, slot.duration_ms = record.get("at", 0), record.get("ms", 0)
            slot.failed, slot.retry_ms = record.get("fa", 0), record.get("rt", 0)
            slot.until_ms, slot.batch_ms = record.get("u", 0), record.get("b", 0)
            if slot.status is SlotStatus.SUCCEEDED:
                slot.outcome = Succeeded(codec.dumps(record["o"]))
            elif slot.status is SlotStatus.FAILED:
                slot.outcome = Failed(RecordedFailure.from_json(record["f"]))
        except (ValueError, KeyError, TypeError) as error:
            msg = f"slot {index} cannot be read from state: {error!r}"
            raise StateFormat(msg) from error
        return slot
