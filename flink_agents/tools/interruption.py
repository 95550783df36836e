"""What a tool says about a call that was cut off: ``on_interrupt`` and the reconciler that may decide."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

from flink_agents.errors import InvalidInput, InvalidOption
from flink_agents.options import OnInterrupt
from flink_agents.tools.base import Body, ToolSpec
from flink_agents.tools.callables import is_async
from flink_agents.tools.contextual import CONTEXT, arrange, context_parameters, with_context
from flink_agents.tools.imports import resolve

__all__ = [
    "Interruption",
    "Reconciler",
    "choose_interruption",
    "needing_journal",
    "reconcile_by_name",
    "reconcile_call",
]

Reconciler: TypeAlias = "str | Callable[..., Any]"
"""A function, or ``module:function``: looks whether a call took effect; sync or async."""


@dataclass(frozen=True)
class Interruption:
    """``on_interrupt`` and ``reconcile`` as one place says them; None is nothing said."""

    on_interrupt: OnInterrupt | str | None = None
    reconcile: Reconciler | None = None


def choose_interruption(
    tool: str, stronger: Interruption, weaker: Interruption, search_path: Sequence[str | Path] = ()
) -> tuple[OnInterrupt, Callable[..., Any] | None]:
    """Return what holds of two places: the stronger's word, else the weaker's, else ``rerun``.

    A reconciler goes with ``on_interrupt: reconcile``: one that the weaker place named is dropped where the stronger
    says something else.

    Raises:
        InvalidInput: for an unknown word, a reconciler that cannot be had, or one of the two without the other.
    """
    asked, said = (_word(tool, place.on_interrupt) for place in (stronger, weaker))
    on_interrupt = asked or said or OnInterrupt.RERUN
    is_reconciled = on_interrupt is OnInterrupt.RECONCILE
    useless = stronger.reconcile is not None and not is_reconciled
    if useless or (weaker.reconcile is not None and said is not OnInterrupt.RECONCILE and asked is None):
        msg = f"tool {tool!r}: reconcile is only used with on_interrupt: reconcile, and it says {on_interrupt.value}"
        raise InvalidOption(msg, "reconcile", "on_interrupt")
    if not is_reconciled:
        return on_interrupt, None
    found = stronger.reconcile if stronger.reconcile is not None else weaker.reconcile
    if isinstance(found, str):
        try:
            found = resolve(found, search_path)
        except InvalidInput as error:
            raise InvalidOption(str(error), "reconcile") from error
    if found is None:
        msg = f"tool {tool!r}: on_interrupt: reconcile needs `reconcile`, which looks whether a call took effect"
        raise InvalidOption(msg, "on_interrupt")
    if not callable(found):
        msg = f"tool {tool!r}: reconcile must be a function, not {found!r}"
        raise InvalidOption(msg, "reconcile")
    return on_interrupt, found


def _word(tool: str, given: OnInterrupt | str | None) -> OnInterrupt | None:
    if given is None:
        return None
    try:
        return OnInterrupt(given)
    except ValueError:
        msg = f"tool {tool!r}: on_interrupt must be one of {', '.join(o.value for o in OnInterrupt)}, not {given!r}"
        raise InvalidOption(msg, "on_interrupt") from None


def reconcile_by_name(
    tool: str, reconcile: Callable[..., Any], names: Iterable[str]
) -> Callable[[Mapping[str, Any]], Body]:
    """Return what makes the reconciler's body from a function tool's validated arguments.

    The reconciler takes by name what it needs of the tool's parameters (``**kwargs``: all), and the context.

    Raises:
        InvalidInput: if it needs a parameter that the tool does not have, or takes one by position only.
    """
    known = set(names)
    contexts = context_parameters(reconcile)
    wanted: set[str] = set()
    takes_all = False
    for parameter in _parameters(tool, reconcile):
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_all = True
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.name not in contexts:
            if parameter.kind is not parameter.POSITIONAL_ONLY and parameter.name in known:
                wanted.add(parameter.name)
            elif parameter.default is parameter.empty:
                msg = (
                    f"tool {tool!r}: its reconciler {reconcile!r} needs {parameter.name!r}; it gets the tool's own "
                    f"parameters by name ({', '.join(sorted(known)) or 'there are none'}) and a ToolContext"
                )
                raise InvalidOption(msg, "reconcile", "on_interrupt")
    given = dict.fromkeys(contexts, CONTEXT)

    def body(arguments: Mapping[str, Any]) -> Body:
        keywords = {name: value for name, value in arguments.items() if takes_all or name in wanted}
        return _body(reconcile, (), {**keywords, **given})

    return body


def reconcile_call(tool: str, reconcile: Callable[..., Any]) -> Callable[[str, dict[str, Any]], Body]:
    """Return what makes the reconciler's body from the name and the arguments of a declared tool's call.

    Raises:
        InvalidInput: if it cannot be called as ``reconcile(tool_name, arguments)``, with or without the context.
    """
    contexts = context_parameters(reconcile)
    try:
        arrange(reconcile, contexts, ["name", {}])
    except TypeError as error:
        msg = f"tool {tool!r}: the reconciler must be callable as reconcile(tool_name, arguments), not {reconcile!r}"
        raise InvalidOption(msg, "reconcile", "on_interrupt") from error

    def body(name: str, arguments: dict[str, Any]) -> Body:
        return _body(reconcile, *arrange(reconcile, contexts, [name, arguments]))

    return body


def needing_journal(specs: Iterable[ToolSpec]) -> list[ToolSpec]:
    """Return the tools whose ``on_interrupt`` has to know what began: without a journal nothing says so."""
    return [spec for spec in specs if spec.on_interrupt is not OnInterrupt.RERUN]


def _body(reconcile: Callable[..., Any], positional: Sequence[Any], keywords: Mapping[str, Any]) -> Body:
    run = partial(with_context, reconcile, positional, keywords)
    if not is_async(reconcile):
        return run

    async def ask() -> Any:
        return await cast("Awaitable[Any]", run())

    return ask


def _parameters(tool: str, reconcile: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(reconcile).parameters.values())
    except (TypeError, ValueError) as error:
        msg = f"tool {tool!r}: its reconciler {reconcile!r} has no signature that Python can read"
        raise InvalidOption(msg, "reconcile", "on_interrupt") from error
