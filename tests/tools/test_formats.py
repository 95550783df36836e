from __future__ import annotations

import json

import pytest

from flink_agents.errors import InvalidInput
from flink_agents.tools import FunctionTool, SchemaTool, ToolSpec
from flink_agents.tools.formats import FORMATS, to_format


def play(artist: str) -> None:
    """Play."""


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


@pytest.mark.parametrize("name", FORMATS)
def test_a_schema_that_leaves_its_type_unsaid(name: str) -> None:
    made = to_format([ToolSpec(name="t", description="", parameters={})], name)[0]
    schema = made.get("input_schema", made.get("inputSchema", {"type": "object"}))
    assert schema == {"type": "object"}


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
