"""Durable calls of plain functions: what an action passes to ``ctx.durable_execute``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from flink_agents import codec
from flink_agents.errors import CallError, HandleMisuse, InvalidInput, Unserializable
from flink_agents.options import Execution, OnInterrupt
from flink_agents.scheduler.handles import DurableFuture
from flink_agents.scheduler.prepared import CallTerms, Prepared
from flink_agents.tools.callables import is_async
from flink_agents.tools.options import CallOptions, Retry
from flink_agents.tools.timing import read_timing
from flink_agents.units import MAX_DURATION_MS, UnitError, parse_duration

__all__ = ["CallSettings", "DurableCall", "Seconds", "milliseconds"]

CALL_KIND = "call"

Seconds: TypeAlias = "float | timedelta | str"
"""A time span in Python: seconds as a number, a timedelta, or text with a unit such as ``"200ms"``."""


def milliseconds(name: str, span: Seconds) -> int:
    """Return a time span in whole milliseconds.

    Raises:
        HandleMisuse: if it is none, or negative; ``name`` says which one.
    """
    if isinstance(span, str):
        try:
            return parse_duration(span)
        except UnitError as error:
            hint = f"; did you mean {error.hint!r}?" if error.hint else ""
            msg = f"{name}: {error}; expected {error.expected}{hint}"
            raise HandleMisuse(msg) from error
    seconds: Any = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds * 1000 <= MAX_DURATION_MS:
        msg = (
            f"{name} is seconds as a number, a timedelta, or text such as '5s', not negative and at most 100 years: "
            f"not {span!r}"
        )
        raise HandleMisuse(msg)
    return round(seconds * 1000)


@dataclass(frozen=True)
class CallSettings:
    """What ``durable_execute`` may say about a call beside its function and arguments."""

    id: str | None = None
    reconcile: Callable[..., Any] | None = None
    timeout: Seconds | None = None
    deadline: Seconds | None = None
    retry: Retry | None = None
    execution: Execution | str | None = None
    prepare: Callable[..., Any] | None = None

    def terms(self, name: str, function: Callable[..., Any]) -> CallTerms:
        """Return the terms on which ``function`` runs.

        Raises:
            HandleMisuse: for a setting that is wrong or does not fit the function.
        """
        execution = self._execution(name, function)
        functions: tuple[tuple[str, Any], ...] = (("reconcile", self.reconcile), ("prepare", self.prepare))
        for setting, given in functions:
            if given is not None and not callable(given):
                msg = f"{name}: {setting} must be a function, not {given!r}"
                raise HandleMisuse(msg)
        if self.prepare is not None and is_async(self.prepare):
            msg = f"{name}: prepare runs on the task thread and must not be a coroutine function"
            raise HandleMisuse(msg)
        options = CallOptions(
            timeout=_span("timeout", self.timeout), deadline=_span("deadline", self.deadline), retry=self.retry
        )
        try:
            timing = read_timing(name, options, execution)
        except InvalidInput as error:
            raise HandleMisuse(str(error)) from error
        return CallTerms(
            gate=f"{CALL_KIND}:{name}",
            execution=execution,
            on_interrupt=OnInterrupt.RERUN if self.reconcile is None else OnInterrupt.RECONCILE,
            timeout_ms=timing.timeout_ms,
            deadline_ms=timing.deadline_ms,
            retry=timing.retry,
        )

    def _execution(self, name: str, function: Callable[..., Any]) -> Execution:
        natural = Execution.ASYNC if is_async(function) else Execution.THREAD
        try:
            asked = natural if self.execution is None else Execution(self.execution)
        except ValueError:
            msg = f"{name}: execution must be one of {', '.join(e.value for e in Execution)}, not {self.execution!r}"
            raise HandleMisuse(msg) from None
        if (asked is Execution.ASYNC) != (natural is Execution.ASYNC):
            msg = f"{name} is {'a coroutine' if natural is Execution.ASYNC else 'no coroutine'} function: it cannot "
            raise HandleMisuse(msg + f"run as execution: {asked.value}")
        return asked


def _span(name: str, given: Seconds | None) -> timedelta | None:
    return None if given is None else timedelta(milliseconds=milliseconds(name, given))


class DurableCall(DurableFuture):
    """A handle on one call of a function. Its arguments are values: each body gets its own copy of them.

    Its identity are the function's name and all arguments, those of a partial included. What the codec cannot carry may
    be bound to a partial or be the object of a bound method: it counts by its type then.

    Raises:
        HandleMisuse: for something that is no function, or a setting that is wrong.
        Unserializable: for an argument that the codec cannot carry; bind such things into the function instead.
    """

    __slots__ = ("_bound_text", "_function", "_settings", "_terms", "_text")

    def __init__(
        self,
        function: Any,
        positional: Sequence[Any],
        keywords: Mapping[str, Any],
        settings: CallSettings,
        *,
        has_journal: bool,
    ) -> None:
        if not callable(function):
            msg = f"durable_execute takes a function and its arguments, not {function!r}"
            raise HandleMisuse(msg)
        inner, bound = _unbound(function)
        name = _name(inner, settings.id)
        if settings.reconcile is not None and not has_journal:
            msg = f"{name}: reconcile needs a journal: without one nothing says that a call was cut off"
            raise HandleMisuse(msg)
        self._function = function
        self._settings = settings
        self._terms = settings.terms(name, function)
        try:
            self._text = codec.encode([list(positional), dict(keywords)])
        except CallError as error:
            msg = f"the arguments of {name} cannot be recorded: {error}. Bind such things into the function instead"
            raise Unserializable(msg) from error
        self._bound_text = codec.encode(bound) if bound else ""
        super().__init__(CALL_KIND, name, -1, None)

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical JSON of the arguments, with those that are bound to the function."""
        if self._digest is None:
            # As plain JSON: a tag in it is data like any other where only equality counts.
            arguments = codec.loads(self._text)
            if self._bound_text:
                arguments.append(codec.loads(self._bound_text))
            self._digest = codec.digest(arguments)
        return self._digest

    @property
    def submits(self) -> bool:
        """Whether preparing it is the user's own code, which must not run for a call that has ended."""
        return self._settings.prepare is not None

    def prepare(self) -> Prepared:
        """Bind the function to a copy of the arguments. Task thread; once for each body."""
        settings = self._settings
        function = self._function
        if settings.prepare is not None:
            function = partial(function, self._bound(settings.prepare)())
        reconcile = settings.reconcile
        return Prepared(self._bound(function), self._terms, None if reconcile is None else self._bound(reconcile))

    def body_here(self) -> Callable[[], Any] | None:
        """Return the body if it runs here and now."""
        return self._bound(self._function) if self._terms.is_plain_inline and not self.submits else None

    def _bound(self, function: Callable[..., Any]) -> Callable[[], Any]:
        positional, keywords = codec.decode(self._text)
        return partial(function, *positional, **keywords) if positional or keywords else function


def _unbound(function: Any) -> tuple[Any, list[Any]]:
    """Return the function below all partials, and what they and a bound method bind, as the codec can carry it."""
    bound: list[Any] = []
    while isinstance(function, partial):
        bound.append([[_value(item) for item in function.args], _values(function.keywords)])
        function = function.func
    owner = getattr(function, "__self__", None)
    if is_dataclass(owner) and not isinstance(owner, type) and getattr(owner, "__dataclass_params__").frozen:  # noqa: B009
        # What can change is no part of an identity: it would not be the same when the action runs again.
        bound.append(_value(owner))
    return inspect.unwrap(function), bound


def _values(keywords: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(item) for name, item in keywords.items()}


def _value(item: Any) -> Any:
    try:
        codec.encode(item)
    except CallError:
        return ["object of", f"{type(item).__module__}.{type(item).__qualname__}"]
    return ["value", item]


def _name(function: Any, given: Any) -> str:
    """Return the call's name: the one that was given, or the function's own."""
    if given is not None:
        if not isinstance(given, str) or not given:
            msg = f"id names the call, such as 'charge', and is not {given!r}"
            raise HandleMisuse(msg)
        return given
    qualified = getattr(function, "__qualname__", type(function).__qualname__)
    name = f"{getattr(function, '__module__', type(function).__module__)}.{qualified}"
    if qualified.endswith("<lambda>"):
        msg = f"{name}: a lambda has no name that tells it from another one: give the call one by id=, or write a def"
        raise HandleMisuse(msg)
    return name
