"""Every error of the project, in one tree; the values layer, below everything else.

::

    Exception
      FlinkAgentsError                 has a stable ``code``
        InvalidInput                   bad YAML, bad options: names the place and the fix
          InvalidOption                what is said about how a tool's calls run; knows which options it is about
          RunRefused                   the state of a job's runs forbids what was asked; names the way on
          CannotRestore                a checkpoint or savepoint is missing, damaged or of another job
        ClusterFault                   a Flink cluster cannot be started, reached or understood
          JobNotFound                  a job id that the cluster does not know
          JvmDied                      the embedded cluster's JVM ended although nobody stopped it
        RejectedRecord                 a record that is no request; goes to the rejects output
        CallError                      becomes a failed result of one call; has a result ``kind``
          UnknownTool                  kind unknown_tool
          InvalidArguments             kind invalid_arguments
          InjectionFailed              kind injection
          CallTimeout (TimeoutError)   kind timeout
          NotStarted                   kind not_started
          InDoubt                      kind in_doubt
          FatalAttempts                kind fatal
          ProviderFailed               kind tool_error: what runs code for the execute tool is broken
          TooLarge                     kind too_large
          Unserializable               kind unserializable
        RecordedError                  a recorded failure whose own class cannot be imported
        NestedGather                   a gather among the participants of a gather
        ForeignAwaitable               an action awaited something that is not one of our handles
        HandleMisuse                   a handle used in a way its state does not allow
        JournalError                   the journal cannot do what was asked; names the journal and the fix
          JournalUnavailable           cannot be reached at the moment, or is locked: may pass by itself
          JournalRefused               wrong login, no such database, missing privilege, read-only, a folder
          JournalFull                  no space left where it lies
          JournalCorrupt               damaged, removed while in use, or no journal at all
          JournalFormat                written by a newer release
          RunUnknown                   the journal has no row of this run
          RunInUse                     another live job works on this run
    BaseException
      ControlFlow                      user code must not swallow these
        Interrupted                    the runtime asked the call to stop; nothing is recorded
        FrameworkFault                 state, scheduler or journal is broken; the task fails and recovers
          IdentityMismatch             a recorded slot belongs to a different call (``on_mismatch: fail``)
          StateFormat                  a stored value this version cannot read
          IllegalMove                  a slot was asked to make a move its state forbids
          ProcessModeRefused           the operator was started outside PyFlink's thread mode
          JournalLost                  what was handed to the journal is not known to be recorded
        Uncapturable                   mark-in class: a failure that must fail the task, like MemoryError
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "CallError",
    "CallTimeout",
    "CannotRestore",
    "ClusterFault",
    "ControlFlow",
    "FatalAttempts",
    "FlinkAgentsError",
    "ForeignAwaitable",
    "FrameworkFault",
    "HandleMisuse",
    "IdentityMismatch",
    "IllegalMove",
    "InDoubt",
    "InjectionFailed",
    "Interrupted",
    "InvalidArguments",
    "InvalidInput",
    "InvalidOption",
    "JobNotFound",
    "JournalCorrupt",
    "JournalError",
    "JournalFormat",
    "JournalFull",
    "JournalLost",
    "JournalRefused",
    "JournalUnavailable",
    "JvmDied",
    "NestedGather",
    "NotStarted",
    "ProcessModeRefused",
    "ProviderFailed",
    "RecordedError",
    "RejectedRecord",
    "RunInUse",
    "RunRefused",
    "RunUnknown",
    "StateFormat",
    "TooLarge",
    "Uncapturable",
    "UnknownTool",
    "Unserializable",
]


class FlinkAgentsError(Exception):
    """Root of the errors that users may handle. ``code`` never changes between versions."""

    code: ClassVar[str] = "error"


class InvalidInput(FlinkAgentsError):
    """Raised when configuration or an option is wrong; the message names the place and the fix."""

    code = "invalid_input"


class InvalidOption(InvalidInput):
    """Raised when an option of a tool is wrong; ``options`` are those it is about (``retry.on.0``), nearest first."""

    code = "invalid_option"

    def __init__(self, message: str, *options: str) -> None:
        super().__init__(message)
        self.options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), *self.options)


class RunRefused(InvalidInput):
    """Raised when a command does not fit what became of the job's earlier runs; the message names the way on."""

    code = "run_refused"


class CannotRestore(InvalidInput):
    """Raised for a checkpoint or savepoint that is missing, damaged, or of a job that differs too much."""

    code = "cannot_restore"


class ClusterFault(FlinkAgentsError):
    """Raised when a Flink cluster cannot be started, reached or understood; the message says what to do next."""

    code = "cluster"


class JobNotFound(ClusterFault):
    """Raised for a job id that the cluster does not know."""

    code = "job_not_found"


class JvmDied(ClusterFault):
    """Raised when the embedded cluster's JVM ended although nobody stopped it."""

    code = "jvm_died"


class RejectedRecord(FlinkAgentsError):
    """Raised for a record that is no request at all. ``reason`` and ``field`` go to the rejects output."""

    code = "rejected_record"

    def __init__(self, reason: str, field: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.field = field

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.field)


class CallError(FlinkAgentsError):
    """Becomes the failed result of one call; ``kind`` is the result's ``error.kind``."""

    code = "call_error"
    kind: ClassVar[str] = "tool_error"


class UnknownTool(CallError):
    """Raised when a request names a tool that the job does not declare."""

    code = kind = "unknown_tool"


class InvalidArguments(CallError):
    """Raised when arguments do not fit the tool; ``expected`` is the tool's JSON Schema."""

    code = kind = "invalid_arguments"

    def __init__(self, message: str, expected: Any = None) -> None:
        super().__init__(message)
        self.expected = expected

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.expected)


class InjectionFailed(CallError):
    """Raised when the source of an injected argument is missing."""

    code = kind = "injection"


class CallTimeout(CallError, TimeoutError):
    """Raised when an attempt ran longer than its ``timeout`` or a call longer than its ``deadline``."""

    code = kind = "timeout"


class NotStarted(CallError):
    """Raised when a call could not be started in time, so its body certainly never began."""

    code = kind = "not_started"


class InDoubt(CallError):
    """Raised when an earlier attempt began the body and left no outcome: it may have taken effect."""

    code = kind = "in_doubt"


class FatalAttempts(CallError):
    """Raised instead of starting a call that brought the task down in too many earlier attempts."""

    code = kind = "fatal"


class ProviderFailed(CallError):
    """Raised when the provider of an execute tool is broken; what the executed code does is no such failure."""

    code = "provider_failed"


class TooLarge(CallError):
    """Raised when arguments or a result exceed the configured limit, before anything is stored."""

    code = kind = "too_large"


class Unserializable(CallError):
    """Raised when the codec cannot carry a value; the message names the type and where it sits."""

    code = kind = "unserializable"


class RecordedError(FlinkAgentsError):
    """A recorded failure whose class cannot be imported; also derives from its nearest importable base."""

    code = "recorded_error"


class NestedGather(FlinkAgentsError):
    """Raised when a gather is given another gather."""

    code = "nested_gather"

    def __init__(self, position: int) -> None:
        super().__init__(
            f"gather cannot contain another gather (argument {position}): pass the inner handles themselves, "
            "or await the inner gather first"
        )
        self.position = position

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.position,)


class ForeignAwaitable(FlinkAgentsError):
    """Raised inside an action that awaits something the scheduler does not drive."""

    code = "foreign_awaitable"


class HandleMisuse(FlinkAgentsError):
    """Raised when a handle is used after it was closed, or by another action than its own."""

    code = "handle_misuse"


class JournalError(FlinkAgentsError):
    """Raised when the journal cannot do what was asked. Nothing of the failed operation counts as recorded."""

    code = "journal"


class JournalUnavailable(JournalError):
    """Raised when the journal cannot be reached at the moment or is locked; trying again may help."""

    code = "journal_unavailable"


class JournalRefused(JournalError):
    """Raised when the journal is there but must not be used: login, database, privilege, read-only, a folder."""

    code = "journal_refused"


class JournalFull(JournalError):
    """Raised when there is no space left where the journal lies."""

    code = "journal_full"


class JournalCorrupt(JournalError):
    """Raised when the journal is damaged, was removed while in use, or is no journal at all."""

    code = "journal_corrupt"


class JournalFormat(JournalError):
    """Raised when the journal was written by a newer release than this one."""

    code = "journal_format"


class RunUnknown(JournalError):
    """Raised when the journal has no row of the run: it is another journal than the one the job was submitted with."""

    code = "run_unknown"


class RunInUse(JournalError):
    """Raised when another live job holds the lease of the run; the message names it and how long its lease runs."""

    code = "run_in_use"


class ControlFlow(BaseException):
    """Root of what user code must not catch: it is not an error of the call."""

    code: ClassVar[str] = "control_flow"


class Interrupted(ControlFlow):
    """The runtime asked for the stop (job cancelled, task failed, request cancelled). Records nothing."""

    code = "interrupted"


class FrameworkFault(ControlFlow):
    """The runtime itself is broken; the task fails and Flink restores it."""

    code = "framework_fault"


class IdentityMismatch(FrameworkFault):
    """A recorded slot belongs to a different call; raised under ``on_mismatch: fail``."""

    code = "identity_mismatch"


class StateFormat(FrameworkFault):
    """A stored value has a version or shape this release cannot read."""

    code = "state_format"


class IllegalMove(FrameworkFault):
    """A slot was asked for a move that its state does not allow."""

    code = "illegal_move"


class ProcessModeRefused(FrameworkFault):
    """The operator was opened outside PyFlink's thread mode, where timers are lost on recovery."""

    code = "process_mode_refused"


class JournalLost(FrameworkFault):
    """What was handed to the journal is not known to be recorded; the task must fail and recover."""

    code = "journal_lost"


class Uncapturable(ControlFlow):
    """Derive a class from this to mark failures that must fail the task instead of the call."""

    code = "uncapturable"
