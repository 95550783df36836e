"""The keys of a job YAML against the models: which are unknown, and which model holds for a mapping."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Discriminator, Tag

from flink_agents.config.document import Document, YamlPath
from flink_agents.config.problems import nearest, one_of

__all__ = ["known_data"]


def known_data(document: Document, model: type[BaseModel], settled: set[YamlPath]) -> Any:
    """Return a copy of the data without the unknown keys, each of which is reported, and the settled ones."""
    return _Walk(document, model, settled).known(document.data, model, (), ())


class _Walk:
    def __init__(self, document: Document, root: type[BaseModel], settled: set[YamlPath]) -> None:
        self.document = document
        self.settled = settled
        self.lower_down = _lower_down(root)

    def known(self, value: Any, annotation: Any, metadata: tuple[Any, ...], path: YamlPath) -> Any:
        annotation, metadata = _unwrap(annotation, metadata, value)
        if isinstance(value, list):
            items = get_args(annotation)[0] if get_origin(annotation) is list else None
            return [self.known(item, items, (), (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if not _is_model(annotation) or path in self.settled:
            items = get_args(annotation)[1] if get_origin(annotation) is dict else None
            return {key: self.known(item, items, (), (*path, key)) for key, item in value.items()}
        names = {field.alias or name: field for name, field in annotation.model_fields.items()}
        result = {}
        for key, item in value.items():
            here = (*path, key)
            if key in names:
                result[key] = self.known(item, names[key].annotation, tuple(names[key].metadata), here)
            elif here not in self.settled:
                self.unknown(here, list(names))
        # What was refused for itself is left out, unless leaving it out would be reported as missing.
        return {
            key: item for key, item in result.items() if (*path, key) not in self.settled or names[key].is_required()
        }

    def unknown(self, path: YamlPath, names: list[str]) -> None:
        key = str(path[-1])
        shown = key if len(key) <= 60 else f"{key[:57]}..."
        hint = nearest(key, names) or (self.lower_down.get(key) if len(path) == 1 else None)
        self.document.report(path, f"unknown key `{shown}`", one_of(names), hint, key=True)


def _lower_down(root: type[BaseModel]) -> dict[str, str]:
    """Return name and path of the keys of the sections, for one that was written at the top; ambiguous ones not."""
    paths: dict[str, list[str]] = {}
    for name, path in _fields(root, ""):
        paths.setdefault(name, []).append(path)
    return {name: found[0] for name, found in paths.items() if len(found) == 1}


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _fields(annotation, f"{prefix}{name}.")
        elif prefix:
            yield name, f"{prefix}{name}"


def _unwrap(annotation: Any, metadata: tuple[Any, ...], value: Any) -> tuple[Any, tuple[Any, ...]]:
    """Take off ``Annotated`` and choose the member of a union that holds for ``value``."""
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = (*metadata, *more)
    if get_origin(annotation) not in {Union, types.UnionType}:
        return annotation, metadata
    for choose in (entry.discriminator for entry in metadata if isinstance(entry, Discriminator)):
        tag = choose(value) if callable(choose) else None
        for member in get_args(annotation):
            if any(isinstance(entry, Tag) and entry.tag == tag for entry in getattr(member, "__metadata__", ())):
                return _unwrap(member, (), value)
    optional = [member for member in get_args(annotation) if member is not type(None)]
    return _unwrap(optional[0], (), value) if len(optional) == 1 else (None, ())


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
