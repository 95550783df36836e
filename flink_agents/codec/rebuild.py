"""Tagged trees back to Python values, and to the plain JSON that a model reads."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import pathlib
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pydantic

from flink_agents.codec.classes import imported
from flink_agents.codec.json_text import cut
from flink_agents.codec.tags import FILE_PATHS, TAG
from flink_agents.errors import StateFormat, Unserializable

__all__ = ["plain", "rebuild"]

Node = dict[str, Any]


def rebuild(tree: Any) -> Any:
    """Return the value behind a tagged tree; lists and dicts of the tree itself are not reused.

    Raises:
        Unserializable: where a class is gone or has changed so that the value does not fit it any more, or the tagged
            object is damaged.
        StateFormat: for a tag this version does not know.
    """
    kind = type(tree)
    if kind is list:
        return [rebuild(item) for item in tree]
    if kind is not dict:
        return tree
    if TAG not in tree:
        return {name: rebuild(item) for name, item in tree.items()}
    return _apply(_REBUILD, tree)


def plain(tree: Any) -> Any:
    """Return the JSON that a model reads for a tagged tree; needs none of the recorded classes.

    Raises:
        Unserializable: for a tagged object that is damaged.
        StateFormat: for a tag this version does not know.
    """
    kind = type(tree)
    if kind is list:
        return [plain(item) for item in tree]
    if kind is not dict:
        return tree
    if TAG not in tree:
        return {name: plain(item) for name, item in tree.items()}
    return _apply(_PLAIN, tree)


def _apply(readers: dict[str, Callable[[Node], Any]], node: Node) -> Any:
    tag = node[TAG]
    reader = readers.get(tag) if isinstance(tag, str) else None
    if reader is None:
        message = f"a stored value has the tag {cut(repr(tag), 100)}, which this version cannot read"
        raise StateFormat(message)
    try:
        return reader(node)
    except (Unserializable, MemoryError):
        raise
    except Exception as error:
        # Also what a user's class raises on the way (a default factory, __setstate__, __hash__): it fails the one call
        # that wants the value, not the job.
        name = node.get("class", tag)
        message = f"a recorded value ({name}) cannot be rebuilt: {type(error).__name__}: {cut(str(error), 300)}"
        raise Unserializable(message) from error


def _class_of(node: Node, fits: Callable[[Any], bool]) -> Any:
    try:
        cls = imported(node["class"])
    except LookupError as error:
        message = f"a recorded value cannot be rebuilt: {cut(str(error), 500)}"
        raise Unserializable(message) from error
    if not fits(cls):
        raise _changed(node, "it is another kind of class now")
    return cls


def _changed(node: Node, why: str) -> Unserializable:
    return Unserializable(f"a recorded value of {node['class']} cannot be rebuilt: {why}")


def _check_fields(node: Node, fields: Node, known: set[str], required: set[str]) -> None:
    unknown, missing = sorted(fields.keys() - known), sorted(required - fields.keys())
    if unknown:
        raise _changed(node, f"it has no {cut(', '.join(unknown), 200)} any more")
    if missing:
        raise _changed(node, f"{cut(', '.join(missing), 200)} was not recorded and has no default")


# Rebuilding


def _enum(node: Node) -> Any:
    cls = _class_of(node, lambda found: issubclass(found, enum.Enum))
    member = cls.__members__.get(node["name"])
    if member is not None:
        return member
    try:
        return cls(rebuild(node["value"]))
    except ValueError as error:
        raise _changed(node, f"it has no member {node['name']}") from error


def _zoned(node: Node) -> dt.datetime | dt.time:
    value: dt.datetime | dt.time = (dt.datetime if node[TAG] == "datetime" else dt.time).fromisoformat(node["iso"])
    if "zone" in node:
        try:
            value = value.replace(tzinfo=zoneinfo.ZoneInfo(node["zone"]))
        except zoneinfo.ZoneInfoNotFoundError as error:
            message = f"a recorded time cannot be rebuilt: no time zone {node['zone']} on this machine"
            raise Unserializable(message) from error
    return value.replace(fold=1) if node.get("fold") else value


def _pairs(node: Node) -> list[tuple[Any, Any]]:
    return [(rebuild(key), rebuild(value)) for key, value in node["items"]]


def _defaultdict(node: Node) -> Any:
    factory = None if node["factory"] is None else _class_of({"class": node["factory"]}, callable)
    return defaultdict(factory, _pairs(node))


def _namedtuple(node: Node) -> Any:
    cls = _class_of(node, lambda found: issubclass(found, tuple) and hasattr(found, "_fields"))
    fields = node["fields"]
    _check_fields(node, fields, set(cls._fields), set(cls._fields) - set(cls._field_defaults))
    values = {**cls._field_defaults, **{name: rebuild(item) for name, item in fields.items()}}
    return tuple.__new__(cls, [values[name] for name in cls._fields])


def _dataclass(node: Node) -> Any:
    cls = _class_of(node, dataclasses.is_dataclass)
    fields = rebuild(node["fields"])
    declared = {field.name: field for field in dataclasses.fields(cls)}
    missing = dataclasses.MISSING
    required = {n for n, field in declared.items() if field.default is missing and field.default_factory is missing}
    _check_fields(node, fields, set(declared), required)
    value = object.__new__(cls)
    for name, field in declared.items():
        if name not in fields:
            fields[name] = field.default if field.default_factory is missing else field.default_factory()
        # Neither the constructor nor a frozen class's guard may run: the value is as it was recorded.
        object.__setattr__(value, name, fields[name])
    return value


def _model(node: Node) -> Any:
    cls = _class_of(node, lambda found: issubclass(found, pydantic.BaseModel))
    declared = cls.model_fields
    fields = rebuild(node["fields"])
    _check_fields(node, fields, set(declared), {name for name, field in declared.items() if field.is_required()})
    values = {
        name: fields[name] if name in fields else field.get_default(call_default_factory=True)
        for name, field in declared.items()
    }
    value = cls.__new__(cls)
    extra = rebuild(node["extra"]) if "extra" in node else None
    if extra is None and cls.model_config.get("extra") == "allow":
        extra = {}
    private: Node | None = None
    if cls.__private_attributes__:
        private = {name: item.get_default() for name, item in cls.__private_attributes__.items()}
        private.update(rebuild(node.get("private", {})))
    value.__setstate__(
        {
            "__dict__": values,
            "__pydantic_extra__": extra,
            "__pydantic_fields_set__": set(node["set"]),
            "__pydantic_private__": private,
        }
    )
    return value


_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_PATHS: dict[str, type[pathlib.PurePath]] = {cls.__name__: cls for cls in FILE_PATHS}


def _deque(node: Node) -> Any:
    return deque(rebuild(node["items"]), node.get("maxlen"))


def _timedelta(node: Node) -> dt.timedelta:
    return dt.timedelta(days=node["days"], seconds=node["seconds"], microseconds=node["microseconds"])


_REBUILD: dict[str, Callable[[Node], Any]] = {
    "bytes": lambda node: base64.b64decode(node["base64"], validate=True),
    "bytearray": lambda node: bytearray(base64.b64decode(node["base64"], validate=True)),
    "datetime": _zoned,
    "time": _zoned,
    "date": lambda node: dt.date.fromisoformat(node["iso"]),
    "timedelta": _timedelta,
    "float": lambda node: _FLOATS[node["value"]],
    "decimal": lambda node: Decimal(node["value"]),
    "uuid": lambda node: uuid.UUID(node["value"]),
    "path": lambda node: _PATHS[node["class"]](node["value"]),
    "tuple": lambda node: tuple(rebuild(node["items"])),
    "set": lambda node: set(rebuild(node["items"])),
    "frozenset": lambda node: frozenset(rebuild(node["items"])),
    "deque": _deque,
    "dict": lambda node: dict(_pairs(node)),
    "ordered_dict": lambda node: OrderedDict(_pairs(node)),
    "counter": lambda node: Counter(dict(_pairs(node))),
    "defaultdict": _defaultdict,
    "enum": _enum,
    "namedtuple": _namedtuple,
    "dataclass": _dataclass,
    "model": _model,
}


# What a model reads


def _plain_bytes(node: Node) -> Any:
    data = base64.b64decode(node["base64"], validate=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": node["base64"]}


def _plain_time(node: Node) -> str:
    return _zoned(node).isoformat() if "zone" in node else str(node["iso"])


def _plain_timedelta(node: Node) -> str:
    delta = _timedelta(node)
    sign, delta = ("-", -delta) if delta.days < 0 else ("", delta)
    fraction = f".{delta.microseconds:06d}".rstrip("0") if delta.microseconds else ""
    return f"{sign}P{delta.days}DT{delta.seconds}{fraction}S"


def _plain_key(key: Any) -> str | None:
    if isinstance(key, str):
        return key
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    return repr(key) if isinstance(key, (int, float)) else None


def _plain_pairs(node: Node) -> Any:
    pairs = [(plain(key), plain(value)) for key, value in node["items"]]
    named = {_plain_key(key): value for key, value in pairs}
    # Keys that are no text, or that would fall together as text, are shown as pairs: nothing is left out.
    return named if None not in named and len(named) == len(pairs) else [list(pair) for pair in pairs]


def _plain_model(node: Node) -> Any:
    hidden = node.get("hidden", ())
    fields = {name: plain(item) for name, item in node["fields"].items() if name not in hidden}
    if node.get("root"):
        return fields.get("root")
    extra = plain(node["extra"]) if "extra" in node else {}
    return {**fields, **extra} if isinstance(extra, dict) else {**fields, "extra": extra}


def _plain_items(node: Node) -> Any:
    return plain(node["items"])


def _plain_value(node: Node) -> Any:
    return plain(node["value"])


def _plain_iso(node: Node) -> Any:
    return node["iso"]


def _plain_fields(node: Node) -> Any:
    return plain(node["fields"])


_PLAIN: dict[str, Callable[[Node], Any]] = {
    **dict.fromkeys(("bytes", "bytearray"), _plain_bytes),
    **dict.fromkeys(("datetime", "time"), _plain_time),
    "date": _plain_iso,
    "timedelta": _plain_timedelta,
    **dict.fromkeys(("float", "decimal", "uuid", "path", "enum"), _plain_value),
    **dict.fromkeys(("tuple", "set", "frozenset", "deque"), _plain_items),
    **dict.fromkeys(("dict", "ordered_dict", "counter", "defaultdict"), _plain_pairs),
    **dict.fromkeys(("namedtuple", "dataclass"), _plain_fields),
    "model": _plain_model,
}
