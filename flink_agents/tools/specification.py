"""The specification of a tool, and the parts of it that all kinds of tools check alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from flink_agents.errors import InvalidInput
from flink_agents.options import Execution, OnInterrupt
from flink_agents.tools.base import ToolSpec
from flink_agents.tools.callables import is_async
from flink_agents.tools.injection import read_injections
from flink_agents.tools.options import CallOptions
from flink_agents.tools.timing import read_timing

__all__ = ["checked_bound", "checked_name", "choose_execution", "own_copy", "specify"]

_MAX_NAME_CHARS = 256


def checked_name(name: Any, place: str) -> str:
    """Return ``name`` if it can name a tool. ``place`` says in the message what is being named.

    Raises:
        InvalidInput: for what is no text, is empty, longer than 256 characters, or holds spaces or control characters.
    """
    if not isinstance(name, str) or not name:
        msg = f"{place} needs a name, not {name!r}"
        raise InvalidInput(msg)
    if len(name) > _MAX_NAME_CHARS or not name.isprintable() or any(char.isspace() for char in name):
        msg = f"{place} cannot be named {name[:80]!r}: at most {_MAX_NAME_CHARS} printable characters, no spaces"
        raise InvalidInput(msg)
    if name.startswith("<"):
        msg = f"{place} has no name of its own ({name}); give it one with name=..."
        raise InvalidInput(msg)
    return name


def specify(
    name: str,
    description: str,
    parameters: Mapping[str, Any],
    function: Callable[..., Any],
    options: CallOptions,
    on_interrupt: OnInterrupt,
    search_path: Sequence[str | Path] = (),
) -> ToolSpec:
    """Return the specification of a tool whose bodies are calls of ``function``, its options read and checked.

    Raises:
        InvalidInput: for an option that is wrong in itself or does not go with another one.
    """
    execution = choose_execution(name, function, options.execution)
    timing = read_timing(f"tool {name!r}", options, execution, search_path)
    return ToolSpec(
        name=name,
        description=description,
        parameters=own_copy(parameters),
        execution=execution,
        max_concurrent=checked_bound(name, options.max_concurrent),
        on_interrupt=on_interrupt,
        timeout_ms=timing.timeout_ms,
        deadline_ms=timing.deadline_ms,
        retry=timing.retry,
        rate=timing.rate,
        inject=read_injections(name, options.inject),
    )


def checked_bound(tool: str, max_concurrent: Any) -> int | None:
    """Return ``max_concurrent`` if it is None or at least 1.

    Raises:
        InvalidInput: for anything else.
    """
    if max_concurrent is None or (type(max_concurrent) is int and max_concurrent >= 1):
        return max_concurrent
    msg = f"tool {tool!r}: max_concurrent must be a whole number of at least 1, not {max_concurrent!r}"
    raise InvalidInput(msg)


def choose_execution(tool: str, function: Callable[..., Any], asked: Execution | str | None) -> Execution:
    """Return where the bodies of ``function`` run: as asked, else on the event loop if async, else on a thread.

    Raises:
        InvalidInput: for an unknown place, or one that cannot run this kind of function.
    """
    runs_async = is_async(function)
    if asked is None:
        return Execution.ASYNC if runs_async else Execution.THREAD
    try:
        execution = Execution(asked)
    except ValueError:
        msg = f"tool {tool!r}: execution must be one of {', '.join(e.value for e in Execution)}, not {asked!r}"
        raise InvalidInput(msg) from None
    if runs_async and execution is not Execution.ASYNC:
        msg = f"tool {tool!r}: an async def runs on the event loop; execution {execution.value!r} cannot run it"
        raise InvalidInput(msg)
    if not runs_async and execution is Execution.ASYNC:
        msg = f"tool {tool!r}: execution 'async' needs an async def; a def would block the event loop for all others"
        raise InvalidInput(msg)
    return execution


def own_copy(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy, so that nobody who was handed a schema can change the tool's own."""
    return deepcopy(dict(schema))
