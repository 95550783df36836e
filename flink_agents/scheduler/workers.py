"""The workers of one process: never-ending threads and one event loop; they run bodies and never see state."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial

from mypy_extensions import mypyc_attr

from flink_agents.clock import monotonic_ms
from flink_agents.errors import Interrupted
from flink_agents.faults import Fault, no_fault
from flink_agents.options import Execution, WorkerOptions
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.call import Completion, Ending, RunningCall, conclude, conclude_exception, run_body
from flink_agents.scheduler.tool_context import running_call

__all__ = ["Permits", "Workers"]

_log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.001
"""While calls keep coming the event loop looks for them by itself, this often: to ring it takes the task thread longer
than to run a quick call, and gives away the interpreter."""


class Permits:
    """How many bodies of one kind may run at once in this process. Any thread.

    A permit is taken for an attempt, begun by the worker that runs the body and given back by that worker, so a body
    that outlives its attempt keeps its place until it returns. What a dead attempt took and never began is reclaimed.

    A *stray* is a body that outlived its call's time-out. Up to ``max_strays`` of them are replaced by further permits;
    beyond that ``is_exhausted``, and bodies of this kind are refused until some return.
    """

    def __init__(self, limit: int, max_strays: int = 0) -> None:
        self.limit = limit
        self.max_strays = max_strays
        self.strays = 0
        self._lock = threading.Lock()
        self._used = 0
        self._held: dict[Attempt, int] = {}
        self._waiting: set[Attempt] = set()

    @property
    def used(self) -> int:
        """Permits given out at this moment."""
        return self._used

    @property
    def is_exhausted(self) -> bool:
        """Whether more bodies are stray than are replaced."""
        return self.strays > self.max_strays

    def try_acquire(self, attempt: Attempt, n: int = 1) -> bool:
        """Take permits for ``n`` bodies of ``attempt``, all or none; then it is notified once when one comes back."""
        with self._lock:
            if attempt.interrupted:
                return False
            if self._used + n <= self.limit + min(self.strays, self.max_strays):
                self._used += n
                self._held[attempt] = self._held.get(attempt, 0) + n
                return True
            self._waiting.add(attempt)
            return False

    def begin(self, attempt: Attempt, n: int = 1) -> None:
        """Note that ``n`` bodies begin with permits of ``attempt``."""
        with self._lock:
            held = self._held.get(attempt, 0)
            if held:
                self._held[attempt] = max(0, held - n)
            # An attempt that was reclaimed in the meantime takes its permits anew: the bodies run all the same.
            self._used += max(0, n - held)

    def release(self, call: RunningCall | None = None) -> None:
        """Give back the permit of a body that ended."""
        if call is None:
            self._free(1)
        else:
            self.release_all((call,))

    def release_all(self, calls: Sequence[RunningCall]) -> None:
        """Give back the permits of bodies that ended."""
        with self._lock:
            for call in calls:
                call.has_ended = True
                self.strays -= call.is_stray
            self._used -= len(calls)
            if not self._waiting:
                return
        self._free(0)

    def note_stray(self, call: RunningCall) -> bool:
        """Note that a body goes on although its call is over; return False if it ended meanwhile."""
        with self._lock:
            if call.has_ended:
                return False
            call.is_stray = True
            self.strays += 1
        # A permit replaces it, or whoever waits has to hear that there are none left.
        self._free(0)
        return True

    def give_back(self, attempt: Attempt, n: int = 1) -> None:
        """Give back permits that ``attempt`` acquired for ``n`` bodies that will not begin."""
        with self._lock:
            held = self._held.get(attempt, 0)
            freed = min(held, n)
            if held:
                self._held[attempt] = held - freed
        if freed:
            self._free(freed)

    def reclaim(self, attempt: Attempt) -> None:
        """Take back what a dead attempt acquired and never began."""
        with self._lock:
            held = self._held.pop(attempt, 0)
            self._waiting.discard(attempt)
        self._free(held)

    def _free(self, permits: int) -> None:
        with self._lock:
            self._used -= permits
            waiting, self._waiting = self._waiting, set()
        for attempt in waiting:
            attempt.notify()


# Tests run bodies in ways of their own.
@mypyc_attr(allow_interpreted_subclasses=True)
class Workers:
    """Runs bodies on up to ``options.threads`` threads and ``options.async_limit`` coroutines of one event loop.

    Threads are started on demand and never end: a thread of the embedded interpreter that ends after it touched a Java
    object can bring down the JVM. The event loop lives as long as the process, so a client that a tool caches keeps
    working. One instance serves every subtask of the process.
    """

    def __init__(self, options: WorkerOptions, fault: Fault = no_fault) -> None:
        self.threads = Permits(options.threads, options.max_strays)
        self.coroutines = Permits(options.async_limit)
        self._fault = fault
        self._queue: queue.SimpleQueue[RunningCall] = queue.SimpleQueue()
        self._started = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._pending: deque[RunningCall] = deque()
        self._rung = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[RunningCall, asyncio.Task[None]] = {}
        self._ended: list[Completion] = []

    def permits(self, execution: Execution) -> Permits:
        """Return the permits that a body of this kind needs."""
        return self.coroutines if execution is Execution.ASYNC else self.threads

    def serve(self, attempt: Attempt) -> None:
        """Take back the permits of ``attempt`` when it dies. Call once when the attempt opens."""
        attempt.on_interrupt(lambda: self._reclaim(attempt))

    def _reclaim(self, attempt: Attempt) -> None:
        self.threads.reclaim(attempt)
        self.coroutines.reclaim(attempt)

    def start(self, calls: Sequence[RunningCall]) -> None:
        """Begin the bodies now, which are all of one attempt; each holds a permit already. Returns at once.

        A crash before the body's end leaves its slot pending; the body then runs again, as its tool says.
        """
        on_loop = [call for call in calls if call.terms.execution is Execution.ASYNC]
        if on_loop:
            self.coroutines.begin(on_loop[0].attempt, len(on_loop))
            self._pending.extend(on_loop)
            if not self._rung:
                self._rung = True
                self._event_loop().call_soon_threadsafe(self._begin_pending)
        if len(on_loop) < len(calls):
            for call in calls:
                if call.terms.execution is not Execution.ASYNC:
                    self.threads.begin(call.attempt)
                    self._give_to_thread(call)

    def _give_to_thread(self, call: RunningCall) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._started += 1
                threading.Thread(target=self._thread, name=f"flink-agents-worker-{self._started}", daemon=True).start()
        self._queue.put(call)

    def _thread(self) -> None:
        while True:
            call = self._queue.get()
            call.attempt.enter(call)
            completion = run_body(call, monotonic_ms)
            with self._lock:
                self._idle += 1
            self._hand_over(completion, self.threads)
            # The queue may stay empty for long: what this call held must not live until the next one.
            del call, completion

    def _hand_over(self, completion: Completion, permits: Permits) -> None:
        call = completion.call
        call.attempt.leave(call)
        permits.release(call)
        deliver = call.attempt.deliver if call.deliver is None else call.deliver
        if self._fault is no_fault:
            deliver(completion)
            return
        try:
            self._fault("before:body_ended")
            self._fault("after:body_ended")
            self._fault("before:outcome_queued")
            deliver(completion)
            self._fault("after:outcome_queued")
        except BaseException as crash:  # a planned crash: the worker lives on, the task does not
            call.attempt.deliver(Completion(call, Ending.FATAL, None, crash, completion.duration_ms))

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._run_loop, args=(self._loop,), name="flink-agents-loop", daemon=True
                ).start()
            return self._loop

    @staticmethod
    def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def _begin_pending(self) -> None:
        loop = asyncio.get_running_loop()
        if self._pending:
            loop.call_later(_LOOK_AGAIN_S, self._begin_pending)
        else:
            # Cleared before the last look, so what is appended after that rings again.
            self._rung = False
        while self._pending:
            call = self._pending.popleft()
            # The loop keeps only weak references to tasks.
            self._tasks[call] = task = loop.create_task(self._run_coroutine(call))
            call.stopped_by(partial(_cancel, loop, task))

    async def _run_coroutine(self, call: RunningCall) -> None:
        began = monotonic_ms()
        call.attempt.enter(call)
        # A task has a context of its own, so nothing has to be reset.
        running_call.set(call)
        try:
            if call.try_begin():
                completion = conclude(call, await call.prepared.body(), round(monotonic_ms() - began))
            else:
                completion = Completion(call, Ending.INTERRUPTED, None, Interrupted(), 0)
        except BaseException as exception:  # nothing may escape into the loop: it is the call's own end
            completion = conclude_exception(call, exception, round(monotonic_ms() - began))
        call.stop = None
        self._tasks.pop(call, None)
        if self._fault is not no_fault:
            self._hand_over(completion, self.coroutines)
            return
        # What ends in one round of the loop is handed over together.
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._hand_over_ended)
        self._ended.append(completion)

    def _hand_over_ended(self) -> None:
        ended, self._ended = self._ended, []
        self.coroutines.release_all([completion.call for completion in ended])
        straight: dict[Attempt, list[Completion]] = {}
        for completion in ended:
            call = completion.call
            call.attempt.leave(call)
            if call.deliver is None:
                straight.setdefault(call.attempt, []).append(completion)
            else:
                call.deliver(completion)
        for attempt, completions in straight.items():
            attempt.deliver_all(completions)


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    loop.call_soon_threadsafe(task.cancel)
