"""The methods of a class as tools: one instance for each subtask, opened and closed with the operator."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import MethodType
from typing import Any, NoReturn, cast

from typing_extensions import Unpack

from flink_agents.errors import FrameworkFault, InvalidInput
from flink_agents.options import Execution, OnInterrupt
from flink_agents.tools.callables import is_async
from flink_agents.tools.function import FunctionTool, declared_options, is_marked
from flink_agents.tools.options import OptionKeywords

__all__ = ["ClassTool", "class_tools"]

_log = logging.getLogger(__name__)

_LIFE_CYCLE = ("open", "close")


class ClassTool(FunctionTool):
    """One method of a class, called on the instance that it shares with the other methods.

    Everything else is as for a function tool. Made by ``class_tools``; it travels as a ``ClassDeclaration``.
    """

    def __init__(
        self,
        instance: _Instance,
        function: Callable[..., Any],
        name: str,
        *,
        search_path: Sequence[str | Path] = (),
        **options: Unpack[OptionKeywords],
    ) -> None:
        super().__init__(function, name=name, search_path=search_path, **options)
        self._instance = instance

    def open(self) -> None:
        """Make the instance and open it, unless another of its methods did. Task thread, once for each attempt.

        Raises:
            Exception: what the constructor or ``open`` of the class raises.
        """
        self._instance.open()

    def close(self) -> None:
        """Close the instance once the last body that uses it has ended: a client is not taken from under a call."""
        self._instance.close()

    def __reduce__(self) -> NoReturn:
        msg = f"tool {self.spec.name!r} belongs to an instance of this process; a ClassDeclaration is what travels"
        raise TypeError(msg)

    def __repr__(self) -> str:
        return f"ClassTool({self.spec.name!r} of {self._instance})"


def class_tools(cls: Any, search_path: Sequence[str | Path] = (), **options: Unpack[OptionKeywords]) -> list[ClassTool]:
    """Make a tool of each method of ``cls`` that ``@tool`` marks; where it marks none, of each public method.

    ``cls`` is not called here. ``open(self)`` and ``close(self)``, if there are any, are no tools. ``options`` hold for
    each method, and are stronger than what ``@tool`` said; an ``async def`` stays on the event loop, whatever they say.
    A method may be the reconciler of another.

    Raises:
        InvalidInput: for what is no class, a class whose constructor needs arguments or that has no methods, an
            ``open`` or ``close`` that takes arguments, is ``async`` or is marked as a tool, and whatever a function
            tool is refused for.
    """
    if not inspect.isclass(cls):
        msg = f"a class of tools must be a class, not {cls!r}"
        raise InvalidInput(msg)
    _check_constructor(cls)
    for name in _LIFE_CYCLE:
        _check_life_cycle(cls, name)
    methods = dict(_methods(cls))
    if not methods:
        msg = f"{_shown(cls)} has no public method that could be a tool"
        raise InvalidInput(msg)
    instance = _Instance(cls)
    return [_class_tool(instance, name, search_path, options) for name in methods]


def _class_tool(
    instance: _Instance, name: str, search_path: Sequence[str | Path], options: OptionKeywords
) -> ClassTool:
    guard = _guard(instance, name)
    named = declared_options(guard).name or name
    return ClassTool(instance, guard, named, search_path=search_path, **_options(instance, guard, options))


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods that are tools, in the order they were written, those of base classes first."""
    names = [name for base in reversed(cls.__mro__) if base is not object for name in vars(base)]
    public = [name for name in dict.fromkeys(names) if not name.startswith("_") and name not in _LIFE_CYCLE]
    methods = {name: inspect.getattr_static(cls, name) for name in public}
    marked = {name: found for name, found in methods.items() if is_marked(found)}
    for name, found in (marked or methods).items():
        if marked or inspect.isfunction(found) or isinstance(found, (staticmethod, classmethod)):
            yield name, found


class _State(Enum):
    NEW = "new"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class _Instance:
    """The instance of one class in one subtask, with the bodies that use it now. Any thread."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self._lock = threading.RLock()
        self._state = _State.NEW
        self._users = 0
        self._value: Any = None

    def open(self) -> None:
        """Make and open the instance, once."""
        with self._lock:
            if self._state is _State.NEW:
                value = self.cls()
                _call(value, "open")
                self._value, self._state = value, _State.OPEN

    @contextmanager
    def in_use(self) -> Iterator[Any]:
        """Hold the instance open while a body runs."""
        with self._lock:
            self.open()
            if self._state is not _State.OPEN:
                # Fatal, so that nothing is recorded: the call belongs to the next attempt.
                msg = f"a call of {_shown(self.cls)} began after its operator was closed"
                raise FrameworkFault(msg)
            self._users += 1
        try:
            yield self._value
        finally:
            with self._lock:
                self._users -= 1
            self._close_if_unused()

    def close(self) -> None:
        """Let no further body begin; close the instance now, or on the thread of the last body that uses it."""
        with self._lock:
            self._state = _State.CLOSED if self._state in (_State.NEW, _State.CLOSED) else _State.CLOSING
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        with self._lock:
            if self._state is not _State.CLOSING or self._users:
                return
            self._state = _State.CLOSED
            value, self._value = self._value, None
        try:
            _call(value, "close")
        except Exception:
            # Every outcome is recorded by now: the job must not be run again for a connection that will not close.
            _log.exception("closing the tools of %s failed", self)

    def __repr__(self) -> str:
        return _shown(self.cls)


def _guard(instance: _Instance, name: str) -> Callable[..., Any]:
    """Return a function with the signature of the bound method, which calls it on the instance once it is there."""
    found = inspect.getattr_static(instance.cls, name)
    is_plain = not isinstance(found, (staticmethod, classmethod))
    bound: Any = MethodType(cast("Any", found), object()) if is_plain else getattr(instance.cls, name)
    written = bound if isinstance(found, staticmethod) else bound.__func__

    if is_async(written):

        @functools.wraps(written)
        async def guard(*args: Any, **kwargs: Any) -> Any:
            with instance.in_use() as value:
                return await getattr(value, name)(*args, **kwargs)

    else:

        @functools.wraps(written)
        def guard(*args: Any, **kwargs: Any) -> Any:
            with instance.in_use() as value:
                return getattr(value, name)(*args, **kwargs)

    guard.__dict__.update(getattr(found, "__dict__", {}))
    guard.__wrapped__ = written
    guard.__signature__ = inspect.signature(bound)  # type: ignore[attr-defined]
    return guard


def _options(instance: _Instance, guard: Callable[..., Any], options: OptionKeywords) -> OptionKeywords:
    """Return what of ``options`` holds for a method, with a reconciler of the same class bound to the instance."""
    if is_async(guard) and options.get("execution") in (Execution.THREAD, Execution.INLINE):
        options = {**options, "execution": None}
    declared = declared_options(guard)
    asked = options.get("on_interrupt") or declared.on_interrupt
    if options.get("reconcile") is None and declared.reconcile is not None and asked == OnInterrupt.RECONCILE:
        for other in dir(instance.cls):
            if inspect.getattr_static(instance.cls, other, None) is declared.reconcile:
                return {**options, "on_interrupt": asked, "reconcile": _guard(instance, other)}
    return options


def _check_constructor(cls: type) -> None:
    if inspect.isabstract(cls):
        msg = f"{_shown(cls)} is abstract, so that no instance of it can be made"
        raise InvalidInput(msg)
    try:
        inspect.signature(cls).bind()
    except ValueError:
        # Nothing is known of it: a class written in C. Whether it can be made is seen when it is.
        return
    except TypeError as error:
        msg = f"{_shown(cls)} must be makeable without arguments ({error}); it can read its configuration in open()"
        raise InvalidInput(msg) from error


def _check_life_cycle(cls: type, name: str) -> None:
    found = inspect.getattr_static(cls, name, None)
    if found is None:
        return
    if is_marked(found):
        msg = f"{_shown(cls)}: {name} begins or ends the instance's life; a tool's method needs another name"
        raise InvalidInput(msg)
    method = MethodType(found, object()) if inspect.isfunction(found) else getattr(cls, name)
    if not callable(method) or is_async(method):
        msg = f"{_shown(cls)}: {name} must be a plain method, because it runs on Flink's task thread"
        raise InvalidInput(msg)
    try:
        inspect.signature(method).bind()
    except TypeError as error:
        msg = f"{_shown(cls)}: {name} is called without arguments when the operator does ({error})"
        raise InvalidInput(msg) from error


def _call(value: Any, name: str) -> None:
    method = getattr(value, name, None)
    if method is not None:
        method()


def _shown(cls: type) -> str:
    return f"class {cls.__module__}:{cls.__qualname__}"
