"""Keyed state in a dict, with snapshots: what a test uses in place of Flink's state backend."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from flink_agents.durable.store import StateName

__all__ = ["InMemoryBackend"]

_State = dict[str, dict[StateName, dict[str, str]]]


class InMemoryBackend:
    """State of all keys of one subtask. ``current_key`` is set before a turn, as Flink does.

    ``fail_writes`` makes every write raise, to test what happens when state cannot be persisted. ``writes`` counts what
    reached the store.
    """

    def __init__(self) -> None:
        self.current_key = ""
        self.fail_writes = False
        self.writes = 0
        self._state: _State = {}

    def get(self, name: StateName, field: str) -> str | None:
        """Return the current key's value, or None."""
        return self._state.get(self.current_key, {}).get(name, {}).get(field)

    def put(self, name: StateName, field: str, value: str) -> None:
        """Store a value of the current key."""
        self._count_write()
        self._state.setdefault(self.current_key, {}).setdefault(name, {})[field] = value

    def put_all(self, name: StateName, values: dict[str, str]) -> None:
        """Store several values of one map of the current key."""
        for field, value in values.items():
            self.put(name, field, value)

    def remove(self, name: StateName, field: str) -> None:
        """Delete a value of the current key."""
        self._count_write()
        self._state.get(self.current_key, {}).get(name, {}).pop(field, None)

    def clear(self, name: StateName, known: Sequence[str] | None = None) -> None:
        """Delete all values of one map of the current key."""
        self._count_write()
        self._state.get(self.current_key, {}).pop(name, None)

    def fields(self, name: StateName) -> list[str]:
        """Return the fields of one map of the current key."""
        return list(self._state.get(self.current_key, {}).get(name, {}))

    def entries(self, key: str, name: StateName) -> dict[str, str]:
        """Return a copy of one map of one key."""
        return dict(self._state.get(key, {}).get(name, {}))

    def all_keys(self) -> list[str]:
        """Return the keys that have any state."""
        return list(self._state)

    def snapshot(self) -> _State:
        """Return a deep copy of everything, as a checkpoint holds it."""
        return copy.deepcopy(self._state)

    def restore(self, snapshot: _State) -> None:
        """Replace everything by a snapshot."""
        self._state = copy.deepcopy(snapshot)

    def _count_write(self) -> None:
        if self.fail_writes:
            msg = "the state backend refuses writes"
            raise OSError(msg)
        self.writes += 1
