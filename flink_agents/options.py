"""What a user may tune, as plain frozen values; the YAML and the library call both end here.

Everything in this module is pickled with the operator, so it holds no functions and no secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = [
    "Execution",
    "InjectFrom",
    "Injection",
    "Limits",
    "Mode",
    "OnInterrupt",
    "OnMismatch",
    "OperatorOptions",
    "Rate",
    "ToolCallOptions",
    "WorkerOptions",
]

KIB = 1024
MIB = 1024 * KIB
DAY_MS = 24 * 60 * 60 * 1000


class Mode(str, Enum):
    """How the calls of one request run."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"


class OnMismatch(str, Enum):
    """What happens when a recorded slot belongs to a different call than the one asked for."""

    RERUN = "rerun"
    FAIL = "fail"


class OnInterrupt(str, Enum):
    """What happens to a call that was cut off: it runs again, fails as in doubt, or its reconciler decides."""

    RERUN = "rerun"
    FAIL = "fail"
    RECONCILE = "reconcile"


class Execution(str, Enum):
    """Where a body runs: a worker thread, the worker's event loop, or the task thread itself."""

    THREAD = "thread"
    ASYNC = "async"
    INLINE = "inline"

    # Enum's own hash is a Python function; these are dict keys on the path of every call.
    __hash__ = str.__hash__


@dataclass(frozen=True)
class Rate:
    """At most ``count`` bodies begin within any ``per_ms`` milliseconds."""

    count: int
    per_ms: int = 1000


class InjectFrom(str, Enum):
    """Where an injected argument comes from: the job's configuration, or the memory of the request's key."""

    CONFIG = "config"
    MEMORY = "memory"


@dataclass(frozen=True)
class Injection:
    """An argument that the job gives, and no model can: the value at the dotted path ``key`` of its source."""

    source: InjectFrom
    key: str


@dataclass(frozen=True)
class ToolCallOptions:
    """Options of the built-in ``ToolCallAction``; ``timeout_ms`` bounds the whole batch of a request's calls."""

    mode: Mode = Mode.PARALLEL
    max_in_flight: int = 16
    timeout_ms: int | None = None
    on_mismatch: OnMismatch = OnMismatch.RERUN


@dataclass(frozen=True)
class WorkerOptions:
    """Size of the workers, per TaskManager process. ``max_strays``: timed-out threads that are replaced."""

    threads: int = 64
    async_limit: int = 1000
    max_strays: int = 64


@dataclass(frozen=True)
class Limits:
    """Bounds: sizes in bytes, ``*_ms`` in milliseconds, ``live_requests`` per subtask."""

    arguments: int = 256 * KIB
    result: int = 1 * MIB
    record: int = 4 * MIB
    live_requests: int = 1000
    intake_wait_ms: int = 100
    idle_key_ms: int = 30 * DAY_MS
    fatal_attempts: int = 3


@dataclass(frozen=True)
class OperatorOptions:
    """All options of one operator. ``key_by`` is a dotted path; ``module_path`` is put on ``sys.path`` at open.

    ``config`` is what tools may be given: JSON values, and ``{"env": NAME}`` for what the TaskManager's environment
    has, which is read at open and never travels.
    """

    key_by: str
    tool_calls: ToolCallOptions = field(default_factory=ToolCallOptions)
    workers: WorkerOptions = field(default_factory=WorkerOptions)
    limits: Limits = field(default_factory=Limits)
    module_path: tuple[str, ...] = ()
    statistics: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
