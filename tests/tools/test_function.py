from __future__ import annotations

import asyncio
import datetime as dt
import enum
import functools
import pickle
import timeit
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict, Unpack

from flink_agents.errors import InvalidArguments, InvalidInput
from flink_agents.options import Execution
from flink_agents.tools import FunctionTool, tool
from flink_agents.tools.refusal import MAX_MESSAGE_BYTES


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    """A part of something."""

    sku: str
    count: int = 1
    inner: Part | None = None


@dataclass
class Address:
    street: str
    number: int = 1


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


def refused(function: Callable[..., Any], /, **arguments: Any) -> InvalidArguments:
    with pytest.raises(InvalidArguments) as caught:
        FunctionTool(function, name="t").prepare(arguments)
    return caught.value


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


def test_rich_types_reach_the_function() -> None:
    def function(
        part: Part,
        address: Address,
        colour: Colour,
        mode: Literal["a", "b"],
        level: Annotated[int, Field(ge=1, le=9)],
        parts: list[Part],
        table: dict[str, list[int]],
        when: dt.datetime,
        day: dt.date,
        price: Decimal,
        key: uuid.UUID,
        either: int | str,
        pair: tuple[int, str],
        names: set[str],
        maybe: int | None,
        anything: Any,
    ) -> dict[str, Any]:
        return dict(locals())

    got = call(
        function,
        part={"sku": "s", "inner": {"sku": "t"}},
        address={"street": "Long"},
        colour="blue",
        mode="b",
        level=9,
        parts=[{"sku": "u", "count": 2}],
        table={"k": [1, 2]},
        when="2024-05-06T07:08:09Z",
        day="2024-05-06",
        price="1.10",
        key="12345678-1234-5678-1234-567812345678",
        either="5",
        pair=[1, "x"],
        names=["n"],
        maybe=None,
        anything={"a": [None, 1.5]},
    )
    assert got == {
        "part": Part(sku="s", inner=Part(sku="t")),
        "address": Address("Long", 1),
        "colour": Colour.BLUE,
        "mode": "b",
        "level": 9,
        "parts": [Part(sku="u", count=2)],
        "table": {"k": [1, 2]},
        "when": dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.timezone.utc),
        "day": dt.date(2024, 5, 6),
        "price": Decimal("1.10"),
        "key": uuid.UUID("12345678-1234-5678-1234-567812345678"),
        "either": "5",
        "pair": (1, "x"),
        "names": {"n"},
        "maybe": None,
        "anything": {"a": [None, 1.5]},
    }


@pytest.mark.parametrize(
    ("hint", "asked", "expected"),
    [
        (int, 5, 5),
        (int, 5.0, 5),
        (int, "5", 5),
        (int, 2**70, 2**70),
        (float, 1, 1.0),
        (float, "1.5", 1.5),
        (bool, True, True),
        (bool, "true", True),
        (bool, "no", False),
        (bool, 0, False),
        (int | bool, True, True),
        (list[int], ["1", 2.0], [1, 2]),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (str, "", ""),
    ],
)
def test_what_models_send_is_converted_by_the_documented_rule(hint: Any, asked: Any, expected: Any) -> None:
    def function(a: Any) -> Any:
        return a

    function.__annotations__["a"] = hint
    got = call(function, a=asked)
    assert (got, type(got)) == (expected, type(expected))


@pytest.mark.rule(4)
@pytest.mark.parametrize(
    ("hint", "asked"),
    [
        (int, 5.5),
        (int, True),
        (int, "five"),
        (int, None),
        (int, []),
        (int, "9" * 100_000),
        (float, True),
        (float, "NaN"),
        (float, float("inf")),
        (bool, "maybe"),
        (bool, 2),
        (str, 5),
        (str, True),
        (str, None),
        (list[int], [1, False]),
        (list[int], "1"),
        (list[int], ["x"] * 50_000),
        (dict[str, float], {"a": {"b": 1}}),
        (int | None, True),
        (Annotated[int, Field(ge=1)], 0),
        (Annotated[int, Field(ge=1)], True),
        (dt.datetime, 20240101),
        (dt.datetime, "20240101"),
        (dt.date, 0),
        (dt.time, "1e3"),
        (Literal["a", "b"], "c"),
        (Colour, "green"),
        (Part, '{"sku": "s"}'),
        (Address, {"street": "s", "town": "t"}),
    ],
)
def test_what_does_not_fit_is_refused_by_field_and_with_the_schema(hint: Any, asked: Any) -> None:
    def function(a: Any) -> Any:
        raise AssertionError

    function.__annotations__["a"] = hint
    error = refused(function, a=asked)
    lines = str(error).splitlines()
    assert lines[0] == "invalid arguments for tool 't':"
    assert lines[1].startswith("- a")
    assert len(str(error).encode()) <= MAX_MESSAGE_BYTES
    assert error.expected == FunctionTool(function, name="t").spec.parameters


@pytest.mark.rule(4)
def test_every_wrong_field_is_named() -> None:
    def function(part: Part, level: int, mode: Literal["a"] = "a") -> None:
        raise AssertionError

    error = refused(function, part={"count": "x"}, mode="b", levle=1)
    assert str(error).splitlines() == [
        "invalid arguments for tool 't':",
        "- part.sku: required, but missing",
        "- part.count: Input should be a valid integer, unable to parse string as an integer (got string)",
        "- level: required, but missing",
        "- mode: Input should be 'a' (got string)",
        "- levle: unknown field, did you mean 'level'?",
    ]


@pytest.mark.rule(4)
def test_a_refusal_is_bounded_and_does_not_repeat_what_came() -> None:
    def function(a: list[int]) -> None:
        raise AssertionError

    secret = "hunter2" * 20_000
    error = refused(function, a=[secret] * 100, **{secret: secret})
    assert len(str(error).encode()) <= MAX_MESSAGE_BYTES
    assert "and 93 more" in str(error)
    assert "hunter2" not in str(refused(function, a=[secret]))
    assert error.__cause__ is None
    assert error.__suppress_context__


@pytest.mark.rule(4)
def test_a_lone_surrogate_is_refused_in_text_that_utf8_can_carry() -> None:
    def function(a: str) -> None:
        raise AssertionError

    str(refused(function, a=["\ud800"])).encode()
    str(refused(function, a="x", **{"\ud800": 1})).encode()


@pytest.mark.rule(4)
def test_nesting_beyond_the_validators_depth_is_refused() -> None:
    def function(part: Part) -> None:
        raise AssertionError

    nested: dict[str, Any] = {"sku": "s"}
    for _ in range(2000):
        nested = {"sku": "s", "inner": nested}
    assert len(str(refused(function, part=nested))) <= MAX_MESSAGE_BYTES


def test_nobody_can_change_the_schema_through_a_refusal() -> None:
    made = FunctionTool(look_up)
    with pytest.raises(InvalidArguments) as caught:
        made.prepare({})
    caught.value.expected["properties"].clear()
    assert "order_id" in made.spec.parameters["properties"]


def test_each_call_has_its_own_copy_of_a_mutable_default() -> None:
    def function(
        plain: list[int] = [1],  # noqa: B006
        nested: Any = {"a": []},  # noqa: B006
        made: list[int] = Field(default_factory=list),  # noqa: B008
    ) -> tuple[list[int], Any, list[int]]:
        plain.append(2)
        nested["a"].append(2)
        made.append(2)
        return plain, nested, made

    made = FunctionTool(function)
    before = pickle.dumps(made.spec.parameters)
    assert [made.prepare({})() for _ in range(3)] == [([1, 2], {"a": [2]}, [2])] * 3
    assert pickle.dumps(made.spec.parameters) == before


def test_a_default_of_none_takes_null() -> None:
    def function(a: int = None, b: Literal["x"] = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013
        return a, b

    assert call(function, a=None, b=None) == (None, None)
    assert call(function) == (None, None)


def test_a_default_that_json_cannot_show_stays_out_of_the_schema() -> None:
    unset = object()

    def function(a: Any = unset) -> bool:
        return a is unset

    assert FunctionTool(function).spec.parameters["properties"] == {"a": {}}
    assert call(function)


def test_a_field_default_makes_a_parameter_optional() -> None:
    def function(a: int = Field(3, ge=1), b: Annotated[int, Field(default=4)] = 5) -> tuple[int, int]:
        return a, b

    assert call(function) == (3, 5)
    assert FunctionTool(function).spec.parameters["properties"]["a"] == {"type": "integer", "default": 3, "minimum": 1}
    assert "greater than or equal to 1" in str(refused(function, a=0))
    refused(function, a=True)


def test_parameter_names_that_models_cannot_have() -> None:
    def function(copy: int, json: int, model_config: int, _hidden: int, self: int) -> tuple[int, ...]:
        return copy, json, model_config, _hidden, self

    assert call(function, copy=1, json=2, model_config=3, _hidden=4, self=5) == (1, 2, 3, 4, 5)


def test_an_alias_is_the_name_a_model_uses() -> None:
    def function(order_id: Annotated[str, Field(alias="orderId")]) -> str:
        return order_id

    assert call(function, orderId="x") == "x"
    assert list(FunctionTool(function).spec.parameters["properties"]) == ["orderId"]
    assert "did you mean 'orderId'?" in str(refused(function, order_id="x"))


def test_positional_only_and_extra_fields() -> None:
    def function(a: int, b: int = 2, /, c: int = 3, *, d: int = 4, **rest: int) -> Any:
        return a, b, c, d, rest

    assert call(function, a="1", e="5") == (1, 2, 3, 4, {"e": 5})
    assert call(function, a=1, b=6, d=7) == (1, 6, 3, 7, {})
    assert FunctionTool(function).spec.parameters["additionalProperties"] == {"type": "integer"}
    assert "- e: " in str(refused(function, a=1, e="x"))
    assert "- e: " in str(refused(function, a=1, e=True))


def test_untyped_extra_fields_take_anything() -> None:
    def function(**rest):  # type: ignore[no-untyped-def]
        return rest

    assert call(function, a=[1], function=2, self=3) == {"a": [1], "function": 2, "self": 3}
    assert FunctionTool(function).spec.parameters["additionalProperties"] is True


def test_extra_fields_of_a_model_type_bring_their_definitions() -> None:
    def function(address: Address, **rest: Part) -> Any:
        return address, rest

    parameters = FunctionTool(function).spec.parameters
    assert parameters["additionalProperties"] == {"$ref": "#/$defs/Part"}
    assert sorted(parameters["$defs"]) == ["Address", "Part"]
    assert call(function, address={"street": "s"}, p={"sku": "x"}) == (Address("s"), {"p": Part(sku="x")})


def test_what_a_partial_fixed_is_neither_seen_nor_overridden() -> None:
    def function(a: int, b: int, c: str = "c") -> tuple[int, int, str]:
        return a, b, c

    fixed = functools.partial(function, 1, c="secret")
    assert list(FunctionTool(fixed).spec.parameters["properties"]) == ["b"]
    assert call(fixed, b=2) == (1, 2, "secret")
    assert "- c: unknown field" in str(refused(fixed, b=2, c="spoofed"))


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
    with pytest.raises(TypeError, match="nmae"):
        tool(nmae="x")  # type: ignore[call-overload]


def test_a_tool_survives_pickling_and_still_validates() -> None:
    original = FunctionTool(decorated)
    original.prepare({"a": 1})
    copy = pickle.loads(pickle.dumps(original))
    assert copy.spec == original.spec
    assert copy.prepare({"a": "5"})() == 5
    with pytest.raises(InvalidArguments):
        copy.prepare({})


def test_an_error_of_the_authors_own_validator_is_not_an_argument_error() -> None:
    class Broken(BaseModel):
        a: int

        def model_post_init(self, context: Any, /) -> None:
            raise LookupError("of the author")

    def function(b: Any) -> None: ...

    function.__annotations__["b"] = Broken
    with pytest.raises(LookupError, match="of the author"):
        FunctionTool(function).prepare({"b": {"a": 1}})


def test_preparing_is_quick_enough_for_the_task_thread() -> None:
    made = FunctionTool(look_up)
    arguments = {"order_id": "A-1", "limit": 5}
    best = min(timeit.repeat(lambda: made.prepare(arguments), number=2000, repeat=20)) / 2000
    # Ten times what it takes: this is to notice another order of magnitude, not a busy machine.
    assert best < 10e-6
