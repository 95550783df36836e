"""The one function behind every tool of `tools.json`: it answers with what it was called with."""

from __future__ import annotations

from typing import Any


def handler(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the call itself, so that each response shows exactly what reached the tool.

    Args:
        name: the tool that the request named, one of `tools.json`.
        arguments: the arguments, already checked against that tool's schema.
    """
    return {"name": name, "arguments": arguments}
