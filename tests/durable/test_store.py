"""The write-behind view of a turn."""

from __future__ import annotations

import pytest

from flink_agents.durable.head import Head
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import StateFormat
from flink_agents.testing import InMemoryBackend


@pytest.fixture
def backend() -> InMemoryBackend:
    backend = InMemoryBackend()
    backend.current_key = "k"
    return backend


def test_a_turn_sees_its_own_changes_before_they_are_written(backend: InMemoryBackend) -> None:
    backend.put(StateName.SLOTS, "1/0", "old")
    view = WriteBehind(backend)
    assert view.get(StateName.SLOTS, "1/0") == "old"
    view.put(StateName.SLOTS, "1/0", "new")
    view.insert(StateName.SLOTS, "1/1", "added")
    assert view.get(StateName.SLOTS, "1/0") == "new"
    view.remove(StateName.SLOTS, "1/0")
    assert view.get(StateName.SLOTS, "1/0") is None
    assert backend.entries("k", StateName.SLOTS) == {"1/0": "old"}
    view.flush()
    assert backend.entries("k", StateName.SLOTS) == {"1/1": "added"}


def test_what_a_turn_created_and_deleted_is_never_written(backend: InMemoryBackend) -> None:
    view = WriteBehind(backend)
    view.insert(StateName.REQUESTS, "1", "r")
    view.remove(StateName.REQUESTS, "1")
    view.flush()
    assert backend.writes == 0


def test_replacing_what_was_deleted_in_the_same_turn_is_written(backend: InMemoryBackend) -> None:
    backend.put(StateName.SLOTS, "1/0", "old")
    view = WriteBehind(backend)
    view.remove(StateName.SLOTS, "1/0")
    view.insert(StateName.SLOTS, "1/0", "new")
    view.remove(StateName.SLOTS, "1/0")
    view.flush()
    assert backend.entries("k", StateName.SLOTS) == {}


def test_a_flush_writes_each_change_once(backend: InMemoryBackend) -> None:
    view = WriteBehind(backend)
    for n in range(5):
        view.put(StateName.HEAD, "", str(n))
    view.flush()
    view.flush()
    assert backend.writes == 1


def test_a_head_survives_its_stored_form(backend: InMemoryBackend) -> None:
    view = WriteBehind(backend)
    head = Head.load(view)
    assert (head.next, head.answered, head.active, head.waiting) == (1, 0, None, 0)
    head.next, head.answered, head.active = 8, 5, 6
    head.save(view)
    view.flush()
    restored = Head.load(WriteBehind(backend))
    assert (restored.next, restored.answered, restored.active, restored.waiting) == (8, 5, 6, 2)


@pytest.mark.parametrize("text", ["junk", "[]", "{}", '{"v":2,"next":1,"answered":0,"active":null}'])
def test_what_is_no_head_of_a_known_version_is_refused(backend: InMemoryBackend, text: str) -> None:
    backend.put(StateName.HEAD, "", text)
    with pytest.raises(StateFormat, match="head"):
        Head.load(WriteBehind(backend))


def test_clearing_a_map_takes_one_step_and_what_this_turn_wrote_with_it() -> None:
    backend = InMemoryBackend()
    backend.put(StateName.SLOTS, "1/0", "old")
    backend.put(StateName.REQUESTS, "1", "kept")
    view = WriteBehind(backend)
    view.put(StateName.SLOTS, "1/1", "new")
    view.clear(StateName.SLOTS)
    assert view.get(StateName.SLOTS, "1/0") is None
    assert view.get(StateName.SLOTS, "1/1") is None
    view.put(StateName.SLOTS, "2/0", "next")
    writes = backend.writes
    view.flush()
    assert backend.writes == writes + 2
    assert backend.entries("", StateName.SLOTS) == {"2/0": "next"}
    assert backend.entries("", StateName.REQUESTS) == {"1": "kept"}


def test_the_only_value_of_a_map_leaves_without_a_write_where_it_never_reached_the_store() -> None:
    backend = InMemoryBackend()
    view = WriteBehind(backend)
    view.insert(StateName.REQUESTS, "1", "in and out")
    view.remove_only(StateName.REQUESTS, "1")
    view.flush()
    assert backend.writes == 0
    backend.put(StateName.REQUESTS, "2", "stored")
    view.remove_only(StateName.REQUESTS, "2")
    view.flush()
    assert backend.entries("", StateName.REQUESTS) == {}


def test_the_fields_of_a_map_are_listed_as_the_turn_sees_them(backend: InMemoryBackend) -> None:
    backend.put(StateName.MEMORY, "kept", "1")
    backend.put(StateName.MEMORY, "removed", "2")
    backend.put(StateName.SLOTS, "1/0", "of another map")
    view = WriteBehind(backend)
    assert view.fields(StateName.MEMORY) == ["kept", "removed"]
    view.remove(StateName.MEMORY, "removed")
    view.put(StateName.MEMORY, "new", "3")
    view.put(StateName.SLOTS, "1/1", "of another map")
    assert view.fields(StateName.MEMORY) == ["kept", "new"]
    view.clear(StateName.MEMORY)
    assert view.fields(StateName.MEMORY) == []
    view.put(StateName.MEMORY, "after", "4")
    assert view.fields(StateName.MEMORY) == ["after"]
    view.flush()
    assert backend.entries("k", StateName.MEMORY) == {"after": "4"}


def test_what_a_turn_inserted_goes_with_its_map_and_with_no_other(backend: InMemoryBackend) -> None:
    view = WriteBehind(backend)
    view.insert(StateName.REQUESTS, "1", "r")
    view.insert(StateName.SLOTS, "1/0", "s")
    view.clear(StateName.REQUESTS)
    view.remove(StateName.SLOTS, "1/0")
    view.flush()
    # The clearing; the slot was never to be written.
    assert backend.writes == 1
    assert (backend.entries("k", StateName.REQUESTS), backend.entries("k", StateName.SLOTS)) == ({}, {})
