"""The ``execute`` of a tool entry: its models, and the provider that each of them stands for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from flink_agents.config.fields import (
    AbsolutePath,
    Duration,
    FunctionReference,
    Size,
    VariableName,
    at_least,
    fail,
    given,
    has_type,
)
from flink_agents.config.section import Section
from flink_agents.tools.execute.none import NoExecution
from flink_agents.tools.execute.options import DEFAULT_ENVIRONMENT, ProcessOptions
from flink_agents.tools.execute.process import LocalProcess
from flink_agents.tools.execute.protocol import ExecuteProvider
from flink_agents.tools.execute.session import JshellSession, PythonSession
from flink_agents.units import format_duration

__all__ = ["Execute", "OwnExecute", "provider_of"]

TimeLimit = Annotated[Duration, at_least("1ms")]
OUTPUT = "How much of each of the two outputs is kept; limits.result has to hold both, escaped."


class _Processes(Section):
    """What all kinds that start processes may say."""

    time_limit: TimeLimit = given("10s", "Time limit of an execution for which the model asks for none.")
    max_time_limit: TimeLimit = given("60s", "Largest time limit that a model gets.")
    grace: Duration = given("500ms", "Between the request to terminate, at the time limit, and the kill.")
    output: Annotated[Size, at_least(1), Field(le=1 << 26)] = given("64KiB", OUTPUT)
    permits: Annotated[int, Field(ge=1)] = given(8, "Executions at once, per subtask; others wait.")
    environment: list[VariableName] = given(
        list(DEFAULT_ENVIRONMENT), "Variables of the TaskManager's environment that the code sees; no others."
    )
    cpu: Annotated[Duration, at_least("1s")] | None = given(
        None, "Processor time of each process, in whole seconds; in a session, of each call."
    )
    memory: Annotated[Size, at_least(1 << 20)] | None = given(
        None, "Private memory of each process; of jshell, the Java heap."
    )
    file_size: Size | None = given(None, "Largest file that the code writes.")
    network: bool = given(True, "Whether the code has the network; false is refused where the system has no way to.")
    folder: AbsolutePath | None = given(
        None, "Absolute path under which working folders are made; the system's temporary folder if left out."
    )
    idle: Annotated[Duration, at_least("1s")] = given(
        "10m", "After this time without a call, the working folder of a key is removed and its session closed."
    )

    @field_validator("max_time_limit")
    @classmethod
    def _not_below_time_limit(cls, value: int, info: Any) -> int:
        usual = info.data.get("time_limit", value)
        if value < usual:
            raise fail("is below `time_limit`", f"at least {format_duration(usual)}")
        return value

    def options(self) -> ProcessOptions:
        """Return the same as the providers take it."""
        return ProcessOptions(
            time_limit_ms=self.time_limit,
            max_time_limit_ms=self.max_time_limit,
            grace_ms=self.grace,
            output=self.output,
            permits=self.permits,
            environment=tuple(self.environment),
            cpu_ms=self.cpu,
            memory=self.memory,
            file_size=self.file_size,
            network=self.network,
            folder=self.folder,
            idle_ms=self.idle,
        )


class ProcessExecute(_Processes):
    """Each execution is a process of its own, in the working folder of its key."""

    type: Literal["process"] = Field(description="Kind of provider.")
    runtimes: Annotated[list[Literal["shell", "python", "node"]], Field(min_length=1)] | None = given(
        None, "What a model may run, in this order; what is present on the TaskManager's machine if left out."
    )


class SessionExecute(_Processes):
    """One process for each key, whose variables survive from call to call."""

    type: Literal["python", "jshell"] = Field(description="Kind of provider.")
    sessions: Annotated[int, Field(ge=0)] = given(32, "Idle sessions that are kept, per subtask.")


class NoExecute(Section):
    """Nothing is run, and every call says so."""

    type: Literal["none"] = Field(description="Kind of provider.")


class OwnExecute(Section):
    """A provider of your own."""

    type: Literal["provider"] = Field(description="Kind of provider.")
    cls: FunctionReference = Field(
        alias="class", description="module:Class of an ExecuteProvider.", examples=["support_tools:Sandbox"]
    )
    options: dict[str, Any] = given({}, "Keyword arguments of the class.", repr=False)


# One section of two types: a message lists them all.
_SESSION = "<python><jshell>"


def _kind(value: Any) -> str | None:
    found = has_type(value)
    return _SESSION if found in ("<python>", "<jshell>") else found


Execute = Annotated[
    Annotated[ProcessExecute, Tag("<process>")]
    | Annotated[SessionExecute, Tag(_SESSION)]
    | Annotated[NoExecute, Tag("<none>")]
    | Annotated[OwnExecute, Tag("<provider>")],
    Discriminator(_kind),
]


def provider_of(config: ProcessExecute | SessionExecute | NoExecute) -> ExecuteProvider:
    """Return the provider that the YAML asks for."""
    if isinstance(config, NoExecute):
        return NoExecution()
    if isinstance(config, ProcessExecute):
        return LocalProcess(config.runtimes, config.options())
    kind = PythonSession if config.type == "python" else JshellSession
    return kind(config.options(), config.sessions)
