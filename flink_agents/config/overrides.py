"""``--set a.b=c``: one value of the job YAML replaced from the command line, before anything is checked."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from ruamel.yaml.nodes import ScalarNode

from flink_agents.config.document import Document, YamlPath, child, shown_path
from flink_agents.config.problems import ConfigError, Place
from flink_agents.config.yaml_text import compose, fill

__all__ = ["apply"]

# Below this path the rest is one key: the names of Flink's options have dots of their own.
UNSPLIT: YamlPath = ("flink", "options")


def apply(document: Document, override: str, defaults: Mapping[str, Any]) -> None:
    """Replace or add the value that ``override`` (``tools.0.name=x``) names; report what cannot be done.

    ``defaults`` are the sections that hold when they are not written, so that one value of them can be replaced.

    The value is read as YAML, so ``mode=sequential``, ``max_in_flight=4`` and ``sink={type: print}`` all work. A name
    that the job YAML does not have is left to the check of the keys, which knows the nearest one.
    """
    name, equals, text = override.partition("=")
    name = name.strip()
    place = Place(f"--set {name[:100]}")
    steps = _steps(name)
    if not equals or not all(steps):
        problem = "no field to set" if equals else "no value to set"
        expected = "path.of.field=value, such as tool_calls.mode=sequential"
        document.errors.append(ConfigError(place, "", problem, expected))
        return
    path = _reach(document, steps, place, defaults)
    if path is None:
        return
    value = Document(document.file, place.text)
    node = compose(text, value)
    if value.errors:
        document.errors += [ConfigError(place, shown_path(path), error.message) for error in value.errors]
        return
    document.forget(path)
    document.keys[path] = place
    document.values[path] = place
    document.put(path, fill(document, node, path, place.text) if node is not None else "")
    if isinstance(node, ScalarNode) and path not in document.templates:
        document.texts[path] = text


def _steps(name: str) -> list[str]:
    steps = name.split(".")
    unsplit = len(UNSPLIT)
    if tuple(steps[:unsplit]) == UNSPLIT and len(steps) > unsplit:
        return [*steps[:unsplit], ".".join(steps[unsplit:])]
    return steps


def _reach(document: Document, steps: list[str], place: Place, defaults: Mapping[str, Any]) -> YamlPath | None:
    """Return the path of ``steps``, making the mappings on the way; None when something else is in the way."""
    path: YamlPath = ()
    for number, step in enumerate(steps):
        node = document.get(path)
        if isinstance(node, list):
            if not step.isdecimal() or int(step) >= len(node):
                entries = f"the list `{shown_path(path)}` has {len(node)} entries"
                expected = f"a position from 0 to {len(node) - 1}" if node else None
                document.errors.append(ConfigError(place, shown_path((*path, step)), entries, expected))
                return None
            path = (*path, int(step))
        elif isinstance(node, dict):
            path = (*path, step)
        else:
            problem = f"`{shown_path(path)}` holds a single value, so it has no `{step}`"
            document.errors.append(ConfigError(place, shown_path(tuple(steps)), problem))
            return None
        last = number == len(steps) - 1
        # An absent section, or one left empty (`flink:`), starts as an empty mapping.
        if not last and child(node, path[-1]) is None:
            # Another type than the default's has other keys, so it starts from nothing.
            section = defaults.get(steps[0]) if number == 0 and steps[1] != "type" else None
            document.put(path, deepcopy(section) if isinstance(section, dict) else {})
            document.values[path] = document.keys[path] = place
    return path
