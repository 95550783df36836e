"""The job YAML as strict models: what may be written, in which unit, and the default of what is left out.

Durations are milliseconds and sizes are bytes once validated; paths are absolute. Defaults are written the way a user
would write them and are validated like a user's, so the JSON Schema shows them in the same form.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, PrivateAttr, Tag, field_validator
from pydantic_core import PydanticCustomError

from flink_agents.config.document import Document
from flink_agents.config.execute import Execute
from flink_agents.config.fields import (
    ConfigKey,
    ConfigValue,
    DsnText,
    Duration,
    ExceptionReference,
    FunctionReference,
    JobName,
    KeyPath,
    LocalPath,
    OptionName,
    OptionValue,
    RateText,
    Size,
    ToolName,
    VariableName,
    at_least,
    fail,
    given,
    has_type,
    not_truth,
)
from flink_agents.config.section import Section
from flink_agents.options import Execution, InjectFrom, Mode, OnInterrupt, OnMismatch
from flink_agents.units import format_duration

__all__ = [
    "AgentToolConfig",
    "Checkpoints",
    "ClassToolsConfig",
    "ExecuteToolConfig",
    "Flink",
    "FromEnvironment",
    "FunctionToolConfig",
    "Inject",
    "JobConfig",
    "Journal",
    "JsonlSink",
    "JsonlSource",
    "Limits",
    "NoJournal",
    "PostgresqlJournal",
    "PrintSink",
    "Restart",
    "Retry",
    "SchemaToolsConfig",
    "Sink",
    "SqliteJournal",
    "ToolCalls",
    "ToolConfig",
    "Workers",
    "json_schema",
]


class JsonlSource(Section):
    """Requests from a file, or from every file of a folder, one JSON object a line."""

    type: Literal["jsonl"] = Field(description="Kind of source.")
    path: LocalPath = Field(description="A file or a folder; a relative path starts at the YAML's folder.")
    follow: bool = given(False, "Watch the folder for files moved into it; the job then runs until it is stopped.")


class JsonlSink(Section):
    """Exactly-once files in a folder, one JSON object a line; a part is visible once its checkpoint completed."""

    type: Literal["jsonl"] = Field(description="Kind of sink.")
    path: LocalPath = Field(description="The folder, made if missing; a relative path starts at the YAML's folder.")
    roll: Annotated[Duration, at_least("100ms")] = given("10s", "Age at which a part file is closed.")


class PrintSink(Section):
    """One JSON object a line on the standard output, for trying things out; not exactly once."""

    type: Literal["print"] = Field(description="Kind of sink.")


Sink = Annotated[
    Annotated[JsonlSink, Tag("<jsonl>")] | Annotated[PrintSink, Tag("<print>")],
    Discriminator(has_type),
]


Timeout = Annotated[Duration, at_least("1ms")]


class Retry(Section):
    """When a failed attempt of a call is followed by another one; the waits between them are timers, not workers."""

    attempts: Annotated[int, Field(ge=1)] = Field(description="Most attempts of one call, the first one included.")
    initial: Duration = given("200ms", "Wait before the second attempt.")
    multiplier: Annotated[float, Field(ge=1)] = given(2.0, "Each further wait is so many times the one before.")
    max: Duration | None = given(None, "Longest wait; 5s if left out, or `initial` if that is longer.")
    jitter: Annotated[float, Field(ge=0, le=1)] = given(0.2, "A wait is up to this fraction longer or shorter.")
    on: list[ExceptionReference] | None = given(
        None,
        "Exceptions that are worth another attempt, with their subclasses: built-in names, or module.Name. Left out: "
        "every Exception of the tool's own, but no time-out.",
        examples=[["TimeoutError", "httpx.TransportError"]],
    )

    @field_validator("max")
    @classmethod
    def _not_below_initial(cls, value: int | None, info: Any) -> int | None:
        if value is not None and value < info.data.get("initial", value):
            raise fail("is shorter than `initial`", "a duration not below it")
        return value


class Inject(Section):
    """Where the job gets an argument from that no model can give."""

    from_: InjectFrom = Field(
        alias="from", description="config: the job's `config`. memory: that of the request's key.", strict=False
    )
    key: KeyPath = Field(description="Dotted path of the value there.")


class WithFunction(Section):
    """What has a function."""

    function: FunctionReference = Field(
        description="module:attribute, the module on PYTHONPATH or beside the YAML.",
        examples=["support_tools:lookup_order"],
    )


class ToolOptions(Section):
    """What every kind of tool entry may say about how calls run."""

    execution: Execution | None = given(
        None,
        "Where a body runs. thread: a worker thread (default for def). async: the worker loop (default for async def). "
        "inline: on the task thread, for bodies of microseconds.",
        strict=False,
    )
    max_concurrent: Annotated[int, Field(ge=1)] | None = given(None, "Most bodies of one tool at once, per subtask.")
    on_interrupt: OnInterrupt | None = given(
        None,
        "What happens to a call that was cut off. rerun (default): it runs again. fail: it fails as in doubt. "
        "reconcile: `reconcile` decides. The last two need a journal.",
        strict=False,
    )
    reconcile: FunctionReference | None = given(
        None,
        "module:attribute of the function that looks whether a call took effect; only with on_interrupt: reconcile.",
        examples=["support_tools:find_refund"],
    )
    timeout: Timeout | None = given(None, "Bounds one attempt, from the start of its body; not for inline tools.")
    deadline: Timeout | None = given(
        None, "Bounds a call with all its attempts and the waits between them; not below `timeout`."
    )
    retry: Retry | None = given(None, "When a failed attempt is followed by another one.")
    rate: RateText | None = given(None, "Most bodies of one tool that begin, per subtask: 50/s, 300/m, 1000/h.")

    inject: dict[str, Inject] | None = given(
        None,
        "Parameters that the job gives: hidden from the schema, whatever a model sends under their names.",
        examples=[{"tenant": {"from": "config", "key": "tenant"}}],
    )

    @field_validator("deadline")
    @classmethod
    def _not_below_timeout(cls, value: int | None, info: Any) -> int | None:
        timeout = info.data.get("timeout")
        if value is not None and timeout is not None and value < timeout:
            raise fail("bounds all attempts", f"a duration not below `timeout`, which is {format_duration(timeout)}")
        return value


class FunctionToolConfig(ToolOptions, WithFunction):
    """One typed Python function; name, description and schema come from it."""

    name: ToolName | None = given(None, "Name that a model uses, if it is not the function's own.")


class SchemaToolsConfig(ToolOptions, WithFunction):
    """Tools declared in a JSON file; one function handles them all, called with tool name and arguments."""

    schema_path: LocalPath = Field(
        alias="schema",
        description="JSON list of tool declarations: name, description, parameters (or OpenAI, Anthropic, MCP forms).",
    )


class WithClass(Section):
    """What has a class."""

    cls: FunctionReference = Field(
        alias="class",
        description="module:Class. Methods marked with @tool are tools; if none is marked, all public ones.",
        examples=["support_tools:Accounts"],
    )


class ClassToolsConfig(ToolOptions, WithClass):
    """The methods of a class as tools; one instance for each subtask, opened and closed with the operator."""


class WithExecute(Section):
    """What has a provider that runs code."""

    execute: Execute = Field(description="Runs code for a model: what runs it, and its bounds.")


class ExecuteToolConfig(ToolOptions, WithExecute):
    """A tool that runs code for a model."""

    name: ToolName | None = given(None, "Name that a model uses, if it is not `execute`.")


class WithTool(Section):
    """What names a tool."""

    tool: ToolName = Field(description="Name of a tool of the job's `agent`; what is said here overrides its own word.")


class AgentToolConfig(ToolOptions, WithTool):
    """How the calls of one of the agent's tools run."""


def _tool_kind(value: Any) -> str | None:
    if isinstance(value, dict):
        if "execute" in value:
            return "<execute>"
        if "schema" in value or "schema_path" in value:
            return "<schema>"
        if "class" in value or "cls" in value:
            return "<class>"
        if "function" in value:
            return "<function>"
        return "<tool>" if "tool" in value else None
    if isinstance(value, SchemaToolsConfig):
        return "<schema>"
    if isinstance(value, ClassToolsConfig):
        return "<class>"
    if isinstance(value, ExecuteToolConfig):
        return "<execute>"
    if isinstance(value, AgentToolConfig):
        return "<tool>"
    return "<function>" if isinstance(value, FunctionToolConfig) else None


ToolConfig = Annotated[
    Annotated[FunctionToolConfig, Tag("<function>")]
    | Annotated[SchemaToolsConfig, Tag("<schema>")]
    | Annotated[ClassToolsConfig, Tag("<class>")]
    | Annotated[ExecuteToolConfig, Tag("<execute>")]
    | Annotated[AgentToolConfig, Tag("<tool>")],
    Discriminator(_tool_kind),
]


class ToolCalls(Section):
    """How the calls of one request run."""

    mode: Mode = given("parallel", "parallel: max_in_flight at once. sequential: one by one.", strict=False)
    max_in_flight: Annotated[int, Field(ge=1)] = given(16, "Most calls of one request that run at once.")
    timeout: Timeout | None = given(
        None,
        "Bounds all calls of one request, from when they are asked for: what runs then is a time-out, what did not "
        "begin is not started.",
    )
    on_mismatch: OnMismatch = given(
        "rerun",
        "After a restore, a recorded call that is not the one asked for: rerun it and those after it, or fail the job.",
        strict=False,
    )


class Workers(Section):
    """Size of the workers, per TaskManager process."""

    threads: Annotated[int, Field(ge=1, le=10_000)] = given(64, "Threads for blocking tools.")
    async_limit: Annotated[int, Field(ge=1)] = given(1000, "Most async bodies at once on the worker loop.")
    max_strays: Annotated[int, Field(ge=0)] = given(
        64, "Threads kept busy by bodies whose call is over that are replaced by new ones."
    )


PayloadSize = Annotated[Size, at_least(1), Field(le=1 << 30)]


class Limits(Section):
    """Bounds that keep one bad record, call or key from hurting the others."""

    arguments: PayloadSize = given("256KiB", "Largest arguments of one call; larger ones fail that call.")
    result: PayloadSize = given("1MiB", "Largest result of one call; a larger one fails that call.")
    record: PayloadSize = given("4MiB", "Largest request record; a larger one is rejected.")
    live_requests: Annotated[int, Field(ge=1)] = given(
        1000, "Unanswered requests a subtask has before it slows the source."
    )
    intake_wait: Annotated[Duration, Field(le=10_000)] = given(
        "100ms", "Longest time that taking in one record may wait; checkpoints stand still meanwhile."
    )
    idle_key: Annotated[Duration, at_least("1s")] = given("30d", "An idle key's counter is forgotten after this time.")
    fatal_attempts: Annotated[int, Field(ge=1)] = given(
        3, "A call that brought the task down this often is failed instead of started again (counted in a journal)."
    )


class NoJournal(Section):
    """No journal: what finished after the last completed checkpoint runs again after a crash."""

    type: Literal["none"] = Field(description="Kind of journal.")


class FromEnvironment(Section):
    """A value that is read where it is used, so that it does not travel with the job."""

    env: VariableName = Field(description="Name of the environment variable.")


def _dsn_kind(value: Any) -> str:
    return "<env>" if isinstance(value, (dict, FromEnvironment)) else "<text>"


Dsn = Annotated[
    Annotated[DsnText, Tag("<text>")] | Annotated[FromEnvironment, Tag("<env>")],
    Discriminator(_dsn_kind),
]

Retention = Annotated[Duration, at_least("1m")]
RETENTION = "How long rows stay after their request was answered; must be shorter than limits.idle_key."


class SqliteJournal(Section):
    """A file on one machine: for `run`, where everything is in one place."""

    type: Literal["sqlite"] = Field(description="Kind of journal.")
    path: LocalPath = given("state/journal.db", "The file; a relative path starts at the YAML's folder.")
    retention: Retention = given("24h", RETENTION)


class PostgresqlJournal(Section):
    """A PostgreSQL database, for jobs on several machines; its tables are made at the first use."""

    type: Literal["postgresql"] = Field(description="Kind of journal.")
    dsn: Dsn = Field(
        description="Connection text, or {env: NAME}: read from the environment of each process, so that no password "
        "travels with the job.",
        repr=False,
    )
    retention: Retention = given("24h", RETENTION)


Journal = Annotated[
    Annotated[NoJournal, Tag("<none>")]
    | Annotated[SqliteJournal, Tag("<sqlite>")]
    | Annotated[PostgresqlJournal, Tag("<postgresql>")],
    Discriminator(has_type),
]


class Checkpoints(Section):
    """Flink's checkpoints."""

    # Flink itself refuses intervals below 10 ms.
    interval: Annotated[Duration, at_least("10ms")] = given("1s", "Time between checkpoints.")
    directory: LocalPath = given("state/checkpoints", "The folder; a relative path starts at the YAML's folder.")


class Restart(Section):
    """What Flink does when the job fails: it waits longer each time, then gives up."""

    type: Literal["exponential-delay"] = given("exponential-delay", "Kind of restart strategy.")
    initial: Annotated[Duration, at_least("1ms")] = given("100ms", "Wait before the first restart.")
    max: Annotated[Duration, at_least("1ms")] = given("10s", "Longest wait between restarts.")
    attempts: Annotated[int, Field(ge=0)] = given(20, "Restarts before the job is failed for good; 0 means no restart.")

    @field_validator("max")
    @classmethod
    def _not_below_initial(cls, value: int, info: Any) -> int:
        if value < info.data.get("initial", value):
            raise fail("is shorter than `initial`", "a duration not below it")
        return value


class Flink(Section):
    """Settings of the Flink job itself."""

    parallelism: Annotated[int, Field(ge=1, le=32_768)] = given(1, "Subtasks of the operator.")
    checkpoints: Checkpoints = given({}, "Flink's checkpoints.")
    state_backend: Literal["hashmap", "rocksdb"] = given(
        "hashmap", "Where keyed state lives: on the heap, or in RocksDB when it does not fit."
    )
    restart: Restart = given({}, "What happens when the job fails.")
    # Not in the repr: keys of object stores are options too.
    options: dict[OptionName, OptionValue] = given({}, "Any other Flink option, by its full name.", repr=False)


class WithJournal(Section):
    """What has a journal beside its limits."""

    @field_validator("journal", mode="before", check_fields=False)
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @field_validator("journal", check_fields=False)
    @classmethod
    def _shorter_than_idle(cls, value: Any, info: Any) -> Any:
        # A key's counter that was forgotten before its rows went would give their numbers away anew.
        limits, retention = info.data.get("limits"), getattr(value, "retention", None)
        if retention is not None and limits is not None and retention >= limits.idle_key:
            kept, idle = format_duration(retention), format_duration(limits.idle_key)
            raise fail(f"keeps rows for {kept}", f"a retention shorter than limits.idle_key, which is {idle}")
        return value


class JobConfig(WithJournal):
    """A tool-call job: where requests come from, which tools answer them, where responses go.

    Made by :func:`flink_agents.config.loader.load`. Immutable; holds no function and imports no user code.
    """

    version: Annotated[Literal[1], BeforeValidator(not_truth)] = given(1, "Version of this format.")
    name: JobName = Field(description="Name of the job; also the name of its folder under the checkpoints.")
    source: JsonlSource = Field(description="Where requests come from.")
    key_by: KeyPath = Field(
        description="Field of a request whose value is its key (dotted path allowed); one key's requests run in order.",
        examples=["session_id"],
    )
    agent: FunctionReference | None = given(
        None,
        "module:object of an Agent, or of a class derived from it: its actions take the records, its tools are the "
        "job's too.",
        examples=["support_agent:Support"],
    )
    tools: list[ToolConfig] = given((), "The tools a request may call; may be left out where `agent` brings its own.")
    # Not in the repr: a value may be a secret although it need not be written here.
    config: dict[ConfigKey, ConfigValue] = given(
        {},
        "What tools may be given by `inject`. {env: NAME} is read on the TaskManager, never travels, and is a secret.",
        examples=[{"tenant": "acme", "api_key": {"env": "API_KEY"}}],
        repr=False,
    )
    tool_calls: ToolCalls = given({}, "How the calls of one request run.")
    workers: Workers = given({}, "Size of the workers, per TaskManager process.")
    limits: Limits = given({}, "Bounds on records, calls and keys.")
    journal: Journal = given({"type": "sqlite"}, "Where outcomes are kept between Flink's checkpoints.")
    sink: Sink = Field(description="Where responses go.")
    rejects: Sink = given({"type": "jsonl", "path": "rejects"}, "Where records go that are no request.")
    flink: Flink = given({}, "Settings of the Flink job itself.")

    model_config = ConfigDict(title="Job of flink-agents")

    _document: Document | None = PrivateAttr(default=None)

    @field_validator("tools", mode="before")
    @classmethod
    def _some_or_an_agent(cls, value: Any, info: Any) -> Any:
        if value in ((), []) and info.data.get("agent", "") is None:
            # What was left out is the default, and no YAML has a tuple.
            kind = "missing" if value == () else "too_short"
            raise PydanticCustomError(kind, "is required", {"min_length": 1})
        return list(value) if value == () else value

    @property
    def file(self) -> Path:
        """The YAML's absolute path; the working folder's ``job.yaml`` for a config that was not loaded from a file."""
        return self._document.file if self._document else Path.cwd() / "job.yaml"

    @property
    def folder(self) -> Path:
        """The folder that relative paths start at and in which tool modules are looked up."""
        return self.file.parent

    def place(self, path: str, *key: str) -> str:
        """Return where ``path`` (such as ``sink.path``) was written, as ``file:line:column``.

        ``key`` is below it: one that has dots of its own.
        """
        return self._document.place((*path.split("."), *key)).text if self._document else str(self.file)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the job YAML, for editors. It holds what this version can run, and nothing else."""
    schema = JobConfig.model_json_schema(by_alias=True)
    journal = schema["properties"]["journal"]
    journal["anyOf"] = [{"enum": ["none", "sqlite"]}, *journal.pop("oneOf")]
    schema["anyOf"] = [
        {"required": ["tools"], "properties": {"tools": {"minItems": 1}}},
        {"required": ["agent"], "properties": {"agent": {"type": "string"}}},
    ]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": "flink-agents schema", **schema}
