from __future__ import annotations

import asyncio
import functools
import pickle
import timeit
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import Field
from typing_extensions import TypedDict, Unpack

from flink_agents.errors import InvalidArguments, InvalidInput, InvalidOption
from flink_agents.options import Execution
from flink_agents.tools import FunctionTool, tool


def look_up(order_id: str, limit: int = 10) -> tuple[str, int]:
    """Look an order up.

    Slow on Mondays.

    Args:
        order_id: as printed on the invoice
        limit: how many lines at most
    """
    return order_id, limit


async def fetch(url: str) -> str:
    return url


def call(function: Callable[..., Any], /, **arguments: Any) -> Any:
    return FunctionTool(function, name="t").prepare(arguments)()


def test_schema_comes_from_signature_and_docstring() -> None:
    spec = FunctionTool(look_up).spec
    assert (spec.name, spec.execution, spec.max_concurrent) == ("look_up", Execution.THREAD, None)
    assert spec.description == "Look an order up.\n\nSlow on Mondays."
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": "as printed on the invoice"},
            "limit": {"type": "integer", "description": "how many lines at most", "default": 10},
        },
        "required": ["order_id"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "docstring",
    [
        "Do it.\n\nArgs:\n    a: the thing",
        "Do it.\n\nParameters\n----------\na : int\n    the thing",
        "Do it.\n\n:param a: the thing",
    ],
)
def test_docstring_styles(docstring: str) -> None:
    def function(a: int) -> int:
        return a

    function.__doc__ = docstring
    spec = FunctionTool(function).spec
    assert (spec.description, spec.parameters["properties"]["a"]["description"]) == ("Do it.", "the thing")


def test_a_description_of_the_annotation_wins_over_the_docstring() -> None:
    def function(a: Annotated[int, Field(description="annotated")]) -> int:
        """Do it.

        Args:
            a: documented
        """
        return a

    assert FunctionTool(function).spec.parameters["properties"]["a"]["description"] == "annotated"


def test_nobody_can_change_the_schema_through_a_refusal() -> None:
    made = FunctionTool(look_up)
    with pytest.raises(InvalidArguments) as caught:
        made.prepare({})
    caught.value.expected["properties"].clear()
    assert "order_id" in made.spec.parameters["properties"]


class Shop:
    """A shop."""

    def find(self, sku: str) -> str:
        """Find it."""
        return sku

    async def __call__(self, sku: str) -> str:
        """Call it."""
        return sku


def test_methods_and_callable_objects() -> None:
    found = FunctionTool(Shop().find)
    assert (found.spec.name, found.spec.description, found.prepare({"sku": "x"})()) == ("find", "Find it.", "x")
    called = FunctionTool(Shop(), name="shop")
    assert (called.spec.execution, called.spec.description) == (Execution.ASYNC, "Call it.")


def test_a_decorated_function_keeps_its_signature() -> None:
    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    assert FunctionTool(traced(look_up)).spec == FunctionTool(look_up).spec
    assert call(traced(look_up), order_id="x") == ("x", 10)


def test_async_functions_run_on_the_loop() -> None:
    made = FunctionTool(fetch)
    assert made.spec.execution is Execution.ASYNC
    assert FunctionTool(functools.partial(fetch), name="f").spec.execution is Execution.ASYNC
    assert asyncio.run(made.prepare({"url": "u"})()) == "u"


@pytest.mark.parametrize(
    ("function", "execution", "part"),
    [
        (fetch, "inline", "an async def runs on the event loop"),
        (fetch, Execution.THREAD, "an async def runs on the event loop"),
        (look_up, "async", "needs an async def"),
        (look_up, "fast", "one of thread, async, inline"),
    ],
)
def test_execution_that_cannot_run_the_function(
    function: Callable[..., Any], execution: Execution | str, part: str
) -> None:
    with pytest.raises(InvalidInput, match=part):
        FunctionTool(function, execution=execution)


@pytest.mark.parametrize("bound", [0, -1, True, 1.5, "2"])
def test_bound_must_be_a_whole_number(bound: Any) -> None:
    with pytest.raises(InvalidInput, match="max_concurrent"):
        FunctionTool(look_up, max_concurrent=bound)


def _untyped(a):  # type: ignore[no-untyped-def]
    return a


def _variadic(*a: int) -> None: ...


def _unresolvable(a: NotDefinedAnywhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def _no_schema(b: int, a: Callable[[], int]) -> None: ...


def _foreign(b: int, a: Shop) -> None: ...


def _aliased(a: Annotated[str, Field(alias="x")], **rest: Any) -> None: ...


class Fields(TypedDict):
    a: int


def _unpacked(**rest: Unpack[Fields]) -> None: ...


def _extras(a: int, **rest: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (_untyped, "parameter 'a' has no type"),
        (_variadic, r"\*a has no place in a JSON object"),
        (_unresolvable, "type 'NotDefinedAnywhere' of parameter 'a' cannot be resolved"),
        (_no_schema, "type of parameter 'a' has no JSON Schema"),
        (_foreign, "type of parameter 'a' has no JSON Schema"),
        (_aliased, "'a' has an alias"),
        (_unpacked, "write the fields as parameters"),
        (functools.partial(_extras, a=1), "override what the partial fixed"),
        (lambda: None, "no name of its own"),
        (Shop, "must be a function"),
        (5, "must be a function"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_the_reason(function: Any, part: str) -> None:
    with pytest.raises(InvalidInput, match=part) as caught:
        FunctionTool(function)
    assert "\n" not in str(caught.value)


@tool
def plain(a: int) -> int:
    return a


@tool(name="shop.find", description="Finds.", execution="inline", max_concurrent=2)
def decorated(a: int) -> int:
    """Documented."""
    return a


def test_decorator_declares_and_leaves_the_function_alone() -> None:
    assert (plain(1), decorated(2)) == (1, 2)
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert FunctionTool(plain).spec.name == "plain"
    spec = FunctionTool(decorated).spec
    assert (spec.name, spec.description, spec.execution, spec.max_concurrent) == (
        "shop.find",
        "Finds.",
        Execution.INLINE,
        2,
    )


def test_explicit_options_win_over_the_decorator() -> None:
    spec = FunctionTool(decorated, name="n", description="", execution=Execution.THREAD, max_concurrent=3).spec
    assert (spec.name, spec.description, spec.execution, spec.max_concurrent) == ("n", "", Execution.THREAD, 3)


def test_unknown_option_of_the_decorator() -> None:
    with pytest.raises(InvalidOption, match="@tool has no option 'nmae'; did you mean 'name'\\?"):
        tool(nmae="x")  # type: ignore[call-overload]
    with pytest.raises(
        InvalidOption, match=r"has no option 'colour'; it takes execution, max_concurrent, .*, name, desc"
    ):
        tool(colour="x")  # type: ignore[call-overload]


def test_a_tool_survives_pickling_and_still_validates() -> None:
    original = FunctionTool(decorated)
    original.prepare({"a": 1})
    copy = pickle.loads(pickle.dumps(original))
    assert copy.spec == original.spec
    assert copy.prepare({"a": "5"})() == 5
    with pytest.raises(InvalidArguments):
        copy.prepare({})


def test_preparing_is_quick_enough_for_the_task_thread() -> None:
    made = FunctionTool(look_up)
    arguments = {"order_id": "A-1", "limit": 5}
    best = min(timeit.repeat(lambda: made.prepare(arguments), number=2000, repeat=20)) / 2000
    # Ten times what it takes: this is to notice another order of magnitude, not a busy machine.
    assert best < 10e-6
