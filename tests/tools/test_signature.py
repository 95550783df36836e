from __future__ import annotations

import datetime as dt
import enum
import functools
import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from flink_agents.errors import InvalidArguments
from flink_agents.tools import FunctionTool
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


def call(function: Callable[..., Any], /, **arguments: Any) -> Any:
    return FunctionTool(function, name="t").prepare(arguments)()


def refused(function: Callable[..., Any], /, **arguments: Any) -> InvalidArguments:
    with pytest.raises(InvalidArguments) as caught:
        FunctionTool(function, name="t").prepare(arguments)
    return caught.value


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


def test_an_error_of_the_authors_own_validator_is_not_an_argument_error() -> None:
    class Broken(BaseModel):
        a: int

        def model_post_init(self, context: Any, /) -> None:
            raise LookupError("of the author")

    def function(b: Any) -> None: ...

    function.__annotations__["b"] = Broken
    with pytest.raises(LookupError, match="of the author"):
        FunctionTool(function).prepare({"b": {"a": 1}})
