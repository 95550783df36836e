from __future__ import annotations

import json
import pickle
import timeit
from pathlib import Path
from typing import Any

import pytest

from flink_agents.errors import InvalidArguments, InvalidInput
from flink_agents.options import Execution
from flink_agents.tools.refusal import MAX_MESSAGE_BYTES
from flink_agents.tools.schema_file import SchemaTool, load_entries, schema_tools

BFCL = Path(__file__).resolve().parents[2] / "jobs" / "bfcl"
ENTRY = {
    "name": "spotify.play",
    "description": "Play.",
    "parameters": {
        "type": "object",
        "properties": {
            "artist": {"type": "string"},
            "duration": {"type": "integer", "maximum": 60},
            "tags": {"type": "array", "items": {"type": "string"}},
            "mode": {"enum": ["once", "loop"]},
        },
        "required": ["artist"],
        "additionalProperties": False,
    },
}


def handler(tool_name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return tool_name, arguments


async def async_handler(tool_name: str, arguments: dict[str, Any]) -> None: ...


def refused(made: SchemaTool, arguments: Any) -> InvalidArguments:
    with pytest.raises(InvalidArguments) as caught:
        made.prepare(arguments)
    return caught.value


def entry(parameters: Any) -> dict[str, Any]:
    return {"name": "t", "parameters": parameters}


def test_handler_gets_name_and_arguments() -> None:
    made = SchemaTool(ENTRY, handler, max_concurrent=3)
    assert made.prepare({"artist": "Björk", "duration": 5})() == ("spotify.play", {"artist": "Björk", "duration": 5})
    assert (made.spec.name, made.spec.description, made.spec.parameters) == tuple(ENTRY.values())
    assert (made.spec.execution, made.spec.max_concurrent) == (Execution.THREAD, 3)
    assert SchemaTool(ENTRY, async_handler).spec.execution is Execution.ASYNC


@pytest.mark.parametrize(
    "written",
    [
        {"type": "function", "function": ENTRY},
        {"name": ENTRY["name"], "description": "Play.", "input_schema": ENTRY["parameters"]},
        {"name": ENTRY["name"], "description": "Play.", "inputSchema": ENTRY["parameters"]},
    ],
)
def test_the_forms_of_openai_anthropic_and_mcp_are_one(written: dict[str, Any]) -> None:
    assert SchemaTool(written, handler).spec == SchemaTool(ENTRY, handler).spec


def test_a_tool_without_schema_takes_any_object() -> None:
    made = SchemaTool({"name": "t"}, handler)
    assert made.prepare({"a": 1})() == ("t", {"a": 1})


@pytest.mark.rule(4)
def test_every_wrong_field_is_named() -> None:
    error = refused(SchemaTool(ENTRY, handler), {"duration": 61, "tags": ["x", 5], "mode": "never", "artits": "x"})
    lines = str(error).splitlines()
    assert lines[0] == "invalid arguments for tool 'spotify.play':"
    assert sorted(lines[1:]) == [
        '- arguments: "artist" is a required property',
        "- arguments: Additional properties are not allowed ('artits' was unexpected)",
        "- duration: the value is greater than the maximum of 60",
        '- mode: the value is not one of "once" or "loop"',
        '- tags[1]: the value is not of type "string" (got integer)',
    ]
    assert error.expected == ENTRY["parameters"]


@pytest.mark.rule(4)
@pytest.mark.parametrize(
    "arguments",
    [
        {"artist": "hunter2" * 20_000, "duration": "hunter2" * 20_000},
        {"artist": "x", "tags": [5] * 100},
        {"artist": "x", "tags": [5] * 50_000},
        {"artist": "x", "tags": [{"hunter2" * 20_000: 1}]},
        {"artist": None},
        {"artist": "x", "duration": True},
        {"artist": "x", "duration": "5"},
        {"artist": "x", "duration": float("nan")},
        {"artist": "x", "duration": 2**80},
        {"artist": 1, "tags": ["\ud800"]},
        {"artist": "x", "\ud800": 1},
        {"artist": "x", **{f"field{n}": n for n in range(10_000)}},
    ],
)
def test_what_does_not_fit_is_refused_in_bounded_text(arguments: dict[str, Any]) -> None:
    error = refused(SchemaTool(ENTRY, handler), arguments)
    assert len(str(error).encode()) <= MAX_MESSAGE_BYTES
    assert "hunter2" not in str(error)
    assert error.expected == ENTRY["parameters"]


def test_many_errors_end_with_a_mark() -> None:
    lines = str(refused(SchemaTool(ENTRY, handler), {"artist": "x", "tags": [5] * 9})).splitlines()
    assert (len(lines), lines[-1]) == (10, "- and more")
    assert "and more" not in str(refused(SchemaTool(ENTRY, handler), {"artist": "x", "tags": [5] * 8}))


def test_nobody_can_change_the_schema() -> None:
    given = json.loads(json.dumps(ENTRY))
    made = SchemaTool(given, handler)
    given["parameters"]["required"].append("duration")
    refused(made, {}).expected["required"].clear()
    assert made.spec.parameters == ENTRY["parameters"]
    refused(made, {})


def test_a_tool_survives_pickling_and_still_validates() -> None:
    made = SchemaTool(ENTRY, handler)
    made.prepare({"artist": "x"})
    copy = pickle.loads(pickle.dumps(made))
    assert copy.spec == made.spec
    assert copy.prepare({"artist": "x"})() == ("spotify.play", {"artist": "x"})
    refused(copy, {})


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ("x", "must be an object, not string"),
        ({}, "a tool needs a name, not None"),
        ({"name": ""}, "a tool needs a name"),
        ({"name": 5}, "a tool needs a name, not 5"),
        ({"name": "a b"}, "cannot be named 'a b'"),
        ({"name": "a\u0000"}, "cannot be named"),
        ({"name": "x" * 257}, "at most 256"),
        ({"name": "t", "description": 5}, "description must be text"),
        ({"name": "t", "parameters": {}, "input_schema": {}}, "one schema is enough"),
        (entry(5), "must be an object, not integer"),
        (entry({"type": "array"}), "always an object, but the schema says type 'array'"),
        (
            entry({"type": "object", "properties": {"a": {"type": "strin"}}}),
            r"at properties.a.type: .strin. is not valid",
        ),
        (entry({"properties": {"a": {"pattern": "("}}}), "at properties.a.pattern"),
        (entry({"$ref": "http://127.0.0.1:9/x.json"}), r"outside of the schema; put it under \$defs"),
        (entry({"$ref": "file:///etc/hostname"}), r"outside of the schema; put it under \$defs"),
        (entry({"$schema": "urn:none"}), "urn:none"),
    ],
)
def test_a_wrong_entry_is_refused_with_the_reason(wrong: Any, part: str) -> None:
    with pytest.raises(InvalidInput, match=part):
        SchemaTool(wrong, handler)


@pytest.mark.parametrize("wrong", [lambda name: name, lambda **fields: fields, "handler", None])
def test_a_handler_must_take_name_and_arguments(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"handler\(tool_name, arguments\)"):
        SchemaTool(ENTRY, wrong)


def test_all_wrong_entries_are_reported_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        schema_tools([ENTRY, {"name": ""}, entry(5), ENTRY], handler)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["entry 2", "entry 3", "entry 4"]
    assert "'spotify.play' is already used by entry 1" in str(caught.value)
    with pytest.raises(InvalidInput, match="and 80 more"):
        schema_tools([entry(5)] * 100, handler)


@pytest.mark.parametrize("form", ["list", "object"])
def test_load_entries(tmp_path: Path, form: str) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([ENTRY] if form == "list" else {"tools": [ENTRY]}), encoding="utf-8")
    assert load_entries(path) == (ENTRY,)
    assert load_entries(str(path)) == (ENTRY,)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"[\n  {]", r"tools.json:2:4: not JSON"),
        (b"\xff\xfe\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "expected a list of tools"),
        (b"5", "expected a list of tools"),
        (b'[{"name": "a"}, 5]', "entry 2: expected an object, not integer"),
    ],
)
def test_a_file_that_holds_no_tools_is_refused_with_the_place(tmp_path: Path, content: bytes, part: str) -> None:
    path = tmp_path / "tools.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=part):
        load_entries(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none.json: cannot be read: No such file"):
        load_entries(tmp_path / "none.json")


def test_real_schemas_take_their_real_calls() -> None:
    tools = {made.spec.name: made for made in schema_tools(load_entries(BFCL / "tools.json"), handler)}
    assert len(tools) == 532
    requests = [json.loads(line) for line in (BFCL / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
    calls = [call["function"] for request in requests for call in request["tool_calls"]]
    assert len(calls) == 996
    for asked in calls:
        arguments = json.loads(asked["arguments"])
        assert tools[asked["name"]].prepare(arguments)() == (asked["name"], arguments)


def test_preparing_is_quick_enough_for_the_task_thread() -> None:
    made = SchemaTool(ENTRY, handler)
    arguments = {"artist": "x", "duration": 5}
    best = min(timeit.repeat(lambda: made.prepare(arguments), number=2000, repeat=20)) / 2000
    assert best < 10e-6
