"""The keyed store over Flink's state: how a map is cleared on each backend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyflink")

from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.runtime.flink_state import FlinkStore


class Map:
    """In the place of Flink's map state: notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def put(self, field: str, value: str) -> None:
        self.asked.append(("put", field))

    def remove(self, field: str) -> None:
        self.asked.append(("remove", field))

    def clear(self) -> None:
        self.asked.append("clear")


class Context:
    """In the place of PyFlink's runtime context, over a backend of the given Java class."""

    def __init__(self, backend: str) -> None:
        java_class = SimpleNamespace(getName=lambda: backend)
        self._backend = SimpleNamespace(_keyed_state_backend=SimpleNamespace(getClass=lambda: java_class))
        self.maps: dict[str, Map] = {}

    def get_keyed_state_backend(self) -> Any:
        return self._backend

    def get_state(self, descriptor: Any) -> Any:
        return None

    def get_map_state(self, descriptor: Any) -> Map:
        return self.maps.setdefault(descriptor.name, Map())


def cleared(backend: str, known: list[str] | None) -> list[Any]:
    context = Context(backend)
    view = WriteBehind(FlinkStore(context, 1000))
    view.clear(StateName.SLOTS, known)
    view.flush()
    return context.maps["slots"].asked


ROCKSDB = "org.apache.flink.state.rocksdb.RocksDBKeyedStateBackend"
HEAP = "org.apache.flink.runtime.state.heap.HeapKeyedStateBackend"


def test_known_values_leave_rocksdb_by_name_because_clearing_passes_over_all_that_was_deleted_before() -> None:
    assert cleared(ROCKSDB, ["7/0", "7/1"]) == [("remove", "7/0"), ("remove", "7/1")]


def test_the_heap_clears_in_one_step() -> None:
    assert cleared(HEAP, ["7/0", "7/1"]) == ["clear"]


def test_what_is_not_known_by_name_is_cleared() -> None:
    assert cleared(ROCKSDB, None) == ["clear"]


def test_what_the_turn_removed_before_is_removed_with_the_rest() -> None:
    context = Context(ROCKSDB)
    view = WriteBehind(FlinkStore(context, 1000))
    view.insert(StateName.REQUESTS, "3", "never written")
    view.remove(StateName.REQUESTS, "1")
    view.put(StateName.REQUESTS, "4", "written before, or now")
    view.remove_only(StateName.REQUESTS, "2")
    view.clear(StateName.REQUESTS, ["5"])
    view.flush()
    assert sorted(context.maps["requests"].asked) == [("remove", field) for field in "1245"]
