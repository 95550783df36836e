"""The operator as a library call: from a stream of requests to streams of responses and rejects."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError
from pyflink.common import Types
from pyflink.datastream import DataStream, OutputTag

from flink_agents.agent import AgentSource, resolve_agent
from flink_agents.clock import now_ms
from flink_agents.config.build import journal_spec, tool_call_options
from flink_agents.config.fields import ConfigKey, ConfigValue, JobName, KeyPath
from flink_agents.config.problems import nearest
from flink_agents.config.schema import (
    FromEnvironment,
    Journal,
    NoJournal,
    PostgresqlJournal,
    SqliteJournal,
    ToolCalls,
    WithJournal,
    Workers,
)
from flink_agents.config.schema import Limits as LimitsSection
from flink_agents.config.section import Section
from flink_agents.durable.journal.opening import JournalSpec, open_journal
from flink_agents.durable.journal.rows import RunRow
from flink_agents.errors import InvalidInput, RejectedRecord
from flink_agents.faults import Fault, no_fault
from flink_agents.options import Limits, OperatorOptions, WorkerOptions
from flink_agents.records import request_key
from flink_agents.runtime.job_parameters import RUN_ID_PARAMETER
from flink_agents.runtime.operator import REJECTS, STATISTICS, ToolCallOperator
from flink_agents.runtime.subtask import REJECT_KEY_PREFIX
from flink_agents.tools.injection import unfit
from flink_agents.tools.interruption import needing_journal
from flink_agents.tools.registry import Declaration, build_registry
from flink_agents.travel import resolve_types

__all__ = ["OPERATOR_UID", "ToolCallStreams", "attach", "tool_calls"]

OPERATOR_UID = "flink-agents"
"""Names the operator in savepoints; part of savepoint format 1."""

_REJECT_KEYS = 128
_IN_MILLISECONDS = {"intake_wait": "intake_wait_ms", "idle_key": "idle_key_ms"}


@dataclass(frozen=True)
class ToolCallStreams:
    """What leaves the operator, as JSON lines: one response for each request, and what was no request.

    ``statistics`` has one small record for each of both, where the options ask for it.
    """

    responses: DataStream
    rejects: DataStream
    statistics: DataStream | None = None


class _Options(WithJournal):
    key_by: KeyPath
    tool_calls: ToolCalls = ToolCalls()
    workers: Workers = Workers()
    limits: LimitsSection = LimitsSection()
    journal: Journal = NoJournal(type="none")
    run_id: JobName | None = None
    config: dict[ConfigKey, ConfigValue] = Field(default_factory=dict)


def tool_calls(
    stream: DataStream,
    *,
    key_by: str,
    tools: Sequence[Declaration] = (),
    agent: AgentSource | None = None,
    **options: Any,
) -> ToolCallStreams:
    """Answer every request of a stream by running the tool calls in it, or by the actions of an agent.

    Call it on the client, while the job is built; the tools run on the TaskManagers. Each request gets exactly one
    response; after a restore, calls whose outcome a checkpoint or the journal holds are not run again. The job must run
    in PyFlink's thread mode (``python.execution-mode: thread``).

    Args:
        stream: requests, as JSON strings or as dicts.
        key_by: field of a request whose value is its key (dotted path allowed). One key's requests run in order.
        tools: functions, ``"module:function"`` texts, ready tools, or declarations of the registry.
        agent: an ``Agent``, its class, or ``"module:object"`` of either: its actions take the records, and its tools
            are there beside ``tools``. An agent in hand travels pickled; a reference is resolved on the TaskManager.
        options: ``tool_calls``, ``workers`` and ``limits``, each a dict with the names and units of the job YAML, such
            as ``limits={"intake_wait": "50ms"}``; ``journal`` likewise, none by default; and ``run_id``, which names
            the life of the job's state. Where it is left out, the job parameter ``flink-agents.run-id`` does, or a
            name is drawn; a job with a journal needs one of the first two, the same whenever it goes on from a
            savepoint. The run is written into the journal here, before the job is submitted. ``config`` holds what
            tools are given by ``inject``: JSON values, and ``{"env": NAME}`` for what is in the TaskManager's
            environment.

    Raises:
        InvalidInput: for an option or a tool that is wrong; names every wrong option and the nearest right name.
        JournalError: if the journal cannot be reached or used.
    """
    try:
        checked = _Options.model_validate({"key_by": key_by, **options})
    except ValidationError as error:
        raise InvalidInput(_problems(error)) from None
    declared = tuple(tools)
    if not declared and agent is None:
        raise InvalidInput("tools is empty: an operator without tools can answer nothing")
    # What can be said about a function in hand is said now, not when the job fails; a reference may only resolve there.
    in_hand: list[Declaration] = [entry for entry in declared if not isinstance(entry, str)]
    if agent is not None and not isinstance(agent, str):
        in_hand += resolve_agent(agent).tools()
    registry = build_registry(in_hand)
    for made in registry.tools():
        for _, told in unfit(made, checked.config):
            raise InvalidInput(told)
    journal = journal_spec(checked.journal)
    unsafe = needing_journal(registry.specs())
    if journal is None and unsafe:
        msg = f"tool {unsafe[0].name!r}: on_interrupt: {unsafe[0].on_interrupt.value} needs a journal"
        raise InvalidInput(msg)
    run_id = checked.run_id
    if journal is not None:
        parameters = stream.get_execution_environment().get_config().get_global_job_parameters()
        run_id = run_id or parameters.get(RUN_ID_PARAMETER)
        _register(journal, run_id)
    limits = {_IN_MILLISECONDS.get(name, name): value for name, value in checked.limits.model_dump().items()}
    operator_options = OperatorOptions(
        key_by=checked.key_by,
        tool_calls=tool_call_options(checked.tool_calls),
        workers=WorkerOptions(**checked.workers.model_dump()),
        limits=Limits(**limits),
        config=checked.config,
    )
    return attach(stream, operator_options, declared, journal=journal, run_id=run_id, agent=agent)


def _register(journal: JournalSpec, run_id: str | None) -> None:
    if not run_id:
        msg = f"a journal needs run_id, or the job parameter {RUN_ID_PARAMETER}: without it a restart is another run"
        raise InvalidInput(msg)
    with closing(open_journal(journal)) as opened:
        opened.create_run(RunRow(run_id, "tool_calls", now_ms()))


def attach(
    stream: DataStream,
    options: OperatorOptions,
    tools: Iterable[Declaration],
    fault: Fault = no_fault,
    *,
    journal: JournalSpec | None = None,
    run_id: str | None = None,
    agent: AgentSource | None = None,
) -> ToolCallStreams:
    """Put the operator behind a stream; what ``tool_calls`` and the job YAML are built on. Checks nothing.

    ``fault`` must be picklable and is called at the named fault points, on the TaskManager. ``journal`` must have the
    run's row already; ``run_id`` None leaves it to the job parameter.
    """
    keyed = stream.key_by(_key_selector(options.key_by), key_type=Types.STRING())
    declared = tuple(tools)
    resolve_types(declared)
    if agent is not None and not isinstance(agent, str):
        resolve_types([agent if isinstance(agent, type) else type(agent)])
    operator = ToolCallOperator(options, declared, fault, journal, run_id, agent)
    responses = keyed.process(operator, output_type=Types.STRING()).name("tool calls").uid(OPERATOR_UID)
    return ToolCallStreams(
        responses=responses,
        rejects=responses.get_side_output(_tag(REJECTS)),
        statistics=responses.get_side_output(_tag(STATISTICS)) if options.statistics else None,
    )


def _tag(tag: OutputTag) -> OutputTag:
    """Return the tag anew: one that was used keeps an object of its JVM, which a later JVM of this process refuses."""
    return OutputTag(tag.tag_id, Types.STRING())


def _key_selector(key_by: str) -> Callable[[Any], str]:
    def select(record: Any) -> str:
        try:
            return request_key(record, key_by)
        except RejectedRecord:
            # The operator rejects it. The key only has to spread such records and to be the same after a restore.
            text = record if isinstance(record, str) else repr(record)
            return f"{REJECT_KEY_PREFIX}{zlib.crc32(text.encode('utf-8', 'replace')) % _REJECT_KEYS}"

    return select


def _problems(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        *parents, name = [str(part) for part in problem["loc"]]
        # The tags of unions are pydantic's steps, not the user's.
        path = ".".join(part for part in [*parents, name] if not part.startswith("<"))
        context = problem.get("ctx", {})
        if problem["type"] == "extra_forbidden":
            names = [field.alias or key for key, field in _section(parents).model_fields.items()]
            meant = nearest(name, names)
            lines.append(
                f"{path}: no such option; did you mean '{meant}'?"
                if meant
                else f"{path}: no such option; there are {', '.join(names)}"
            )
        else:
            lines.append(f"{path}: {problem['msg']}" + "".join(_expectation(context)))
    return "\n".join(lines)


def _expectation(context: dict[str, Any]) -> Iterable[str]:
    if context.get("problem") is not None:
        if context.get("expected"):
            yield f"; expected {context['expected']}"
        if context.get("hint"):
            yield f"; did you mean '{context['hint']}'?"


def _section(parents: Sequence[str]) -> type[Section]:
    sections: dict[str, type[Section]] = {
        "tool_calls": ToolCalls,
        "workers": Workers,
        "limits": LimitsSection,
        "<none>": NoJournal,
        "<sqlite>": SqliteJournal,
        "<postgresql>": PostgresqlJournal,
        "<env>": FromEnvironment,
    }
    return sections[parents[-1]] if parents else _Options
