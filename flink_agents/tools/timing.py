"""The options of time and rate of a tool, read and checked against each other: time-outs, retries, rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from flink_agents.errors import InvalidInput, InvalidOption
from flink_agents.options import Execution, Rate
from flink_agents.retry import RetryPolicy
from flink_agents.tools.imports import resolve_exception
from flink_agents.tools.options import CallOptions
from flink_agents.tools.refusal import nearest
from flink_agents.units import MAX_DURATION_MS, UnitError, format_duration, parse_duration, parse_rate

__all__ = ["RETRY_KEYS", "Timing", "read_timing"]

RETRY_KEYS = ("attempts", "initial", "multiplier", "max", "jitter", "on")


@dataclass(frozen=True)
class Timing:
    """The fields of a ``ToolSpec`` that ``timeout``, ``deadline``, ``retry`` and ``rate`` become."""

    timeout_ms: int | None
    deadline_ms: int | None
    retry: RetryPolicy | None
    rate: Rate | None


def read_timing(
    owner: str, options: CallOptions, execution: Execution, search_path: Sequence[str | Path] = ()
) -> Timing:
    """Return the options of time and rate in the engine's units.

    ``owner`` is whose they are, for messages; ``search_path`` is for the classes under ``retry.on``.

    Raises:
        InvalidInput: for a wrong unit or number, a class that is no exception or cannot be imported, a deadline below
            the time-out, a time-out of an inline tool.
    """
    timeout_ms = _duration(owner, "timeout", options.timeout)
    deadline_ms = _duration(owner, "deadline", options.deadline)
    if timeout_ms is not None and execution is Execution.INLINE:
        msg = f"{owner}: timeout: nothing can stop the task thread, on which inline calls run"
        raise InvalidOption(msg, "timeout", "execution")
    if timeout_ms is not None and deadline_ms is not None and deadline_ms < timeout_ms:
        msg = (
            f"{owner}: deadline bounds the call with all its attempts, so {format_duration(deadline_ms)} cannot "
            f"be below the timeout of one attempt, {format_duration(timeout_ms)}"
        )
        raise InvalidOption(msg, "deadline", "timeout")
    return Timing(timeout_ms, deadline_ms, _retry(owner, options.retry, search_path), _rate(owner, options.rate))


def _duration(owner: str, name: str, given: Any, least_ms: int = 1) -> int | None:
    if given is None:
        return None
    if isinstance(given, timedelta):
        ms, rest = divmod(given, timedelta(milliseconds=1))
        if rest or ms > MAX_DURATION_MS:
            msg = f"{owner}: {name}: {given!r} is not a whole number of milliseconds up to 100 years"
            raise InvalidOption(msg, name)
    else:
        try:
            ms = parse_duration(given)
        except UnitError as error:
            raise InvalidOption(_unit_message(owner, name, error), name) from error
    if ms < least_ms:
        msg = f"{owner}: {name} must be at least {least_ms}ms, not {ms}ms"
        raise InvalidOption(msg, name)
    return ms


def _rate(owner: str, given: Any) -> Rate | None:
    if given is None:
        return None
    if isinstance(given, Rate):
        if not (type(given.count) is type(given.per_ms) is int and given.count >= 1 and given.per_ms >= 1):
            msg = f"{owner}: rate: {given!r}: both numbers must be whole and at least 1"
            raise InvalidOption(msg, "rate")
        return given
    try:
        return parse_rate(given)
    except UnitError as error:
        raise InvalidOption(_unit_message(owner, "rate", error), "rate") from error


def _unit_message(owner: str, name: str, error: UnitError) -> str:
    hint = f"; did you mean {error.hint!r}?" if error.hint else ""
    return f"{owner}: {name}: {error}; expected {error.expected}{hint}"


def _retry(owner: str, given: Any, search_path: Sequence[str | Path]) -> RetryPolicy | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        given = _policy(owner, given)
    if not isinstance(given, RetryPolicy):
        msg = f"{owner}: retry must be a RetryPolicy or a mapping such as {{'attempts': 3}}, not {given!r}"
        raise InvalidOption(msg, "retry")
    if given.on is None:
        return given
    return replace(given, on=tuple(_exceptions(owner, given.on, search_path)))


def _policy(owner: str, given: Mapping[str, Any]) -> RetryPolicy:
    for name in given:
        if name not in RETRY_KEYS:
            meant = nearest(str(name), RETRY_KEYS)
            msg = f"{owner}: retry has no {name!r}; " + (
                f"did you mean {meant!r}?" if meant else f"it takes {', '.join(RETRY_KEYS)}"
            )
            raise InvalidOption(msg, "retry")
    if given.get("attempts") is None:
        msg = f"{owner}: retry needs attempts, the number of bodies with the first one"
        raise InvalidOption(msg, "retry")
    usual = RetryPolicy()
    initial_ms = _duration(owner, "retry.initial", given.get("initial"), 0)
    initial_ms = usual.initial_ms if initial_ms is None else initial_ms
    max_ms = _duration(owner, "retry.max", given.get("max"), 0)
    try:
        return RetryPolicy(
            attempts=_number(owner, "attempts", given["attempts"], int),
            initial_ms=initial_ms,
            multiplier=_number(owner, "multiplier", given.get("multiplier", usual.multiplier), int, float),
            max_ms=max(usual.max_ms, initial_ms) if max_ms is None else max_ms,
            jitter=_number(owner, "jitter", given.get("jitter", usual.jitter), int, float),
            on=given.get("on"),
        )
    except InvalidOption:
        raise
    except InvalidInput as error:
        msg = f"{owner}: {error}"
        raise InvalidOption(msg, "retry") from error


def _number(owner: str, name: str, value: Any, *types: type) -> Any:
    # Neither true for 1, nor a number that compares with nothing.
    if type(value) not in types or value != value:
        what = "number" if float in types else "whole number"
        msg = f"{owner}: retry.{name} must be a {what}, not {value!r}"
        raise InvalidOption(msg, "retry")
    return value


def _exceptions(owner: str, given: Any, search_path: Sequence[str | Path]) -> Iterator[type[BaseException]]:
    if not isinstance(given, (list, tuple)):
        msg = f"{owner}: retry.on must be a list of exceptions, not {given!r}"
        raise InvalidOption(msg, "retry")
    for index, entry in enumerate(given):
        try:
            yield resolve_exception(entry, search_path) if isinstance(entry, str) else _exception(entry)
        except InvalidInput as error:
            msg = f"{owner}: retry.on: {error}"
            raise InvalidOption(msg, f"retry.on.{index}") from error


def _exception(entry: Any) -> type[BaseException]:
    if isinstance(entry, type) and issubclass(entry, BaseException):
        return entry
    msg = f"{entry!r} is no exception class"
    raise InvalidInput(msg)
