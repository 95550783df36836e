"""Memory of a key: a tree of values that is written with the answer and seen alike on every replay."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from typing import Any

import pytest

from flink_agents import ActionContext, Agent, InputEvent, OutputEvent, action
from flink_agents.durable.memory import KeyMemory
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import HandleMisuse, Unserializable
from flink_agents.testing import ControlledTool, Harness
from flink_agents.testing.store import InMemoryBackend


class Kept:
    """The memory of one key over several requests."""

    def __init__(self) -> None:
        self.backend = InMemoryBackend()

    def open(self) -> KeyMemory:
        backend = self.backend
        return KeyMemory(lambda path: backend.get(StateName.MEMORY, path), lambda: backend.fields(StateName.MEMORY))

    def answer(self, memory: KeyMemory) -> KeyMemory:
        store = WriteBehind(self.backend)
        memory.flush(store)
        store.flush()
        return self.open()


@pytest.mark.rule(19, 20)
@pytest.mark.parametrize("value", [None, "", 0, False, [], {}, {"a": [1]}, (1, 2), {1, 2}, datetime.now(timezone.utc)])
def test_what_is_set_is_read_alike_before_and_after_it_is_written(value: Any) -> None:
    kept = Kept()
    memory = kept.open()
    memory.set("a.b", value)
    assert [memory.get("a.b", "none"), type(memory.get("a.b"))] == [value, type(value)]
    assert "a.b" in memory
    assert kept.open().get("a.b", "none") == "none"
    memory = kept.answer(memory)
    assert [memory.get("a.b", "none"), type(memory.get("a.b"))] == [value, type(value)]


def test_paths_make_a_tree() -> None:
    kept = Kept()
    memory = kept.open()
    memory.set("customer.tier", "gold")
    memory.set("customer.name.first", "Ada")
    memory = kept.answer(memory)
    assert memory.read("customer") == {"tier": "gold", "name": {"first": "Ada"}}
    memory.set("customer", {"tier": "none"})
    assert [memory.get("customer.tier"), memory.get("customer.name.first")] == ["none", None]
    memory.set("customer.name.last", "Lovelace")
    memory = kept.answer(memory)
    assert memory.read("customer") == {"tier": "none", "name": {"last": "Lovelace"}}
    memory.delete("customer.name.last")
    memory.delete("customer.street.number")
    assert memory.read("customer") == {"tier": "none", "name": {}}
    memory.delete("customer")
    memory = kept.answer(memory)
    assert "customer" not in memory
    assert kept.backend.fields(StateName.MEMORY) == []


def test_any_order_of_changes_equals_a_tree_of_dicts() -> None:
    drawn = random.Random(7)
    for _ in range(300):
        kept = Kept()
        tree: dict[str, Any] = {}
        memory = kept.open()
        for step in range(12):
            path = ".".join(drawn.choices("ab", k=drawn.randint(1, 3)))
            parents, _, last = path.rpartition(".")
            at: Any = tree
            for part in filter(None, parents.split(".")):
                at = at.get(part) if isinstance(at, dict) else None
            if drawn.random() < 0.3:
                memory.delete(path)
                if isinstance(at, dict):
                    at.pop(last, None)
            elif _leads_through_a_value(tree, path):
                with pytest.raises(HandleMisuse, match="leads through it"):
                    memory.set(path, step)
            else:
                memory.set(path, step)
                at = tree
                for part in filter(None, parents.split(".")):
                    at = at.setdefault(part, {})
                at[last] = step
            if drawn.random() < 0.3:
                memory = kept.answer(memory)
        assert _filled({name: memory.get(name) for name in "ab" if name in memory}) == _filled(tree)


def _filled(tree: Any) -> Any:
    """Return the tree without objects that hold nothing, which need not be remembered."""
    if not isinstance(tree, dict):
        return tree
    return {name: item for name, value in tree.items() if (item := _filled(value)) != {}}


def _leads_through_a_value(tree: Any, path: str) -> bool:
    for part in path.split(".")[:-1]:
        tree = tree.get(part, {})
        if not isinstance(tree, dict):
            return True
    return False


def test_what_is_not_there_is_named() -> None:
    memory = Kept().open()
    memory.set("a", {"text": "tier", "list": ["tier"]})
    for path in ("b", "a.b", "a.b.c", "a.text.tier", "a.list.tier"):
        with pytest.raises(KeyError) as raised:
            memory.read(path)
        assert raised.value.args == (path,)
    with pytest.raises(HandleMisuse) as refused:
        memory.set("a.text.tier", 1)
    assert str(refused.value) == "memory 'a.text.tier': 'a' holds a dict, and 'a.text.tier' leads through it"


def test_a_value_that_is_read_is_a_copy() -> None:
    memory = Kept().open()
    value = [1]
    memory.set("list", value)
    value.append(2)
    memory.get("list").append(3)
    assert memory.get("list") == [1]


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", 7, None])
def test_what_is_no_path_is_refused(path: Any) -> None:
    memory = Kept().open()
    for use in (memory.get, memory.delete, memory.__contains__, lambda wrong: memory.set(wrong, 1)):
        with pytest.raises(HandleMisuse, match="a memory path is text such as"):
            use(path)


def test_types_are_checked_where_asked_for() -> None:
    memory = Kept().open()
    memory.set("n", 1)
    assert (memory.get("n", expect=int), memory.get("m", expect=int), memory.get("m", 3)) == (1, None, 3)
    with pytest.raises(HandleMisuse, match="memory 'n' holds a int, not a str"):
        memory.get("n", expect=str)
    with pytest.raises(Unserializable):
        memory.set("n", object())


class Counting(Agent):
    """Counts the requests of a key."""

    @action(InputEvent)
    async def count(self, event: InputEvent, ctx: ActionContext) -> None:
        before = ctx.memory.get("count", 0)
        ctx.memory.set("count", before + 1)
        await ctx.call_tool("held", {})
        if event.input.get("fails"):
            raise LookupError
        ctx.send_event(OutputEvent([before, ctx.memory.get("count")]))


@pytest.mark.rule(25)
def test_memory_is_written_with_the_answer_and_a_replay_sees_what_was_there() -> None:
    held = ControlledTool("held")
    with Harness([held], agent=Counting) as harness:

        def answer() -> None:
            held.running[-1].succeed(None)
            harness.run()

        harness.send({"key": "k"}, {"key": "k", "fails": True}, {"key": "k"})
        harness.run()
        answer()
        assert harness.backend.entries('"k"', StateName.MEMORY) == {"count": "1"}
        harness.checkpoint()
        # A failed action leaves the memory as it was.
        answer()
        assert harness.backend.entries('"k"', StateName.MEMORY) == {"count": "1"}
        harness.crash()
        harness.run()
        answer()
        harness.checkpoint()
        harness.crash()
        harness.run()
        answer()
        assert [line.get("output") for line in harness.responses] == [[0, 1], None, [1, 2]]
        assert harness.backend.entries('"k"', StateName.MEMORY) == {"count": "2"}
        assert (harness.slots("k"), harness.pending_requests("k")) == ({}, [])


def test_memory_belongs_to_one_key() -> None:
    held = ControlledTool("held")
    with Harness([held], agent=Counting, always_replay=True) as harness:
        harness.send({"key": 1}, {"key": "1"})
        harness.run()
        for call in list(held.running):
            call.succeed(None)
        harness.run()
        assert [line["output"] for line in harness.responses] == [[0, 1], [0, 1]]


class ReadingLate(Agent):
    """Remembers, and reads only once a call has ended."""

    @action(InputEvent)
    async def read(self, event: InputEvent, ctx: ActionContext) -> None:
        await ctx.call_tool("held", {})
        before = [ctx.memory.get("a.b"), ctx.memory.get("a")]
        ctx.memory.set("a.b", event.input["n"])
        ctx.send_event(OutputEvent(before))


def test_what_is_read_in_a_later_turn_is_what_was_remembered() -> None:
    held = ControlledTool("held")
    with Harness([held], agent=ReadingLate) as harness:
        for n in (1, 2):
            harness.send({"key": "k", "n": n})
            harness.run()
            held.running[-1].succeed(None)
            harness.run()
        assert [line["output"] for line in harness.responses] == [[None, None], [1, {"b": 1}]]
