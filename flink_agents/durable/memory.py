"""What an action remembers of a key beyond its request: values by path, written when the action has finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from flink_agents import codec
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import HandleMisuse

__all__ = ["KeyMemory"]

T = TypeVar("T")


class KeyMemory:
    """The memory of one key as one action sees it. Task thread only.

    A path is dotted (``"customer.tier"``) and names one value of any type that results may have. The action sees what
    was there when it began and what it has set itself; nothing is written before it has finished, so a replay sees the
    same again. A value that is read is a copy: ``set`` it to change it.
    """

    __slots__ = ("_changes", "_load")

    def __init__(self, load: Callable[[str], str | None]) -> None:
        self._load = load
        self._changes: dict[str, str | None] = {}

    @overload
    def get(self, path: str) -> Any: ...
    @overload
    def get(self, path: str, default: T, *, expect: type[T] | None = None) -> T: ...
    @overload
    def get(self, path: str, *, expect: type[T]) -> T | None: ...
    def get(self, path: str, default: Any = None, *, expect: type[Any] | None = None) -> Any:
        """Return the value at ``path``, or within an object that is stored at a shorter path; ``default`` without one.

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
        parts = _parts(path)
        for length in range(len(parts), 0, -1):
            text = self._text(".".join(parts[:length]))
            if text is None:
                continue
            value = codec.decode(text)
            for part in parts[length:]:
                if not isinstance(value, dict):
                    raise KeyError(path)
                value = value[part]
            return value
        raise KeyError(path)

    def set(self, path: str, value: Any) -> None:
        """Remember ``value`` under ``path`` once the action has finished.

        Raises:
            HandleMisuse: if ``path`` is no path.
            Unserializable: if the codec cannot carry the value.
        """
        _parts(path)
        self._changes[path] = codec.encode(value)

    def delete(self, path: str) -> None:
        """Forget the value that was set under exactly this path; nothing happens without one."""
        _parts(path)
        self._changes[path] = None

    def __contains__(self, path: str) -> bool:
        try:
            self.read(path)
        except KeyError:
            return False
        return True

    def flush(self, store: WriteBehind) -> None:
        """Write what the action changed; called when it has finished."""
        for path, text in self._changes.items():
            if text is None:
                store.remove(StateName.MEMORY, path)
            else:
                store.put(StateName.MEMORY, path, text)
        self._changes.clear()

    def _text(self, path: str) -> str | None:
        return self._changes[path] if path in self._changes else self._load(path)


def _parts(path: str) -> list[str]:
    parts = path.split(".")
    if not all(parts):
        msg = f"a memory path is text such as 'customer.tier', not {path!r}"
        raise HandleMisuse(msg)
    return parts
