"""Whatever a model sends as arguments: the tool is not run, the call fails within bounds, its siblings are untouched.

The suite tries 2,000 strings that hypothesis makes. More of them, and others each time:

    MALFORMED=100000 python -m pytest tests/tools/test_malformed_arguments.py --timeout=3600
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flink_agents import FunctionTool, SchemaTool
from flink_agents.testing import Harness, tool_request
from flink_agents.tools.refusal import MAX_MESSAGE_BYTES

BATCH = 25
STRINGS = int(os.environ.get("MALFORMED", "2000"))
FULL = "MALFORMED" in os.environ

NAMES = {"order", "count", "tags", "where"}
GOOD = {"order": "A-1", "count": 2, "tags": ["x", "y"], "where": {"street": "Long", "number": 5}}
GOOD_TEXT = json.dumps(GOOD)


def place(order: str, count: int, tags: list[str], where: dict[str, str | int]) -> str:
    msg = "a tool ran with malformed arguments"
    raise AssertionError(msg)


def declared(tool_name: str, arguments: dict[str, Any]) -> str:
    return place(**arguments)


def fine(number: int) -> int:
    return number


FUNCTION = FunctionTool(place)
SCHEMA = SchemaTool({"name": "declared", "parameters": {**FUNCTION.spec.parameters}}, declared)
FINE = FunctionTool(fine, execution="inline")
LARGEST = 4 * MAX_MESSAGE_BYTES + len(json.dumps(FUNCTION.spec.parameters))


def check(texts: Sequence[Any]) -> None:
    """Ask both kinds of tool with each of ``texts`` in one request, between two calls that are right."""
    calls: list[tuple[str, Any]] = [("fine", {"number": 1})]
    for text in texts:
        calls += [("place", text), ("declared", text)]
    with Harness([FUNCTION, SCHEMA, FINE]) as harness:
        harness.send(tool_request("k", *calls, ("fine", {"number": 2})))
        harness.run()
        (response,) = harness.responses
        assert harness.rejects == []
    first, *failed, last = response["results"]
    assert (first["value"], last["value"]) == (1, 2)
    assert len(failed) == 2 * len(texts)
    for (_, text), result in zip(calls[1:], failed, strict=False):
        assert (result["status"], "value" in result) == ("failed", False), text
        error = result["error"]
        assert error["kind"] in ("invalid_arguments", "too_large"), (text, error)
        assert 0 < len(error["message"].encode()) <= MAX_MESSAGE_BYTES, text
        assert len(json.dumps(result)) <= LARGEST, text
        if error["kind"] == "invalid_arguments":
            assert error["expected"] == FUNCTION.spec.parameters


CORPUS = [
    "",
    " ",
    "null",
    "true",
    "5",
    "NaN",
    "-Infinity",
    '"a string"',
    json.dumps(GOOD_TEXT),
    "[]",
    f"[{GOOD_TEXT}]",
    "{",
    "}",
    "{}",
    "{]",
    "{,}",
    "{order}",
    "undefined",
    "[object Object]",
    f"{GOOD_TEXT}}}",
    f"{GOOD_TEXT},",
    f"{GOOD_TEXT}{GOOD_TEXT}",
    f"{GOOD_TEXT}\n\n{GOOD_TEXT}",
    f"```json\n{GOOD_TEXT}\n```",
    f"Here are the arguments: {GOOD_TEXT}",
    f"/* why */ {GOOD_TEXT}",
    GOOD_TEXT[:-1] + ",}",
    GOOD_TEXT[:-1],
    GOOD_TEXT.replace('"', "'"),
    GOOD_TEXT.replace(":", "="),
    GOOD_TEXT.replace("2", "02"),
    GOOD_TEXT.replace("2", "2."),
    GOOD_TEXT.replace("2", "+2"),
    GOOD_TEXT.replace("2", "0x2"),
    GOOD_TEXT.replace("2", "NaN"),
    GOOD_TEXT.replace("2", "1e999"),
    GOOD_TEXT.replace("A-1", "A\n1"),
    GOOD_TEXT.replace("A-1", "A\\x1"),
    GOOD_TEXT.replace("A-1", "A\\ud8001"),
    GOOD_TEXT.replace("A-1", "A\x001"),
    repr(GOOD),
    "\ufeff" + GOOD_TEXT,
    "\x00",
    "{" * 100_000,
    "[" * 100_000,
    '{"order":' * 1_000 + "1" + "}" * 1_000,
    '{"order": "' + "x" * 1_000_000 + '"}',
    "\U0001f600" * 100_000,
    "9" * 5_000,
    json.dumps({**GOOD, "extra": 1}),
    json.dumps({**GOOD, "count": "two"}),
    json.dumps({"a" * 10_000: 1, **GOOD}),
    json.dumps({f"field {n}": n for n in range(5_000)}),
    json.dumps({**GOOD, "tags": [5] * 10_000}),
    json.dumps({**GOOD, "where": {f"key {n}": None for n in range(2_000)}}),
]


@pytest.mark.rule(4, 6)
@pytest.mark.parametrize("text", CORPUS, ids=lambda text: ascii(text[:30]))
def test_case_21_what_models_have_sent(text: str) -> None:
    check([text])


@pytest.mark.rule(4, 6)
@pytest.mark.parametrize(
    "given", [None, 5, True, [], [GOOD], 1.5, {}, {"order": "A-1"}, {**GOOD, "count": None}, {**GOOD, "": 1}]
)
def test_case_21_what_is_no_string_either(given: Any) -> None:
    check([given])


def may_be_right(text: str) -> bool:
    """Whether a reader of JSON sees an object with these very fields: then the tool may run, and that is no finding."""
    try:
        value = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and set(value) == NAMES


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
# Of a type that no reading turns into the right one.
WRONG = {
    "order": st.none() | st.booleans() | st.integers() | st.lists(st.text(max_size=3), max_size=3),
    "count": st.none() | st.booleans() | st.sampled_from(["", "two", "1.5", "0x1", []]) | st.just(1.5),
    "tags": st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), min_size=1, max_size=3),
    "where": st.none() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=3),
}


@st.composite
def wrong_values(draw: st.DrawFn) -> str:
    names = draw(st.sets(st.sampled_from(sorted(NAMES)), min_size=1))
    return json.dumps({**GOOD, **{name: draw(WRONG[name]) for name in sorted(names)}})


@st.composite
def wrong_fields(draw: st.DrawFn) -> str:
    others = draw(st.dictionaries(st.text(max_size=12), JSON, max_size=3))
    kept = draw(st.sets(st.sampled_from(sorted(NAMES)), max_size=3))
    return json.dumps({**others, **{name: GOOD[name] for name in sorted(kept)}})


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from([GOOD_TEXT, json.dumps(GOOD, indent=1), json.dumps(GOOD_TEXT)]))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 8)))
        text = text[:start] + draw(st.sampled_from(["", *"{}[]\",:\\0e-.'", "\x00", "null", "\ud7ff"])) + text[end:]
    return text


# What a change made right again, or never made wrong, is replaced: as many strings as promised are malformed.
MALFORMED = st.one_of(
    wrong_values(),
    st.integers(0, len(GOOD_TEXT) - 1).map(lambda end: GOOD_TEXT[:end]),
    st.one_of(
        damaged(),
        wrong_fields(),
        st.text(max_size=60),
        st.text(alphabet='{}[]":,\\ \n0123456789eE+-.truefalsn', max_size=60),
        JSON.map(json.dumps),
        st.tuples(st.just(GOOD_TEXT), st.text(min_size=1, max_size=10)).map("".join),
        st.integers(1, 400).map(lambda depth: '{"where":' * depth + "1" + "}" * depth),
    ).map(lambda text: "{" if may_be_right(text) else text),
)


@pytest.mark.rule(4, 6)
@settings(
    max_examples=max(1, STRINGS // BATCH),
    deadline=None,
    database=None,
    derandomize=not FULL,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(MALFORMED, min_size=BATCH, max_size=BATCH))
def test_case_21_strings_that_nobody_has_thought_of(texts: list[str]) -> None:
    check(texts)
