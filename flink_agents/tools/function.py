"""A plain typed function as a tool: what its author wrote is all there is to declare.

How arguments are read
    Each parameter is validated by pydantic's lax rules, minus the readings that would surprise:

    ==================  =========================================================================================
    parameter           accepted
    ==================  =========================================================================================
    ``int``             ``5``, ``5.0``, ``"5"``; not ``5.5``, not ``true``
    ``float``           ``1.5``, ``1``, ``"1.5"``; not ``true``, not NaN or an infinity
    ``bool``            ``true``, ``"true"``, ``"yes"``, ``"on"``, ``1`` and their opposites
    ``str``             text only: ``12`` is refused, as nobody knows whether ``"012"`` was meant
    dates and times     ISO 8601 text only: ``20240101`` is refused, not read as seconds since 1970
    enums, ``Literal``  one of the values
    models, dataclasses an object; the fields follow the rules of that class
    ==================  =========================================================================================

    An unknown field is refused unless the function takes ``**kwargs``. A parameter with the default None takes null.
    Every call gets its own copy of a mutable default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar, cast, overload

from pydantic import ValidationError

from flink_agents.errors import InvalidArguments, InvalidInput
from flink_agents.options import Execution
from flink_agents.tools.base import Body, Tool, ToolSpec
from flink_agents.tools.signature import Signature, describe, explain, read_signature, underlying
from flink_agents.tools.specification import checked_bound, checked_name, choose_execution, own_copy

__all__ = ["FunctionTool", "ToolOptions", "declared_options", "tool"]

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__flink_agents_tool__"


@dataclass(frozen=True)
class ToolOptions:
    """What the author of a tool says about it; None leaves it to the function or to the default."""

    name: str | None = None
    description: str | None = None
    execution: Execution | str | None = None
    max_concurrent: int | None = None


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    execution: Execution | str | None = None,
    max_concurrent: int | None = None,
) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a tool and say how it wants to be run; the job's YAML overrides each option.

    The function stays what it is: it can be called, tested and pickled as before.

    Args:
        name: what a model calls it; the function's own name if None.
        description: what a model reads; the docstring if None.
        execution: ``thread``, ``async`` or ``inline``; by default ``async`` for ``async def``, else ``thread``.
        max_concurrent: how many bodies of this tool may run at once in one subtask.

    Raises:
        TypeError: for an option that does not exist.
    """
    declared = ToolOptions(**options)

    def mark(target: F) -> F:
        setattr(target, _MARK, declared)
        return target

    return mark if function is None else mark(function)


def declared_options(function: Callable[..., Any]) -> ToolOptions:
    """Return what ``@tool`` said about ``function``; empty options if it was not used."""
    declared = getattr(function, _MARK, None)
    return declared if isinstance(declared, ToolOptions) else ToolOptions()


class FunctionTool(Tool):
    """A tool made from a typed function, sync or async.

    Args:
        function: a function, bound method, partial or callable object; every parameter needs a type.
        name, description, execution, max_concurrent: as for ``tool``, and stronger than what it said.

    Raises:
        InvalidInput: for ``*args``, a parameter without a type or with a type that has no JSON Schema, an ``async def``
            that should run inline or on a thread, a ``def`` that should run on the event loop.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        execution: Execution | str | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        if not callable(cast("object", function)) or inspect.isclass(function):
            msg = f"a tool must be a function, not {function!r}"
            raise InvalidInput(msg)
        declared = declared_options(function)
        own_name = getattr(underlying(function), "__name__", None)
        named = checked_name(name or declared.name or own_name, "a function tool")
        self._function = function
        text, self._described = describe(function)
        # Filled here, so that a wrong signature is refused where the tool is declared.
        self._signature = read_signature(function, named, self._described)
        self.spec = ToolSpec(
            name=named,
            description=next((given for given in (description, declared.description) if given is not None), text),
            parameters=own_copy(self._signature.parameters),
            execution=choose_execution(named, function, execution or declared.execution),
            max_concurrent=checked_bound(named, declared.max_concurrent if max_concurrent is None else max_concurrent),
        )

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        return self._function

    def override(
        self, name: str | None = None, execution: Execution | str | None = None, max_concurrent: int | None = None
    ) -> FunctionTool:
        """Return this tool with other options; None keeps what it has."""
        return FunctionTool(
            self._function,
            name=name or self.spec.name,
            description=self.spec.description,
            execution=execution or self.spec.execution,
            max_concurrent=max_concurrent if max_concurrent is not None else self.spec.max_concurrent,
        )

    def prepare(self, arguments: dict[str, Any]) -> Body:
        """Validate ``arguments`` and bind them to the function. Task thread; not called on replay of a finished call.

        Raises:
            InvalidArguments: names each field that does not fit, in at most 2 KiB; ``expected`` copies the schema.
        """
        try:
            values = self._validate(arguments)
            if self._is_plain:
                return partial(self._function, **values)
            positional, keywords = self._signature.split(values)
        except ValidationError as error:
            # Not chained: the message says it all, and pydantic's text repeats the input without bound.
            expected = own_copy(self.spec.parameters)
            raise InvalidArguments(explain(self.spec.name, error, expected["properties"]), expected) from None
        return partial(self._function, *positional, **keywords)

    @cached_property
    def _signature(self) -> Signature:
        return read_signature(self._function, self.spec.name, self._described)

    @cached_property
    def _validate(self) -> Callable[[Any], dict[str, Any]]:
        return self._signature.validate

    @cached_property
    def _is_plain(self) -> bool:
        return self._signature.is_plain

    def __getstate__(self) -> dict[str, Any]:
        # Validators cannot be pickled; they are made again in the process that uses the tool.
        return {key: self.__dict__[key] for key in ("_function", "_described", "spec")}

    def __repr__(self) -> str:
        return f"FunctionTool({self.spec.name!r})"
