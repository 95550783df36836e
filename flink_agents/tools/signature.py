"""From a typed signature to the schema that a model sees and the validator that its arguments must pass."""

from __future__ import annotations

import collections.abc
import datetime as dt
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import docstring_parser
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired, TypedDict, Unpack

from flink_agents.errors import InvalidInput, InvalidOption
from flink_agents.scheduler.tool_context import ToolContext
from flink_agents.tools.contextual import CONTEXT, is_context
from flink_agents.tools.refusal import MAX_PROBLEMS, field_path, json_type, nearest, refusal

__all__ = ["Signature", "describe", "explain", "read_signature", "underlying"]

_Parameter = inspect.Parameter
_CONTAINERS = (
    list,
    dict,
    set,
    frozenset,
    tuple,
    collections.abc.Sequence,
    collections.abc.Mapping,
    collections.abc.Iterable,
)
# Python 3.11 has its own, and typing_extensions another.
_UNPACK = (Unpack, getattr(typing, "Unpack", Unpack))
_GUARD_IN_LOCATION = re.compile(r"function-\w+\[\w+\(\), (.*)\]")


def _refuse_boolean(value: Any) -> Any:
    if value is True or value is False:
        raise PydanticCustomError("boolean_as_number", "Input should be a number, not a boolean")
    return value


def _refuse_epoch(value: Any) -> Any:
    # Pydantic would read 20240101, or the text "20240101", as seconds since 1970.
    if isinstance(value, (int, float)) or (isinstance(value, str) and re.fullmatch(r"\s*[+-]?[\d.]+\s*", value)):
        raise PydanticCustomError("number_as_time", "Input should be a date or time in ISO 8601 form, not a number")
    return value


_GUARDS: dict[Any, BeforeValidator] = {
    int: BeforeValidator(_refuse_boolean),
    float: BeforeValidator(_refuse_boolean),
    dt.datetime: BeforeValidator(_refuse_epoch),
    dt.date: BeforeValidator(_refuse_epoch),
    dt.time: BeforeValidator(_refuse_epoch),
}


class _ToolJsonSchema(GenerateJsonSchema):
    """JSON Schema without the titles that pydantic derives from names: a model reads them as noise."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  (declared so by the base class)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True)
class Signature:
    """How one function is called: built once per process, used on the task thread for every call.

    ``parameters`` is the JSON Schema that a model sees. ``validate`` turns arguments into a fresh dict with every
    parameter in it, or raises pydantic's ``ValidationError``. ``positional`` are the parameters that Python takes by
    position only; ``validate_extras`` checks what only ``**kwargs`` takes, None if it takes anything. ``contexts`` are
    the parameters that take the call's context: no part of the arguments. ``given`` are the parameters that the job
    injects, each with what validates it alone: ``parameters`` does not show them.
    """

    parameters: dict[str, Any]
    validate: Callable[[Any], dict[str, Any]]
    names: tuple[str, ...]
    positional: tuple[str, ...]
    validate_extras: Callable[[Any], dict[str, Any]] | None
    contexts: tuple[str, ...] = ()
    given: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether what ``validate`` returns can be passed as keywords just as it is."""
        return not self.positional and self.validate_extras is None and not self.contexts

    def split(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments for what ``validate`` returned, ``CONTEXT`` in its places.

        Raises:
            ValidationError: for a field that only ``**kwargs`` takes and whose type does not fit.
        """
        if self.validate_extras is not None:
            extras = {name: value for name, value in values.items() if name not in self.names}
            values = {**values, **self.validate_extras(extras)}
        values = {**values, **dict.fromkeys(self.contexts, CONTEXT)}
        return [values.pop(name) for name in self.positional], values


def underlying(function: Callable[..., Any]) -> Any:
    """Return the function that was written: below partials, decorators and callable objects."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not (inspect.isroutine(inner) or inspect.isclass(inner)):
        inner = type(inner).__call__
    return inspect.unwrap(inner)


def describe(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description and the parameters' descriptions of a docstring: Google, NumPy, reST or Epydoc style."""
    text = inspect.getdoc(underlying(function)) or ""
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        # The docstring is prose for people first; a slip in its markup must not keep the tool from being used.
        return text, {}
    described = {entry.arg_name: entry.description for entry in parsed.params if entry.description}
    paragraphs = [part.strip() for part in (parsed.short_description, parsed.long_description) if part]
    return "\n\n".join(paragraphs), described


def explain(tool: str, error: ValidationError, fields: Iterable[str]) -> str:
    """Return the bounded message for a model: each field, what was expected, what came (its type, never its value)."""
    problems = []
    for entry in error.errors(include_url=False, include_context=False)[:MAX_PROBLEMS]:
        steps = [_GUARD_IN_LOCATION.sub(r"\1", s) if isinstance(s, str) else s for s in entry["loc"]]
        path = field_path(steps)
        if entry["type"] == "missing":
            problems.append(f"{path}: required, but missing")
        elif entry["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            meant = nearest(str(steps[-1]), fields) if len(steps) == 1 else None
            problems.append(f"{path}: unknown field" + (f", did you mean {meant!r}?" if meant else ""))
        else:
            problems.append(f"{path}: {entry['msg']} (got {json_type(entry['input'])})")
    return refusal(tool, problems, error.error_count())


def read_signature(
    function: Callable[..., Any], tool: str, described: Mapping[str, str], given: Iterable[str] = ()
) -> Signature:
    """Build the signature of ``function``; ``described`` are its parameters' descriptions, ``tool`` is for messages.

    ``given`` are the parameters that the job injects: validated as the others are, and hidden from the schema.

    Raises:
        InvalidInput: for ``*args``, a parameter without a type, a type that has no JSON Schema, or an injected
            parameter that the function does not have.
    """
    fields: dict[str, Any] = {}
    positional: list[str] = []
    contexts: list[str] = []
    extras: Any = None
    for name, parameter in _parameters(function, tool).items():
        if parameter.kind is _Parameter.VAR_POSITIONAL:
            msg = f"tool {tool!r}: *{name} has no place in a JSON object; take a list parameter instead"
            raise InvalidInput(msg)
        if parameter.kind is _Parameter.VAR_KEYWORD:
            extras = _extras_type(function, tool, parameter)
            continue
        if parameter.kind is _Parameter.POSITIONAL_ONLY:
            positional.append(name)
        hint = _resolve(function, tool, parameter)
        if is_context(hint):
            contexts.append(name)
        else:
            fields[name] = _field(hint, parameter, described.get(name))
    if extras is not None:
        _refuse_ambiguity(function, tool, fields)
    hidden = tuple(given)
    for name in hidden:
        _check_given(tool, name, fields)
    try:
        return _compile(fields, hidden, tuple(positional), extras, tuple(contexts))
    except Exception as error:
        # Its first line: the rest of pydantic's text speaks of settings that a tool's author does not have.
        reason = str(error).partition("\n")[0]
        msg = f"tool {tool!r}: {_culprit(fields)} has no JSON Schema: {reason}"
        raise InvalidInput(msg) from error


def _parameters(function: Callable[..., Any], tool: str) -> dict[str, _Parameter]:
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        msg = f"tool {tool!r}: {function!r} has no signature that Python can read; wrap it in a typed function"
        raise InvalidInput(msg) from error
    inner: Any = function
    while isinstance(inner, functools.partial):
        # What a partial fixed is the author's: a model must neither see nor override it.
        parameters = {name: p for name, p in parameters.items() if name not in inner.keywords}
        inner = inner.func
    return parameters


def _resolve(function: Callable[..., Any], tool: str, parameter: _Parameter) -> Any:
    if parameter.annotation is _Parameter.empty:
        msg = f"tool {tool!r}: parameter {parameter.name!r} has no type; annotate it (Any takes every JSON value)"
        raise InvalidInput(msg)
    inner = underlying(function)
    local = inspect.getclosurevars(inner).nonlocals if inspect.isfunction(inner) else {}
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        # The context's type is known whatever was imported: linters move imports for types under TYPE_CHECKING.
        names = {"ToolContext": ToolContext, **getattr(inner, "__globals__", {})}
        hints = get_type_hints(holder, names, dict(local), include_extras=True)
    except Exception as error:
        msg = (
            f"tool {tool!r}: the type {parameter.annotation!r} of parameter {parameter.name!r} cannot be resolved "
            f"({error}); it must be defined or imported at the top of the module"
        )
        raise InvalidInput(msg) from error
    return hints[parameter.name]


def _extras_type(function: Callable[..., Any], tool: str, parameter: _Parameter) -> Any:
    if parameter.annotation is _Parameter.empty:
        return Any
    hint = _resolve(function, tool, parameter)
    if get_origin(hint) in _UNPACK:
        msg = f"tool {tool!r}: **{parameter.name}: Unpack[...] is not supported; write the fields as parameters"
        raise InvalidInput(msg)
    return Any if hint is object else hint


def _field(hint: Any, parameter: _Parameter, description: str | None) -> Any:
    """Return the annotation of one field: type, guard, description and default. Defaults are copied by pydantic."""
    default = parameter.default
    if default is None or (isinstance(default, FieldInfo) and default.default is None):
        hint = _joined([hint, None])
    base, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if description:
        metadata.insert(0, Field(description=description))
    if isinstance(default, FieldInfo):
        metadata.append(default)
    elif default is not _Parameter.empty:
        metadata.append(Field(default=default))
    if not metadata:
        return _guarded(base)
    annotated = _guarded(_annotated(base, metadata))
    is_required = all(entry.is_required() for entry in metadata if isinstance(entry, FieldInfo))
    return annotated if is_required else NotRequired[annotated]


def _annotated(base: Any, metadata: Iterable[Any]) -> Any:
    parts = (base, *metadata)
    return cast("Any", Annotated)[parts]


def _joined(hints: Iterable[Any]) -> Any:
    # Not with `|`, which forms such as Literal do not know on every Python.
    return cast("Any", Union)[tuple(hints)]


def _guarded(hint: Any) -> Any:
    """Return ``hint`` with guards against readings that would surprise: booleans as numbers, numbers as times.

    Classes of the user's own (models, dataclasses) are left alone: they say themselves what they take.
    """
    if isinstance(hint, type) and hint in _GUARDS:
        return Annotated[hint, _GUARDS[hint]]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base, *metadata = arguments
        if isinstance(base, type) and base in _GUARDS:
            # Outermost, so that constraints in the metadata still apply to the bare type and reach the schema.
            return _annotated(base, [*metadata, _GUARDS[base]])
        return _annotated(_guarded(base), metadata)
    if origin is Union or origin is types.UnionType:
        return _joined([_guarded(argument) for argument in arguments])
    if origin in _CONTAINERS and arguments:
        return types.GenericAlias(cast("type", origin), tuple(_guarded(argument) for argument in arguments))
    return hint


def _check_given(tool: str, name: str, fields: Mapping[str, Any]) -> None:
    if name not in fields:
        meant = nearest(name, fields)
        msg = f"tool {tool!r}: inject.{name}: the function has no parameter {name!r}" + (
            f"; did you mean {meant!r}?" if meant else ""
        )
        raise InvalidOption(msg, f"inject.{name}")
    if _has_alias(fields[name]):
        msg = f"tool {tool!r}: inject.{name}: a parameter with an alias cannot be injected"
        raise InvalidOption(msg, f"inject.{name}")


def _compile(
    fields: dict[str, Any], hidden: tuple[str, ...], positional: tuple[str, ...], extras: Any, contexts: tuple[str, ...]
) -> Signature:
    extra = "forbid" if extras is None else "allow"
    adapter = _adapter(fields, extra)
    # Built without them, so that nothing of a hidden parameter's type is shown either.
    shown = _adapter({name: hint for name, hint in fields.items() if name not in hidden}, extra) if hidden else adapter
    schema = shown.json_schema(schema_generator=_ToolJsonSchema)
    validate_extras = None
    if extras is not None and extras is not Any:
        others = TypeAdapter[Any](cast("Any", types.GenericAlias(dict, (str, _guarded(extras)))))
        validate_extras = others.validator.validate_python
        taken = others.json_schema(schema_generator=_ToolJsonSchema)
        schema["additionalProperties"] = taken["additionalProperties"]
        if "$defs" in taken:
            schema["$defs"] = _merged(schema.get("$defs", {}), taken["$defs"])
    schema.pop("title", None)
    return Signature(
        parameters=schema,
        # The bound method itself: the adapter's own wrapper costs as much as the validation of a small object.
        validate=adapter.validator.validate_python,
        names=tuple(fields),
        positional=positional,
        validate_extras=validate_extras,
        contexts=contexts,
        given={name: _adapter({name: fields[name]}, "forbid").validator.validate_python for name in hidden},
    )


def _merged(definitions: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    for name in definitions.keys() & others.keys():
        if definitions[name] != others[name]:
            msg = f"two different types are named {name!r}"
            raise TypeError(msg)
    return {**definitions, **others}


def _adapter(fields: dict[str, Any], extra: str) -> TypeAdapter[Any]:
    # A TypedDict takes every parameter name there is; the fields of a pydantic model may not be `copy` or `_x`.
    record: Any = cast("Any", TypedDict)("Arguments", fields)
    record.__pydantic_config__ = ConfigDict(extra=cast("Any", extra), allow_inf_nan=False)
    return TypeAdapter(record)


def _refuse_ambiguity(function: Callable[..., Any], tool: str, fields: Mapping[str, Any]) -> None:
    # **kwargs takes any name, so also one that stands for a value of the author's or for a validated one.
    if isinstance(function, functools.partial):
        msg = f"tool {tool!r}: a partial of a function with **kwargs would let a model override what the partial fixed"
        raise InvalidInput(msg)
    for name, hint in fields.items():
        if _has_alias(hint):
            msg = f"tool {tool!r}: parameter {name!r} has an alias, which cannot be combined with **kwargs"
            raise InvalidInput(msg)


def _has_alias(hint: Any) -> bool:
    inner = get_args(hint)[0] if get_origin(hint) is NotRequired else hint
    entries = get_args(inner)[1:] if get_origin(inner) is Annotated else ()
    return any(isinstance(entry, FieldInfo) and bool(entry.alias or entry.validation_alias) for entry in entries)


def _culprit(fields: Mapping[str, Any]) -> str:
    for name, hint in fields.items():
        try:
            _adapter({name: hint}, "forbid").json_schema(schema_generator=_ToolJsonSchema)
        except Exception:
            return f"the type of parameter {name!r}"
    return "the signature"
