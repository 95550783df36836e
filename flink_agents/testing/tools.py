"""A tool whose calls end when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flink_agents.options import Execution, OnInterrupt, Rate
from flink_agents.retry import RetryPolicy
from flink_agents.scheduler.call import Completion, RunningCall, conclude, conclude_exception
from flink_agents.tools.base import Body, Tool, ToolSpec

__all__ = ["ControlledTool", "HeldBody", "HeldCall"]


class HeldCall:
    """One call that runs until the test ends it with ``succeed`` or ``fail``."""

    def __init__(self, arguments: dict[str, Any], call: RunningCall, end: Callable[[Completion], None]) -> None:
        self.arguments = arguments
        self.call = call
        self._end = end

    @property
    def cancelled(self) -> bool:
        """Whether the runtime asked this call to stop."""
        return self.call.cancelled

    def succeed(self, value: Any, duration_ms: int = 1) -> None:
        """End the call with a value."""
        self._end(conclude(self.call, value, duration_ms))

    def fail(self, exception: BaseException, duration_ms: int = 1) -> None:
        """End the call with an exception."""
        self._end(conclude_exception(self.call, exception, duration_ms))


class HeldBody:
    """The body of a controlled call; ``StepWorkers`` recognises it and lets the test end it."""

    def __init__(self, tool: ControlledTool, arguments: dict[str, Any]) -> None:
        self.tool = tool
        self.arguments = arguments

    def __call__(self) -> Any:
        """Refuse to run anywhere else."""
        msg = f"tool {self.tool.spec.name!r} is controlled by a test and runs only in its harness"
        raise RuntimeError(msg)


class ControlledTool(Tool):
    """Takes any arguments; each body begun is listed in ``running`` (and for ever in ``begun``)."""

    def __init__(
        self,
        name: str,
        *,
        max_concurrent: int | None = None,
        on_interrupt: OnInterrupt = OnInterrupt.RERUN,
        reconcile: Callable[[dict[str, Any]], Any] | None = None,
        execution: Execution = Execution.THREAD,
        timeout_ms: int | None = None,
        deadline_ms: int | None = None,
        retry: RetryPolicy | None = None,
        rate: Rate | None = None,
    ) -> None:
        self.spec = ToolSpec(
            name=name,
            description=f"Controlled by a test: {name}",
            parameters={"type": "object"},
            execution=execution,
            max_concurrent=max_concurrent,
            on_interrupt=on_interrupt,
            timeout_ms=timeout_ms,
            deadline_ms=deadline_ms,
            retry=retry,
            rate=rate,
        )
        self._reconcile = reconcile
        self.running: list[HeldCall] = []
        self.begun: list[HeldCall] = []
        self.prepared = 0

    def prepare(self, arguments: dict[str, Any]) -> Body:
        """Return a body that waits for the test."""
        self.prepared += 1
        return HeldBody(self, arguments)

    def reconciler(self, arguments: dict[str, Any]) -> Body | None:
        """Return what decides about a call in doubt."""
        return None if self._reconcile is None else partial(self._reconcile, arguments)
