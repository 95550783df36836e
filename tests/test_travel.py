"""Functions that travel by value have their types with them."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from typing import Annotated, Any, Literal

import cloudpickle  # type: ignore[import-untyped]
import pytest
from pydantic import Field

from flink_agents import ClassDeclaration, FunctionDeclaration, FunctionTool, SchemaDeclaration
from flink_agents.tools.registry import build_registry
from flink_agents.travel import resolve_types

# What a script of a user's looks like: its functions have no name that another process could import.
SCRIPT = """
from __future__ import annotations
import sys
from typing import Annotated, Literal
import datetime as dt
import cloudpickle
from pydantic import Field
from flink_agents import ClassDeclaration, FunctionDeclaration, FunctionTool
from flink_agents.travel import resolve_types

def first(day: dt.date, mode: Literal["a", "b"] = "a", limit: Annotated[int, Field(ge=1)] = 1) -> str:
    return f"{day.year} {mode} {limit}"

class Shop:
    def second(self, day: dt.date) -> int:
        return day.year

    @staticmethod
    def third(day: dt.date) -> int:
        return day.month

tools = [first, FunctionDeclaration(first, "again"), FunctionTool(first, name="ready"), ClassDeclaration(Shop)]
if "resolve" in sys.argv:
    resolve_types(tools)
sys.stdout.buffer.write(cloudpickle.dumps(tools))
"""


def sent(*words: str) -> list[Any]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, timeout=60, check=True)
    tools: list[Any] = cloudpickle.loads(done.stdout)
    return tools


def test_a_script_s_tools_arrive_with_their_types() -> None:
    registry = build_registry(sent("resolve"))
    assert registry.names() == ("first", "again", "ready", "second", "third")
    for name in ("first", "again", "ready"):
        assert registry.get(name).prepare({"day": "2024-05-06"})() == "2024 a 1"
    assert registry.get("second").prepare({"day": "2024-05-06"})() == 2024
    assert registry.get("third").prepare({"day": "2024-05-06"})() == 5


def test_without_it_they_would_not() -> None:
    with pytest.raises(Exception, match=r"'Literal' is not defined|'dt' is not defined"):
        build_registry(sent())


def at_the_top(day: dt.date) -> int:
    return day.year


def test_functions_that_travel_by_name_are_left_alone() -> None:
    resolve_types([at_the_top, FunctionDeclaration(at_the_top), FunctionTool(at_the_top)])
    assert at_the_top.__annotations__["day"] == "dt.date"


def test_nested_functions_wrong_names_and_references() -> None:
    local = Annotated[int, Field(ge=3)]

    def nested(number: local, mode: Literal["a"], nowhere: NoSuchType) -> None:  # type: ignore[name-defined]  # noqa: F821
        _ = local

    def handler(name: str, arguments: dict[str, Any]) -> None: ...

    resolve_types([nested, "module:function", SchemaDeclaration((), handler), ClassDeclaration("module:Class")])
    assert nested.__annotations__["mode"] == Literal["a"]
    assert nested.__annotations__["number"] == local
    assert nested.__annotations__["nowhere"] == "NoSuchType"
    assert handler.__annotations__["arguments"] == dict[str, Any]
