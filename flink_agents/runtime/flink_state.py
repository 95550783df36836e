"""Every state descriptor of the operator, the keyed store over them, and its current key: the savepoint format."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from pyflink.common import Time, Types
from pyflink.datastream.state import MapStateDescriptor, StateTtlConfig, ValueStateDescriptor

from flink_agents.durable.store import StateName
from flink_agents.errors import FrameworkFault, StateFormat

__all__ = ["RESTORED_BY", "FlinkStore", "KeyContext", "head_descriptor", "java_class", "map_descriptor"]

RESTORED_BY = (StateName.REQUESTS, StateName.SLOTS)
"""The states whose keys have live work: these keys are woken after a restore."""

KEPT_KEYS = 10_000

_MAPS = (StateName.REQUESTS, StateName.SLOTS, StateName.MEMORY)
_HEAP = "org.apache.flink.runtime.state.heap.HeapKeyedStateBackend"
_CLEANUP_ENTRIES = 5
_CLEANUP_QUERY_ENTRIES = 1000


@functools.cache
def java_class(name: str) -> Any:
    """Return a Java class of the JVM around this interpreter. Task thread; ``findClass`` fails on a thread of Python.

    Kept for good: every look-up leaves some objects behind that nothing frees, and operators restart.
    """
    from pemja import findClass

    return findClass(name)


def head_descriptor(idle_key_ms: int) -> Any:
    """Return the descriptor of ``head``, which Flink forgets ``idle_key_ms`` milliseconds after its last write."""
    descriptor = ValueStateDescriptor(StateName.HEAD.value, Types.STRING())
    ttl = StateTtlConfig.new_builder(Time.milliseconds(idle_key_ms))
    descriptor.enable_time_to_live(
        ttl.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
        .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
        # The same clean-up as by default, but named: PyFlink's default period starts a JVM of its own in the task.
        .disable_cleanup_in_background()
        .cleanup_incrementally(_CLEANUP_ENTRIES, False)
        .cleanup_in_rocksdb_compact_filter(_CLEANUP_QUERY_ENTRIES, Time.days(30))
        .build()
    )
    return descriptor


def map_descriptor(name: StateName) -> Any:
    """Return the descriptor of one of the maps. STRING on both sides for ever: Flink migrates no other type."""
    return MapStateDescriptor(name.value, Types.STRING(), Types.STRING())


class FlinkStore:
    """The keyed store of the operator: strings in Flink's keyed state, under the backend's current key.

    Task thread only. After a restore it reads what the restored checkpoint held.
    """

    def __init__(self, runtime_context: Any, idle_key_ms: int) -> None:
        backend = runtime_context.get_keyed_state_backend()._keyed_state_backend
        self._is_heap = backend.getClass().getName() == _HEAP
        self._head = runtime_context.get_state(head_descriptor(idle_key_ms))
        requests, slots, memory = (runtime_context.get_map_state(map_descriptor(name)) for name in _MAPS)
        self._maps = {StateName.REQUESTS: requests, StateName.SLOTS: slots, StateName.MEMORY: memory}

    def get(self, name: StateName, field: str) -> str | None:
        """Return the value, or None where nothing is stored."""
        value = self._head.value() if name is StateName.HEAD else self._maps[name].get(field)
        if value is None or isinstance(value, str):
            return value
        msg = f"state {name.value!r} holds a {type(value).__name__} where text was expected"
        raise StateFormat(msg)

    def put(self, name: StateName, field: str, value: str) -> None:
        """Store the value, replacing what was there."""
        if name is StateName.HEAD:
            self._head.update(value)
        else:
            self._maps[name].put(field, value)

    def put_all(self, name: StateName, values: dict[str, str]) -> None:
        """Store several values of one map."""
        self._maps[name].put_all(values)

    def fields(self, name: StateName) -> list[str]:
        """Return the fields of one map that have a value."""
        return list(self._maps[name].keys())

    def clear(self, name: StateName, known: Sequence[str] | None = None) -> None:
        """Delete all values of one map, by name where the backend is not the heap's and the names are known.

        RocksDB finds what to clear by passing over all that the key deleted before: the more it has answered since the
        last compaction, the longer that takes.
        """
        if known is None or self._is_heap:
            self._maps[name].clear()
            return
        remove = self._maps[name].remove
        for field in known:
            remove(field)

    def remove(self, name: StateName, field: str) -> None:
        """Delete the value; nothing happens where nothing is stored."""
        if name is StateName.HEAD:
            self._head.clear()
        else:
            self._maps[name].remove(field)


class KeyContext:
    """The current key of the operator's keyed state, by key text. Task thread only.

    Keeps the Java key of each key with live work, because making one costs ten times as much as selecting it, and of
    the ``KEPT_KEYS`` that had work last: to ask Flink for one anew costs as much as two accesses to state.
    """

    def __init__(self, runtime_context: Any) -> None:
        backend = runtime_context.get_keyed_state_backend()
        self._backend = backend._keyed_state_backend
        self.timers = backend._function_context.timer_service()
        self._row = java_class("org.apache.flink.types.Row")
        self.namespace = java_class("org.apache.flink.runtime.state.VoidNamespace").INSTANCE
        self._keys: dict[str, Any] = {}
        self._idle: dict[str, Any] = {}

    def remember(self, key: str) -> None:
        """Keep the current key, which is ``key``, until ``forget``."""
        if key not in self._keys:
            java_key = self._idle.pop(key, None)
            self._keys[key] = self._backend.getCurrentKey() if java_key is None else java_key

    def forget(self, key: str) -> None:
        """Let go of what ``remember`` kept, once enough other keys have been let go of after it."""
        java_key = self._keys.pop(key, None)
        if java_key is not None:
            self._idle[key] = java_key
            if len(self._idle) > KEPT_KEYS:
                del self._idle[next(iter(self._idle))]

    def select(self, key: str) -> None:
        """Make ``key`` the current key."""
        java_key = self._keys.get(key)
        self._backend.setCurrentKey(self.java_key(key) if java_key is None else java_key)

    def current(self) -> str:
        """Return the text of the current key: what a context of Flink's returns, by a shorter way."""
        key: str = self._backend.getCurrentKey().getField(0)
        return key

    def java_key(self, key: str) -> Any:
        """Return the key as Flink's keyed streams of Python hold it: a row of one field."""
        row = self._row(1)
        row.setField(0, key)
        return row

    def check(self, key: str) -> None:
        """Raise where the current key is not what ``java_key`` makes of ``key``: state would be read under another key.

        Raises:
            FrameworkFault: this PyFlink lays keys out differently.
        """
        current = self._backend.getCurrentKey()
        if not current.equals(self.java_key(key)):
            msg = f"the key {key!r} has an unknown layout in this PyFlink: {current.toString()}"
            raise FrameworkFault(msg)

    def restored(self, names: Sequence[StateName]) -> list[str]:
        """Return every key of this subtask that has an entry in one of the states, and keep them all."""
        for name in names:
            stream = self._backend.getKeys(name.value, self.namespace)
            try:
                keys = stream.iterator()
                while keys.hasNext():
                    java_key = keys.next()
                    self._keys.setdefault(java_key.getField(0), java_key)
            finally:
                stream.close()
        return list(self._keys)
