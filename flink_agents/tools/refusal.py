"""The text of a refused call: what is wrong with its arguments, bounded, in words that a model can act on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

__all__ = ["MAX_MESSAGE_BYTES", "MAX_PROBLEMS", "bounded", "field_path", "json_type", "nearest", "refusal"]

MAX_MESSAGE_BYTES = 2048
MAX_PROBLEMS = 8
_MAX_PROBLEM_BYTES = 200
_MAX_PATH_BYTES = 80
_MAX_MATCHED_CHARS = 80
_MARK = "..."


def bounded(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` bytes of UTF-8, marked where it was cut. Lone surrogates are escaped."""
    raw = text[: limit + 1].encode("utf-8", "backslashreplace")
    if len(raw) <= limit and len(text) <= limit:
        return raw.decode()
    return raw[: limit - len(_MARK)].decode("utf-8", "ignore") + _MARK


def field_path(steps: Sequence[str | int]) -> str:
    """Return ``items[2].price`` for ``("items", 2, "price")``, bounded; the arguments as a whole are ``arguments``."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
        if len(text) > _MAX_PATH_BYTES:
            break
    return bounded(text, _MAX_PATH_BYTES) if text else "arguments"


def json_type(value: Any) -> str:
    """Return what JSON calls the type of ``value``; a model knows no other names."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else type(value).__name__


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` was probably meant to be. Bounded in time whatever the length of ``name``."""
    matches = get_close_matches(name[:_MAX_MATCHED_CHARS], list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def refusal(tool: str, problems: Iterable[str], total: int | None = None) -> str:
    """Return the message of an ``InvalidArguments``: one line a problem, at most ``MAX_MESSAGE_BYTES``.

    Only the first ``MAX_PROBLEMS`` are shown; ``total`` says how many there are, None if ``problems`` has them all.
    """
    left = iter(problems)
    lines = [f"- {bounded(problem, _MAX_PROBLEM_BYTES)}" for problem in islice(left, MAX_PROBLEMS)]
    if total is not None and total > len(lines):
        lines.append(f"- and {total - len(lines)} more")
    elif next(left, None) is not None:
        lines.append("- and more")
    head = f"invalid arguments for tool {bounded(tool, _MAX_PATH_BYTES)!r}:"
    return bounded("\n".join([head, *lines]), MAX_MESSAGE_BYTES)
