"""What a job's functions need to be tools on another machine: their types, which pickling by value leaves behind."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_type_hints

import cloudpickle  # type: ignore[import-untyped]

from flink_agents.tools.function import FunctionTool
from flink_agents.tools.registry import ClassDeclaration, Declaration, FunctionDeclaration, SchemaDeclaration
from flink_agents.tools.signature import underlying

__all__ = ["resolve_types"]


def resolve_types(tools: Iterable[Declaration]) -> None:
    """Put the types themselves in the place of their names, in functions that do not travel by a name of their own.

    Under ``from __future__ import annotations`` a type is a text. A function of ``__main__``, or one that was made
    within another, is pickled with the names that its code uses, and types are not among them. On the client; a text
    that names nothing here is left for the tool to report.
    """
    for declared in tools:
        for function in _functions(declared):
            if inspect.isfunction(function) and _travels_by_value(function):
                _resolve(function)


def _functions(declared: Any) -> Iterator[Any]:
    if isinstance(declared, (FunctionDeclaration, SchemaDeclaration)):
        yield from _functions(declared.function)
        yield from _functions(declared.reconcile)
    elif isinstance(declared, ClassDeclaration):
        yield from _functions(declared.cls)
    elif isinstance(declared, FunctionTool):
        yield underlying(declared.function)
    elif inspect.isclass(declared):
        for name in dir(declared):
            found = inspect.getattr_static(declared, name)
            yield getattr(found, "__func__", found)
    elif callable(declared):
        yield underlying(declared)


def _travels_by_value(function: Callable[..., Any]) -> bool:
    module = function.__module__
    return (
        module == "__main__"
        or "<locals>" in function.__qualname__
        or module in cloudpickle.list_registry_pickle_by_value()
    )


def _resolve(function: types.FunctionType) -> None:
    local = dict(inspect.getclosurevars(function).nonlocals)
    for name, hint in function.__annotations__.items():
        if isinstance(hint, str):
            holder = types.SimpleNamespace(__annotations__={name: hint})
            try:
                found = get_type_hints(holder, function.__globals__, local, include_extras=True)
            except Exception:  # whatever the text names, only a tool's own arguments need their types
                continue
            function.__annotations__[name] = found[name]
