"""The ordered slots of one request: reserve or replay, record, clear."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from flink_agents.durable.identity import Identity
from flink_agents.durable.outcome import Outcome
from flink_agents.durable.slots import Named, Slot
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import IdentityMismatch
from flink_agents.options import OnMismatch

__all__ = ["SlotLog"]

_log = logging.getLogger(__name__)


class SlotLog:
    """The slots of one request, in the order its action asked for them. Task thread only.

    Changes are kept here and written by ``sync`` at the end of the turn, so a call that begins and ends within one turn
    is written once, or not at all when the request is answered in that turn too.
    """

    __slots__ = ("_dirty", "_on_mismatch", "_persisted", "_prefix", "_slots")

    def __init__(self, intake: int, on_mismatch: OnMismatch) -> None:
        self._prefix = f"{intake}/"
        self._on_mismatch = on_mismatch
        self._slots: list[Slot] = []
        self._dirty: set[int] = set()
        self._persisted = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: int) -> Slot:
        return self._slots[index]

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def restore(self, store: WriteBehind) -> None:
        """Read what an earlier attempt recorded. Slots are addressed one after the other, nothing is listed.

        Raises:
            StateFormat: if a stored slot cannot be read.
        """
        while (text := store.get(StateName.SLOTS, f"{self._prefix}{len(self._slots)}")) is not None:
            self._slots.append(Slot.from_text(len(self._slots), text))
        self._persisted = len(self._slots)

    def reserve(self, index: int, call: Named) -> Slot:
        """Return the slot at ``index``: the recorded one if it belongs to this call, else a new one.

        A recorded slot of a different call is reported, and it and all after it are dropped, in state too.

        Raises:
            IdentityMismatch: instead of dropping, under ``on_mismatch: fail``.
        """
        if index < len(self._slots):
            recorded = self._slots[index]
            identity = Identity(index, call.kind, call.name, call.position, call.digest)
            if recorded.identity == identity:
                return recorded
            self._drop_from(index, identity, recorded.identity)
        slot = Slot(index, call)
        self._slots.append(slot)
        self._dirty.add(index)
        return slot

    def reserve_all(self, identities: Sequence[Identity]) -> list[Slot]:
        """Return the slots of a request that no attempt has begun before, all at once."""
        self._slots = [Slot(index, identity) for index, identity in enumerate(identities)]
        self._dirty.update(range(len(identities)))
        return self._slots

    def start(self, slot: Slot, attempt_id: str, now_ms: int) -> None:
        """Record that a body of this slot begins."""
        slot.start(attempt_id, now_ms)
        self._dirty.add(slot.index)

    def unstart(self, slot: Slot) -> None:
        """Record that the body of this slot, which was to begin, never did."""
        slot.unstart()
        self._dirty.add(slot.index)

    def touch(self, slot: Slot) -> None:
        """Note that this slot's times or counts changed."""
        self._dirty.add(slot.index)

    def settle(self, slot: Slot, outcome: Outcome, duration_ms: int) -> None:
        """Record the slot's outcome, for good."""
        slot.settle(outcome, duration_ms)
        self._dirty.add(slot.index)

    def clear(self) -> None:
        """Forget every slot: the request is answered."""
        self._slots.clear()
        self._dirty.clear()

    def sync(self, store: WriteBehind) -> None:
        """Hand this turn's changes to the view of the key's state."""
        if self._persisted and not self._slots:
            # One request of a key runs at a time, so the map holds no other's.
            store.clear(StateName.SLOTS, [f"{self._prefix}{index}" for index in range(self._persisted)])
        else:
            for index in range(len(self._slots), self._persisted):
                store.remove(StateName.SLOTS, f"{self._prefix}{index}")
        if self._dirty:
            for index in self._dirty:
                store.put(StateName.SLOTS, f"{self._prefix}{index}", self._slots[index].to_text())
            self._dirty.clear()
        self._persisted = len(self._slots)

    def _drop_from(self, index: int, expected: Identity, recorded: Identity) -> None:
        msg = (
            f"the action asks for another call than the recorded one; expected {expected}; recorded {recorded}. "
            f"{_likely_cause(expected, recorded)}"
        )
        if self._on_mismatch is OnMismatch.FAIL:
            raise IdentityMismatch(msg)
        _log.warning("%s; this slot and the %d after it run as new", msg, len(self._slots) - index - 1)
        del self._slots[index:]
        self._dirty = {kept for kept in self._dirty if kept < index}


def _likely_cause(expected: Identity, recorded: Identity) -> str:
    if (expected.kind, expected.name) != (recorded.kind, recorded.name):
        cause = "Its code was changed since, or it takes another way on each run"
    elif expected.digest != recorded.digest:
        cause = "The arguments differ: they depend on something that is not recorded, or the code was changed since"
    else:
        cause = "The order of its calls was changed since"
    return (
        f"{cause}. Take the time from ctx.now() and random names from ctx.uuid(), iterate over nothing unordered. "
        "After a deliberate change, on_mismatch: rerun runs the calls from here on again"
    )
