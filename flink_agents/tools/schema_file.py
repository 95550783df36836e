"""Tools that are declared elsewhere by their JSON Schema, all served by one handler.

The schema decides alone: unlike a function tool, a field it does not mention is passed on unless it says
``additionalProperties: false``, and nothing is converted: ``"5"`` is no integer. ``5.0`` is one (JSON Schema says so).
Defaults are told to the model but not filled in; the handler gets what was asked. A handler with a further parameter of
type ``ToolContext`` gets the call's context there. What the job injects stands among the arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
from typing_extensions import Unpack

from flink_agents.errors import InvalidArguments, InvalidInput
from flink_agents.tools.base import Body, Tool
from flink_agents.tools.contextual import arrange, context_parameters, with_context
from flink_agents.tools.injection import read_injections
from flink_agents.tools.interruption import Interruption, choose_interruption, reconcile_call
from flink_agents.tools.options import CallOptions, OptionKeywords
from flink_agents.tools.refusal import MAX_PROBLEMS, bounded, field_path, json_type, refusal
from flink_agents.tools.specification import checked_name, own_copy, specify

__all__ = ["Handler", "SchemaTool", "load_entries", "schema_tools"]

Handler = Callable[..., Any]
"""Called with the tool's name and its arguments; sync or async."""

_SCHEMA_KEYS = ("parameters", "input_schema", "inputSchema")
_MAX_LISTED_NODES = 2000
_MAX_REASON_BYTES = 300
_MAX_REASONS = 20


class SchemaTool(Tool):
    """One tool of a schema file.

    Args:
        entry: ``{"name", "description"?, "parameters"}``, or the same as OpenAI, Anthropic or MCP write it.
        handler: called with the tool's name and the arguments.
        search_path, options: as for a function tool, but ``reconcile`` is called as ``reconcile(tool_name,
            arguments)``.

    Raises:
        InvalidInput: for an entry without name, a schema that is none, describes no object, or refers to a file or URL.
    """

    def __init__(
        self,
        entry: Mapping[str, Any],
        handler: Handler,
        *,
        search_path: Sequence[str | Path] = (),
        **options: Unpack[OptionKeywords],
    ) -> None:
        name, description, parameters = _read_entry(entry)
        asked = CallOptions(**options)
        self._handler = handler
        self._contexts = context_parameters(handler) if callable(cast("object", handler)) else frozenset[str]()
        try:
            arrange(handler, self._contexts, [name, {}])
        except TypeError as error:
            msg = f"tool {name!r}: the handler must be callable as handler(tool_name, arguments), not {handler!r}"
            raise InvalidInput(msg) from error
        interrupt, self._reconcile = choose_interruption(name, asked.interruption, Interruption(), search_path)
        if self._reconcile is not None:
            self._reconciler = reconcile_call(name, self._reconcile)
        parameters = _without(parameters, read_injections(name, asked.inject))
        self.spec = specify(name, description, parameters, handler, asked, interrupt, search_path)
        # Compiled here, so that a wrong schema is refused where the tool is declared.
        self._validator = _compile(name, self.spec.parameters)

    def prepare(self, arguments: dict[str, Any]) -> Body:
        """Validate ``arguments`` and bind them to the handler. Task thread; not called on replay of a finished call.

        Raises:
            InvalidArguments: names each field that does not fit, in at most 2 KiB; ``expected`` copies the schema.
        """
        self._check(arguments)
        if self._contexts:
            return partial(
                with_context, self._handler, *arrange(self._handler, self._contexts, [self.spec.name, arguments])
            )
        return partial(self._handler, self.spec.name, arguments)

    def reconciler(self, arguments: dict[str, Any]) -> Body | None:
        """Validate ``arguments`` and bind them to the reconciler. Task thread; None where the tool has none.

        Raises:
            InvalidArguments: as ``prepare`` does.
        """
        if self._reconcile is None:
            return None
        self._check(arguments)
        return self._reconciler(self.spec.name, arguments)

    def _check(self, arguments: dict[str, Any]) -> None:
        inject = self.spec.inject
        if inject:
            # What the job gives is no JSON of a model's: the schema knows nothing of it.
            arguments = {name: value for name, value in arguments.items() if name not in inject}
        try:
            if self._is_valid(arguments):
                return
            problems = list(_problems(self._validator, arguments))
        except ValueError as error:
            # What JSON cannot express, such as a lone surrogate: the validator cannot even read it.
            problems = [f"arguments: {error}"]
        raise InvalidArguments(refusal(self.spec.name, problems), own_copy(self.spec.parameters))

    @cached_property
    def _validator(self) -> jsonschema_rs.Validator:
        return _compile(self.spec.name, self.spec.parameters)

    @cached_property
    def _reconciler(self) -> Callable[[str, dict[str, Any]], Body]:
        return reconcile_call(self.spec.name, cast("Any", self._reconcile))

    @cached_property
    def _is_valid(self) -> Callable[[Any], bool]:
        return self._validator.is_valid

    def __getstate__(self) -> dict[str, Any]:
        # Validators cannot be pickled; they are made again in the process that uses the tool.
        return {key: self.__dict__[key] for key in ("_handler", "_contexts", "_reconcile", "spec")}

    def __repr__(self) -> str:
        return f"SchemaTool({self.spec.name!r})"


def schema_tools(
    entries: Iterable[Mapping[str, Any]],
    handler: Handler,
    *,
    search_path: Sequence[str | Path] = (),
    **options: Unpack[OptionKeywords],
) -> list[SchemaTool]:
    """Make a tool of each entry. All wrong entries are reported at once, each by its place in the list.

    Raises:
        InvalidInput: for a wrong entry or a name that occurs twice.
    """
    # Once for all: each entry would otherwise import it, and say the same of it.
    asked = CallOptions(**options)
    _, decides = choose_interruption("*", asked.interruption, Interruption(), search_path)
    each = replace(asked, reconcile=decides).keywords()
    tools: list[SchemaTool] = []
    reasons: list[str] = []
    seen: dict[str, int] = {}
    for place, entry in enumerate(entries, start=1):
        try:
            made = SchemaTool(entry, handler, search_path=search_path, **each)
        except InvalidInput as error:
            reasons.append(f"entry {place}: {error}")
            continue
        first = seen.setdefault(made.spec.name, place)
        if first != place:
            reasons.append(f"entry {place}: the name {made.spec.name!r} is already used by entry {first}")
        tools.append(made)
    if reasons:
        more = [f"and {len(reasons) - _MAX_REASONS} more"] if len(reasons) > _MAX_REASONS else []
        raise InvalidInput("\n".join(reasons[:_MAX_REASONS] + more))
    return tools


def load_entries(path: str | Path) -> tuple[dict[str, Any], ...]:
    """Read a schema file: a JSON list of entries, or an object that holds the list under ``tools``.

    Raises:
        InvalidInput: for a file that cannot be read, is not JSON, or holds no such list; names file, line and column.
    """
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror}"
        raise InvalidInput(msg) from error
    except json.JSONDecodeError as error:
        msg = f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}"
        raise InvalidInput(msg) from error
    except (UnicodeDecodeError, RecursionError) as error:
        msg = f"{path}: not JSON: {error}"
        raise InvalidInput(msg) from error
    entries = document.get("tools") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        msg = f"{path}: expected a list of tools, or an object with the list under 'tools'"
        raise InvalidInput(msg)
    for place, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            msg = f"{path}: entry {place}: expected an object, not {json_type(entry)}"
            raise InvalidInput(msg)
    return tuple(entries)


def _read_entry(entry: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    if not isinstance(cast("object", entry), Mapping):
        msg = f"a tool must be an object, not {json_type(entry)}"
        raise InvalidInput(msg)
    if isinstance(entry.get("function"), Mapping):
        entry = entry["function"]
    name = checked_name(entry.get("name"), "a tool")
    description = entry.get("description")
    if description is not None and not isinstance(description, str):
        msg = f"tool {name!r}: description must be text, not {json_type(description)}"
        raise InvalidInput(msg)
    given = [key for key in _SCHEMA_KEYS if entry.get(key) is not None]
    if len(given) > 1:
        msg = f"tool {name!r}: has {' and '.join(given)}; one schema is enough"
        raise InvalidInput(msg)
    parameters = entry[given[0]] if given else {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        msg = f"tool {name!r}: the schema must be an object, not {json_type(parameters)}"
        raise InvalidInput(msg)
    if parameters.get("type", "object") != "object":
        msg = f"tool {name!r}: arguments are always an object, but the schema says type {parameters['type']!r}"
        raise InvalidInput(msg)
    return name, description or "", parameters


def _without(schema: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``schema`` without the parameters that the job gives."""
    shown = dict(schema)
    if isinstance(schema.get("properties"), dict):
        shown["properties"] = {name: part for name, part in schema["properties"].items() if name not in hidden}
    if isinstance(schema.get("required"), list):
        shown["required"] = [name for name in schema["required"] if name not in hidden]
    return shown


def _compile(name: str, schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
    try:
        # Once unmasked, so that a message on the schema itself shows what is wrong in it.
        jsonschema_rs.validator_for(dict(schema), retriever=_refuse_reference)
        # Masked, so that a message never repeats what a model sent: it may be long, or nobody's business.
        return jsonschema_rs.validator_for(dict(schema), mask="the value", retriever=_refuse_reference)
    except jsonschema_rs.ValidationError as error:
        where = f" at {field_path(list(error.instance_path))}" if error.instance_path else ""
        msg = f"tool {name!r}: not a valid JSON Schema{where}: {bounded(error.message, _MAX_REASON_BYTES)}"
        raise InvalidInput(msg) from error
    except Exception as error:
        msg = f"tool {name!r}: not a valid JSON Schema: {bounded(str(error), _MAX_REASON_BYTES)}"
        raise InvalidInput(msg) from error


def _refuse_reference(uri: str) -> Any:
    msg = f"{uri} is outside of the schema; put it under $defs"
    raise ValueError(msg)


def _problems(validator: jsonschema_rs.Validator, arguments: Any) -> Iterator[str]:
    # All errors are built before the first can be taken, 5 microseconds each; what is big is told its first error only.
    errors = validator.iter_errors(arguments) if _is_small(arguments) else _first_error(validator, arguments)
    for error in islice(errors, MAX_PROBLEMS + 1):
        steps = list(error.instance_path)
        came = arguments
        for step in steps:
            came = came[step]
        told = f" (got {json_type(came)})" if steps and "is not of type" in error.message else ""
        yield f"{field_path(steps)}: {error.message}{told}"


def _first_error(validator: jsonschema_rs.Validator, arguments: Any) -> Iterator[jsonschema_rs.ValidationError]:
    try:
        validator.validate(arguments)
    except jsonschema_rs.ValidationError as error:
        yield error


def _is_small(value: Any) -> bool:
    left = _MAX_LISTED_NODES
    pending = [value]
    while pending:
        current = pending.pop()
        children: list[Any] = (
            list(current.values()) if isinstance(current, dict) else current if isinstance(current, list) else []
        )
        left -= len(children)
        if left < 0:
            return False
        pending.extend(children)
    return True
