"""Canonical text: equal for equal values in any process, so identities and keys can be compared as text.

As RFC 8785 has it: sorted keys, no white space, integral floats as integers (1.0 is 1). Beyond it: integers of any
size, and rich values by their tags. ``True`` is not 1, and a value never equals one of another rich type.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import orjson

from flink_agents.codec.json_text import PASSTHROUGH, dumps_exact
from flink_agents.codec.shape import PLAIN, plainness
from flink_agents.codec.tags import MAX_NODES, Tagger
from flink_agents.errors import RejectedRecord

__all__ = ["canonical", "digest", "flat_digest", "key_text"]

_SORTED = PASSTHROUGH | orjson.OPT_SORT_KEYS


def canonical(value: Any) -> str:
    """Return the canonical text of a value: the same for equal values, whatever the order of dicts and sets.

    Any thread; the same in every process and release.

    Raises:
        Unserializable: for what the codec cannot carry.
    """
    return _canonical(value).decode()


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical text, in hexadecimal. Any thread. Raises as ``canonical`` does."""
    return hashlib.sha256(_canonical(value)).hexdigest()


def flat_digest(value: dict[str, str | int | bool | None]) -> str:
    """Return the ``digest`` of an object known to hold only ASCII texts, integers of 64 bits, bools and None."""
    return hashlib.sha256(orjson.dumps(value, option=_SORTED)).hexdigest()


def _canonical(value: Any) -> bytes:
    shape = plainness(value, [MAX_NODES])
    tree = value if shape else Tagger(canonical=True).tag(value)
    try:
        return orjson.dumps(tree if shape == PLAIN else _numbers(tree, orjson.Fragment), option=_SORTED)
    except TypeError:
        # An integer over 64 bits, too deep for orjson, or a lone surrogate, which the tagger names with its place.
        tree = Tagger(canonical=True).tag(value)
    return dumps_exact(_numbers(tree, float), sort_keys=True).encode()


def _numbers(tree: Any, fraction: Callable[[str], Any]) -> Any:
    """Make integral floats integers, and the others what ``fraction`` makes of their ``repr``.

    Their digits must not change with the version of orjson, so it is not left to write them.
    """
    kind = type(tree)
    if kind is float:
        return int(tree) if tree.is_integer() else fraction(repr(tree))
    if kind is dict:
        return {name: _numbers(item, fraction) for name, item in tree.items()}
    if kind is list:
        return [_numbers(item, fraction) for item in tree]
    return tree


def key_text(value: Any, field: str | None = None) -> str:
    """Return the canonical text of a key: it keeps its type, and 1 and 1.0 are one key.

    Any thread. ``field`` is where the key was found, for the rejects output.

    Raises:
        RejectedRecord: for null, lists, objects, NaN and anything else that cannot be a key.
    """
    kind = type(value)
    if kind is str:
        try:
            return orjson.dumps(value).decode()
        except TypeError:
            message = "the key holds a lone surrogate, which is no text"
            raise RejectedRecord(message, field) from None
    if kind is int or kind is bool or (kind is float and math.isfinite(value)):
        return canonical(value)
    if value is None:
        reason = "the key is null"
    elif kind is dict or kind is list:
        reason = f"the key is {'an object' if kind is dict else 'a list'}"
    elif kind is float:
        reason = f"the key is {value}"
    else:
        reason = f"the key is a {kind.__name__}"
    message = f"{reason}; it must be a string, a number or a boolean"
    raise RejectedRecord(message, field)
