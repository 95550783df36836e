"""Strict plain JSON, fast: the lowest step of the codec, which knows no tags."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson

__all__ = ["MAX_JSON_DEPTH", "JsonSyntax", "cut", "depth_over", "dumps", "dumps_exact", "loads"]

MAX_JSON_DEPTH = 400
"""Deepest JSON that is read. The deepest value text (100 levels, three JSON levels each) and its envelope fit in."""

MESSAGE_LIMIT = 300

PASSTHROUGH = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS

# orjson reads integers beyond 64 bits as floats. They have at least 19 digits, which one translate and one search find
# far quicker than a look at each parsed number would.
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_LONG_RUN = b"0" * 19


class JsonSyntax(ValueError):
    """Raised by ``loads`` for a text that is not strict JSON. The message is bounded and quotes nothing of the text."""


def cut(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` UTF-8 bytes; what does not fit is replaced by a marker with its size.

    Never splits a character; lone surrogates come out escaped. Below 64 bytes there is no room for the marker, so the
    text is only cut off. Any thread; never raises.
    """
    if len(text) <= limit and text.isascii():
        return text
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    if limit < 64:
        return data[:limit].decode("utf-8", "ignore")
    kept = limit - 40
    return f"{data[:kept].decode('utf-8', 'ignore')}... [{len(data) - kept} bytes left out]"


def depth_over(value: Any, limit: int) -> bool:
    """Tell whether lists and dicts nest deeper than ``limit`` levels. Does not recurse; expects a tree."""
    level = [value] if type(value) in (dict, list) else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
    return bool(level)


def loads(text: str | bytes) -> Any:
    """Parse strict JSON (RFC 8259). Integers of any size stay exact.

    Any thread.

    Raises:
        JsonSyntax: for NaN and Infinity, numbers beyond a double's range, anything after the document, invalid UTF-8,
            lone surrogates, integers over 4300 digits, or more than ``MAX_JSON_DEPTH`` levels.
    """
    try:
        data = text.encode() if isinstance(text, str) else bytes(text)
        if len(data) >= len(_LONG_RUN) and _LONG_RUN in data.translate(_DIGITS_TO_ZERO):
            return _loads_exact(data)
        value = orjson.loads(data)
    except UnicodeError:
        problem = "the text is not valid UTF-8"
    except ValueError as error:
        # A parser's error keeps the whole document alive; only its message may leave this function.
        problem = cut(str(error), MESSAGE_LIMIT)
    except RecursionError:
        problem = _too_deep()
    else:
        # A level takes two characters, so short texts need no look.
        if len(data) <= 2 * MAX_JSON_DEPTH or data.count(b"{") + data.count(b"[") <= MAX_JSON_DEPTH:
            return value
        if not depth_over(value, MAX_JSON_DEPTH):
            return value
        problem = _too_deep()
    raise JsonSyntax(problem)


def _too_deep() -> str:
    return f"nested deeper than {MAX_JSON_DEPTH} levels"


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _finite(digits: str) -> float:
    number = float(digits)
    if number - number != 0.0:
        message = "number is infinity when parsed as double"
        raise ValueError(message)
    return number


def _loads_exact(data: bytes) -> Any:
    value = json.loads(data.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    if data.count(b"{") + data.count(b"[") > MAX_JSON_DEPTH and depth_over(value, MAX_JSON_DEPTH):
        raise ValueError(_too_deep())
    if b"\\u" in data:
        # The standard library accepts lone surrogates; writing them out as UTF-8 does not.
        dumps_exact(value).encode()
    return value


def dumps(value: Any) -> str:
    """Write a value that consists of JSON types as compact JSON on one line; tags are not made here.

    For values that came from ``loads`` or were built as JSON: NaN is not looked for and tuples become lists. Use
    ``encode`` or ``encode_plain`` for values of users. Any thread.

    Raises:
        TypeError: for a type that is not JSON.
        UnicodeEncodeError: for a lone surrogate.
    """
    try:
        return orjson.dumps(value, option=PASSTHROUGH).decode()
    except TypeError:
        # Integers over 64 bits and more than 254 levels are beyond orjson.
        text = dumps_exact(value)
        text.encode()
        return text


_EXACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_EXACT_SORTED = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def dumps_exact(value: Any, *, sort_keys: bool = False) -> str:
    """Write with the standard library: slower, integers of any size, floats as ``repr`` has them.

    Raises:
        ValueError: for NaN, Infinity and integers over 4300 digits.
        TypeError: for a type that is not JSON.
    """
    return (_EXACT_SORTED if sort_keys else _EXACT).encode(value)
