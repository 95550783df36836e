"""From a checked job YAML to what the operator takes: its options and its tools."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flink_agents.config.loader import Loaded, read
from flink_agents.config.places import check_places
from flink_agents.config.problems import ConfigErrors
from flink_agents.config.schema import FromEnvironment, JobConfig, Journal, PostgresqlJournal, SqliteJournal, ToolCalls
from flink_agents.config.tools import Declared, check_executes, declared_tools
from flink_agents.durable.journal.opening import JournalSpec, JournalType
from flink_agents.options import Limits, OperatorOptions, ToolCallOptions, WorkerOptions
from flink_agents.tools.registry import ToolRegistry

__all__ = [
    "PreparedJob",
    "journal_spec",
    "operator_options",
    "prepare",
    "prepare_loaded",
    "prepare_tools",
    "tool_call_options",
]


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
    prepared = prepare_loaded(loaded)
    check_executes(loaded.document, prepared.tools)
    if loaded.document.errors:
        raise ConfigErrors(loaded.document.errors)
    return prepared


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
    declared, tools = declared_tools(loaded) if loaded.data is not None else ((), [])
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


def tool_call_options(calls: ToolCalls) -> ToolCallOptions:
    """Return the options of ``ToolCallAction`` as the YAML and the library call have them."""
    return ToolCallOptions(
        mode=calls.mode,
        max_in_flight=calls.max_in_flight,
        timeout_ms=calls.timeout,
        on_mismatch=calls.on_mismatch,
    )


def operator_options(config: JobConfig) -> OperatorOptions:
    """Return the operator's options as the YAML has them; ``statistics`` is the caller's to switch on."""
    calls, workers, limits = config.tool_calls, config.workers, config.limits
    return OperatorOptions(
        key_by=config.key_by,
        tool_calls=tool_call_options(calls),
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
        config=config.config,
    )
