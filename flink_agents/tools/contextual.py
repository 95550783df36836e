"""Parameters of type ``ToolContext``: a model never sees them; each body gets the context of its own call there."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from flink_agents.scheduler.tool_context import ToolContext, current_tool_context

__all__ = ["CONTEXT", "arrange", "context_parameters", "is_context", "with_context"]


class _Place:
    """The type of ``CONTEXT``."""

    def __repr__(self) -> str:
        return "CONTEXT"


CONTEXT = _Place()
"""Stands among the arguments of a prepared call where the context goes once the body runs."""


def is_context(hint: Any) -> bool:
    """Return whether a resolved annotation is ``ToolContext``, also optional or with metadata."""
    origin = get_origin(hint)
    if origin is Annotated:
        return is_context(get_args(hint)[0])
    if origin is Union or origin is types.UnionType:
        members = [member for member in get_args(hint) if member is not type(None)]
        return len(members) == 1 and is_context(members[0])
    return hint is ToolContext


def context_parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters of ``function`` that take the context; other types may be anything at all."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    named = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    return frozenset(name for name, hint in named.items() if is_context(_resolved(function, hint)))


def _resolved(function: Callable[..., Any], hint: Any) -> Any:
    if not isinstance(hint, str):
        return hint
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    names = getattr(inspect.unwrap(inner), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": hint})
    try:
        return get_type_hints(holder, {"ToolContext": ToolContext, **names}, include_extras=True)["it"]
    except Exception:  # whatever the text names, it is not ours: only a tool's own arguments need their types
        return None


def arrange(
    function: Callable[..., Any], contexts: frozenset[str], positional: Sequence[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments with ``CONTEXT`` in its places and ``positional`` around them, in order.

    Raises:
        TypeError: if ``function`` cannot be called so.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return list(positional), {}
    left, arranged = list(positional), []
    keywords: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.name in contexts:
            if parameter.kind is parameter.KEYWORD_ONLY or not (left or parameter.kind is parameter.POSITIONAL_ONLY):
                keywords[parameter.name] = CONTEXT
            else:
                arranged.append(CONTEXT)
        elif left and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            arranged.append(left.pop(0))
    arranged += left
    signature.bind(*arranged, **keywords)
    return arranged, keywords


def with_context(function: Callable[..., Any], positional: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Call ``function`` with the running call's context in the place of every ``CONTEXT``. Where bodies run."""
    context = current_tool_context()
    named = {name: context if value is CONTEXT else value for name, value in keywords.items()}
    return function(*(context if value is CONTEXT else value for value in positional), **named)
