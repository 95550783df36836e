"""The kinds of value that the job YAML's models are made of, each with its own plain-words error."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, SecretStr, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from flink_agents.options import Rate
from flink_agents.units import UnitError, format_size, parse_duration, parse_rate, parse_size

__all__ = [
    "FOLDER",
    "PROBLEM",
    "AbsolutePath",
    "ConfigKey",
    "ConfigValue",
    "DsnText",
    "Duration",
    "ExceptionReference",
    "FunctionReference",
    "JobName",
    "KeyPath",
    "LocalPath",
    "OptionName",
    "OptionValue",
    "RateText",
    "Size",
    "ToolName",
    "VariableName",
    "at_least",
    "fail",
    "given",
    "has_type",
    "not_truth",
]

PROBLEM = "flink_agents_problem"
"""Type of the errors made by :func:`fail`, whose text is already what the user reads."""

FOLDER = "folder"
"""Key of the validation context that holds the folder relative paths start at."""

# Options that the YAML has a field for: two places for one setting would leave it open which one holds.
OWN_OPTIONS = {
    "execution.checkpointing.dir": "flink.checkpoints.directory",
    "execution.checkpointing.interval": "flink.checkpoints.interval",
    "parallelism.default": "flink.parallelism",
    "pipeline.name": "name",
    "restart-strategy": "flink.restart",
    "restart-strategy.type": "flink.restart",
    "state.backend": "flink.state_backend",
    "state.backend.type": "flink.state_backend",
    "state.checkpoints.dir": "flink.checkpoints.directory",
}
OWN_PREFIXES = {"restart-strategy.": "flink.restart"}


def fail(problem: str, expected: str | None = None, hint: str | None = None) -> PydanticCustomError:
    """Return an error for a validator to raise: what is wrong, what was expected, what may have been meant."""
    # The text goes in as a value: as a template, braces in it would be taken for fields.
    return PydanticCustomError(PROBLEM, "{problem}", {"problem": problem, "expected": expected, "hint": hint})


def given(default: Any, description: str, **options: Any) -> Any:
    """Return a field with a default in the form a user would write, validated like a user's value."""
    return Field(default=default, validate_default=True, description=description, **options)


def has_type(value: Any) -> str | None:
    """Return the union tag of a mapping that names its kind under ``type``; an unknown one if it names none."""
    if isinstance(value, dict):
        return f"<{value.get('type')}>"
    return f"<{value.type}>" if hasattr(value, "type") else None


def not_truth(value: Any) -> Any:
    """Refuse true where 1 is meant, and 1.0, both of which Python takes for equal to it."""
    if type(value) in {bool, float}:
        raise fail("", "1")
    return value


def at_least(minimum: str | int) -> AfterValidator:
    """Return a validator that refuses what is below ``minimum``, in the unit a user would write."""
    bound = parse_duration(minimum) if isinstance(minimum, str) else minimum
    shown = format_size(minimum) if isinstance(minimum, int) and minimum >= 1024 else minimum

    def check(value: int) -> int:
        if value < bound:
            raise fail("is too small", f"at least {shown}")
        return value

    return AfterValidator(check)


def _unit(parse: Any) -> Any:
    def validate(value: Any) -> Any:
        try:
            return parse(value)
        except UnitError as error:
            raise fail(str(error), error.expected, error.hint) from error

    return PlainValidator(validate)


Duration = Annotated[
    int,
    _unit(parse_duration),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d)$"}),
]
"""Milliseconds, written as ``200ms``, ``5s``, ``10m``, ``2h`` or ``30d``."""

Size = Annotated[
    int,
    _unit(parse_size),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(KiB|MiB|GiB)$"}),
]
"""Bytes, written as ``256KiB``, ``4MiB`` or ``1GiB``."""

RateText = Annotated[
    Rate,
    _unit(parse_rate),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]+ ?/ ?[smh]$"}),
]
"""How many, and within what time, written as ``50/s``, ``300/m`` or ``1000/h``."""


def _text(value: Any, expected: str) -> str:
    if not isinstance(value, str):
        raise fail("", expected)  # an empty problem lets the reporter describe the value it got
    if not value.strip():
        raise fail("is empty", expected)
    return value


def _pattern(regex: str, expected: str) -> Any:
    compiled = re.compile(regex)

    def validate(value: Any) -> str:
        text = _text(value, expected)
        if compiled.fullmatch(text) is None:
            raise fail("", expected)
        return text

    return PlainValidator(validate), WithJsonSchema({"type": "string", "pattern": f"^(?:{regex})$"})


_name, _name_schema = _pattern(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
    "a name usable as a folder: letters, digits, '.', '_' and '-', starting with a letter or digit, 100 at most",
)
JobName = Annotated[str, _name, _name_schema]

_key, _key_schema = _pattern(r"[^.\s]+(\.[^.\s]+)*", "a field name or a dotted path such as customer.id")
KeyPath = Annotated[str, _key, _key_schema]

_absolute, _absolute_schema = _pattern(r"/.*", "an absolute path such as /data/work")
AbsolutePath = Annotated[str, _absolute, _absolute_schema]

# JSON Schema has no word for what Python takes as a name, so editors are told less than is checked here.
NAMES = r"[^\s.:]+(\.[^\s.:]+)*"


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _function(value: Any) -> str:
    expected = "module:function, such as support_tools:lookup_order"
    text = _text(value, expected)
    module, colon, name = text.partition(":")
    if not (colon and _is_dotted_name(module) and _is_dotted_name(name)):
        dotted = _is_dotted_name(text) and "." in text
        raise fail("", expected, ":".join(text.rsplit(".", 1)) if dotted else None)
    # As Python's compiler does with names: the same letters may be written by other characters.
    return unicodedata.normalize("NFKC", text)


FunctionReference = Annotated[
    str, PlainValidator(_function), WithJsonSchema({"type": "string", "pattern": f"^{NAMES}:{NAMES}$"})
]


def _exception(value: Any) -> str:
    expected = "an exception such as TimeoutError, httpx.TransportError or my_module:Outer.Name"
    text = _text(value, expected)
    module, colon, name = text.rpartition(":")
    if not (_is_dotted_name(name) and (not colon or _is_dotted_name(module))):
        raise fail("", expected)
    return unicodedata.normalize("NFKC", text)


ExceptionReference = Annotated[
    str, PlainValidator(_exception), WithJsonSchema({"type": "string", "pattern": f"^({NAMES}:)?{NAMES}$"})
]

_tool, _tool_schema = _pattern(r"[^\s<]\S{0,255}", "a tool name of 1 to 256 characters, without spaces")
ToolName = Annotated[str, _tool, _tool_schema]


_variable, _variable_schema = _pattern(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")
VariableName = Annotated[str, _variable, _variable_schema]


def _dsn(value: Any) -> str:
    return _text(value, "text such as postgresql://user@host/database, or {env: NAME}")


DsnText = Annotated[str, PlainValidator(_dsn), WithJsonSchema({"type": "string", "minLength": 1})]
"""Where a PostgreSQL database is and how to log in. Never shown: it may hold a password."""


def _local_path(value: Any, info: ValidationInfo) -> Path:
    expected = "a path of this machine, or a file: URI"
    if isinstance(value, Path):
        value = str(value)
    text = _text(value, expected)
    if "\x00" in text:
        raise fail("holds a NUL character", expected)
    # A one-letter scheme would be a drive.
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", text):
        parts = urlsplit(text)
        if parts.scheme.lower() != "file":
            raise fail(f"`{parts.scheme}:` paths are not available in this version of flink-agents", expected)
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise fail("is no local file: URI", "file:///folder/name")
        text = unquote(parts.path)
    folder = (info.context or {}).get(FOLDER) or Path.cwd()
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise fail(f"got {text[:40]!r}, but the home folder of that user is not known", expected) from error
    # normpath and not resolve: a link stays the path that the user wrote.
    return Path(os.path.normpath(Path(folder) / path))


LocalPath = Annotated[Path, PlainValidator(_local_path), WithJsonSchema({"type": "string", "minLength": 1})]
"""An absolute path; relative ones start at the YAML's folder, ``~`` is the user's home."""


def _config_key(value: Any) -> str:
    if not (isinstance(value, str) and re.fullmatch(r"[^.\s]+", value)):
        raise fail("cannot be part of a path", "a name without dots and spaces")
    return value


ConfigKey = Annotated[str, PlainValidator(_config_key), WithJsonSchema({"type": "string"})]

CONFIG_VALUE = "text, a number, true, false, a list, a mapping, or {env: NAME}"


def _config_value(value: Any, path: str = "") -> Any:
    at = f" at `{path}`" if path else ""
    if isinstance(value, dict) and "env" in value:
        name = value["env"]
        if len(value) != 1 or not (isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)):
            raise fail(f"`env`{at} stands for an environment variable", "{env: NAME} alone")
    elif isinstance(value, dict):
        for key, item in value.items():
            _config_key(key)
            _config_value(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _config_value(item, f"{path}.{index}" if path else str(index))
    elif isinstance(value, float) and not math.isfinite(value):
        raise fail(f"a number{at} that JSON does not know", CONFIG_VALUE)
    elif isinstance(value, SecretStr):
        raise fail(f"a secret{at} would travel with the job", '{"env": NAME}')
    elif not (value is None or isinstance(value, (str, int, float))):
        raise fail(f"a value{at} of type {type(value).__name__}", CONFIG_VALUE)
    return value


ConfigValue = Annotated[Any, PlainValidator(_config_value), WithJsonSchema({})]
"""A value of the job's own configuration: JSON, or ``{env: NAME}`` for what the TaskManager's environment has."""


def _option_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise fail("", "text, a number, true or false")


OptionValue = Annotated[str, BeforeValidator(_option_value), WithJsonSchema({"type": ["string", "number", "boolean"]})]
"""A Flink option's value as Flink's own configuration text."""


def _option_name(value: Any) -> str:
    name = _text(value, "the full name of a Flink option")
    own = OWN_OPTIONS.get(name) or next((field for p, field in OWN_PREFIXES.items() if name.startswith(p)), None)
    if own:
        raise fail(f"is set by `{own}`", f"the value under `{own}`", own)
    if name == "python.execution-mode":
        raise fail("cannot be set: the operator needs PyFlink's thread mode; process mode loses timers on recovery")
    return name


OptionName = Annotated[str, PlainValidator(_option_name), WithJsonSchema({"type": "string"})]
"""The full name of a Flink option that the YAML has no field of its own for."""
