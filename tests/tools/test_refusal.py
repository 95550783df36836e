from __future__ import annotations

from typing import Any

import pytest

from flink_agents.tools.refusal import MAX_MESSAGE_BYTES, bounded, field_path, json_type, nearest, refusal


@pytest.mark.parametrize("text", ["", "abc", "x" * 100, "é" * 100, "😀" * 100, "\ud800" * 100, "a" + "é" * 100])
@pytest.mark.parametrize("limit", [10, 11, 12, 13, 100, 200])
def test_bounded_fits_and_says_when_it_was_cut(text: str, limit: int) -> None:
    cut = bounded(text, limit)
    whole = text.encode("utf-8", "backslashreplace").decode()
    assert len(cut.encode()) <= limit
    assert cut == whole or (cut.endswith("...") and whole.startswith(cut[:-3]))
    assert (cut == whole) == (len(whole.encode()) <= limit)


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        ((), "arguments"),
        (("a",), "a"),
        (("a", 2, "b"), "a[2].b"),
        ((0,), "[0]"),
        (("x" * 200,), "x" * 77 + "..."),
    ],
)
def test_field_path(steps: tuple[str | int, ...], path: str) -> None:
    assert field_path(steps) == path


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "null"),
        (True, "boolean"),
        (1, "integer"),
        (1.5, "number"),
        ("", "string"),
        ([], "array"),
        ({}, "object"),
        (b"", "bytes"),
    ],
)
def test_json_type(value: Any, name: str) -> None:
    assert json_type(value) == name


def test_nearest() -> None:
    assert nearest("lokup", ["look_up", "lookup", "other"]) == "lookup"
    assert nearest("zzz", ["lookup"]) is None
    assert nearest("lookup" * 1_000_000, ["lookup"]) is None


def test_refusal_is_bounded_whatever_it_is_given() -> None:
    message = refusal("😀" * 10_000, ["é" * 10_000] * 10_000)
    assert len(message.encode()) <= MAX_MESSAGE_BYTES
    assert message.splitlines()[-1] == "- and more"
    assert refusal("t", ["a: b"] * 3, 3) == "invalid arguments for tool 't':\n- a: b\n- a: b\n- a: b"
    assert refusal("t", ["a: b"], 3).endswith("- and 2 more")
