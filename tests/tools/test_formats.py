"""The tools' schemas as model APIs take them, held against the official clients' own types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import anthropic.types
import jsonschema_rs
import mcp.types
import openai.types.chat
import pytest
from pydantic import BaseModel, Field, SecretStr, TypeAdapter

from flink_agents.errors import InvalidInput
from flink_agents.tools import FunctionTool, SchemaTool, ToolSpec
from flink_agents.tools.formats import FORMATS, to_format


def play(artist: str) -> None:
    """Play."""


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """One line of an order."""

    sku: str = Field(pattern="^[A-Z]+$")
    colour: Colour | None = None
    parts: list[Item] = []


@dataclass
class Address:
    street: str
    lines: tuple[str, int]


HIDDEN = SecretStr("hidden")


def order(
    items: list[Item],
    to: Address,
    when: datetime,
    price: Decimal,
    currency: Literal["EUR", "USD"] = "EUR",
    note: str | int | None = None,
    tags: dict[str, set[int]] | None = None,
    limit: Annotated[int, Field(ge=1, le=10)] = 5,
    api_key: SecretStr = HIDDEN,
    **more: str,
) -> None:
    """Order something.

    Args:
        items: what.
        to: where.
    """


DECLARED = {
    "name": "declared",
    "parameters": {
        "type": "object",
        "properties": {"a": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}},
        "$defs": {"A": {"type": "array", "prefixItems": [{"type": "integer"}]}},
    },
}


def made_specs() -> Iterator[ToolSpec]:
    yield FunctionTool(play).spec
    yield FunctionTool(order, inject={"api_key": {"from": "config", "key": "key"}}).spec
    yield SchemaTool(DECLARED, lambda tool_name, arguments: None).spec
    yield SchemaTool({"name": "without.a-schema"}, lambda tool_name, arguments: None).spec


SPECS = pytest.mark.parametrize("spec", list(made_specs()), ids=lambda spec: spec.name)

SCHEMA = {
    "type": "object",
    "properties": {"artist": {"type": "string"}},
    "required": ["artist"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai", {"type": "function", "function": {"name": "play", "description": "Play.", "parameters": SCHEMA}}),
        ("anthropic", {"name": "play", "description": "Play.", "input_schema": SCHEMA}),
        ("mcp", {"name": "play", "description": "Play.", "inputSchema": SCHEMA}),
    ],
)
def test_forms(name: str, expected: dict[str, object]) -> None:
    assert to_format([FunctionTool(play).spec], name) == [expected]


@pytest.mark.parametrize("name", FORMATS)
def test_what_goes_out_is_json_that_comes_back_as_the_same_tool(name: str) -> None:
    spec = FunctionTool(play).spec
    written = json.loads(json.dumps(to_format([spec], name)))
    assert SchemaTool(written[0], lambda tool_name, arguments: None).spec == spec


def schema_of(made: dict[str, Any]) -> Any:
    """Return the schema in any of the forms."""
    return made["function"]["parameters"] if "function" in made else made.get("input_schema", made.get("inputSchema"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_schema_that_leaves_its_type_unsaid(name: str) -> None:
    made = to_format([ToolSpec(name="t", description="", parameters={})], name)[0]
    assert schema_of(made) == {"type": "object"}


@pytest.mark.parametrize("name", FORMATS)
def test_nobody_can_change_the_schema_through_it(name: str) -> None:
    spec = FunctionTool(play).spec
    out = json.dumps(to_format([spec], name))
    for made in to_format([spec], name):
        for part in (made, made.get("function", {})):
            for key in ("parameters", "input_schema", "inputSchema"):
                part.get(key, {}).get("properties", {}).clear()
    assert json.dumps(to_format([spec], name)) == out


def test_unknown_format() -> None:
    with pytest.raises(InvalidInput, match="no format 'gemini'; the formats are openai, anthropic, mcp"):
        to_format([], "gemini")


@SPECS
def test_openai_s_own_types_take_it_and_give_it_back(spec: ToolSpec) -> None:
    made = to_format([spec], "openai")[0]
    asked = TypeAdapter(openai.types.chat.ChatCompletionFunctionToolParam)
    assert asked.dump_python(asked.validate_python(made, strict=True)) == made
    answered = openai.types.chat.ChatCompletionFunctionTool.model_validate(made, strict=True)
    assert answered.model_dump(exclude_none=True) == made
    assert answered.function.parameters == made["function"]["parameters"]


@SPECS
def test_anthropic_s_own_types_take_it_and_give_it_back(spec: ToolSpec) -> None:
    made = to_format([spec], "anthropic")[0]
    asked = TypeAdapter(anthropic.types.ToolParam)
    assert asked.dump_python(asked.validate_python(made, strict=True)) == made
    assert set(made) <= set(anthropic.types.ToolParam.__annotations__)


@SPECS
def test_mcp_s_own_types_take_it_and_give_it_back(spec: ToolSpec) -> None:
    listed = {"tools": to_format([spec], "mcp")}
    result = mcp.types.ListToolsResult.model_validate_json(json.dumps(listed))
    assert result.model_dump(by_alias=True, exclude_unset=True, mode="json") == listed
    assert result.tools[0].name == spec.name


@SPECS
@pytest.mark.parametrize("name", FORMATS)
def test_what_goes_out_is_valid_json_schema_without_what_the_job_injects(spec: ToolSpec, name: str) -> None:
    schema = schema_of(to_format([spec], name)[0])
    assert jsonschema_rs.meta.is_valid({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    assert "api_key" not in json.dumps(schema)
    assert "hidden" not in json.dumps(schema)
