"""Arguments that the job gives to its tools and no model can: from its configuration and from a key's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import SecretBytes, SecretStr

from flink_agents.errors import InjectionFailed, InvalidOption
from flink_agents.options import InjectFrom, Injection
from flink_agents.tools.base import Tool, ToolSpec
from flink_agents.tools.refusal import nearest

__all__ = [
    "NEEDS_SECRET_TYPE",
    "find",
    "injected",
    "is_from_environment",
    "read_injections",
    "resolve_config",
    "secrets_in",
    "unfit",
]

NEEDS_SECRET_TYPE = "a secret needs the type pydantic.SecretStr"

_KEYS = ("from", "key")


@dataclass(frozen=True)
class _Unset:
    """Stands in the resolved configuration for a variable that the environment does not have."""

    variable: str


def injected(
    spec: ToolSpec, arguments: dict[str, Any], config: Mapping[str, Any], memory: Callable[[str], Any]
) -> dict[str, Any]:
    """Return ``arguments`` with what ``spec.inject`` gives in them, whatever a model sent under those names.

    ``config`` is what ``resolve_config`` returned; ``memory`` returns the JSON value at a dotted path of the key's
    memory, or raises KeyError. Each call gets its own copy of a list or an object. Task thread, after the slot was
    reserved with the arguments as asked: what is injected never enters its digest.

    Raises:
        InjectionFailed: for a source that has no such value. A default of the parameter does not stand in for it.
    """
    if not spec.inject:
        return arguments
    values = dict(arguments)
    for name, injection in spec.inject.items():
        values[name] = _given(spec.name, name, injection, config, memory)
    return values


def _given(tool: str, name: str, injection: Injection, config: Mapping[str, Any], memory: Callable[[str], Any]) -> Any:
    where = "the job's config" if injection.source is InjectFrom.CONFIG else "the memory of this key"
    try:
        found = find(config, injection.key) if injection.source is InjectFrom.CONFIG else memory(injection.key)
    except KeyError:
        msg = f"tool {tool!r}: no value for its injected parameter {name!r}: {where} has no {injection.key!r}"
        raise InjectionFailed(msg) from None
    unset = next(_unset_in(found), None)
    if unset is not None:
        msg = (
            f"tool {tool!r}: no value for its injected parameter {name!r}: {injection.key!r} of {where} is read from "
            f"the environment variable {unset.variable}, which the TaskManager does not have"
        )
        raise InjectionFailed(msg)
    return _own(found)


def _own(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    return [_own(item) for item in value] if isinstance(value, list) else value


def _unset_in(value: Any) -> Iterator[_Unset]:
    if isinstance(value, _Unset):
        yield value
    for item in _items(value):
        yield from _unset_in(item)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def find(config: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path.

    Raises:
        KeyError: where there is none.
    """
    value: Any = config
    for step in path.split("."):
        if not isinstance(value, Mapping):
            raise KeyError(path)
        value = value[step]
    return value


def is_from_environment(value: Any) -> bool:
    """Return whether a value of the configuration is ``{"env": NAME}``."""
    return isinstance(value, Mapping) and value.keys() == {"env"} and isinstance(value["env"], str)


def resolve_config(config: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration with the environment's values in it, each as a ``SecretStr``. Task thread, at open.

    A variable that is not set fails the calls that need it, and no others.
    """
    return {key: _resolved(value, environ) for key, value in config.items()}


def _resolved(value: Any, environ: Mapping[str, str]) -> Any:
    if is_from_environment(value):
        name = value["env"]
        return SecretStr(environ[name]) if name in environ else _Unset(name)
    if isinstance(value, Mapping):
        return {key: _resolved(item, environ) for key, item in value.items()}
    return [_resolved(item, environ) for item in value] if isinstance(value, list) else value


def secrets_in(value: Any) -> Iterator[str]:
    """Yield the text of every secret in a resolved configuration, for ``Redaction``."""
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, SecretBytes):
        yield value.get_secret_value().decode(errors="replace")
    for item in _items(value):
        yield from secrets_in(item)


def read_injections(tool: str, given: Any) -> dict[str, Injection]:
    """Return the option ``inject`` as a specification holds it.

    Raises:
        InvalidOption: for what is no mapping of parameters to ``{"from": "config" | "memory", "key": PATH}``.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        msg = f"tool {tool!r}: inject must be a mapping of parameters to their sources, not {type(given).__name__}"
        raise InvalidOption(msg, "inject")
    return {name: _injection(tool, name, entry) for name, entry in given.items()}


def _injection(tool: str, name: Any, given: Any) -> Injection:
    option = f"inject.{name}"
    if isinstance(given, Injection):
        given = {"from": given.source, "key": given.key}
    if not isinstance(given, Mapping) or set(given) != set(_KEYS):
        msg = f"tool {tool!r}: {option} must be {{'from': 'config' or 'memory', 'key': a dotted path}}, not {given!r}"
        raise InvalidOption(msg, option)
    try:
        source = InjectFrom(given["from"])
    except ValueError:
        msg = f"tool {tool!r}: {option}: from must be config or memory, not {given['from']!r}"
        raise InvalidOption(msg, option) from None
    key = given["key"]
    if not isinstance(key, str) or not all(key.split(".")):
        msg = f"tool {tool!r}: {option}: key must be a dotted path such as customer.id, not {key!r}"
        raise InvalidOption(msg, option)
    return Injection(source, key)


def unfit(tool: Tool, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each parameter that the configuration cannot give to ``tool``, with what to say. For ``validate``; pure.

    ``config`` is not resolved: whether a variable is set is known on the TaskManager only.
    """
    for name, injection in tool.spec.inject.items():
        if injection.source is not InjectFrom.CONFIG:
            continue
        try:
            value = find(config, injection.key)
        except KeyError:
            meant = nearest(injection.key, _paths(config, ""))
            hint = f"; did you mean {meant!r}?" if meant else ""
            yield name, f"tool {tool.spec.name!r}: inject.{name}: config has no {injection.key!r}{hint}"
            continue
        is_secret = is_from_environment(value)
        if is_secret or next(_variables(value), None) is None:
            try:
                tool.read_injected(name, SecretStr("") if is_secret else value)
            except InjectionFailed as error:
                # Of a secret only the type is known here: its text may keep to any bound and pattern.
                if not is_secret or NEEDS_SECRET_TYPE in str(error):
                    yield name, str(error)


def _variables(value: Any) -> Iterator[Any]:
    if is_from_environment(value):
        yield value
    for item in _items(value):
        yield from _variables(item)


def _paths(config: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping) and not is_from_environment(value):
            yield from _paths(value, f"{prefix}{key}.")
