"""What a tool is to the engine: a specification, and a way to turn arguments into a body that can run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flink_agents.options import Execution, Injection, OnInterrupt, Rate
from flink_agents.retry import RetryPolicy

__all__ = ["Body", "Tool", "ToolSpec"]

Body = Callable[[], Any]
"""One attempt of a call: takes nothing, returns the value (or a coroutine, for ``Execution.ASYNC``)."""


@dataclass(frozen=True)
class ToolSpec:
    """What the engine and the model need to know about a tool.

    ``parameters`` is the JSON Schema of the arguments as a model sees it; ``max_concurrent`` bounds the bodies of this
    tool that run at once in one subtask (None: no bound of its own). ``on_interrupt`` says what happens to a call that
    was cut off; ``fail`` and ``reconcile`` need a journal. ``timeout_ms`` bounds one attempt from the start of its
    body, ``deadline_ms`` the call with all attempts and waits; ``rate`` bounds how many bodies begin, per subtask.
    ``inject`` are parameters that ``parameters`` does not show: ``prepare`` and ``reconciler`` get them from the job.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    execution: Execution = Execution.THREAD
    max_concurrent: int | None = None
    on_interrupt: OnInterrupt = OnInterrupt.RERUN
    timeout_ms: int | None = None
    deadline_ms: int | None = None
    retry: RetryPolicy | None = None
    rate: Rate | None = None
    inject: Mapping[str, Injection] = field(default_factory=dict)


class Tool(ABC):
    """A callable that a model may ask for.

    ``open`` and ``close`` frame its life in one subtask: what they are for is held from the first call to the last.
    """

    spec: ToolSpec

    def open(self) -> None:  # noqa: B027  (most tools hold nothing)
        """Get what the tool's bodies need. Task thread, once for each attempt of the task, before any call.

        What it raises fails the task, which Flink then restarts.
        """

    def close(self) -> None:  # noqa: B027
        """Release what ``open`` got. Any thread; may be called twice, and while bodies of the tool still run.

        Called when the operator ends, and soon after its task failed or was cancelled; never after a ``kill -9``.
        """

    def read_injected(self, name: str, value: Any) -> Any:
        """Return ``value`` as the body gets it under the injected parameter ``name``. Any thread; nothing is run.

        Raises:
            InjectionFailed: if it does not fit the parameter; the message does not show it.
        """
        return value

    @abstractmethod
    def prepare(self, arguments: dict[str, Any]) -> Body:
        """Validate ``arguments`` and return the body of one call.

        Runs on the task thread, so it must be quick and must not block. ``arguments`` is this call's own deep copy.
        Not called on replay of a finished call.

        Raises:
            InvalidArguments: with a message that names the field, and the expected schema.
        """

    def reconciler(self, arguments: dict[str, Any]) -> Body | None:
        """Return what decides about a call that was cut off: a body that looks whether it took effect.

        Its value or exception becomes the call's outcome; ``NOT_STARTED`` lets the call's own body run. One that is a
        coroutine function runs on the worker loop, any other on a worker's thread. Task thread; asked for only where
        ``on_interrupt`` is ``reconcile``.
        """
        return None
