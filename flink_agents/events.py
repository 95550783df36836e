"""The frozen events at the two ends of an action: a request of tool calls in, a response of their results out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Final, Literal

import orjson

from flink_agents import codec
from flink_agents.errors import StateFormat

__all__ = [
    "MISSING",
    "CallResult",
    "InputEvent",
    "Missing",
    "OutputEvent",
    "ToolCall",
    "ToolRequestEvent",
    "ToolResponseEvent",
    "reject_json",
    "response_line",
    "result_record",
]

RECORD_LIMIT = 1024
REASON_LIMIT = 2048


class Missing(Enum):
    """Type of ``MISSING``; an enum, so the sentinel stays one object through pickle and copy."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
"""Stands where a record carried no ``metadata``; null metadata is None and is carried."""


@dataclass(frozen=True)
class InputEvent:
    """One record of an agent's input. ``input`` is the record: any JSON object that has the key."""

    request_id: str
    key: Any
    input: dict[str, Any]


@dataclass(frozen=True)
class OutputEvent:
    """What an agent has to say: ``output`` goes to the sink as one line, with request id and key."""

    output: Any


@dataclass(frozen=True, init=False)
class ToolCall:
    """One call of a request, as it was asked for.

    ``position`` counts from 0 and is the call's identity within the request; ``call_id`` is only carried along (None:
    the record had none; an empty one stays ``""``; one that is neither string nor integer is its JSON text).
    ``arguments`` are as asked, checked by nobody yet: an object, a JSON string, or anything else (None: there were
    none). They belong to the event: read them with ``records.parse_arguments``, which copies.
    """

    position: int
    call_id: str | int | None
    tool: str
    arguments: Any

    def __init__(self, position: int, call_id: str | int | None, tool: str, arguments: Any) -> None:
        # As in ``CallResult``: one is made for every call.
        self.__dict__.update(position=position, call_id=call_id, tool=tool, arguments=arguments)


@dataclass(frozen=True)
class ToolRequestEvent:
    """One request. ``key`` is the key as the record carried it: a string, number or boolean."""

    request_id: str
    key: Any
    calls: tuple[ToolCall, ...]
    model: str | None = None
    metadata: Any = MISSING

    def to_json(self) -> str:
        """Return the event as one line of JSON for keyed state; part of savepoint format 1. Any thread."""
        record: dict[str, Any] = {
            "v": codec.FORMAT_VERSION,
            "id": self.request_id,
            "key": self.key,
            "calls": [[call.call_id, call.tool, call.arguments] for call in self.calls],
        }
        if self.model is not None:
            record["model"] = self.model
        if self.metadata is not MISSING:
            record["metadata"] = self.metadata
        return codec.dumps(record)

    @classmethod
    def from_json(cls, text: str) -> ToolRequestEvent:
        """Return the event that ``to_json`` wrote, equal to the original. Any thread.

        Raises:
            StateFormat: for a text of another version or shape.
        """
        try:
            record = codec.loads(text)
            version = record["v"]
            if version == codec.FORMAT_VERSION:
                return cls(
                    record["id"],
                    record["key"],
                    tuple([ToolCall(index, *call) for index, call in enumerate(record["calls"])]),
                    record.get("model"),
                    record.get("metadata", MISSING),
                )
        except (codec.JsonSyntax, KeyError, TypeError) as error:
            message = f"a stored request cannot be read: {type(error).__name__}: {error}"
            raise StateFormat(message) from error
        message = f"a stored request has format {version!r}; this version reads {codec.FORMAT_VERSION}"
        raise StateFormat(message)


@dataclass(frozen=True, init=False)
class CallResult:
    """How one call ended. ``value_text`` is the codec's text of the value, None for a failed call.

    ``error`` is ``{"kind", "type", "message", "expected"?}``, None for a successful call; ``attempts`` counts started
    bodies; ``replayed`` tells that the outcome was recorded before and nothing ran for it now.
    """

    position: int
    call_id: str | int | None
    tool: str
    status: Literal["succeeded", "failed"]
    value_text: str | None = None
    error: dict[str, Any] | None = None
    attempts: int = 1
    replayed: bool = False
    duration_ms: int = 0

    def __init__(
        self,
        position: int,
        call_id: str | int | None,
        tool: str,
        status: Literal["succeeded", "failed"],
        value_text: str | None = None,
        error: dict[str, Any] | None = None,
        attempts: int = 1,
        replayed: bool = False,
        duration_ms: int = 0,
    ) -> None:
        # One update instead of the nine guarded assignments of a frozen dataclass: half the time, once for every call.
        self.__dict__.update(
            position=position,
            call_id=call_id,
            tool=tool,
            status=status,
            value_text=value_text,
            error=error,
            attempts=attempts,
            replayed=replayed,
            duration_ms=duration_ms,
        )

    @cached_property
    def value(self) -> Any:
        """The value, decoded on first use; None for a failed call. Equal on first run and replay.

        Raises:
            Unserializable: where the recorded class is gone.
        """
        return None if self.value_text is None else codec.decode(self.value_text)

    def to_json(self) -> dict[str, Any]:
        """Return the result as the response carries it, for orjson: the value is an ``orjson.Fragment``."""
        return result_record(
            self.position,
            self.call_id,
            self.tool,
            self.value_text,
            self.error,
            self.attempts,
            self.replayed,
            self.duration_ms,
        )

    def text(self) -> str:
        """Return what a model reads of this result: a string value as it is, everything else as JSON."""
        if self.value_text is None:
            return codec.dumps({"error": self.error})
        shown = codec.to_json(self.value_text)
        value = codec.loads(orjson.dumps(shown))
        return value if isinstance(value, str) else codec.dumps(value)


@dataclass(frozen=True)
class ToolResponseEvent:
    """The one answer to a request; ``results`` stand in the order of the request's calls, however they are handed in.

    The views ``responses``, ``success``, ``error`` and ``external_ids`` are dicts by call id, in that order. So that
    no result is lost, a call whose id is missing or empty is found under ``#<position>``, and one whose id an earlier
    call has used under ``<id>#<position>``.
    """

    request_id: str
    key: Any
    results: tuple[CallResult, ...]
    metadata: Any = field(default=MISSING)

    def __post_init__(self) -> None:
        previous = -1
        for result in self.results:
            if result.position < previous:
                ordered = tuple(sorted(self.results, key=lambda result: result.position))
                object.__setattr__(self, "results", ordered)
                return
            previous = result.position

    def _by_id(self) -> Iterator[tuple[str | int, CallResult]]:
        used: set[str | int] = set()
        for result in self.results:
            name: str | int = f"#{result.position}" if result.call_id in (None, "") else result.call_id or 0
            while name in used:
                name = f"{name}#{result.position}"
            used.add(name)
            yield name, result

    @property
    def responses(self) -> dict[str | int, Any]:
        """Values by call id; None for a failed call (see ``success``)."""
        return {name: result.value for name, result in self._by_id()}

    @property
    def success(self) -> dict[str | int, bool]:
        """Whether each call succeeded, by call id."""
        return {name: result.status == "succeeded" for name, result in self._by_id()}

    @property
    def error(self) -> dict[str | int, str | None]:
        """Error messages by call id; None for a call that succeeded."""
        return {name: None if item.error is None else item.error["message"] for name, item in self._by_id()}

    @property
    def external_ids(self) -> dict[str | int, str | int | None]:
        """What each call carried as its id, by the id under which the other views have it."""
        return {name: result.call_id for name, result in self._by_id()}

    def to_messages(self, form: str) -> list[dict[str, Any]]:
        """Return the messages that hand the results back to a model, in the form of ``openai`` or ``anthropic``.

        One ``tool`` message per call for the former, one ``user`` message with all ``tool_result`` blocks for the
        latter. Ids are those of the views, as text.

        Raises:
            ValueError: for another form.
        """
        if form == "openai":
            return [
                {"role": "tool", "tool_call_id": str(name), "content": result.text()} for name, result in self._by_id()
            ]
        if form != "anthropic":
            message = f"unknown message form {form!r}; known: openai, anthropic"
            raise ValueError(message)
        blocks = []
        for name, result in self._by_id():
            block = {"type": "tool_result", "tool_use_id": str(name), "content": result.text()}
            blocks.append(block if result.status == "succeeded" else {**block, "is_error": True})
        return [{"role": "user", "content": blocks}] if blocks else []

    def to_json(self) -> str:
        """Return the response as one line of JSON, as the responses output carries it. Any thread."""
        results = [result.to_json() for result in self.results]
        return response_line(self.request_id, self.key, results, self.metadata)


def _exact(tree: Any) -> Any:
    """Hand to orjson as ready text what it cannot write itself: integers over 64 bits, and very deep values."""
    if type(tree) is dict and any(type(item) is orjson.Fragment for item in tree.values()):
        return {name: item if type(item) is orjson.Fragment else _fragment(item) for name, item in tree.items()}
    if type(tree) is dict and "results" in tree:
        return {
            name: [_exact(r) for r in item] if name == "results" else _fragment(item) for name, item in tree.items()
        }
    return _fragment(tree)


def _fragment(tree: Any) -> orjson.Fragment:
    return orjson.Fragment(codec.dumps(tree))


def response_line(request_id: str, key: Any, results: list[dict[str, Any]], metadata: Any) -> str:
    """Return a response as one line of JSON, from the records of its results in their order. Any thread."""
    response: dict[str, Any] = {"request_id": request_id, "key": key, "results": results}
    if metadata is not MISSING:
        response["metadata"] = metadata
    try:
        return orjson.dumps(response).decode()
    except TypeError:
        return orjson.dumps(_exact(response)).decode()


def result_record(
    position: int,
    call_id: str | int | None,
    tool: str,
    value_text: str | None,
    error: dict[str, Any] | None,
    attempts: int,
    replayed: bool,
    duration_ms: int,
) -> dict[str, Any]:
    """Return one result as a response carries it, for orjson; the fields are those of ``CallResult``. Any thread."""
    record: dict[str, Any] = {"position": position, "call_id": call_id, "tool": tool}
    if value_text is None:
        record["status"] = "failed"
        record["error"] = error
    else:
        record["status"] = "succeeded"
        record["value"] = codec.to_json(value_text)
    record["attempts"] = attempts
    record["replayed"] = replayed
    record["duration_ms"] = duration_ms
    return record


def reject_json(reason: str, field: str | None, record: Any) -> str:
    """Return the line for the rejects output: ``{"reason", "field"?, "record"}``.

    ``record`` is the text of the record cut to 1 KiB of UTF-8, whatever type it has; never raises. Any thread.
    """
    reject = {"reason": codec.cut(reason, REASON_LIMIT)}
    if field is not None:
        reject["field"] = codec.cut(field, RECORD_LIMIT)
    reject["record"] = _shown(record)
    return codec.dumps(reject)


def _shown(record: Any) -> str:
    if isinstance(record, (bytes, bytearray)):
        text = bytes(record[:RECORD_LIMIT]).decode("utf-8", "backslashreplace")
    elif isinstance(record, str):
        text = record[:RECORD_LIMIT]
    else:
        try:
            text = codec.encode_plain(record)
        except Exception:
            text = _described(record)
    return text[:RECORD_LIMIT].encode("utf-8", "backslashreplace")[:RECORD_LIMIT].decode("utf-8", "ignore")


def _described(record: Any) -> str:
    try:
        return repr(record)
    except Exception as error:
        return f"<{type(record).__name__} whose repr raises {type(error).__name__}>"
