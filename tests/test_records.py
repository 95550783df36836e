"""Records: every accepted shape becomes a request, everything else is a reject; arguments are checked."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from flink_agents import codec
from flink_agents.errors import InvalidArguments, RejectedRecord, TooLarge
from flink_agents.events import MISSING, ToolCall, ToolRequestEvent
from flink_agents.records import parse_arguments, parse_request, request_key

LIMIT = 4 * 1024 * 1024
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"n": 1}'}}


def parsed(record: Any, key_by: str = "k", intake: int = 5) -> ToolRequestEvent:
    return parse_request(record if isinstance(record, (dict, str)) else json.dumps(record), key_by, intake, LIMIT)


def own(**fields: Any) -> dict[str, Any]:
    return {"k": "s1", "tool_calls": [CALL], **fields}


OPENAI_MESSAGE = {"role": "assistant", "content": None, "tool_calls": [CALL]}
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "gpt-x",
    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": OPENAI_MESSAGE}],
}
ANTHROPIC = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "c1", "name": "look_up", "input": {"n": 1}},
        {"type": "tool_use", "id": "c2", "name": "refund", "input": {}},
    ],
}


def test_own_shape() -> None:
    calls = [CALL, {"function": {"name": "other", "arguments": {"a": [1]}}}, {"id": "", "function": {"name": "third"}}]
    record = {"id": "r1", "k": "s1", "tool_calls": calls, "model": "m", "metadata": {"trace": 1}}
    for given in (record, json.dumps(record)):
        assert parsed(given) == ToolRequestEvent(
            "r1",
            "s1",
            (
                ToolCall(0, "c1", "look_up", '{"n": 1}'),
                ToolCall(1, None, "other", {"a": [1]}),
                ToolCall(2, "", "third", None),
            ),
            "m",
            {"trace": 1},
        )


def test_no_calls_is_a_request() -> None:
    assert parsed(own(tool_calls=[])).calls == ()


@pytest.mark.parametrize(
    ("record", "request_id", "model", "tools"),
    [
        ({"k": 1, **OPENAI_MESSAGE}, "1/5", None, ["look_up"]),
        ({"k": 1, **COMPLETION}, "chatcmpl-1", "gpt-x", ["look_up"]),
        ({"k": 1, **ANTHROPIC}, "msg_1", "claude-x", ["look_up", "refund"]),
        ({"k": 1, "message": OPENAI_MESSAGE}, "1/5", None, ["look_up"]),
        ({"k": 1, "message": COMPLETION}, "chatcmpl-1", "gpt-x", ["look_up"]),
        ({"k": 1, "id": "mine", "model": "mine", "message": ANTHROPIC}, "mine", "mine", ["look_up", "refund"]),
        ({"k": 1, "tool_calls": [CALL], "message": {"text": "hello"}}, "1/5", None, ["look_up"]),
        ({"k": 1, "tool_calls": [CALL], "content": []}, "1/5", None, ["look_up"]),
    ],
)
def test_shapes_of_model_apis(record: Any, request_id: str, model: str | None, tools: list[str]) -> None:
    event = parsed(record)
    assert (event.request_id, event.model, [call.tool for call in event.calls]) == (request_id, model, tools)
    assert event.calls[0].call_id == "c1"
    assert parse_arguments(event.calls[0].arguments, LIMIT) == {"n": 1}


def test_metadata_is_carried() -> None:
    assert parsed(own()).metadata is MISSING
    assert parsed(own(metadata=None)).metadata is None
    assert parsed({"k": 1, "metadata": {"a": 1}, "message": {**ANTHROPIC, "metadata": 2}}).metadata == {"a": 1}


@pytest.mark.parametrize(
    ("fields", "request_id"),
    [
        ({}, "s1/5"),
        ({"id": None}, "s1/5"),
        ({"id": ""}, ""),
        ({"id": 12}, "12"),
        ({"k": 1}, "1/5"),
        ({"k": 1.0}, "1/5"),
        ({"k": True}, "true/5"),
        ({"k": ""}, "/5"),
    ],
)
def test_request_ids(fields: Any, request_id: str) -> None:
    assert parsed(own(**fields)).request_id == request_id


def test_dotted_key() -> None:
    assert parsed({"session": {"id": "s"}, "tool_calls": []}, "session.id").key == "s"
    assert parsed({"session.id": "flat", "session": {"id": "s"}, "tool_calls": []}, "session.id").key == "flat"
    assert request_key({"message": {"user": 4}}, "message.user") == "4"
    with pytest.raises(RejectedRecord, match=r"session\.id is missing") as caught:
        parsed({"session": "text", "tool_calls": []}, "session.id")
    assert caught.value.field == "session.id"


@pytest.mark.rule(10)
def test_case_6_keys_of_records_keep_their_type() -> None:
    keys: list[Any] = [1, "1", True, "", "x" * 10_240]
    assert len({request_key(json.dumps(own(k=key)), "k") for key in keys}) == 5
    assert request_key('{"k": 1.0}', "k") == request_key('{"k": 1}', "k")
    for key in keys:
        event = parsed(own(k=key))
        assert type(event.key) is type(key)
        assert codec.key_text(event.key) == request_key(own(k=key), "k")
    unusable: list[Any] = [None, [], {}]
    for bad in unusable:
        for reader in (lambda record: request_key(record, "k"), parsed):
            with pytest.raises(RejectedRecord) as caught:
                reader(own(k=bad))
            assert caught.value.field == "k"


ring: dict[str, Any] = {}
ring["ring"] = ring

REJECTS: list[tuple[Any, str, str | None]] = [
    ("", "not JSON", None),
    ("{", "not JSON", None),
    ('{"k": 1, "tool_calls": []} x', "not JSON", None),
    ('{"k": NaN, "tool_calls": []}', "not JSON", None),
    ("\ud800", "not JSON", None),
    (b"\xff", "not JSON", None),
    ("[" * 100_000, "not JSON", None),
    ("null", "null, not a JSON object", None),
    ("[1]", "a list, not a JSON object", None),
    ('"text"', "a string, not a JSON object", None),
    (None, "expected a JSON text or a dict", None),
    (5, "expected a JSON text or a dict", None),
    ({"k": 1, "tool_calls": [], "x": {1}}, "set", None),
    ({"k": float("nan"), "tool_calls": []}, "no JSON", None),
    ({"k": 1, "ring": ring}, "contains itself", None),
    ({"k": 1, 2: 3}, "no JSON", None),
    ({"tool_calls": []}, "the key field k is missing", "k"),
    ({"k": None, "tool_calls": []}, "the key is null", "k"),
    ({"k": [1], "tool_calls": []}, "the key is a list", "k"),
    ({"k": {}, "tool_calls": []}, "the key is an object", "k"),
    ({"k": 1}, "tool_calls is missing", "tool_calls"),
    ({"k": 1, "tool_calls": None}, "tool_calls is null", "tool_calls"),
    ({"k": 1, "tool_calls": {}}, "tool_calls is an object, not a list", "tool_calls"),
    ({"k": 1, "tool_calls": "x"}, "tool_calls is a string, not a list", "tool_calls"),
    ({"k": 1, "tool_calls": [None]}, "call 0 has no function", "tool_calls[0].function"),
    ({"k": 1, "tool_calls": [CALL, {}]}, "call 1 has no function", "tool_calls[1].function"),
    ({"k": 1, "tool_calls": [{"function": "x"}]}, "call 0 has no function", "tool_calls[0].function"),
    ({"k": 1, "tool_calls": [{"function": {}}]}, "call 0 has no name", "tool_calls[0].function.name"),
    ({"k": 1, "tool_calls": [{"function": {"name": ""}}]}, "call 0 has no name", "tool_calls[0].function.name"),
    ({"k": 1, "tool_calls": [{"function": {"name": 3}}]}, "call 0 has no name", "tool_calls[0].function.name"),
    ({"k": 1, "tool_calls": [], "id": {}}, "the id is an object", "id"),
    ({"k": 1, "message": {}}, "tool_calls is missing", "message.tool_calls"),
    ({"k": 1, "message": "text"}, "tool_calls is missing", "tool_calls"),
    ({"k": 1, "choices": []}, "no choice has tool_calls", "choices"),
    ({"k": 1, "choices": 5}, "no choice has tool_calls", "choices"),
    ({"k": 1, "choices": [{"message": OPENAI_MESSAGE}] * 2}, "several choices", "choices"),
    ({"k": 1, "message": {"choices": [None]}}, "no choice has tool_calls", "message.choices"),
    ({"k": 1, "content": [{"type": "text"}]}, "no tool_use block", "content"),
    ({"k": 1, "content": [{"type": "tool_use"}]}, "call 0 has no name", "content[0].name"),
    ({"k": 1, "content": "plain"}, "tool_calls is missing", "tool_calls"),
]


@pytest.mark.rule(5)
@pytest.mark.parametrize(("record", "reason", "field"), REJECTS)
def test_what_is_no_request_is_a_reject(record: Any, reason: str, field: str | None) -> None:
    with pytest.raises(RejectedRecord) as caught:
        parse_request(record, "k", 0, LIMIT)
    assert reason in caught.value.reason
    assert caught.value.field == field
    assert len(caught.value.reason) < 1000


@pytest.mark.rule(5)
def test_record_over_the_limit_is_a_reject() -> None:
    record = own(metadata="é" * 100)
    size = len(codec.dumps(record).encode())
    assert parse_request(record, "k", 0, size).key == "s1"
    for given in (record, codec.dumps(record)):
        with pytest.raises(RejectedRecord, match=f"is {size} bytes, over the limit of {size - 1} bytes"):
            parse_request(given, "k", 0, size - 1)


@pytest.mark.rule(7)
def test_case_15_ids_from_outside_are_only_carried() -> None:
    carried = [None, "", "same", "same", 7, 1.5, True, {"b": 1, "a": 2}, "missing"]
    calls: list[dict[str, Any]] = [{"id": call_id, "function": {"name": "t"}} for call_id in carried]
    del calls[-1]["id"]
    event = parsed(own(tool_calls=calls))
    assert [call.position for call in event.calls] == list(range(9))
    assert [call.call_id for call in event.calls] == [None, "", "same", "same", 7, "1.5", "true", '{"a":2,"b":1}', None]


@pytest.mark.rule(5)
def test_record_that_state_could_not_give_back_is_a_reject() -> None:
    def record(levels: int) -> str:
        return f'{{"k": 1, "tool_calls": [], "metadata": {"[" * levels}{"]" * levels}}}'

    assert parse_request(record(389), "k", 1, LIMIT).calls == ()
    with pytest.raises(RejectedRecord, match="deeper than 390 levels"):
        parse_request(record(390), "k", 1, LIMIT)


@pytest.mark.rule(7)
def test_call_id_that_nests_deeper_than_the_codec_carries() -> None:
    carried = "[" * 150 + "]" * 150
    record = f'{{"k": 1, "tool_calls": [{{"id": {carried}, "function": {{"name": "t"}}}}]}}'
    assert parse_request(record, "k", 1, LIMIT).calls[0].call_id == carried


@pytest.mark.rule(3)
def test_request_does_not_change_with_its_record() -> None:
    arguments = {"list": [1]}
    record = own(tool_calls=[{"function": {"name": "t", "arguments": arguments}}], metadata=[1])
    event = parsed(record)
    arguments["list"].append(2)
    record["metadata"].append(2)
    assert event.calls[0].arguments == {"list": [1]}
    assert event.metadata == [1]


@pytest.mark.rule(3)
@pytest.mark.parametrize("asked", ['{"list": [1]}', {"list": [1]}])
def test_each_call_gets_its_own_arguments(asked: Any) -> None:
    first = parse_arguments(asked, LIMIT)
    first["list"].append(2)
    first["new"] = 1
    assert parse_arguments(asked, LIMIT) == {"list": [1]}


@pytest.mark.rule(6)
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"$type": "bytes", "base64": "YQ=="},
        {"n": 2**70, "f": 1.0, "deep": {"$type": {"$type": 1}}},
        {"text": "é\n", "none": None, "list": [1, [2]]},
    ],
)
def test_objects_and_strings_of_objects_are_arguments(asked: dict[str, Any]) -> None:
    for form in (asked, codec.dumps(asked), f" \n{codec.dumps(asked)} "):
        arguments = parse_arguments(form, LIMIT)
        assert arguments == asked
        assert arguments is not asked


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


JUNK: list[tuple[Any, str]] = [
    ('{"n": 1', "not valid JSON"),
    ('{"n": 1}}', "not valid JSON"),
    ('{"n": 1} trailing', "not valid JSON"),
    ('{"n": NaN}', "not valid JSON"),
    ('{"n": 1e999}', "not valid JSON"),
    ("NaN", "not valid JSON"),
    ("{'n': 1}", "not valid JSON"),
    ('{"n": "\\ud800"}', "not valid JSON"),
    ("\ud800", "not valid JSON"),
    ("", "arguments are empty"),
    ("   ", "not valid JSON"),
    ("null", "got null"),
    ("[1]", "got a list"),
    ('"text"', "got a string"),
    ('"{\\"n\\": 1}"', "got a string"),
    ("5", "got a number"),
    ("true", "got a boolean"),
    (None, "got null"),
    ([1], "got a list"),
    (5, "got a number"),
    (True, "got a boolean"),
    (b"{}", "got bytes"),
    ({"n": {1}}, "no JSON"),
    ({1: 2}, "no JSON"),
    ({"n": float("nan")}, "no JSON"),
    (ring, "contains itself"),
    (deep(101), "deeper than 100 levels"),
    (deep(5000), "not valid JSON"),
    ("x" * 200_000, "not valid JSON"),
    ('{"a":' + "1" * 5000 + "}", "not valid JSON"),
]


@pytest.mark.rule(6)
@pytest.mark.parametrize(("asked", "message"), JUNK, ids=lambda item: repr(item)[:30] if item is not ring else "ring")
def test_case_21_junk_is_one_bounded_error(asked: Any, message: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        parse_arguments(asked, 256 * 1024)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600
    assert sys.getsizeof(caught.value.args) < 200


def test_deep_arguments_within_bounds() -> None:
    assert parse_arguments(deep(100), LIMIT)
    assert parse_arguments(json.loads(deep(100)), LIMIT)
    assert parse_arguments({"a": [[1]] * 200}, LIMIT)


@pytest.mark.rule(6)
@pytest.mark.parametrize("asked", ["x" * 1_000_000, {"n": "x" * 1_000_000}, '{"n": "' + "é" * 140_000 + '"}'])
def test_case_21_megabytes_are_one_bounded_error(asked: Any) -> None:
    with pytest.raises(TooLarge, match="over the limit of 262144 bytes") as caught:
        parse_arguments(asked, 256 * 1024)
    assert len(str(caught.value)) < 200


def test_limit_of_arguments_counts_bytes() -> None:
    assert parse_arguments('{"a":"é"}', 10) == {"a": "é"}
    with pytest.raises(TooLarge, match="arguments are 10 bytes, over the limit of 9 bytes"):
        parse_arguments('{"a":"é"}', 9)
