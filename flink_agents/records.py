"""Records to requests: the accepted shapes, the key, and the arguments of a call."""

from __future__ import annotations

from typing import Any

import orjson

from flink_agents import codec
from flink_agents.errors import InvalidArguments, RejectedRecord, TooLarge, Unserializable
from flink_agents.events import MISSING, InputEvent, ToolCall, ToolRequestEvent

__all__ = [
    "is_flat",
    "parse_arguments",
    "parse_input",
    "parse_request",
    "parse_stored",
    "parse_stored_input",
    "plain_key",
    "read_plain",
    "request_key",
]

MAX_DEPTH = codec.MAX_JSON_DEPTH - 10
"""Deepest record: what stores or answers it wraps it in some levels more, and must be readable too."""


KINDS = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}


def request_key(record: Any, key_by: str) -> str:
    """Return the canonical text of a record's key, by which the stream is partitioned.

    ``key_by`` names a field of the record; where no field has that very name, dots lead into nested objects. Any
    thread; pure, so it may run again for the same record.

    Raises:
        RejectedRecord: for a record that is no JSON object or has no usable key.
    """
    text = plain_key(record, key_by)
    return codec.key_text(_key(_read(record, None), key_by), key_by) if text is None else text


def plain_key(record: Any, key_by: str) -> str | None:
    """Return what ``request_key`` does, for almost every record: a JSON text whose key is text in a field of its own.

    Returns None for one that is odd in any way, which takes the longer way. Any thread; pure.
    """
    if type(record) is not str:
        return None
    try:
        tree = orjson.loads(record)
        if type(tree) is dict and type(key := tree.get(key_by)) is str:
            return orjson.dumps(key).decode()
    except (TypeError, ValueError, RecursionError):
        pass
    return None


def read_plain(record: Any, key_by: str, limit: int) -> tuple[str, dict[str, Any]] | None:
    """Return the key's text and the tree of a record, read once, for almost every record; for whom see ``plain_key``.

    None also for a record that will be rejected, or is over ``limit`` bytes. Any thread; pure.
    """
    if type(record) is not str:
        return None
    try:
        tree = _read(record, limit)
    except RejectedRecord:
        return None
    if type(key := tree.get(key_by)) is not str:
        return None
    return orjson.dumps(key).decode(), tree


def parse_request(record: Any, key_by: str, intake: int, limit: int) -> ToolRequestEvent:
    """Return the request in a record; every shape of the record contract. The event shares nothing with the record.

    ``intake`` is the key's intake number (it names a request without an id), ``limit`` the record's size in bytes.
    Shapes, by what is there: ``tool_calls`` (own form, OpenAI message), ``choices`` (OpenAI completion), a list
    ``content`` (Anthropic message), or one of them under ``message``. Any thread; pure.

    Raises:
        RejectedRecord: for a record that is no request; ``field`` is the path of the offending part.
    """
    return _request(_read(record, limit), key_by, intake)


def parse_stored(record: dict[str, Any], key_by: str, intake: int) -> ToolRequestEvent:
    """Return the request in a record that was read back from state; the event is made of it, not of a copy.

    What bounds a record was asked when it was taken in, and is not asked again: a limit that has become smaller since
    must not make a request unreadable. Any thread.

    Raises:
        RejectedRecord: for a record that is no request.
    """
    return _request(record, key_by, intake)


def parse_input(record: Any, key_by: str, intake: int, limit: int) -> InputEvent:
    """Return a record as an agent's input: any JSON object that has the key. Otherwise as ``parse_request``.

    Raises:
        RejectedRecord: for a record that is no JSON object or has no usable key.
    """
    return parse_stored_input(_read(record, limit), key_by, intake)


def parse_stored_input(record: dict[str, Any], key_by: str, intake: int) -> InputEvent:
    """Return the input in a record that was read back from state. Otherwise as ``parse_stored``.

    Raises:
        RejectedRecord: for a record without a usable key.
    """
    key = _key(record, key_by)
    return InputEvent(_request_id([record], codec.key_text(key, key_by), intake), key, record)


def _request(tree: dict[str, Any], key_by: str, intake: int) -> ToolRequestEvent:
    key = _key(tree, key_by)
    text = codec.key_text(key, key_by)
    calls, sources = _calls(tree)
    return ToolRequestEvent(
        _request_id(sources, key if type(key) is str else text, intake),
        key,
        calls,
        model if type(model := _first(sources, "model", None)) is str else None,
        _first(sources, "metadata", MISSING),
    )


def parse_arguments(asked: Any, limit: int) -> dict[str, Any]:
    """Return the arguments of a call as new objects, from an object or from a JSON string of an object.

    ``limit`` is in bytes of their JSON. A dict within is JSON and stays so: nothing in it is taken for a tag of the
    codec. Any thread; pure, so a retry parses again and gets objects of its own.

    Raises:
        InvalidArguments: for anything that is no JSON object or nests too deep; ``expected`` is left to the caller.
        TooLarge: over the limit.
    """
    if type(asked) is not str:
        if type(asked) is dict and is_flat(asked, limit):
            return asked.copy()
        if type(asked) is not dict:
            message = f"arguments must be a JSON object, got {_kind(asked)}"
            raise InvalidArguments(message)
        try:
            asked = codec.encode_plain(asked)
        except Unserializable as error:
            problem = str(error)
        else:
            problem = ""
        if problem:
            message = f"arguments are no JSON: {problem}"
            raise InvalidArguments(message)
    if len(asked) * 4 > limit:
        _check_size(asked, limit)
    try:
        value = codec.loads(asked)
    except codec.JsonSyntax as error:
        problem = str(error)
    else:
        if type(value) is not dict:
            message = f"arguments must be a JSON object, got {_kind(value)}"
            raise InvalidArguments(message)
        if len(asked) > 2 * codec.MAX_DEPTH and codec.depth_over(value, codec.MAX_DEPTH):
            message = f"arguments nest deeper than {codec.MAX_DEPTH} levels"
            raise InvalidArguments(message)
        return value
    message = f"arguments are not valid JSON: {problem}" if asked else "arguments are empty, not a JSON object"
    raise InvalidArguments(message)


def is_flat(asked: dict[Any, Any], limit: int) -> bool:
    """Tell whether a shallow copy is a deep one, and certainly within the limit in bytes, as with most calls.

    Such an object is also its own canonical tree: see ``codec.flat_digest``. Any thread; pure.
    """
    size = len(asked)
    for name, value in asked.items():
        kind = type(value)
        if type(name) is not str or not (kind is str or kind is int or kind is bool or value is None):
            return False
        size += len(name)
        if kind is str:
            # What is not ASCII may hold a lone surrogate, which is no JSON.
            if not value.isascii():
                return False
            size += len(value)
        elif kind is int and not -_LONG < value < _LONG:
            return False
    # A character takes six bytes at the most, a number twenty.
    return size * 26 < limit


_LONG = 2**63


def _check_size(text: str, limit: int) -> None:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "backslashreplace"))
    if size > limit:
        message = f"arguments are {size} bytes, over the limit of {limit} bytes"
        raise TooLarge(message)


def _kind(value: Any) -> str:
    return KINDS.get(type(value)) or ("an object" if type(value) is dict else type(value).__name__)


def _read(record: Any, limit: int | None) -> dict[str, Any]:
    if isinstance(record, dict):
        # Written and read again: the request must not change with the record, nor hold what JSON cannot.
        try:
            record = codec.encode_plain(record)
        except Unserializable as error:
            message = f"the record is no JSON: {error}"
            raise RejectedRecord(message) from error
        except TooLarge as error:
            message = f"the record is too large: {error}"
            raise RejectedRecord(message) from error
    if isinstance(record, str):
        record = record.encode("utf-8", "surrogatepass")
    if not isinstance(record, bytes):
        message = f"the record is a {type(record).__name__}; expected a JSON text or a dict"
        raise RejectedRecord(message)
    if limit is not None and len(record) > limit:
        message = f"the record is {len(record)} bytes, over the limit of {limit} bytes"
        raise RejectedRecord(message)
    try:
        tree = codec.loads(record)
    except codec.JsonSyntax as error:
        message = f"the record is not JSON: {error}"
        raise RejectedRecord(message) from error
    if type(tree) is not dict:
        message = f"the record is {_kind(tree)}, not a JSON object"
        raise RejectedRecord(message)
    # A level takes a bracket, so most records need no look.
    if record.count(b"{") + record.count(b"[") > MAX_DEPTH and codec.depth_over(tree, MAX_DEPTH):
        message = f"the record nests deeper than {MAX_DEPTH} levels"
        raise RejectedRecord(message)
    return tree


def _key(tree: dict[str, Any], key_by: str) -> Any:
    if key_by in tree:
        return tree[key_by]
    found: Any = tree
    for part in key_by.split("."):
        if type(found) is not dict or part not in found:
            message = f"the key field {key_by} is missing"
            raise RejectedRecord(message, key_by)
        found = found[part]
    return found


def _request_id(sources: list[dict[str, Any]], key: str, intake: int) -> str:
    for source in sources:
        found = source.get("id")
        if found is None:
            continue
        if type(found) is str:
            return found
        if type(found) in (dict, list):
            message = f"the id is {_kind(found)}; expected a string"
            raise RejectedRecord(message, "id")
        return codec.canonical(found)
    return f"{key}/{intake}"


def _first(sources: list[dict[str, Any]], name: str, default: Any) -> Any:
    for source in sources:
        if name in source:
            return source[name]
    return default


def _calls(tree: dict[str, Any]) -> tuple[tuple[ToolCall, ...], list[dict[str, Any]]]:
    """Return the calls and the objects that may carry id, model and metadata, outermost first."""
    source, sources, where = tree, [tree], ""
    inner = tree.get("message")
    if type(inner) is dict and "tool_calls" not in tree and "choices" not in tree:
        source, where = inner, "message."
        sources.append(inner)
    if "tool_calls" not in source and "choices" in source:
        source, where = _choice(source["choices"], where)
    if "tool_calls" not in source and type(source.get("content")) is list:
        return _anthropic_calls(source["content"], where + "content"), sources
    where += "tool_calls"
    calls = source.get("tool_calls")
    if type(calls) is not list:
        message = f"tool_calls is {_kind(calls)}, not a list" if "tool_calls" in source else "tool_calls is missing"
        raise RejectedRecord(message, where)
    parsed = []
    for position, call in enumerate(calls):
        function = call.get("function") if type(call) is dict else None
        if type(function) is not dict:
            message = f"call {position} has no function"
            raise RejectedRecord(message, f"{where}[{position}].function")
        tool = function.get("name")
        if type(tool) is not str or not tool:
            message = f"call {position} has no name"
            raise RejectedRecord(message, f"{where}[{position}].function.name")
        parsed.append(ToolCall(position, _call_id(call.get("id")), tool, function.get("arguments")))
    return tuple(parsed), sources


def _choice(choices: Any, where: str) -> tuple[dict[str, Any], str]:
    found = []
    for index, choice in enumerate(choices if type(choices) is list else ()):
        message = choice.get("message") if type(choice) is dict else None
        if type(message) is dict and message.get("tool_calls") is not None:
            found.append((message, f"{where}choices[{index}].message."))
    if len(found) == 1:
        return found[0]
    reason = "no choice has tool_calls" if not found else "several choices have tool_calls; keep the one to run"
    raise RejectedRecord(reason, where + "choices")


def _anthropic_calls(content: list[Any], where: str) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    for index, block in enumerate(content):
        if type(block) is not dict or block.get("type") != "tool_use":
            continue
        tool = block.get("name")
        if type(tool) is not str or not tool:
            message = f"call {len(calls)} has no name"
            raise RejectedRecord(message, f"{where}[{index}].name")
        calls.append(ToolCall(len(calls), _call_id(block.get("id")), tool, block.get("input")))
    if not calls:
        reason = "tool_calls is missing, and content has no tool_use block"
        raise RejectedRecord(reason, where)
    return tuple(calls)


def _call_id(carried: Any) -> str | int | None:
    if carried is None or type(carried) is str or type(carried) is int:
        return carried
    try:
        return codec.canonical(carried)
    except Unserializable:
        # Deeper than the codec carries. It is only carried along, so its text will do.
        return codec.dumps(carried)
