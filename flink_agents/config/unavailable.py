"""Keys of the job YAML whose features this version does not have: refused by name, never ignored.

A feature that lands deletes its row here and adds its field to ``schema``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flink_agents.config.document import Document, YamlPath

__all__ = ["UNAVAILABLE", "Unavailable", "refuse_unavailable"]


@dataclass(frozen=True)
class Unavailable:
    """A key (``tools.*.mcp``) or a value of one (``source.type`` = ``kafka``); ``*`` is any position of a list.

    ``whole``: the mapping that holds it makes no sense without it, so nothing else is said about that mapping.
    ``instead`` names the values that there are.
    """

    path: str
    value: str | None = None
    whole: bool = False
    instead: str = ""


UNAVAILABLE: tuple[Unavailable, ...] = (
    # Other kinds of tool.
    Unavailable("tools.*.mcp", whole=True),
    Unavailable("tools.*.agent", whole=True),
    # Connectors.
    Unavailable("source.type", "kafka", whole=True, instead="'jsonl'"),
    Unavailable("sink.type", "kafka", whole=True, instead="'jsonl' or 'print'"),
    Unavailable("rejects.type", "kafka", whole=True, instead="'jsonl' or 'print'"),
)


def refuse_unavailable(document: Document) -> set[YamlPath]:
    """Report every unavailable key and value of ``document``; return the paths that need no further checking."""
    settled: set[YamlPath] = set()
    for row in UNAVAILABLE:
        for path in _matches(document.data, tuple(row.path.split(".")), ()):
            key = str(path[-1])
            value = document.get(path)
            if row.value is None:
                document.report(path, f"`{key}` is not available in this version of flink-agents", key=True)
            elif value == row.value:
                message = f"`{key}: {row.value}` is not available in this version of flink-agents"
                document.report(path, f"{message}; expected {row.instead}")
            else:
                continue
            settled.add(path[:-1] if row.whole and len(path) > 1 else path)
    return settled


def _matches(node: Any, pattern: tuple[str, ...], path: YamlPath) -> Iterator[YamlPath]:
    if not pattern:
        yield path
    elif pattern[0] == "*":
        for index, item in enumerate(node) if isinstance(node, list) else ():
            yield from _matches(item, pattern[1:], (*path, index))
    elif isinstance(node, dict) and pattern[0] in node:
        yield from _matches(node[pattern[0]], pattern[1:], (*path, pattern[0]))
