"""A YAML file as plain data that remembers where every key and value was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flink_agents.config.problems import ConfigError, Place

__all__ = ["Document", "Template", "YamlPath", "shown_path"]

YamlPath = tuple[str | int, ...]
"""The way to a value: keys of mappings and positions of lists."""


@dataclass(frozen=True)
class Template:
    """A value that names environment variables. ``plain``: not quoted, so ``${N}`` may become a number."""

    text: str
    plain: bool


@dataclass
class Document:
    """Plain data (dict, list, str, int, float, bool, None) with the places it came from; no user type in it."""

    file: Path
    shown: str
    data: Any = None
    values: dict[YamlPath, Place] = field(default_factory=dict)
    keys: dict[YamlPath, Place] = field(default_factory=dict)
    templates: dict[YamlPath, Template] = field(default_factory=dict)
    texts: dict[YamlPath, str] = field(default_factory=dict)
    """Text of values that did not stand in the file, for when ``name: ${BUILD}`` turns out to look like a number."""

    hidden: set[YamlPath] = field(default_factory=set)
    """Values that hold something of the environment, and are therefore never shown."""

    errors: list[ConfigError] = field(default_factory=list)

    def place(self, path: YamlPath, *, key: bool = False) -> Place:
        """Return where the value (or the key) at ``path`` was written, else the nearest thing around it."""
        path = self.normal(path)
        if key and path in self.keys:
            return self.keys[path]
        while path not in self.values and path:
            path = path[:-1]
        return self.values.get(path, Place(self.shown))

    def normal(self, path: YamlPath) -> YamlPath:
        """Return ``path`` with the positions of lists as numbers, as :class:`Document` keeps them."""
        node, steps = self.data, []
        for step in path:
            if isinstance(node, list) and isinstance(step, str) and step.isdecimal():
                step = int(step)
            steps.append(step)
            node = child(node, step)
        return tuple(steps)

    def get(self, path: YamlPath) -> Any:
        """Return the value at ``path``, or None."""
        node = self.data
        for step in path:
            node = child(node, step)
        return node

    def put(self, path: YamlPath, value: Any) -> None:
        """Replace the value at ``path``, whose parent exists."""
        if path:
            self.get(path[:-1])[path[-1]] = value
        else:
            self.data = value

    def forget(self, path: YamlPath) -> None:
        """Drop what is known about ``path`` and everything below it, because it is about to be replaced."""
        known: tuple[dict[YamlPath, Any], ...] = (self.values, self.keys, self.templates, self.texts)
        for places in known:
            for stale in [p for p in places if p[: len(path)] == path]:
                del places[stale]

    def report(
        self, path: YamlPath, message: str, expected: str | None = None, hint: str | None = None, *, key: bool = False
    ) -> None:
        """Add an error about the value (or the key) at ``path``."""
        self.errors.append(ConfigError(self.place(path, key=key), shown_path(path), message, expected, hint))

    def below(self, path: YamlPath) -> Iterator[YamlPath]:
        """Yield every written path at or under ``path``."""
        return (known for known in self.values if known[: len(path)] == path)


def child(node: Any, step: str | int) -> Any:
    """Return what is one step below ``node``, or None."""
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and isinstance(step, int) and 0 <= step < len(node):
        return node[step]
    return None


def shown_path(path: YamlPath) -> str:
    """Return ``tools.0.name`` for a path, as ``--set`` takes it; very long keys are cut."""
    steps = (str(step) for step in path)
    return ".".join(step if len(step) <= 80 else f"{step[:77]}..." for step in steps)
