"""The keyed store that the durable core writes to, and the write-behind view a turn works on."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

__all__ = ["KeyedStore", "StateName", "WriteBehind"]


class StateName(str, Enum):
    """The four named maps of one key; the names are part of savepoint format 1 and never change."""

    HEAD = "head"
    REQUESTS = "requests"
    SLOTS = "slots"
    MEMORY = "memory"

    # Enum's own hash is a Python function; these are dict keys on the path of every call.
    __hash__ = str.__hash__


class KeyedStore(Protocol):
    """String values in named maps of the *current key*; Flink's keyed state, or a dict in tests.

    Called on the task thread only. ``HEAD`` is a single value: its field is always ``""``.
    """

    def get(self, name: StateName, field: str) -> str | None:
        """Return the value, or None where nothing is stored."""

    def put(self, name: StateName, field: str, value: str) -> None:
        """Store the value, replacing what was there."""

    def put_all(self, name: StateName, values: dict[str, str]) -> None:
        """Store several values of one map, replacing what was there; never of ``HEAD``."""

    def remove(self, name: StateName, field: str) -> None:
        """Delete the value; nothing happens where nothing is stored."""

    def clear(self, name: StateName, known: Sequence[str] | None = None) -> None:
        """Delete all values of one map; never of ``HEAD``. ``known``: its fields, where the caller knows all."""

    def fields(self, name: StateName) -> list[str]:
        """Return the fields of one map that have a value; never of ``HEAD``."""


class WriteBehind:
    """A view of one key's state that collects a turn's changes and writes the difference in ``flush``.

    An entry that ``insert`` created and ``remove`` deleted in the same turn never reaches the store, so a request
    answered within one turn costs one write of the head. Task thread only; lives for one turn.
    """

    __slots__ = ("_changes", "_cleared", "_inserted", "_store")

    def __init__(self, store: KeyedStore) -> None:
        self._store = store
        self._changes: dict[StateName, dict[str, str | None]] = {}
        self._inserted: set[tuple[StateName, str]] = set()
        self._cleared: dict[StateName, Sequence[str] | None] = {}

    def get(self, name: StateName, field: str) -> str | None:
        """Return the value as this turn sees it."""
        changed = self._changes.get(name)
        if changed is not None and field in changed:
            return changed[field]
        return None if name in self._cleared else self._store.get(name, field)

    def insert(self, name: StateName, field: str, value: str) -> None:
        """Store a value where the caller knows that nothing is stored."""
        changed = self._changes.setdefault(name, {})
        if field not in changed:
            self._inserted.add((name, field))
        changed[field] = value

    def put(self, name: StateName, field: str, value: str) -> None:
        """Store the value, replacing what was there."""
        changed = self._changes.get(name)
        if changed is None:
            self._changes[name] = {field: value}
        else:
            changed[field] = value

    def remove(self, name: StateName, field: str) -> None:
        """Delete the value."""
        entry = (name, field)
        if entry in self._inserted:
            self._inserted.discard(entry)
            del self._changes[name][field]
        else:
            self._changes.setdefault(name, {})[field] = None

    def clear(self, name: StateName, known: Sequence[str] | None = None) -> None:
        """Delete all values of one map, those of this turn included; ``known`` are its stored fields, all of them."""
        changed = self._changes.pop(name, {})
        before = self._cleared.get(name, ())
        # What this turn removed one by one is stored still, and no longer among what the caller knows.
        stored = [field for field in changed if (name, field) not in self._inserted]
        self._cleared[name] = None if known is None or before is None else [*dict.fromkeys([*before, *known, *stored])]
        if changed and self._inserted:
            self._inserted = {entry for entry in self._inserted if entry[0] is not name}

    def remove_only(self, name: StateName, field: str) -> None:
        """Delete a value that the caller knows to be the only one of its map."""
        if (name, field) in self._inserted:
            self.remove(name, field)
        else:
            self.clear(name, (field,))

    def fields(self, name: StateName) -> list[str]:
        """Return the fields of one map that have a value as this turn sees it."""
        found = dict.fromkeys([] if name in self._cleared else self._store.fields(name), True)
        found.update({field: value is not None for field, value in self._changes.get(name, {}).items()})
        return [field for field, is_there in found.items() if is_there]

    def flush(self) -> None:
        """Write the difference to the store. A failure leaves the turn unfinished: the task must fail."""
        store, cleared = self._store, self._cleared
        if cleared:
            for name, known in cleared.items():
                store.clear(name, known)
            cleared.clear()
        changes, self._changes = self._changes, {}
        self._inserted.clear()
        for name, changed in changes.items():
            # A batch a map: a crossing into Java costs as much as the access itself. One value crosses fastest alone.
            if len(changed) > 1:
                values = {field: value for field, value in changed.items() if value is not None}
                for field in changed.keys() - values.keys():
                    store.remove(name, field)
                if values:
                    store.put_all(name, values)
                continue
            for field, value in changed.items():
                if value is None:
                    store.remove(name, field)
                else:
                    store.put(name, field, value)
