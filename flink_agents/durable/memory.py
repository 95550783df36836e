"""What an action remembers of a key beyond its request: values by path, written when the request is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

from flink_agents import codec
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import HandleMisuse

__all__ = ["KeyMemory"]

T = TypeVar("T")


class KeyMemory:
    """The memory of one key as the actions of one request see it. Task thread only.

    A path is dotted (``"customer.tier"``) and names one value of any type that results may have. Paths make a tree: the
    value at ``customer`` is an object of all that was set below it. The actions see what was there when the request's
    turn came and what they have set themselves; nothing is written before the request is answered, and nothing at all
    where an action failed, so a replay sees the same again. A value that is read is a copy: ``set`` it to change it.
    """

    __slots__ = ("_changes", "_list", "_load", "_stored")

    def __init__(self, load: Callable[[str], str | None], stored: Callable[[], list[str]] = list) -> None:
        self._load = load
        self._list = stored
        self._stored: list[str] | None = None
        self._changes: dict[str, str | None] = {}

    @overload
    def get(self, path: str) -> Any: ...
    @overload
    def get(self, path: str, default: T, *, expect: type[T] | None = None) -> T: ...
    @overload
    def get(self, path: str, *, expect: type[T]) -> T | None: ...
    def get(self, path: str, default: Any = None, *, expect: type[Any] | None = None) -> Any:
        """Return the value at ``path``; ``default`` without one.

        Raises:
            HandleMisuse: if ``path`` is none, or the value is not of the type ``expect``.
        """
        try:
            value = self.read(path)
        except KeyError:
            return default
        if expect is not None and not isinstance(value, expect):
            msg = f"memory {path!r} holds a {type(value).__name__}, not a {expect.__name__}"
            raise HandleMisuse(msg)
        return value

    def read(self, path: str) -> Any:
        """Return the value at ``path``.

        Raises:
            KeyError: if there is none.
            HandleMisuse: if ``path`` is no path.
        """
        holder, inner = self._holder(path)
        if holder is not None:
            value = self._value(holder)
            for part in inner:
                if not isinstance(value, dict) or part not in value:
                    raise KeyError(path)
                value = value[part]
            return value
        found: dict[str, Any] = {}
        for below in self._below(path):
            *parents, last = below.removeprefix(f"{path}.").split(".")
            _member(found, parents)[last] = self._value(below)
        if not found:
            raise KeyError(path)
        return found

    def set(self, path: str, value: Any) -> None:
        """Remember ``value`` under ``path`` once the request is answered. It replaces all that was below ``path``.

        Raises:
            HandleMisuse: if ``path`` is no path, or leads through a value that is no object.
            Unserializable: if the codec cannot carry the value.
        """
        text = codec.encode(value)
        holder, inner = self._holder(path)
        if not inner:
            self._forget_below(path)
            self._changes[path] = text
            return
        held = self._value(str(holder))
        *parents, last = inner
        member = _member(held, parents)
        if not isinstance(member, dict):
            msg = f"memory {path!r}: {holder!r} holds a {type(held).__name__}, and {path!r} leads through it"
            raise HandleMisuse(msg)
        member[last] = codec.decode(text)
        self._changes[str(holder)] = codec.encode(held)

    def delete(self, path: str) -> None:
        """Forget the value at ``path`` and all below it; nothing happens without one."""
        holder, inner = self._holder(path)
        if not inner:
            self._forget_below(path)
            if holder is not None:
                self._changes[path] = None
            return
        held = self._value(str(holder))
        *parents, last = inner
        member = held
        for part in parents:
            member = member.get(part) if isinstance(member, dict) else None
        if isinstance(member, dict) and last in member:
            del member[last]
            self._changes[str(holder)] = codec.encode(held)

    def __contains__(self, path: str) -> bool:
        try:
            self.read(path)
        except KeyError:
            return False
        return True

    def flush(self, store: WriteBehind) -> None:
        """Write what the actions changed; called when the request is answered."""
        for path, text in self._changes.items():
            if text is None:
                store.remove(StateName.MEMORY, path)
            else:
                store.put(StateName.MEMORY, path, text)
        self._changes.clear()
        self._stored = None

    def _holder(self, path: str) -> tuple[str | None, list[str]]:
        """Return the stored path that is ``path`` or leads to it, and the steps from there."""
        named: Any = path
        parts = path.split(".") if isinstance(named, str) else []
        if not parts or not all(parts):
            msg = f"a memory path is text such as 'customer.tier', not {path!r}"
            raise HandleMisuse(msg)
        for length in range(1, len(parts) + 1):
            stored = ".".join(parts[:length])
            if self._text(stored) is not None:
                return stored, parts[length:]
        return None, []

    def _below(self, path: str) -> Iterator[str]:
        if self._stored is None:
            self._stored = self._list()
        for below in sorted({*self._stored, *self._changes}):
            if below.startswith(f"{path}.") and self._text(below) is not None:
                yield below

    def _forget_below(self, path: str) -> None:
        for below in list(self._below(path)):
            self._changes[below] = None

    def _value(self, path: str) -> Any:
        return codec.decode(self._text(path) or "null")

    def _text(self, path: str) -> str | None:
        return self._changes[path] if path in self._changes else self._load(path)


def _member(holder: Any, parents: list[str]) -> Any:
    """Return the object that the steps lead to, made where nothing is; whatever else is there instead."""
    for part in parents:
        if not isinstance(holder, dict):
            break
        holder = holder.setdefault(part, {})
    return holder
