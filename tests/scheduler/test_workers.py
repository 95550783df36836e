"""Real threads and the real event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents.durable.identity import Identity
from flink_agents.durable.outcome import Failed, Succeeded
from flink_agents.durable.slots import Slot
from flink_agents.faults import Fault, no_fault
from flink_agents.options import Execution, WorkerOptions
from flink_agents.scheduler.attempt import Attempt, CancellationToken
from flink_agents.scheduler.call import Completion, Ending, RunningCall
from flink_agents.scheduler.prepared import CallTerms, Prepared
from flink_agents.scheduler.tool_context import Origin
from flink_agents.scheduler.workers import Workers
from flink_agents.testing import PlannedCrash

WAIT_S = 20


class Bench:
    """An attempt whose completions can be waited for."""

    def __init__(self, options: WorkerOptions | None = None, fault: Fault = no_fault) -> None:
        self.workers = Workers(options or WorkerOptions(), fault)
        self.attempt = Attempt()
        self.arrived = threading.Semaphore(0)
        self.attempt.notify = self.arrived.release
        self.workers.serve(self.attempt)

    def begin(
        self, body: Callable[[], Any], execution: Execution = Execution.THREAD, *, forestalled: bool = False
    ) -> RunningCall:
        """Hand a body over, unless told otherwise one that may begin."""
        call = self.call(body, execution)
        if forestalled:
            assert call.forestall()
        self.workers.start([call])
        return call

    def call(self, body: Callable[[], Any], execution: Execution) -> RunningCall:
        """Return a call that has a worker."""
        prepared = Prepared(body, CallTerms("tool", execution))
        slot = Slot(0, Identity(0, "tool", "tool", 0, "digest"))
        call = RunningCall(Origin("run", "k", '"k"', "r", 1), slot, prepared, self.attempt, 1 << 20)
        assert self.workers.permits(execution).try_acquire(self.attempt)
        return call

    def completion(self) -> Completion:
        """Wait for the next completion."""
        assert self.arrived.acquire(timeout=WAIT_S)
        return self.attempt.completions.popleft()


def text(completion: Completion) -> str:
    """Return the encoded value of a completion."""
    assert isinstance(completion.outcome, Succeeded)
    return completion.outcome.text


def test_bodies_of_both_kinds_begin_together() -> None:
    async def on_loop() -> str:
        return threading.current_thread().name

    bench = Bench()
    kinds: dict[Execution, Callable[[], Any]] = {
        Execution.THREAD: lambda: threading.current_thread().name,
        Execution.ASYNC: on_loop,
    }
    calls = []
    for index, (execution, body) in enumerate(kinds.items()):
        slot = Slot(index, Identity(index, "tool", "tool", index, "digest"))
        prepared = Prepared(body, CallTerms("tool", execution))
        calls.append(RunningCall(Origin("run", "k", '"k"', "r", 1), slot, prepared, bench.attempt, 1 << 20))
        assert bench.workers.permits(execution).try_acquire(bench.attempt)
    bench.workers.start(calls)
    names = {text(bench.completion()) for _ in calls}
    assert '"flink-agents-loop"' in names
    assert len(names) == 2


@pytest.mark.rule(46)
def test_case_20_async_bodies_share_one_loop_so_a_cached_client_works_twice() -> None:
    cached: dict[str, Any] = {}

    async def use_client() -> bool:
        queue = cached.setdefault("queue", asyncio.Queue())
        loop = cached.setdefault("loop", asyncio.get_running_loop())
        getter = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0)
        queue.put_nowait("item")
        return await getter == "item" and loop is asyncio.get_running_loop()

    bench = Bench()
    for _ in range(2):
        bench.begin(use_client, Execution.ASYNC)
        assert text(bench.completion()) == "true"


def test_the_loop_survives_what_its_bodies_raise() -> None:
    async def leave() -> None:
        raise SystemExit(1)

    async def fine() -> str:
        return "fine"

    bench = Bench()
    bench.begin(leave, Execution.ASYNC)
    left = bench.completion().outcome
    assert isinstance(left, Failed)
    assert left.failure.type_name == "SystemExit"
    bench.begin(fine, Execution.ASYNC)
    assert text(bench.completion()) == '"fine"'


class HidesItsClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("no class to see")


@pytest.mark.rule(4, 21)
@pytest.mark.parametrize("execution", [Execution.THREAD, Execution.ASYNC])
def test_an_exception_that_raises_when_it_is_looked_at_is_a_failed_call(execution: Execution) -> None:
    def body() -> None:
        raise HidesItsClass("x")

    async def coroutine() -> None:
        body()

    bench = Bench()
    bench.begin(coroutine if execution is Execution.ASYNC else body, execution)
    outcome = bench.completion().outcome
    assert isinstance(outcome, Failed)
    assert "not recorded in full: RuntimeError" in outcome.failure.message


def test_threads_are_reused_and_bodies_run_side_by_side() -> None:
    bench = Bench(WorkerOptions(threads=3))
    barrier = threading.Barrier(3, timeout=WAIT_S)
    names: list[str] = []

    def meet() -> None:
        barrier.wait()
        names.append(threading.current_thread().name)

    for _ in range(2):
        for _ in range(3):
            bench.begin(meet)
        for _ in range(3):
            bench.completion()
    assert len(set(names)) == 3


def test_an_interruption_reaches_threads_through_the_token_and_coroutines_by_cancelling() -> None:
    bench = Bench()
    begun = threading.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    call = bench.begin(forever, Execution.ASYNC)
    assert begun.wait(WAIT_S)
    bench.attempt.interrupt()
    completion = bench.completion()
    assert completion.call is call
    assert completion.ending is Ending.INTERRUPTED

    token = CancellationToken()
    bench.attempt.enter(token)
    assert token.cancelled


@pytest.mark.rule(32)
def test_a_body_that_finishes_although_interrupted_keeps_its_outcome() -> None:
    bench = Bench()
    begun = threading.Event()

    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished anyway"
        return "never"

    bench.begin(stubborn, Execution.ASYNC)
    assert begun.wait(WAIT_S)
    bench.attempt.interrupt()
    completion = bench.completion()
    assert completion.ending is Ending.ENDED
    assert text(completion) == '"finished anyway"'


@pytest.mark.parametrize("execution", [Execution.THREAD, Execution.ASYNC])
def test_a_permit_is_free_again_when_the_completion_arrives(execution: Execution) -> None:
    bench = Bench(WorkerOptions(threads=1, async_limit=1))

    async def quick() -> None:
        return None

    for _ in range(50):
        bench.begin(quick if execution is Execution.ASYNC else lambda: None, execution)
        bench.completion()
        assert bench.workers.permits(execution).used == 0


def test_a_coroutine_returned_by_a_thread_body_is_a_failure_that_names_it() -> None:
    async def inner() -> None:
        """Never runs."""

    bench = Bench()
    bench.begin(lambda: inner())
    outcome = bench.completion().outcome
    assert isinstance(outcome, Failed)
    assert outcome.failure.kind == "unserializable"
    assert "coroutine" in outcome.failure.message


def test_token_callbacks_run_once_and_can_be_withdrawn() -> None:
    token, calls = CancellationToken(), []
    withdraw = token.on_cancel(lambda: calls.append("withdrawn"))
    token.on_cancel(lambda: calls.append("kept"))
    withdraw()
    token.cancel()
    token.cancel()
    assert calls == ["kept"]
    token.on_cancel(lambda: calls.append("late"))
    assert calls == ["kept", "late"]


@pytest.mark.parametrize("execution", [Execution.THREAD, Execution.ASYNC])
def test_a_body_that_was_forestalled_does_not_begin_and_gives_its_place_back(execution: Execution) -> None:
    begun: list[int] = []

    async def coroutine() -> None:
        begun.append(1)

    bench = Bench()
    bench.begin(coroutine if execution is Execution.ASYNC else lambda: begun.append(1), execution, forestalled=True)
    completion = bench.completion()
    assert (completion.ending, completion.outcome, completion.duration_ms) == (Ending.INTERRUPTED, None, 0)
    assert begun == []
    assert bench.workers.permits(execution).used == 0


@pytest.mark.parametrize("execution", [Execution.THREAD, Execution.ASYNC])
def test_the_end_of_a_body_passes_its_points_in_order(execution: Execution) -> None:
    async def coroutine() -> int:
        return 3

    points: list[str] = []
    over = threading.Event()

    def note(point: str) -> None:
        points.append(point)
        if point == "after:outcome_queued":
            over.set()

    bench = Bench(fault=note)
    bench.begin(coroutine if execution is Execution.ASYNC else lambda: 3, execution)
    assert text(bench.completion()) == "3"
    assert over.wait(WAIT_S)
    assert points == ["before:body_ended", "after:body_ended", "before:outcome_queued", "after:outcome_queued"]


@pytest.mark.parametrize("execution", [Execution.THREAD, Execution.ASYNC])
def test_a_crash_at_the_end_of_a_body_is_the_tasks_and_the_worker_lives_on(execution: Execution) -> None:
    async def coroutine() -> int:
        return 3

    armed = [True]

    def crash_once(point: str) -> None:
        if point == "before:body_ended" and armed:
            armed.clear()
            raise PlannedCrash(point)

    bench = Bench(fault=crash_once)
    body = coroutine if execution is Execution.ASYNC else lambda: 3
    bench.begin(body, execution)
    completion = bench.completion()
    assert (completion.ending, completion.outcome, type(completion.exception)) == (Ending.FATAL, None, PlannedCrash)
    bench.begin(body, execution)
    assert text(bench.completion()) == "3"


def test_one_thread_is_enough_for_one_body_after_the_other_and_two_for_two_at_once() -> None:
    bench, together = Bench(), threading.Barrier(2)
    idents = set()
    for _ in range(5):
        bench.begin(threading.get_ident)
        idents.add(text(bench.completion()))
    assert len(idents) == 1
    for _ in range(2):
        bench.begin(lambda: together.wait(WAIT_S))
    assert {text(bench.completion()), text(bench.completion())} == {"0", "1"}


def test_what_a_dead_attempt_acquired_and_never_began_is_taken_back() -> None:
    bench = Bench()
    for execution in (Execution.THREAD, Execution.ASYNC):
        assert bench.workers.permits(execution).try_acquire(bench.attempt)
    bench.attempt.interrupt()
    assert (bench.workers.threads.used, bench.workers.coroutines.used) == (0, 0)


def test_calls_of_both_kinds_can_be_handed_over_together() -> None:
    async def coroutine() -> str:
        return "loop"

    bench = Bench()
    on_loop, on_thread = Execution.ASYNC, Execution.THREAD
    calls = [bench.call(coroutine, on_loop), bench.call(lambda: "thread", on_thread), bench.call(coroutine, on_loop)]
    bench.workers.start(calls)
    ended = bench.attempt.completions
    while len(ended) < len(calls):
        assert bench.arrived.acquire(timeout=WAIT_S)
    assert sorted(map(text, ended)) == ['"loop"', '"loop"', '"thread"']
    assert (bench.workers.coroutines.used, bench.workers.threads.used) == (0, 0)


def test_what_gathers_while_the_loop_is_busy_begins_and_ends_together() -> None:
    busy, free = threading.Event(), threading.Event()

    async def block() -> str:
        busy.set()
        return str(free.wait(WAIT_S))

    async def quick() -> str:
        return "quick"

    bench = Bench()
    bench.begin(block, Execution.ASYNC)
    assert busy.wait(WAIT_S)
    for _ in range(3):
        bench.begin(quick, Execution.ASYNC)
    free.set()
    assert text(bench.completion()) == '"True"'
    assert bench.arrived.acquire(timeout=WAIT_S)
    # One ring for all that ended in one round of the loop.
    assert [text(completion) for completion in bench.attempt.completions] == ['"quick"'] * 3
    assert not bench.arrived.acquire(blocking=False)


def test_the_loop_is_not_rung_while_it_looks_by_itself_and_is_rung_again_after_a_rest() -> None:
    bench, rings = Bench(), 0
    loop = bench.workers._event_loop()
    ring = loop.call_soon_threadsafe
    busy, free = threading.Event(), threading.Event()

    def counted(callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        nonlocal rings
        rings += 1
        return ring(callback, *args)

    loop.call_soon_threadsafe = counted  # type: ignore[assignment, method-assign]

    async def block() -> str:
        busy.set()
        return str(free.wait(WAIT_S))

    async def quick() -> str:
        return "quick"

    bench.begin(block, Execution.ASYNC)
    assert busy.wait(WAIT_S)
    bench.begin(quick, Execution.ASYNC)
    assert rings == 1
    free.set()
    assert {text(bench.completion()), text(bench.completion())} == {'"True"', '"quick"'}
    rested = threading.Event()

    def look() -> None:
        if bench.workers._rung:
            loop.call_later(0.001, look)
        else:
            rested.set()

    ring(look)
    assert rested.wait(WAIT_S)
    bench.begin(quick, Execution.ASYNC)
    assert text(bench.completion()) == '"quick"'
    assert rings == 2
