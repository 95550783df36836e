"""Every state descriptor of the operator, and the keyed store over them: the savepoint format in one file."""

from __future__ import annotations

from typing import Any

from pyflink.common import Time, Types
from pyflink.datastream.state import MapStateDescriptor, StateTtlConfig, ValueStateDescriptor

from flink_agents.durable.store import StateName
from flink_agents.errors import StateFormat

__all__ = ["RESTORED_BY", "FlinkStore", "head_descriptor", "map_descriptor"]

RESTORED_BY = (StateName.REQUESTS, StateName.SLOTS)
"""The states whose keys have live work: these keys are woken after a restore."""

_MAPS = (StateName.REQUESTS, StateName.SLOTS, StateName.MEMORY)


def head_descriptor(idle_key_ms: int) -> Any:
    """Return the descriptor of ``head``, which Flink forgets ``idle_key_ms`` milliseconds after its last write."""
    descriptor = ValueStateDescriptor(StateName.HEAD.value, Types.STRING())
    ttl = StateTtlConfig.new_builder(Time.milliseconds(idle_key_ms))
    descriptor.enable_time_to_live(
        ttl.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
        .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
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

    def remove(self, name: StateName, field: str) -> None:
        """Delete the value; nothing happens where nothing is stored."""
        if name is StateName.HEAD:
            self._head.clear()
        else:
            self._maps[name].remove(field)
