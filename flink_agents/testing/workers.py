"""Workers without threads: bodies run one by one when the test says so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from flink_agents.clock import monotonic_ms
from flink_agents.errors import Interrupted
from flink_agents.faults import Fault, no_fault
from flink_agents.options import Execution, WorkerOptions
from flink_agents.scheduler.call import Completion, Ending, RunningCall, conclude, conclude_exception, run_body
from flink_agents.scheduler.tool_context import running_call
from flink_agents.scheduler.workers import Workers
from flink_agents.testing.tools import HeldBody, HeldCall

__all__ = ["StepWorkers"]


class StepWorkers(Workers):
    """Runs bodies on the test's own thread, in ``step``; permits and hand-over are the real ones.

    ``newest_first`` runs the last body begun first, to turn the order of completion around.
    """

    def __init__(self, options: WorkerOptions, fault: Fault = no_fault, *, newest_first: bool = False) -> None:
        super().__init__(options, fault)
        self.newest_first = newest_first
        self._ready: deque[RunningCall] = deque()
        self._runner: _LoopRunner | None = None

    def start(self, calls: Sequence[RunningCall]) -> None:
        """Take over bodies that begin now."""
        for call in calls:
            self.permits(call.terms.execution).begin(call.attempt)
            call.attempt.enter(call)
            body = call.prepared.body
            if isinstance(body, HeldBody):
                if not call.try_begin():
                    self._hand_over(_never_began(call), self.permits(call.terms.execution))
                    continue
                held = HeldCall(body.arguments, call, self._release(body, call))
                body.tool.running.append(held)
                body.tool.begun.append(held)
            else:
                self._ready.append(call)

    def step(self) -> bool:
        """Run one body to its end; return whether there was one."""
        if not self._ready:
            return False
        call = self._ready.pop() if self.newest_first else self._ready.popleft()
        if call.terms.execution is Execution.ASYNC:
            completion = self._run_coroutine_now(call)
        else:
            completion = run_body(call, monotonic_ms)
        self._hand_over(completion, self.permits(call.terms.execution))
        return True

    def drop(self) -> None:
        """Forget bodies that have not run yet, as a killed process does."""
        for call in self._ready:
            call.attempt.leave(call)
            self.permits(call.terms.execution).release(call)
        self._ready.clear()

    def close(self) -> None:
        """Close the event loop that async tools ran on."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _release(self, body: HeldBody, call: RunningCall) -> Callable[[Completion], None]:
        def end(completion: Completion) -> None:
            body.tool.running = [held for held in body.tool.running if held.call is not call]
            self._hand_over(completion, self.permits(call.terms.execution))

        return end

    def _run_coroutine_now(self, call: RunningCall) -> Completion:
        if self._runner is None:
            self._runner = _LoopRunner()
        if not call.try_begin():
            return _never_began(call)
        entered = running_call.set(call)
        try:
            value = self._runner.run(call.prepared.body())
        except BaseException as exception:
            return conclude_exception(call, exception, 0)
        finally:
            running_call.reset(entered)
        return conclude(call, value, 0)


def _never_began(call: RunningCall) -> Completion:
    return Completion(call, Ending.INTERRUPTED, None, Interrupted(), 0)


class _LoopRunner:
    """One event loop for every async body, so that what a tool caches stays usable; Python 3.10 has no Runner."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, coroutine: object) -> object:
        return self._loop.run_until_complete(coroutine)  # type: ignore[arg-type]

    def close(self) -> None:
        self._loop.close()
