"""From a checked job YAML to what the operator takes: its options and its tools."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from flink_agents.config.document import Document, YamlPath
from flink_agents.config.fields import FOLDER
from flink_agents.config.loader import Loaded, read
from flink_agents.config.places import check_places
from flink_agents.config.problems import ConfigErrors
from flink_agents.config.schema import (
    FromEnvironment,
    FunctionToolConfig,
    JobConfig,
    Journal,
    PostgresqlJournal,
    SchemaToolsConfig,
    SqliteJournal,
    ToolConfig,
)
from flink_agents.durable.journal.opening import JournalSpec, JournalType
from flink_agents.errors import InvalidInput
from flink_agents.options import Limits, OnInterrupt, OperatorOptions, ToolCallOptions, WorkerOptions
from flink_agents.tools.base import Tool
from flink_agents.tools.interruption import needing_journal
from flink_agents.tools.registry import (
    FunctionDeclaration,
    SchemaDeclaration,
    ToolRegistry,
    build_registry,
    resolve,
)
from flink_agents.tools.schema_file import SchemaTool, load_entries

__all__ = ["Declared", "PreparedJob", "journal_spec", "operator_options", "prepare", "prepare_loaded", "prepare_tools"]

Declared = FunctionDeclaration | SchemaDeclaration

HINT = re.compile(r"; did you mean '([^']*)'\?$")


@dataclass(frozen=True)
class PreparedJob:
    """A job that can start: ``tools`` travel to the operator with ``options``; ``registry`` is theirs, made here."""

    config: JobConfig
    options: OperatorOptions
    tools: tuple[Declared, ...]
    registry: ToolRegistry
    journal: JournalSpec | None


def prepare(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> PreparedJob:
    """Load the YAML at ``path`` and check everything that can be checked without Flink.

    On top of :func:`flink_agents.config.loader.load`: tool modules are imported (their folder stays on ``sys.path``),
    schemas are compiled, and the files and folders of the job are looked at. Call it on the main thread.

    Raises:
        ConfigErrors: with every error, in the order of the file.
    """
    loaded = read(path, overrides, environ)
    if loaded.data is not None:
        check_places(loaded)
    return prepare_loaded(loaded)


def prepare_tools(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> ToolRegistry:
    """Return the tools of the job at ``path``; like :func:`prepare`, but does not ask for its files and folders.

    Raises:
        ConfigErrors: with every error, in the order of the file.
    """
    return prepare_loaded(read(path, overrides, environ)).registry


def prepare_loaded(loaded: Loaded) -> PreparedJob:
    """Return the job of a YAML that was read, after its tool modules were imported and its schemas compiled.

    Raises:
        ConfigErrors: with every error, those found before included, in the order of the file.
    """
    declared, tools = _tools(loaded) if loaded.data is not None else ((), [])
    if loaded.document.errors or loaded.config is None:
        raise ConfigErrors(loaded.document.errors)
    config = loaded.config
    return PreparedJob(config, operator_options(config), declared, ToolRegistry(tools), journal_spec(config.journal))


def journal_spec(journal: Journal) -> JournalSpec | None:
    """Return what opens the journal, or None where there is none. Reads no environment: that is for who opens it."""
    if isinstance(journal, SqliteJournal):
        return JournalSpec(JournalType.SQLITE, path=str(journal.path), retention_ms=journal.retention)
    if isinstance(journal, PostgresqlJournal):
        dsn = journal.dsn
        kept = journal.retention
        if isinstance(dsn, FromEnvironment):
            return JournalSpec(JournalType.POSTGRESQL, dsn_env=dsn.env, retention_ms=kept)
        return JournalSpec(JournalType.POSTGRESQL, dsn=dsn, retention_ms=kept)
    return None


def operator_options(config: JobConfig) -> OperatorOptions:
    """Return the operator's options as the YAML has them; ``statistics`` is the caller's to switch on."""
    calls, workers, limits = config.tool_calls, config.workers, config.limits
    return OperatorOptions(
        key_by=config.key_by,
        tool_calls=ToolCallOptions(mode=calls.mode, max_in_flight=calls.max_in_flight, on_mismatch=calls.on_mismatch),
        workers=WorkerOptions(threads=workers.threads, async_limit=workers.async_limit, max_strays=workers.max_strays),
        limits=Limits(
            arguments=limits.arguments,
            result=limits.result,
            record=limits.record,
            live_requests=limits.live_requests,
            intake_wait_ms=limits.intake_wait,
            idle_key_ms=limits.idle_key,
            fatal_attempts=limits.fatal_attempts,
        ),
        module_path=(str(config.folder),),
    )


def _tools(loaded: Loaded) -> tuple[tuple[Declared, ...], list[Tool]]:
    """Make the tools of every entry that is right in itself; report what is wrong with the others' functions."""
    entries = loaded.data.get("tools")
    adapter: TypeAdapter[FunctionToolConfig | SchemaToolsConfig] = TypeAdapter(ToolConfig)
    document = loaded.document
    declared: list[Declared] = []
    tools: list[Tool] = []
    named: dict[str, YamlPath] = {}
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        path: YamlPath = ("tools", index)
        try:
            config = adapter.validate_python(entry, context={FOLDER: document.file.parent})
        except ValidationError:
            continue
        if isinstance(config, SchemaToolsConfig):
            made = _schema_tools(document, path, config)
            at = (*path, "schema")
        else:
            made = _function_tool(document, path, config)
            at = (*path, "function" if config.name is None else "name")
        if made is not None:
            declared.append(made[0])
            tools += made[1]
            _check_journal(loaded, path, config, made[1])
            _check_names(document, at, made[1], named)
    return tuple(declared), tools


def _function_tool(
    document: Document, path: YamlPath, config: FunctionToolConfig
) -> tuple[Declared, list[Tool]] | None:
    plain = FunctionDeclaration(config.function, config.name, config.execution, config.max_concurrent)
    declaration = replace(plain, on_interrupt=config.on_interrupt, reconcile=config.reconcile)
    at = (*path, "function")
    try:
        build_registry([replace(plain, on_interrupt=OnInterrupt.RERUN)], [document.file.parent])
        at = _interruption_path(path, config)
        registry = build_registry([declaration], [document.file.parent])
    except InvalidInput as error:
        _report(document, at, str(error))
        return None
    return declaration, [registry.get(name) for name in registry.names()]


def _schema_tools(document: Document, path: YamlPath, config: SchemaToolsConfig) -> tuple[Declared, list[Tool]] | None:
    folders: list[Path] = [document.file.parent]
    handler = entries = None
    try:
        handler = resolve(config.function, folders)
        # A handler that does not fit would be reported once for every entry of the file.
        SchemaTool({"name": config.function}, handler, execution=config.execution)
    except InvalidInput as error:
        _report(document, (*path, "function"), str(error))
        handler = None
    try:
        SchemaTool(
            {"name": config.function},
            _any_call,
            on_interrupt=config.on_interrupt,
            reconcile=config.reconcile,
            search_path=folders,
        )
    except InvalidInput as error:
        _report(document, _interruption_path(path, config), str(error))
        handler = None
    try:
        entries = load_entries(config.schema_path)
        # Even without its handler the file is compiled, so that its errors come with the others.
        declaration = SchemaDeclaration(entries, handler or _any_call, max_concurrent=config.max_concurrent)
        if handler is not None:
            declaration = replace(
                declaration,
                execution=config.execution,
                on_interrupt=config.on_interrupt,
                reconcile=config.reconcile,
            )
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


def _interruption_path(path: YamlPath, config: ToolConfig) -> YamlPath:
    said = [name for name in ("reconcile", "on_interrupt") if getattr(config, name) is not None]
    return (*path, said[0] if said else "function")


def _check_journal(loaded: Loaded, path: YamlPath, config: ToolConfig, tools: Sequence[Tool]) -> None:
    if loaded.data.get("journal") not in ("none", {"type": "none"}):
        return
    for spec in needing_journal(tool.spec for tool in tools)[:1]:
        # Where the YAML does not say it, the function's decorator does.
        at = (*path, "function" if config.on_interrupt is None else "on_interrupt")
        told = f"`on_interrupt: {spec.on_interrupt.value}` needs a journal, and `journal` is none"
        loaded.document.report(at, told, "a journal: sqlite, or postgresql")


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
