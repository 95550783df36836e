"""One quick look at a value: is it plain JSON by its exact types, so that no tag is needed?"""

from __future__ import annotations

from typing import Any

__all__ = ["PLAIN", "RICH", "WITH_FLOATS", "plainness"]

MAX_PLAIN_DEPTH = 100

RICH, PLAIN, WITH_FLOATS = 0, 1, 2


def plainness(value: Any, budget: list[int], depth: int = 0) -> int:
    """Return ``RICH``, ``PLAIN`` or ``WITH_FLOATS`` (plain, with finite floats among the values).

    Also ``RICH``: what nests too deep, contains itself or has more elements and characters than ``budget[0]``; the
    slow path looks again and names the problem. Exact types only: a subclass carries more than JSON can say.
    """
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return RICH
        items = value.values()
    elif kind is list:
        items = value
    else:
        items = (value,)
    size = len(items)
    result = PLAIN
    for item in items:
        kind = type(item)
        if kind is str:
            size += len(item)
        elif kind is int or kind is bool or item is None:
            pass
        elif kind is float:
            if item - item != 0.0:
                return RICH
            result = WITH_FLOATS
        elif kind is dict or kind is list:
            if depth >= MAX_PLAIN_DEPTH - 1:
                return RICH
            budget[0] -= size
            size = 0
            if budget[0] < 0:
                return RICH
            inner = plainness(item, budget, depth + 1)
            if inner == RICH:
                return RICH
            if inner == WITH_FLOATS:
                result = WITH_FLOATS
        else:
            return RICH
    budget[0] -= size + 1
    return result if budget[0] >= 0 else RICH
