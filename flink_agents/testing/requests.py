"""Requests in one line."""

from __future__ import annotations

from typing import Any

__all__ = ["tool_request"]


def tool_request(key: Any, *calls: tuple[str, Any], key_name: str = "key", **fields: Any) -> dict[str, Any]:
    """Return a request of ``key`` for ``calls``, each a tool's name and its arguments (an object or a JSON string).

    ``key_name`` is the field that holds the key, ``fields`` are further fields of the record, such as ``id`` or
    ``metadata``. Calls get the ids ``call_1`` and so on.
    """
    return {
        key_name: key,
        "tool_calls": [
            {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(calls, start=1)
        ],
        **fields,
    }
