"""The tools' schemas in the forms that model APIs take.

Names are kept as they are. The OpenAI and Anthropic APIs take letters, digits, ``_`` and ``-`` only (at most 64 and 128
of them), so a job whose tools are called ``spotify.play`` has to rename them before it shows them to such a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flink_agents.errors import InvalidInput
from flink_agents.tools.base import ToolSpec
from flink_agents.tools.specification import own_copy

__all__ = ["FORMATS", "anthropic", "mcp", "openai", "to_format"]


def openai(spec: ToolSpec) -> dict[str, Any]:
    """Return the entry of ``tools`` in a chat completion request."""
    function = {"name": spec.name, "description": spec.description, "parameters": _object_schema(spec)}
    return {"type": "function", "function": function}


def anthropic(spec: ToolSpec) -> dict[str, Any]:
    """Return the entry of ``tools`` in a messages request."""
    return {"name": spec.name, "description": spec.description, "input_schema": _object_schema(spec)}


def mcp(spec: ToolSpec) -> dict[str, Any]:
    """Return the entry of the result of ``tools/list``."""
    return {"name": spec.name, "description": spec.description, "inputSchema": _object_schema(spec)}


FORMATS: dict[str, Callable[[ToolSpec], dict[str, Any]]] = {"openai": openai, "anthropic": anthropic, "mcp": mcp}


def to_format(specs: Iterable[ToolSpec], name: str) -> list[dict[str, Any]]:
    """Return the schemas of ``specs`` in the format ``name``: ``openai``, ``anthropic`` or ``mcp``.

    Raises:
        InvalidInput: for any other format.
    """
    if name not in FORMATS:
        msg = f"there is no format {name!r}; the formats are {', '.join(FORMATS)}"
        raise InvalidInput(msg)
    return [FORMATS[name](spec) for spec in specs]


def _object_schema(spec: ToolSpec) -> dict[str, Any]:
    # All three require the type, which a schema of arguments may leave unsaid.
    return {"type": "object", **own_copy(spec.parameters)}
