"""ToolContext as a parameter: hidden from the model, never taken from it, filled wherever it stands."""

from __future__ import annotations

import asyncio
import functools
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

import flink_agents
from flink_agents import FunctionDeclaration, FunctionTool, SchemaDeclaration, ToolContext, tool
from flink_agents.errors import HandleMisuse, InvalidArguments, InvalidInput
from flink_agents.testing import Harness, tool_request

if TYPE_CHECKING:
    from flink_agents import ToolContext as Context


def first(ctx: ToolContext, n: int) -> list[Any]:
    """Take it first."""
    return [ctx.tool, ctx.key, n]


def last(n: int, ctx: ToolContext) -> list[Any]:
    """Take it last."""
    return [ctx.tool, ctx.key, n]


def by_position(ctx: ToolContext, n: int, /) -> list[Any]:
    """Take both by position only."""
    return [ctx.tool, ctx.key, n]


def by_keyword(n: int, *, ctx: ToolContext) -> list[Any]:
    """Take it by keyword only."""
    return [ctx.tool, ctx.key, n]


def optional(n: int, ctx: Optional[ToolContext] = None) -> list[Any]:  # noqa: UP045 - the old way to write it
    """Take it where there is one."""
    assert ctx is not None
    return [ctx.tool, ctx.key, n]


def united(n: int, ctx: ToolContext | None = None) -> list[Any]:
    """Take it where there is one."""
    return optional(n, ctx)


def annotated(n: int, ctx: Annotated[ToolContext, "of the call"]) -> list[Any]:
    """Take it with metadata."""
    return [ctx.tool, ctx.key, n]


def others(ctx: ToolContext, **more: int) -> list[Any]:
    """Take any numbers."""
    return [ctx.tool, ctx.key, more["n"]]


def twice(one: ToolContext, n: int, two: ToolContext) -> list[Any]:
    """Take it twice."""
    assert one is two
    return [one.tool, two.key, n]


async def awaited(n: int, ctx: ToolContext) -> list[Any]:
    """Take it on the loop."""
    await asyncio.sleep(0)
    return [ctx.tool, flink_agents.current_tool_context().key, n]


@tool(execution="inline")
def inline(n: int, ctx: ToolContext) -> list[Any]:
    """Take it on the task thread."""
    return [ctx.tool, ctx.key, n]


class Desk:
    """Has tools of its own."""

    def method(self, n: int, ctx: ToolContext) -> list[Any]:
        """Take it in a method."""
        return [ctx.tool, ctx.key, n]

    def __call__(self, ctx: ToolContext, n: int) -> list[Any]:
        """Take it when called."""
        return [ctx.tool, ctx.key, n]


PLACES: list[Callable[..., Any]] = [
    first, last, by_position, by_keyword, optional, united, annotated, others, twice, awaited, inline,
    Desk().method, Desk(), functools.partial(first), functools.partial(awaited),
]  # fmt: skip


@pytest.mark.parametrize(
    "function", PLACES, ids=lambda function: getattr(function, "__name__", type(function).__name__)
)
def test_it_is_hidden_and_filled_wherever_it_stands(function: Callable[..., Any]) -> None:
    made = FunctionTool(function, name="it")
    assert "ctx" not in str(made.spec.parameters)
    assert "$defs" not in made.spec.parameters
    copied = pickle.loads(pickle.dumps(made)) if function is not PLACES[-1] else made
    with Harness([copied]) as harness:
        harness.send(tool_request("k", ("it", {"n": 1})))
        harness.run()
        assert [result.get("value", result) for result in harness.results()] == [["it", "k", 1]]


@pytest.mark.parametrize("function", [first, optional, others], ids=["required", "optional", "with **kwargs"])
def test_a_model_cannot_give_one(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidArguments, match="ctx: unknown field"):
        FunctionTool(function).prepare({"n": 1, "ctx": 2})


def test_its_type_is_known_where_only_a_type_checker_imported_it() -> None:
    names: dict[str, Any] = {}
    exec(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n    from flink_agents import ToolContext\n\n\n"
        "def usual(n: int, ctx: ToolContext) -> int:\n    return n\n",
        names,
    )
    assert list(FunctionTool(names["usual"]).spec.parameters["properties"]) == ["n"]

    def moved(n: int, ctx: Context) -> int:
        return n

    with pytest.raises(InvalidInput, match="'Context' of parameter 'ctx' cannot be resolved"):
        FunctionTool(moved)


def test_what_a_partial_fixed_stays_fixed() -> None:
    given: Any = "a context of the author's"
    made = FunctionTool(functools.partial(lambda_free, ctx=given))
    assert made.prepare({"n": 1})() == (1, given)


def lambda_free(n: int, ctx: ToolContext) -> Any:
    """Return both."""
    return n, ctx


@pytest.mark.parametrize("execution", ["thread", "inline"])
def test_a_handler_takes_it_too(execution: str) -> None:
    def handler(ctx: ToolContext, name: str, arguments: dict[str, Any]) -> Any:
        return [ctx.tool, name, arguments]

    def trailing(name: str, arguments: dict[str, Any], *, ctx: ToolContext) -> Any:
        return [ctx.tool, name, arguments]

    for made in (handler, trailing):
        with Harness([SchemaDeclaration(({"name": "remote"},), made, execution=execution)]) as harness:
            harness.send(tool_request("k", ("remote", {"n": 1})))
            harness.run()
            assert harness.results()[0]["value"] == ["remote", "remote", {"n": 1}]


def test_the_context_says_what_the_call_is() -> None:
    seen: list[ToolContext] = []

    def look(ctx: ToolContext) -> None:
        """Look."""
        seen.append(ctx)
        ctx.count("looked", 2)

    with Harness([look]) as harness:
        harness.send({"id": "r", "key": 7, "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": {}}}]})
        harness.run()
        assert harness.counters.counts["tool.looked"] == 2
    (context,) = seen
    assert (context.key, context.request_id, context.call_id, context.tool, context.attempt) == (7, "r", "c", "look", 1)
    assert (context.cancelled, context.remaining_s) == (False, None)
    assert len(context.idempotency_key) == 64


def test_outside_a_call_there_is_none() -> None:
    with pytest.raises(HandleMisuse, match="no tool call here"):
        flink_agents.current_tool_context()


def test_a_tool_by_reference_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "referred.py").write_text(
        "from flink_agents import ToolContext\n\n\ndef look(ctx: ToolContext, n: int) -> list[object]:\n"
        "    return [ctx.tool, n]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with Harness([FunctionDeclaration("referred:look")]) as harness:
        harness.send(tool_request("k", ("look", {"n": 1})))
        harness.run()
        assert harness.results()[0]["value"] == ["look", 1]
