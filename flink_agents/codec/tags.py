"""Rich Python values as tagged JSON trees: what each type looks like in a stored value, and how it is recognised.

A tagged object is ``{"$type": TAG, ...}``. The tags and their fields are part of savepoint format 1 and never change::

    bytes, bytearray   base64            datetime, date, time   iso, zone?, fold?
    timedelta          days, seconds, microseconds              float   value: NaN | Infinity | -Infinity
    decimal, uuid      value             path                   class, value
    tuple, set, frozenset, deque         items (deque: maxlen?)
    dict, ordered_dict, counter, defaultdict (factory)          items: [[key, value], ...]
    enum               class, name, value
    namedtuple, dataclass                class, fields
    model              class, fields, set, extra?, private?, hidden?, root?

A dict of a user that has a ``$type`` key is written as the pairs of tag ``dict``, so no data can pose as a tag.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import math
import pathlib
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, NoReturn

import pydantic

from flink_agents.codec.classes import import_path
from flink_agents.codec.json_text import cut, dumps_exact
from flink_agents.errors import TooLarge, Unserializable

__all__ = ["FILE_PATHS", "MAX_DEPTH", "MAX_NODES", "TAG", "Tagger", "sort_text"]

TAG = "$type"

MAX_DEPTH = 100
"""Deepest nesting of a value of a user."""

MAX_NODES = 16 * 1024 * 1024
"""Most elements of a value when no limit in bytes is given; sharing can make a small object unfold without end."""

FILE_PATHS = (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)

Path = tuple[Any, ...]  # (parent path, step) or (): rendered only when something is wrong


def sort_text(tree: Any) -> str:
    """Return a text that orders the elements of a set in the same way in every process."""
    return dumps_exact(tree, sort_keys=True)


def render(path: Path) -> str:
    """Return ``$.a[0]`` for a path, bounded."""
    steps: list[str] = []
    while path:
        path, step = path
        steps.append(step)
    return cut("$" + "".join(reversed(steps)), 200)


def refuse(value: Any, path: Path, why: str = "") -> NoReturn:
    """Raise ``Unserializable`` with the value's type and place."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    message = f"cannot carry {cut(name, 200)} at {render(path)}" + (f": {why}" if why else "")
    raise Unserializable(message)


class Tagger:
    """Turns one value into a tagged tree. One instance per value; any thread.

    ``limit`` bounds the number of elements (no element takes less than a byte). With ``canonical``, equal values of one
    type get equal trees: the pairs of dicts are sorted, times are in UTC, decimals without trailing zeros.
    """

    def __init__(self, limit: int | None = None, *, canonical: bool = False) -> None:
        self._limit = limit
        self._left = MAX_NODES if limit is None else limit
        self._canonical = canonical
        self._open: set[int] = set()

    def tag(self, value: Any, path: Path = (), depth: int = 0) -> Any:
        """Return the tree of ``value``.

        Raises:
            Unserializable: naming the type and the place of what cannot be carried.
            TooLarge: when the value has more elements than the limit has bytes.
        """
        kind = type(value)
        if kind is str:
            self._count(len(value))
            return value if value.isascii() else self._text(value, path)
        if kind is int or kind is bool or value is None:
            return value
        if kind is float:
            return value if math.isfinite(value) else {TAG: "float", "value": _NOT_FINITE[str(value)]}
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            return scalar(self, value, path)
        if isinstance(value, enum.Enum):
            return self._enum(value, path, depth)
        container = _CONTAINERS.get(kind) or self._by_base(value)
        if container is None:
            refuse(value, path)
        if depth >= MAX_DEPTH:
            refuse(value, path, f"nested deeper than {MAX_DEPTH} levels")
        if id(value) in self._open:
            refuse(value, path, "it contains itself")
        self._open.add(id(value))
        try:
            return container(self, value, path, depth + 1)
        finally:
            self._open.discard(id(value))

    def _by_base(self, value: Any) -> Callable[[Tagger, Any, Path, int], Any] | None:
        if isinstance(value, pydantic.BaseModel):
            return Tagger._model
        if isinstance(value, tuple) and isinstance(getattr(value, "_fields", None), tuple):
            return Tagger._namedtuple
        if dataclasses.is_dataclass(value) and not isinstance(value, type) and not isinstance(value, _HOLD_CONTENT):
            return Tagger._dataclass
        return None

    def _count(self, elements: int) -> None:
        self._left -= elements + 1
        if self._left < 0:
            bound = f"{MAX_NODES} elements" if self._limit is None else f"the limit of {self._limit} bytes"
            message = f"the value is over {bound}"
            raise TooLarge(message)

    def _class(self, value: Any, path: Path) -> str:
        found = import_path(type(value))
        if found is None:
            refuse(value, path, "its class cannot be imported; define it at the top level of a module")
        return found

    # Leaves

    def _text(self, value: str, path: Path) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            refuse(value, path, "it holds a lone surrogate, which is no text")
        return value

    def _bytes(self, value: bytes | bytearray, path: Path) -> Any:
        self._count(len(value))
        return {TAG: type(value).__name__, "base64": base64.b64encode(value).decode()}

    def _time(self, value: dt.datetime | dt.time, path: Path) -> Any:
        zone = value.tzinfo
        if zone is not None and type(zone) not in (dt.timezone, zoneinfo.ZoneInfo):
            refuse(zone, path, "time zones are carried as datetime.timezone or zoneinfo.ZoneInfo")
        if self._canonical and zone is not None and isinstance(value, dt.datetime):
            value, zone = value.astimezone(dt.timezone.utc), None
        tree: dict[str, Any] = {TAG: type(value).__name__, "iso": value.isoformat()}
        if isinstance(zone, zoneinfo.ZoneInfo):
            if zone.key is None:
                refuse(zone, path, "it has no key to find it again by")
            tree["iso"] = value.replace(tzinfo=None).isoformat()
            tree["zone"] = zone.key
        if value.fold and not self._canonical:
            tree["fold"] = 1
        return tree

    def _date(self, value: dt.date, path: Path) -> Any:
        return {TAG: "date", "iso": value.isoformat()}

    def _timedelta(self, value: dt.timedelta, path: Path) -> Any:
        return {TAG: "timedelta", "days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}

    def _decimal(self, value: Decimal, path: Path) -> Any:
        if self._canonical and value.is_finite():
            sign, digits, exponent = value.as_tuple()
            number = "".join(map(str, digits)).lstrip("0")
            stripped = number.rstrip("0")
            shift = int(exponent) + len(number) - len(stripped)
            return {TAG: "decimal", "value": f"{'-' if sign else ''}{stripped}e{shift}" if stripped else "0"}
        return {TAG: "decimal", "value": str(value)}

    def _uuid(self, value: uuid.UUID, path: Path) -> Any:
        return {TAG: "uuid", "value": str(value)}

    def _file_path(self, value: pathlib.PurePath, path: Path) -> Any:
        return {TAG: "path", "class": type(value).__name__, "value": self._text(str(value), path)}

    def _enum(self, value: enum.Enum, path: Path, depth: int) -> Any:
        tree: dict[str, Any] = {TAG: "enum", "class": self._class(value, path), "name": value.name}
        try:
            tree["value"] = self.tag(value.value, (path, ".value"), depth)
        except Unserializable:
            # The name alone finds a member again; only a combination of flags has none.
            if value.name is None:
                raise
            tree["value"] = value.name
        return tree

    # Containers

    def _items(self, values: Iterable[Any], path: Path, depth: int) -> list[Any]:
        return [self.tag(value, (path, f"[{index}]"), depth) for index, value in enumerate(values)]

    def _fields(self, values: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
        self._count(len(values))
        return {
            self._text(name, path): self.tag(value, (path, f".{cut(name, 40)}"), depth)
            for name, value in values.items()
        }

    def _pairs(self, values: dict[Any, Any], path: Path, depth: int) -> list[list[Any]]:
        self._count(2 * len(values))
        pairs = [
            [self.tag(key, (path, f".key[{index}]"), depth), self.tag(value, (path, f".value[{index}]"), depth)]
            for index, (key, value) in enumerate(values.items())
        ]
        if self._canonical:
            pairs.sort(key=lambda pair: sort_text(pair[0]))
        return pairs

    def _list(self, value: list[Any], path: Path, depth: int) -> Any:
        self._count(len(value))
        return self._items(value, path, depth)

    def _tuple(self, value: tuple[Any, ...], path: Path, depth: int) -> Any:
        self._count(len(value))
        return {TAG: "tuple", "items": self._items(value, path, depth)}

    def _set(self, value: set[Any] | frozenset[Any], path: Path, depth: int) -> Any:
        self._count(len(value))
        return {TAG: type(value).__name__, "items": sorted(self._items(value, path, depth), key=sort_text)}

    def _deque(self, value: deque[Any], path: Path, depth: int) -> Any:
        self._count(len(value))
        tree = {TAG: "deque", "items": self._items(value, path, depth)}
        return tree if value.maxlen is None else {**tree, "maxlen": value.maxlen}

    def _dict(self, value: dict[Any, Any], path: Path, depth: int) -> Any:
        if TAG not in value and all(type(key) is str for key in value):
            return self._fields(value, path, depth)
        return {TAG: "dict", "items": self._pairs(value, path, depth)}

    def _ordered_dict(self, value: OrderedDict[Any, Any], path: Path, depth: int) -> Any:
        return {TAG: "ordered_dict", "items": self._pairs(value, path, depth)}

    def _counter(self, value: Counter[Any], path: Path, depth: int) -> Any:
        return {TAG: "counter", "items": self._pairs(value, path, depth)}

    def _defaultdict(self, value: defaultdict[Any, Any], path: Path, depth: int) -> Any:
        factory = value.default_factory
        found = import_path(factory) if isinstance(factory, type) else None
        if factory is not None and found is None:
            refuse(value, path, "its default factory is no importable class; return a dict")
        return {TAG: "defaultdict", "factory": found, "items": self._pairs(value, path, depth)}

    def _namedtuple(self, value: Any, path: Path, depth: int) -> Any:
        fields = self._fields(dict(zip(value._fields, value, strict=True)), path, depth)
        return {TAG: "namedtuple", "class": self._class(value, path), "fields": fields}

    def _dataclass(self, value: Any, path: Path, depth: int) -> Any:
        cls = self._class(value, path)
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            if not hasattr(value, field.name):
                refuse(value, path, f"its field {field.name!r} was never set")
            fields[field.name] = getattr(value, field.name)
        return {TAG: "dataclass", "class": cls, "fields": self._fields(fields, path, depth)}

    def _model(self, value: pydantic.BaseModel, path: Path, depth: int) -> Any:
        declared = type(value).model_fields
        unset = [name for name in declared if name not in value.__dict__]
        if unset:
            refuse(value, path, f"its field {unset[0]!r} was never set")
        fields = {name: value.__dict__[name] for name in declared}
        tree: dict[str, Any] = {
            TAG: "model",
            "class": self._class(value, path),
            "fields": self._fields(fields, path, depth),
            "set": sorted(value.model_fields_set),
        }
        if value.__pydantic_extra__:
            tree["extra"] = self._dict(value.__pydantic_extra__, path, depth)
        private = {name: item for name, item in (value.__pydantic_private__ or {}).items() if _is_set(item)}
        if private:
            tree["private"] = self._fields(private, path, depth)
        hidden = [name for name, field in declared.items() if field.exclude]
        if hidden:
            tree["hidden"] = hidden
        if isinstance(value, pydantic.RootModel):
            tree["root"] = True
        return tree


def _is_set(private: Any) -> bool:
    return type(private).__name__ != "PydanticUndefinedType"


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

# A dataclass that is also one of these has content outside its fields.
_HOLD_CONTENT = (str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset, BaseException)

_SCALARS: dict[type, Callable[[Tagger, Any, Path], Any]] = {
    bytes: Tagger._bytes,
    bytearray: Tagger._bytes,
    dt.datetime: Tagger._time,
    dt.time: Tagger._time,
    dt.date: Tagger._date,
    dt.timedelta: Tagger._timedelta,
    Decimal: Tagger._decimal,
    uuid.UUID: Tagger._uuid,
    **dict.fromkeys(FILE_PATHS, Tagger._file_path),
}

_CONTAINERS: dict[type, Callable[[Tagger, Any, Path, int], Any]] = {
    dict: Tagger._dict,
    list: Tagger._list,
    tuple: Tagger._tuple,
    set: Tagger._set,
    frozenset: Tagger._set,
    deque: Tagger._deque,
    OrderedDict: Tagger._ordered_dict,
    Counter: Tagger._counter,
    defaultdict: Tagger._defaultdict,
}
