"""Plain JSON: strict and exact when read, compact when written, bounded in its messages."""

from __future__ import annotations

import pytest

from flink_agents import codec

BAD_JSON = [
    "",
    " ",
    "{",
    '{"a": 1',
    '{"a": 1}}',
    "[1] x",
    "NaN",
    "[Infinity]",
    "-Infinity",
    "1e400",
    "'a'",
    '"\\ud800"',
    '[12345678901234567890123, "\\ud800"]',
    "[12345678901234567890123, NaN]",
    "[12345678901234567890123, 1e400]",
    "[12345678901234567890123",
    "[12345678901234567890123] x",
    "1" * 5000,
    '"\x00"',
    "\ufeff{}",
    "01",
    b"\xff",
    b'"\xed\xa0\x80"',
    "\ud800",
    "[" * 100_000,
    "[" * 401 + "]" * 401,
    "[" * 401 + "12345678901234567890123" + "]" * 401,
    "[" * 5000 + "12345678901234567890123" + "]" * 5000,
    '{"a":' * 2000 + "1" + "}" * 2000,
    "x" * 1_000_000,
]


@pytest.mark.parametrize("text", BAD_JSON, ids=lambda text: repr(text[:30]))
def test_loads_is_strict_and_bounded(text: str | bytes) -> None:
    with pytest.raises(codec.JsonSyntax) as caught:
        codec.loads(text)
    assert 0 < len(str(caught.value)) <= 300
    assert caught.value.__context__ is None, "the parser's error would keep the document alive"


def test_loads_keeps_integers_exact() -> None:
    for number in (2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**400, 9_999_999_999_999_999_999):
        assert codec.loads(f'{{"n": [{number}]}}') == {"n": [number]}
    assert codec.loads("0.12345678901234567890123") == 0.12345678901234567890123
    assert codec.loads("[" * 400 + "]" * 400)
    assert codec.loads(b"[1]") == [1]


def test_dumps_is_compact_and_exact() -> None:
    assert codec.dumps({"a": [1, 2**70, "é"]}) == '{"a":[1,1180591620717411303424,"é"]}'
    deep = "[" * 300 + "1" + "]" * 300
    assert codec.dumps(codec.loads(deep)) == deep
    with pytest.raises(TypeError):
        codec.dumps({"a": object()})
    with pytest.raises(UnicodeEncodeError):
        codec.dumps([2**70, "\ud800"])


@pytest.mark.parametrize("limit", [5, 64, 100, 1000])
@pytest.mark.parametrize("text", ["x" * 999, "é" * 5000, "\U0001f600" * 400, "short", "\ud800" * 2000])
def test_cut_stays_within_its_bytes(text: str, limit: int) -> None:
    shortened = codec.cut(text, limit)
    assert len(shortened.encode()) <= limit
    if text.isascii() and len(text) <= limit:
        assert shortened == text
    elif limit >= 64:
        assert shortened.endswith("bytes left out]")


def test_depth_over() -> None:
    assert not codec.depth_over(1, 0)
    assert codec.depth_over([], 0)
    assert not codec.depth_over([[1], {"a": 2}], 2)
    assert codec.depth_over([[1], {"a": []}], 2)
