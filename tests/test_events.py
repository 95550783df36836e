"""Events: stored and read back equal; results in order, none lost, whatever the ids; bounded rejects."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import json
import pickle
from decimal import Decimal
from typing import Any

import pytest

from flink_agents import codec
from flink_agents.errors import StateFormat
from flink_agents.events import MISSING, CallResult, ToolCall, ToolRequestEvent, ToolResponseEvent, reject_json


def succeeded(position: int, call_id: str | int | None, value: Any, **more: Any) -> CallResult:
    return CallResult(position, call_id, "look_up", "succeeded", codec.encode(value), **more)


def failed(position: int, call_id: str | int | None, message: str) -> CallResult:
    error = {"kind": "tool_error", "type": "ValueError", "message": message}
    return CallResult(position, call_id, "look_up", "failed", error=error)


def response(*results: CallResult, metadata: Any = MISSING, key: Any = "k") -> ToolResponseEvent:
    return ToolResponseEvent("r-1", key, results, metadata)


def test_response_line() -> None:
    event = response(
        succeeded(0, "a", {"n": 1}, attempts=2, replayed=True, duration_ms=7), failed(1, None, "no"), metadata={"m": 1}
    )
    line = event.to_json()
    assert "\n" not in line
    assert json.loads(line) == {
        "request_id": "r-1",
        "key": "k",
        "results": [
            {
                "position": 0,
                "call_id": "a",
                "tool": "look_up",
                "status": "succeeded",
                "value": {"n": 1},
                "attempts": 2,
                "replayed": True,
                "duration_ms": 7,
            },
            {
                "position": 1,
                "call_id": None,
                "tool": "look_up",
                "status": "failed",
                "error": {"kind": "tool_error", "type": "ValueError", "message": "no"},
                "attempts": 1,
                "replayed": False,
                "duration_ms": 0,
            },
        ],
        "metadata": {"m": 1},
    }


@pytest.mark.rule(2)
def test_results_stand_in_the_order_of_the_calls() -> None:
    event = response(*(succeeded(position, f"c{position}", position) for position in (3, 0, 2, 1)))
    assert [result["value"] for result in json.loads(event.to_json())["results"]] == [0, 1, 2, 3]
    assert list(event.responses) == ["c0", "c1", "c2", "c3"]
    assert [message["content"] for message in event.to_messages("openai")] == ["0", "1", "2", "3"]


@pytest.mark.rule(19)
@pytest.mark.parametrize("value", [None, "", 0, False, [], {}])
def test_case_22_empty_values_are_results(value: Any) -> None:
    event = response(succeeded(0, "a", value))
    (result,) = json.loads(event.to_json())["results"]
    assert result["status"] == "succeeded"
    assert result["value"] == value
    assert "error" not in result
    assert event.responses == {"a": value}
    assert event.success == {"a": True}
    assert len(event.to_messages("openai")) == 1


def test_metadata_absent_and_null_differ() -> None:
    assert "metadata" not in json.loads(response().to_json())
    assert json.loads(response(metadata=None).to_json())["metadata"] is None


def test_response_with_what_orjson_cannot_write() -> None:
    big = 2**70
    event = response(
        succeeded(0, big, {"v": (big, Decimal("1.1"))}), failed(1, "x", "no"), key=big, metadata={"m": [big]}
    )
    read = codec.loads(event.to_json())
    assert (read["key"], read["metadata"]) == (big, {"m": [big]})
    assert read["results"][0]["call_id"] == big
    assert read["results"][0]["value"] == {"v": [big, "1.1"]}


@pytest.mark.rule(7)
def test_case_15_missing_empty_and_repeated_ids_lose_no_result() -> None:
    ids: list[str | int | None] = [None, "", "same", "same", "same", 7, "7", 7, "#0", None, 0, "same#3"]
    event = response(*(succeeded(position, call_id, position) for position, call_id in enumerate(ids)))
    assert list(event.responses.values()) == list(range(len(ids)))
    assert list(event.external_ids.values()) == ids
    assert list(event.responses) == [
        "#0", "#1", "same", "same#3", "same#4", 7, "7", "7#7", "#0#8", "#9", 0, "same#3#11"
    ]  # fmt: skip
    assert list(event.success) == list(event.error) == list(event.responses)
    (message,) = event.to_messages("anthropic")
    assert len({block["tool_use_id"] for block in message["content"]}) >= len(ids) - 1


def test_views() -> None:
    event = response(succeeded(0, "a", dt.date(2024, 1, 1)), failed(1, "b", "no such order"))
    assert event.responses == {"a": dt.date(2024, 1, 1), "b": None}
    assert event.success == {"a": True, "b": False}
    assert event.error == {"a": None, "b": "no such order"}
    assert event.external_ids == {"a": "a", "b": "b"}


def test_results_are_frozen_values() -> None:
    result = succeeded(0, "a", 1)
    assert dataclasses.replace(result, replayed=True) == succeeded(0, "a", 1, replayed=True)
    assert [field.name for field in dataclasses.fields(result)] == list(vars(result))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.tool = "other"  # type: ignore[misc]


@pytest.mark.rule(20)
def test_value_is_what_the_codec_gives_back() -> None:
    result = succeeded(0, "a", (1, {2: "x"}))
    assert result.value == (1, {2: "x"})
    assert failed(0, "a", "no").value is None


def test_openai_messages() -> None:
    event = response(
        succeeded(0, "a", "text\nas is"), succeeded(1, "b", {"d": dt.date(2024, 1, 1)}), failed(2, 3, "no")
    )
    messages = event.to_messages("openai")
    assert [message["role"] for message in messages] == ["tool"] * 3
    assert [message["tool_call_id"] for message in messages] == ["a", "b", "3"]
    assert messages[0]["content"] == "text\nas is"
    assert messages[1]["content"] == '{"d":"2024-01-01"}'
    assert json.loads(messages[2]["content"])["error"]["message"] == "no"


def test_anthropic_messages() -> None:
    (message,) = response(succeeded(0, "a", [1]), failed(1, "b", "no")).to_messages("anthropic")
    assert message["role"] == "user"
    good, bad = message["content"]
    assert good == {"type": "tool_result", "tool_use_id": "a", "content": "[1]"}
    assert bad["is_error"] is True
    assert response().to_messages("anthropic") == []
    with pytest.raises(ValueError, match="known: openai, anthropic"):
        response().to_messages("other")


CALLS = (
    ToolCall(0, "a", "look_up", {"n": 2**70, "$type": "bytes"}),
    ToolCall(1, "", "look_up", '{"truncated'),
    ToolCall(2, None, "other.tool", None),
    ToolCall(3, 7, "look_up", [1.5, "é"]),
)


@pytest.mark.rule(3)
@pytest.mark.parametrize("metadata", [MISSING, None, {"user": {"a": [1]}}])
@pytest.mark.parametrize("key", ["k", 1, 1.5, True, ""])
def test_request_is_stored_as_it_was_asked(key: Any, metadata: Any) -> None:
    event = ToolRequestEvent("r", key, CALLS, "model-1", metadata)
    text = event.to_json()
    read = ToolRequestEvent.from_json(text)
    assert read == event
    assert type(read.key) is type(key)
    assert (read.metadata is MISSING) == (metadata is MISSING)
    assert read.to_json() == text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v":1}', '{"v":1,"id":"r","key":1,"calls":[[1]]}', "null"])
def test_stored_request_of_another_shape(text: str) -> None:
    with pytest.raises(StateFormat, match="a stored request cannot be read"):
        ToolRequestEvent.from_json(text)


def test_stored_request_of_another_version() -> None:
    with pytest.raises(StateFormat, match="format 2; this version reads 1"):
        ToolRequestEvent.from_json('{"v":2}')


def test_sentinel_survives_pickle_and_copy() -> None:
    event = ToolRequestEvent("r", 1, CALLS)
    assert pickle.loads(pickle.dumps(event)).metadata is MISSING
    assert copy.deepcopy(event).metadata is MISSING


class BrokenRepr:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.rule(5)
@pytest.mark.parametrize(
    ("record", "shown"),
    [
        ("{not json", "{not json"),
        ({"a": 1}, '{"a":1}'),
        ({"a": {1}}, "{'a': {1}}"),
        (None, "null"),
        (5, "5"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("\ud800", "\\ud800"),
        (BrokenRepr(), "<BrokenRepr whose repr raises ValueError>"),
        ("x" * 5000, "x" * 1024),
        ("é" * 5000, "é" * 512),
        ("\U0001f600" * 5000, "\U0001f600" * 256),
        ("a" + "é" * 5000, "a" + "é" * 511),
        (b"\xff" * 5000, "\\xff" * 256),
        ({"a": "x" * 5_000_000}, '{"a":"' + "x" * 1018),
    ],
    ids=lambda item: repr(item)[:20] if not isinstance(item, BrokenRepr) else "broken",
)
def test_reject_is_bounded(record: Any, shown: str) -> None:
    line = reject_json("not a request", "tool_calls", record)
    assert "\n" not in line
    assert json.loads(line) == {"reason": "not a request", "field": "tool_calls", "record": shown}
    assert "field" not in json.loads(reject_json("not a request", None, record))


def test_reject_bounds_reason_and_field() -> None:
    assert len(reject_json("x" * 100_000, "y" * 100_000, "z" * 100_000)) < 5000
