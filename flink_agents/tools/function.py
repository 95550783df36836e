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

    A parameter of type ``ToolContext`` is no argument: the schema does not show it, and the call's context goes there.
    An unknown field is refused unless the function takes ``**kwargs``. A parameter with the default None takes null.
    Every call gets its own copy of a mutable default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast, overload

from pydantic import SecretStr, ValidationError
from typing_extensions import Unpack

from flink_agents.errors import InjectionFailed, InvalidArguments, InvalidInput, InvalidOption
from flink_agents.tools.base import Body, Tool
from flink_agents.tools.contextual import with_context
from flink_agents.tools.injection import NEEDS_SECRET_TYPE, read_injections
from flink_agents.tools.interruption import Interruption, choose_interruption, reconcile_by_name
from flink_agents.tools.options import CallOptions, OptionKeywords, stated_by
from flink_agents.tools.refusal import json_type, nearest, refusal
from flink_agents.tools.signature import Signature, describe, explain, read_signature, underlying
from flink_agents.tools.specification import checked_name, own_copy, specify

__all__ = ["FunctionTool", "ToolOptions", "declared_options", "is_marked", "tool"]

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__flink_agents_tool__"


@dataclass(frozen=True, kw_only=True)
class ToolOptions(CallOptions):
    """What the author of a tool says about it; None leaves it to the function or to the default."""

    name: str | None = None
    description: str | None = None


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Unpack[OptionKeywords],
) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a tool and say how it wants to be run; the job's YAML overrides each option.

    The function stays what it is: it can be called, tested and pickled as before.

    Args:
        name: what a model calls it; the function's own name if None.
        description: what a model reads; the docstring if None.
        execution: ``thread``, ``async`` or ``inline``; by default ``async`` for ``async def``, else ``thread``.
        max_concurrent: how many bodies of this tool may run at once in one subtask.
        on_interrupt: what happens to a call that was cut off: ``rerun`` (default), ``fail`` or ``reconcile``; the last
            two need a journal.
        reconcile: with ``on_interrupt="reconcile"``, a function (or ``"module:function"``) that looks whether the call
            took effect. It takes by name what it needs of the tool's parameters, and a ``ToolContext`` if it has a
            parameter of that type. What it returns or raises becomes the call's outcome; ``NOT_STARTED`` lets the call
            run.
        timeout: bounds one attempt from the start of its body: ``"5s"``, also ``ms``, ``m``, ``h``, ``d``, or a
            timedelta. Not for ``inline``. A ``def`` cannot be stopped: it keeps its thread, and its result is dropped.
            A reconciler that runs longer ends the call: no further attempt follows.
        deadline: bounds the call with all attempts and the waits between them; not below ``timeout``.
        retry: when a failed attempt is followed by another: a ``RetryPolicy``, or a dict with the names and units of
            the job YAML, such as ``{"attempts": 3, "initial": "200ms", "on": [httpx.TransportError, "TimeoutError"]}``.
            ``attempts`` counts the first one too. Without ``on``, every ``Exception`` of the tool's own is worth
            another attempt, but no time-out.
        rate: how many bodies begin at most, per subtask: ``"50/s"``, ``"300/m"``, ``"1000/h"``.
        inject: parameters that the job gives, hidden from the schema and never taken from a model:
            ``{"tenant": {"from": "config", "key": "customer.tenant"}}``, or ``"from": "memory"`` for the memory of the
            request's key. A value of the environment is a ``pydantic.SecretStr``.

    Raises:
        InvalidOption: for an option that does not exist.
    """
    known = [field.name for field in fields(ToolOptions)]
    for option in options:
        if option not in known:
            meant = nearest(option, known)
            told = f"did you mean {meant!r}?" if meant else f"it takes {', '.join(known)}"
            msg = f"@tool has no option {option!r}; {told}"
            raise InvalidOption(msg, option)
    declared = ToolOptions(**options)

    def mark(target: F) -> F:
        setattr(target, _MARK, declared)
        return target

    return mark if function is None else mark(function)


def declared_options(function: Callable[..., Any]) -> ToolOptions:
    """Return what ``@tool`` said about ``function``; empty options if it was not used."""
    declared = getattr(function, _MARK, None)
    return declared if isinstance(declared, ToolOptions) else ToolOptions()


def is_marked(function: Any) -> bool:
    """Return whether ``@tool`` was used on ``function``, above or below ``@staticmethod`` and ``@classmethod``."""
    written = getattr(function, "__func__", function)
    return any(isinstance(getattr(place, _MARK, None), ToolOptions) for place in (function, written))


class FunctionTool(Tool):
    """A tool made from a typed function, sync or async.

    Args:
        function: a function, bound method, partial or callable object; every parameter needs a type.
        name, description, options: as for ``tool``, and stronger than what it said.
        search_path: folders in which a reconciler or an exception given by reference is looked up first.

    Raises:
        InvalidInput: for ``*args``, a parameter without a type or with a type that has no JSON Schema, an ``async def``
            that should run inline or on a thread, a ``def`` that should run on the event loop, a reconciler that does
            not fit, an option that is wrong or does not go with another one.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        search_path: Sequence[str | Path] = (),
        **options: Unpack[OptionKeywords],
    ) -> None:
        if not callable(cast("object", function)) or inspect.isclass(function):
            msg = f"a tool must be a function, not {function!r}"
            raise InvalidInput(msg)
        asked = CallOptions(**options)
        declared = declared_options(function)
        own_name = getattr(underlying(function), "__name__", None)
        named = checked_name(name or declared.name or own_name, "a function tool")
        self._function = function
        text, self._described = describe(function)
        # Filled here, so that a wrong signature is refused where the tool is declared.
        merged = asked.over(declared)
        self._signature = read_signature(function, named, self._described, read_injections(named, merged.inject))
        interrupt, self._reconcile = choose_interruption(named, asked.interruption, declared.interruption, search_path)
        if self._reconcile is not None:
            self._reconciler = reconcile_by_name(named, self._reconcile, self._signature.names)
        self.spec = specify(
            named,
            next((given for given in (description, declared.description) if given is not None), text),
            self._signature.parameters,
            function,
            merged,
            interrupt,
            search_path,
        )

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        return self._function

    def override(
        self, name: str | None = None, search_path: Sequence[str | Path] = (), **options: Unpack[OptionKeywords]
    ) -> FunctionTool:
        """Return this tool with other options; None keeps what it has."""
        asked = CallOptions(**options)
        own = Interruption(self.spec.on_interrupt, self._reconcile)
        interrupt, decides = choose_interruption(name or self.spec.name, asked.interruption, own, search_path)
        merged = replace(asked.over(stated_by(self.spec)), on_interrupt=interrupt, reconcile=decides)
        return FunctionTool(
            self._function,
            name=name or self.spec.name,
            description=self.spec.description,
            search_path=search_path,
            **merged.keywords(),
        )

    def prepare(self, arguments: dict[str, Any]) -> Body:
        """Validate ``arguments`` and bind them to the function. Task thread; not called on replay of a finished call.

        Raises:
            InvalidArguments: names each field that does not fit, in at most 2 KiB; ``expected`` copies the schema.
            InjectionFailed: where the job's own value is missing or does not fit.
        """
        try:
            values = self._validate(arguments)
            if self._is_plain:
                return partial(self._function, **values)
            positional, keywords = self._signature.split(values)
        except ValidationError as error:
            # Not chained: the message says it all, and pydantic's text repeats the input without bound.
            raise self._invalid(error) from None
        contexts = self._signature.contexts
        if not contexts:
            return partial(self._function, *positional, **keywords)
        if not arguments.keys().isdisjoint(contexts):
            # Where **kwargs takes any field, one of this name would not have been refused before.
            unknown = [f"{name}: unknown field" for name in contexts if name in arguments]
            raise InvalidArguments(refusal(self.spec.name, unknown), own_copy(self.spec.parameters))
        return partial(with_context, self._function, positional, keywords)

    def reconciler(self, arguments: dict[str, Any]) -> Body | None:
        """Validate ``arguments`` and bind them to the reconciler. Task thread; None where the tool has none.

        Raises:
            InvalidArguments: as ``prepare`` does.
        """
        if self._reconcile is None:
            return None
        try:
            return self._reconciler(self._validate(arguments))
        except ValidationError as error:
            raise self._invalid(error) from None

    @cached_property
    def _signature(self) -> Signature:
        return read_signature(self._function, self.spec.name, self._described, self.spec.inject)

    def read_injected(self, name: str, value: Any) -> Any:
        """Return ``value`` as the function gets it under the injected parameter ``name``. Any thread.

        Raises:
            InjectionFailed: if it does not fit the parameter's type; the message does not show it.
        """
        try:
            return self._signature.given[name]({name: value})[name]
        except ValidationError as error:
            raise InjectionFailed(self._misfit(error) or "") from None

    def _misfit(self, error: ValidationError) -> str | None:
        for entry in error.errors(include_url=False, include_context=False):
            if entry["loc"] and entry["loc"][0] in self.spec.inject:
                name, came = entry["loc"][0], entry["input"]
                is_wrong = isinstance(came, SecretStr) and entry["type"].endswith("_type")
                secret = f"; {NEEDS_SECRET_TYPE}" if is_wrong else ""
                told = f"{entry['msg']} (got {json_type(came)})" if entry["type"] != "missing" else "there is none"
                return f"tool {self.spec.name!r}: the value for its injected parameter {name!r}: {told}{secret}"
        return None

    def _invalid(self, error: ValidationError) -> InvalidArguments | InjectionFailed:
        # What the job gives and does not fit is no mistake of the model's, which it could not correct.
        misfit = self._misfit(error) if self.spec.inject else None
        if misfit is not None:
            return InjectionFailed(misfit)
        expected = own_copy(self.spec.parameters)
        return InvalidArguments(explain(self.spec.name, error, expected["properties"]), expected)

    @cached_property
    def _reconciler(self) -> Callable[[Mapping[str, Any]], Body]:
        return reconcile_by_name(self.spec.name, cast("Any", self._reconcile), self._signature.names)

    @cached_property
    def _validate(self) -> Callable[[Any], dict[str, Any]]:
        return self._signature.validate

    @cached_property
    def _is_plain(self) -> bool:
        return self._signature.is_plain

    def __getstate__(self) -> dict[str, Any]:
        # Validators cannot be pickled; they are made again in the process that uses the tool.
        return {key: self.__dict__[key] for key in ("_function", "_described", "_reconcile", "spec")}

    def __repr__(self) -> str:
        return f"FunctionTool({self.spec.name!r})"
