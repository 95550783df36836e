"""Value text: what slots, memory and responses hold of a Python value."""

from __future__ import annotations

from typing import Any

import orjson

from flink_agents.codec.json_text import PASSTHROUGH, JsonSyntax, dumps_exact, loads
from flink_agents.codec.rebuild import plain, rebuild
from flink_agents.codec.shape import plainness
from flink_agents.codec.tags import MAX_NODES, TAG, Tagger
from flink_agents.errors import CallError, StateFormat, TooLarge, Unserializable

__all__ = ["FORMAT_VERSION", "decode", "encode", "encode_plain", "has_tags", "to_json"]

FORMAT_VERSION = 1
"""Version of the value text. Whatever stores value texts stores this beside them."""

_MARK = f'"{TAG}"'
_MARK_BYTES = _MARK.encode()


_SMALL = 10**9


def encode(value: Any, limit: int | None = None) -> str:
    """Return the value text of ``value``, on one line. ``limit`` is in bytes of UTF-8.

    JSON values by their exact types encode to themselves; the rich types that ``tags`` lists become tagged objects, so
    that ``decode`` gives back an equal value of the same type. Never pickles, never falls back to ``str``. Any thread.

    Raises:
        Unserializable: naming the type and place of what cannot be carried (a generator, an open file, a lock, a class
            that cannot be imported, a subclass of a built-in type, a value that contains itself or nests over
            ``MAX_DEPTH`` levels).
        TooLarge: when the text is over ``limit``.
    """
    if type(value) is int and -_SMALL < value < _SMALL:
        return str(value)
    try:
        data = _encoded(value, limit)
    except (CallError, MemoryError):
        raise
    except Exception as error:
        # A property of a user's class, or a dict that another thread changes meanwhile.
        kind = type(value)
        message = f"cannot carry {kind.__module__}.{kind.__qualname__}: reading it raises {type(error).__name__}"
        raise Unserializable(message) from error
    if limit is not None and len(data) > limit:
        raise _over(len(data), limit)
    return data.decode()


def _encoded(value: Any, limit: int | None) -> bytes:
    if plainness(value, [MAX_NODES if limit is None else limit + 1]):
        try:
            data = orjson.dumps(value, option=PASSTHROUGH)
        except TypeError:
            pass  # an integer over 64 bits or a lone surrogate: the tagger looks again
        else:
            if _MARK_BYTES not in data:
                return data
    return _written(Tagger(limit).tag(value))


def encode_plain(value: Any, limit: int | None = None) -> str:
    """Return the JSON of a value that must be plain JSON already, checked by its exact types. Any thread.

    Not a value text: a ``$type`` key in it is just a key. Read it with ``loads``.

    Raises:
        Unserializable: naming the type and place of what is no JSON.
        TooLarge: when the text is over ``limit`` bytes.
    """
    data: bytes | None = None
    if plainness(value, [MAX_NODES if limit is None else limit + 1]):
        try:
            data = orjson.dumps(value, option=PASSTHROUGH)
        except TypeError:
            data = None
    if data is None:
        problem = _first_tag(Tagger(limit).tag(value))
        if problem is not None:
            message = f"it holds a {problem}, which is no JSON"
            raise Unserializable(message)
        data = _written(value)
    if limit is not None and len(data) > limit:
        raise _over(len(data), limit)
    return data.decode()


def _over(size: int, limit: int) -> TooLarge:
    return TooLarge(f"the value is {size} bytes, over the limit of {limit} bytes")


def _first_tag(tree: Any) -> str | None:
    if type(tree) is dict:
        if TAG in tree:
            items = tree.get("items", ())
            if tree[TAG] != "dict" or not all(isinstance(pair[0], str) for pair in items):
                return str(tree.get("class", tree[TAG]))
            tree = dict(items)
        tree = list(tree.values())
    if type(tree) is list:
        for item in tree:
            found = _first_tag(item)
            if found is not None:
                return found
    return None


def _written(tree: Any) -> bytes:
    try:
        return orjson.dumps(tree, option=PASSTHROUGH)
    except TypeError:
        pass
    try:
        return dumps_exact(tree).encode()
    except ValueError as error:
        message = f"cannot carry an int: {error}"
        raise Unserializable(message) from error


def has_tags(text: str) -> bool:
    """Tell cheaply whether a value text may hold tagged objects; False is certain."""
    return _MARK in text


def decode(text: str) -> Any:
    """Return the value behind a value text: a new object each time, equal to what was encoded and of the same type.

    Only for texts that ``encode`` wrote: arguments of a model are read with ``loads``, so they cannot pose as tags.
    Any thread; imports the modules of recorded classes.

    Raises:
        Unserializable: where a recorded class is gone or has changed so that the value does not fit it any more.
        StateFormat: for a text that is no value text of this version.
    """
    tree = _read(text)
    return rebuild(tree) if _MARK in text else tree


def _read(text: str) -> Any:
    try:
        return loads(text)
    except JsonSyntax as error:
        message = f"a stored value is no JSON: {error}"
        raise StateFormat(message) from error


def to_json(text: str) -> orjson.Fragment:
    """Return a value text as the JSON that a model reads, ready to be embedded by orjson.

    Text without tags passes through unread. Tagged values become plain JSON: bytes their UTF-8 text, or
    ``{"base64": ...}`` where they are no text; dates, times and durations ISO 8601; decimals, UUIDs and paths strings;
    NaN and infinities strings; tuples, sets and deques lists; dicts objects, or lists of ``[key, value]`` where keys
    are no scalars or would collide as text; enums their value; dataclasses, named tuples and models objects (without
    the fields that the model excludes). Needs none of the recorded classes. Any thread.

    Raises:
        Unserializable, StateFormat: as ``decode``, for damaged texts.
    """
    if _MARK not in text:
        return orjson.Fragment(text)
    return orjson.Fragment(_written(plain(_read(text))))
