from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from flink_agents.errors import InvalidInput, UnknownTool
from flink_agents.options import Execution
from flink_agents.tools import FunctionTool, SchemaTool, Tool, ToolSpec, tool
from flink_agents.tools.base import Body
from flink_agents.tools.registry import FunctionDeclaration, SchemaDeclaration, ToolRegistry, build_registry

MODULE = """
from flink_agents.tools import FunctionTool, tool

@tool(max_concurrent=4)
def find_order(order_id: str) -> str:
    return order_id

ready = FunctionTool(find_order, name="ready", description="Ready.")

def handle(tool_name, arguments):
    return tool_name
"""


def find_order(order_id: str) -> str:
    return order_id


def handle(tool_name: str, arguments: dict[str, Any]) -> str:
    return tool_name


class Own(Tool):
    spec = ToolSpec(name="own", description="")

    def prepare(self, arguments: dict[str, Any]) -> Body:
        return lambda: arguments


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "registry_under_test", raising=False)
    (tmp_path / "registry_under_test.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def test_everything_a_job_may_list(beside: Path) -> None:
    registry = build_registry(
        [
            find_order,
            Own(),
            FunctionTool(find_order, name="as_tool"),
            FunctionDeclaration(find_order, name="declared", execution="inline", max_concurrent=2),
            FunctionDeclaration("registry_under_test:find_order", name="by_reference"),
            FunctionDeclaration("registry_under_test:ready", name="renamed"),
            "registry_under_test:ready",
            SchemaDeclaration(({"name": "a.b"}, {"name": "a.c"}), "registry_under_test:handle", max_concurrent=5),
            SchemaDeclaration(({"name": "a.d"},), handle, execution=Execution.INLINE),
        ],
        [beside],
    )
    assert registry.names() == (
        *("find_order", "own", "as_tool", "declared", "by_reference", "renamed", "ready", "a.b", "a.c", "a.d"),
    )
    assert [spec.name for spec in registry.specs()] == list(registry.names())
    declared, referred, renamed = (registry.get(name).spec for name in ("declared", "by_reference", "renamed"))
    assert (declared.execution, declared.max_concurrent) == (Execution.INLINE, 2)
    assert referred.max_concurrent == 4
    assert (renamed.description, renamed.max_concurrent) == ("Ready.", 4)
    assert registry.get("a.b").spec.max_concurrent == 5
    assert registry.get("a.c").prepare({})() == "a.c"
    assert isinstance(registry.get("a.d"), SchemaTool)
    assert len(registry) == 10
    assert "own" in registry


@pytest.mark.parametrize(
    "twice",
    [
        [find_order, FunctionTool(find_order)],
        [find_order, SchemaDeclaration(({"name": "find_order"},), handle)],
    ],
)
def test_a_name_that_occurs_twice(twice: list[Any]) -> None:
    with pytest.raises(InvalidInput, match="two tools are named 'find_order'"):
        build_registry(twice)


def test_options_for_a_tool_that_sets_its_own() -> None:
    own: Any = Own()
    with pytest.raises(InvalidInput, match="takes no options here"):
        build_registry([FunctionDeclaration(own, name="other")])
    assert build_registry([FunctionDeclaration(own)]).names() == ("own",)


@pytest.mark.parametrize("wrong", ["find_order", "not_there_at_all:x", 5, None, ("a", "b")])
def test_what_is_no_tool(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        build_registry([wrong])


def test_declarations_travel_with_the_job() -> None:
    declared = [FunctionDeclaration("m:f", name="n"), SchemaDeclaration(({"name": "a"},), "m:h"), find_order]
    assert pickle.loads(pickle.dumps(declared)) == declared


def test_a_registry_travels_too() -> None:
    registry = pickle.loads(pickle.dumps(build_registry([find_order])))
    assert registry.get("find_order").prepare({"order_id": "x"})() == "x"


@pytest.mark.rule(4)
def test_an_unknown_tool_is_told_with_the_nearest_and_what_there_is() -> None:
    registry = build_registry([find_order, Own()])
    for _ in range(2):
        with pytest.raises(UnknownTool) as caught:
            registry.get("find_ordr")
        assert str(caught.value) == (
            "there is no tool 'find_ordr'. Did you mean 'find_order'? The tools are: find_order, own"
        )


@pytest.mark.rule(4)
@pytest.mark.parametrize("name", ["", "x" * 1_000_000, "\ud800", "ü" * 5000])
def test_an_unknown_name_is_bounded_in_text(name: str) -> None:
    entries = tuple({"name": f"tool_number_{n}"} for n in range(1000))
    registry = build_registry([SchemaDeclaration(entries, handle)])
    with pytest.raises(UnknownTool) as caught:
        registry.get(name)
    assert len(str(caught.value).encode()) < 1024


def test_guesses_do_not_grow_for_ever() -> None:
    registry = ToolRegistry([Own()])
    for n in range(1000):
        with pytest.raises(UnknownTool):
            registry.get(f"own{n}")
    assert len(registry._guesses) <= 256


def test_an_empty_registry() -> None:
    with pytest.raises(UnknownTool, match="The tools are: none"):
        build_registry([]).get("x")


def test_the_decorator_is_honoured() -> None:
    @tool(name="renamed", max_concurrent=1)
    def function() -> None: ...

    assert build_registry([function]).get("renamed").spec.max_concurrent == 1
