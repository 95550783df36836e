"""From the entries of a job YAML's ``tools`` to declarations, which travel with the job, and to the tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flink_agents.agent import resolve_agent
from flink_agents.config.document import Document, YamlPath
from flink_agents.config.execute import OwnExecute, provider_of
from flink_agents.config.fields import FOLDER, ConfigKey, ConfigValue, FunctionReference
from flink_agents.config.loader import Loaded
from flink_agents.config.schema import (
    AgentToolConfig,
    ClassToolsConfig,
    ExecuteToolConfig,
    Inject,
    Retry,
    SchemaToolsConfig,
    ToolConfig,
)
from flink_agents.errors import InvalidInput, InvalidOption
from flink_agents.options import Injection
from flink_agents.tools.base import Tool
from flink_agents.tools.execute.supervised import SupervisedProvider
from flink_agents.tools.injection import unfit
from flink_agents.tools.interruption import needing_journal
from flink_agents.tools.options import CallOptions
from flink_agents.tools.registry import (
    ClassDeclaration,
    ExecuteDeclaration,
    FunctionDeclaration,
    OverrideDeclaration,
    SchemaDeclaration,
    build_registry,
    resolve,
)
from flink_agents.tools.schema_file import SchemaTool, load_entries

__all__ = ["Declared", "call_options", "check_executes", "declared_tools"]

Declared = FunctionDeclaration | SchemaDeclaration | ClassDeclaration | ExecuteDeclaration | OverrideDeclaration

_NO_JOURNAL = ("none", {"type": "none"})
HINT = re.compile(r"; did you mean '([^']*)'\?$")


def declared_tools(loaded: Loaded) -> tuple[tuple[Declared, ...], list[Tool]]:
    """Make the tools of every entry that is right in itself, and of the agent; report what is wrong with the others.

    Imports the tool modules; their folder stays on ``sys.path``. Main thread.
    """
    entries = loaded.data.get("tools")
    adapter: TypeAdapter[ToolConfig] = TypeAdapter(ToolConfig)
    document = loaded.document
    declared: list[Declared] = []
    tools: list[Tool] = []
    named: dict[str, YamlPath] = {}
    overrides: dict[YamlPath, AgentToolConfig] = {}
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        path: YamlPath = ("tools", index)
        try:
            config = adapter.validate_python(entry, context={FOLDER: document.file.parent})
        except ValidationError:
            continue
        if isinstance(config, AgentToolConfig):
            overrides[path] = config
            declared.append(_override(config))
            continue
        if isinstance(config, SchemaToolsConfig):
            made = _schema_tools(document, path, config)
            at = (*path, "schema")
        elif isinstance(config, ClassToolsConfig):
            made = _built(document, path, config, ClassDeclaration(config.cls, **call_options(config).keywords()))
            at = (*path, "class")
        elif isinstance(config, ExecuteToolConfig):
            made = _built(document, path, config, _execute(config))
            at = (*path, "execute" if config.name is None else "name")
        else:
            options = call_options(config).keywords()
            made = _built(document, path, config, FunctionDeclaration(config.function, config.name, **options))
            at = (*path, "function" if config.name is None else "name")
        if made is not None:
            declared.append(made[0])
            tools += made[1]
            _check_journal(loaded, path, config, made[1])
            _check_injection(loaded, path, config, made[1])
            _check_names(document, at, made[1], named)
    return tuple(declared), [*tools, *_agent_tools(loaded, named, overrides)]


def _agent_tools(
    loaded: Loaded, named: dict[str, YamlPath], overrides: Mapping[YamlPath, AgentToolConfig]
) -> list[Tool]:
    """Return the tools that the job's agent brings, with what ``tools`` says about them; report what is wrong."""
    document, path = loaded.document, ("agent",)
    if loaded.data is not None and loaded.data.get("agent") is None:
        for at in overrides:
            document.report((*at, "tool"), "names a tool of the job's agent, and the job has none", "an `agent`")
    try:
        reference = TypeAdapter(FunctionReference).validate_python(loaded.data.get("agent"))
    except ValidationError:
        return []
    folders = [document.file.parent]
    try:
        brought = resolve_agent(reference, folders).tools()
        tools = build_registry(brought, folders).tools()
    except InvalidInput as error:
        _report(document, path, str(error))
        return []
    for at, config in overrides.items():
        try:
            tools = build_registry([*tools, _override(config)], folders).tools()
        except InvalidInput as error:
            _report(document, _option_path(at, config, error), str(error))
    if loaded.data.get("journal") in _NO_JOURNAL:
        for spec in needing_journal(tool.spec for tool in tools)[:1]:
            told = f"its tool {spec.name!r} says on_interrupt: {spec.on_interrupt.value}, and `journal` is none"
            said = [at for at, config in overrides.items() if config.tool == spec.name and config.on_interrupt]
            document.report((*said[-1], "on_interrupt") if said else path, told, "a journal: sqlite, or postgresql")
    if (values := _config(loaded)) is not None:
        for told in dict.fromkeys(told for tool in tools for _, told in unfit(tool, values)):
            _report(document, path, told)
    _check_names(document, path, tools, named)
    return list(tools)


def _override(config: AgentToolConfig) -> OverrideDeclaration:
    return OverrideDeclaration(config.tool, **call_options(config).keywords())


def _execute(config: ExecuteToolConfig) -> ExecuteDeclaration:
    options = call_options(config).keywords()
    if isinstance(config.execute, OwnExecute):
        return ExecuteDeclaration(config.execute.cls, config.execute.options, config.name, **options)
    return ExecuteDeclaration(provider_of(config.execute), name=config.name, **options)


def _built(
    document: Document, path: YamlPath, config: ToolConfig, declaration: Declared
) -> tuple[Declared, list[Tool]] | None:
    """Return the declaration with its tools, or None where it is wrong, which is reported."""
    try:
        registry = build_registry([declaration], [document.file.parent])
    except InvalidInput as error:
        _report(document, _option_path(path, config, error), str(error))
        return None
    return declaration, [registry.get(name) for name in registry.names()]


def _schema_tools(document: Document, path: YamlPath, config: SchemaToolsConfig) -> tuple[Declared, list[Tool]] | None:
    folders: list[Path] = [document.file.parent]
    options = call_options(config)
    handler = _handler(document, path, config, options)
    try:
        entries = load_entries(config.schema_path)
        # Even without its handler the file is compiled, so that its errors come with the others.
        declaration = SchemaDeclaration(entries, handler or _any_call)
        if handler is not None:
            declaration = SchemaDeclaration(entries, handler, **options.keywords())
        registry = build_registry([declaration], folders)
    except InvalidInput as error:
        for line in str(error).splitlines():
            _report(document, (*path, "schema"), line)
        return None
    if not entries:
        _report(document, (*path, "schema"), f"{config.schema_path} declares no tool")
    if handler is None:
        return None
    return replace(declaration, function=config.function), [registry.get(name) for name in registry.names()]


def _handler(
    document: Document, path: YamlPath, config: SchemaToolsConfig, options: CallOptions
) -> Callable[..., Any] | None:
    """Return the handler, or None where it or the options are wrong: reported once, not for each entry of the file."""
    folders = [document.file.parent]
    handler: Callable[..., Any] | None = None
    try:
        handler = resolve(config.function, folders)
        SchemaTool({"name": config.function}, handler, execution=config.execution)
    except InvalidInput as error:
        _report(document, (*path, "function"), str(error))
        # Where bodies run depends on the handler; what else is said can be looked at without it.
        options = replace(options, execution=None)
        handler = None
    try:
        SchemaTool({"name": config.function}, handler or _any_call, search_path=folders, **options.keywords())
    except InvalidInput as error:
        _report(document, _option_path(path, config, error), str(error))
        return None
    return handler


def call_options(config: ToolConfig) -> CallOptions:
    """Return what an entry of ``tools`` says about how its calls run."""
    return CallOptions(
        execution=config.execution,
        max_concurrent=config.max_concurrent,
        on_interrupt=config.on_interrupt,
        reconcile=config.reconcile,
        timeout=_duration(config.timeout),
        deadline=_duration(config.deadline),
        retry=None if config.retry is None else _retry(config.retry),
        rate=config.rate,
        inject=None if config.inject is None else {name: _injection(entry) for name, entry in config.inject.items()},
    )


def _injection(config: Inject) -> Injection:
    return Injection(config.from_, config.key)


def _duration(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


def _retry(config: Retry) -> dict[str, Any]:
    # Not a policy: its exceptions may be in a module that the TaskManager finds only once the operator is open.
    said = {**config.model_dump(), "initial": _duration(config.initial), "max": _duration(config.max)}
    return {name: value for name, value in said.items() if value is not None}


def _option_path(path: YamlPath, config: ToolConfig, error: InvalidInput) -> YamlPath:
    """Return where an error belongs: the option it is about, or the function, whose decorator may have said it."""
    for option in error.options if isinstance(error, InvalidOption) else ():
        name, *steps = option.split(".")
        if getattr(config, name) is not None:
            return (*path, name, *(int(step) if step.isdecimal() else step for step in steps))
    return _code_path(path, config)


def _code_path(path: YamlPath, config: ToolConfig) -> YamlPath:
    if isinstance(config, ExecuteToolConfig):
        return (*path, "execute", "class") if isinstance(config.execute, OwnExecute) else (*path, "execute")
    if isinstance(config, AgentToolConfig):
        return (*path, "tool")
    return (*path, "class" if isinstance(config, ClassToolsConfig) else "function")


def _check_journal(loaded: Loaded, path: YamlPath, config: ToolConfig, tools: Sequence[Tool]) -> None:
    if loaded.data.get("journal") not in _NO_JOURNAL:
        return
    for spec in needing_journal(tool.spec for tool in tools)[:1]:
        # Where the YAML does not say it, the function's decorator does.
        at = _code_path(path, config) if config.on_interrupt is None else (*path, "on_interrupt")
        told = f"`on_interrupt: {spec.on_interrupt.value}` needs a journal, and `journal` is none"
        loaded.document.report(at, told, "a journal: sqlite, or postgresql")


def _check_injection(loaded: Loaded, path: YamlPath, config: ToolConfig, tools: Sequence[Tool]) -> None:
    if (values := _config(loaded)) is None:
        return
    reported: set[str] = set()
    for tool in tools:
        for name, told in unfit(tool, values):
            # Of a schema file's tools, or of a class's, one stands for all.
            if name not in reported:
                reported.add(name)
                is_said = config.inject is not None and name in config.inject
                _report(loaded.document, (*path, "inject", name, "key") if is_said else _code_path(path, config), told)


def check_executes(document: Document, declared: Sequence[Declared]) -> None:
    """Report the execute tools that this machine cannot run, in the order of the entries, all of which are right."""
    for index, entry in enumerate(declared):
        if isinstance(entry, ExecuteDeclaration) and isinstance(entry.provider, SupervisedProvider):
            try:
                entry.provider.check_machine()
            except InvalidInput as error:
                _report(document, ("tools", index, "execute"), str(error))


def _config(loaded: Loaded) -> dict[str, Any] | None:
    """Return the job's configuration, or None where it is wrong, which is reported elsewhere."""
    try:
        return TypeAdapter(dict[ConfigKey, ConfigValue]).validate_python(loaded.data.get("config") or {})
    except ValidationError:
        return None


def _any_call(_tool: str, _arguments: dict[str, object]) -> None:
    """Stand in for a handler that could not be imported."""


def _check_names(document: Document, path: YamlPath, tools: Iterable[Tool], named: dict[str, YamlPath]) -> None:
    for name in (tool.spec.name for tool in tools):
        first = named.setdefault(name, path)
        if first is not path:
            for here, there in ((first, path), (path, first)):
                document.report(here, f"two tools are named '{name}'; the other is at {document.place(there).text}")


def _report(document: Document, path: YamlPath, message: str) -> None:
    found = HINT.search(message)
    document.report(path, HINT.sub("", message), hint=found[1] if found else None)
