"""An end within a moment of its time limit, in both orders, and the replay of each; then the same on real threads."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.durable.journal.rows import CallFilter
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.outcome import Failed
from flink_agents.options import ToolCallOptions, WorkerOptions
from flink_agents.retry import RetryPolicy
from flink_agents.testing import ControlledTool, Harness, HeldCall, tool_request
from flink_agents.tools.async_tool import AsyncTool
from flink_agents.tools.base import ToolSpec
from flink_agents.tools.registry import FunctionDeclaration

if TYPE_CHECKING:
    from tests.scheduler.conftest import At, Live

RACES = int(os.environ.get("RACES", "1000"))
"""How often each race runs in each order. tests/README.md says how to run them ten thousand times."""
STRESS_CALLS = int(os.environ.get("STRESS_CALLS", "300"))
"""How many calls of each kind end close to their time limit on real threads."""

LIMITS: dict[str, Callable[[], tuple[ControlledTool, ToolCallOptions]]] = {
    "timeout": lambda: (ControlledTool("held", timeout_ms=100), ToolCallOptions()),
    "deadline": lambda: (ControlledTool("held", deadline_ms=100), ToolCallOptions()),
    "batch": lambda: (ControlledTool("held"), ToolCallOptions(timeout_ms=100)),
}
EACH_LIMIT = pytest.mark.parametrize("limit", LIMITS)


def kinds(harness: Harness) -> list[Any]:
    """Return each result's value, or the kind of its error."""
    return [r["value"] if r["status"] == "succeeded" else r["error"]["kind"] for r in harness.results()]


@contextmanager
def two_running(limit: str, journal: SqliteJournal | None, at: At) -> Iterator[tuple[Harness, ControlledTool]]:
    """Begin two calls of one request whose time is over after 100 ms, and stop where ``at`` looks."""
    held, options = LIMITS[limit]()
    with Harness([held], tool_calls=options, journal=journal, fault=at) as harness:
        harness.send(tool_request("k", ("held", {}), ("held", {})))
        harness.run()
        yield harness, held


@EACH_LIMIT
@pytest.mark.rule(37, 38, 39)
def test_a_success_between_the_cancellation_and_the_last_look_is_kept(
    limit: str, maybe_journal: SqliteJournal | None, between_sweep_and_finish: At
) -> None:
    at = between_sweep_and_finish
    with two_running(limit, maybe_journal, at) as (harness, held):
        at.do = lambda: held.running[0].succeed("finished")
        harness.advance(100)
        assert kinds(harness) == ["finished", "timeout"]
        assert harness.results()[0]["attempts"] == 1
        assert (harness.counters.counts["strays"], harness.workers.threads.strays) == (1, 1)
        assert harness.counters.counts["in_flight"] == 0


@EACH_LIMIT
@pytest.mark.rule(38, 39)
def test_a_success_that_comes_behind_a_stopped_body_is_kept(
    limit: str, maybe_journal: SqliteJournal | None, between_sweep_and_finish: At
) -> None:
    at = between_sweep_and_finish
    with two_running(limit, maybe_journal, at) as (harness, held):

        def both_end() -> None:
            stopped, other = held.running
            stopped.fail(asyncio.CancelledError())
            other.succeed("finished")

        at.do = both_end
        harness.advance(100)
        assert kinds(harness) == ["timeout", "finished"]


@EACH_LIMIT
@pytest.mark.rule(37, 38, 39)
def test_a_business_failure_between_the_cancellation_and_the_last_look_is_kept(
    limit: str, maybe_journal: SqliteJournal | None, between_sweep_and_finish: At
) -> None:
    at = between_sweep_and_finish
    with two_running(limit, maybe_journal, at) as (harness, held):
        at.do = lambda: held.running[0].fail(LookupError("no such order"))
        harness.advance(100)
        assert [r["error"]["type"] for r in harness.results()] == ["LookupError", "CallTimeout"]


@EACH_LIMIT
@pytest.mark.rule(38, 43)
def test_a_fatal_error_between_the_cancellation_and_the_last_look_fails_the_task(
    limit: str, maybe_journal: SqliteJournal | None, between_sweep_and_finish: At, live: type[Live]
) -> None:
    at = between_sweep_and_finish
    with two_running(limit, maybe_journal, at) as (harness, held):
        harness.checkpoint()
        at.do = lambda: held.running[0].fail(MemoryError())
        with pytest.raises(MemoryError):
            harness.advance(100)
        assert harness.responses == []
        assert [slot["s"] for slot in harness.slots("k").values()] == ["started", "started"]
        # Its replay: the body is not said to have ended, and what passed meanwhile has passed.
        harness.crash()
        harness.run()
        running = live(held, harness)
        if limit == "timeout":
            for body in running.all:
                body.succeed("in the second life")
            harness.run()
            # The other one's time was over as well, and the journal had that before the task failed.
            other = "in the second life" if maybe_journal is None else "timeout"
            assert kinds(harness) == ["in the second life", other]
        else:
            assert len(running) == 0
            assert kinds(harness) == ["timeout", "timeout"]


@EACH_LIMIT
@pytest.mark.rule(14, 37, 38)
@pytest.mark.parametrize("how", ["success", "failure"])
def test_the_replay_of_an_end_between_the_cancellation_and_the_last_look(
    limit: str, how: str, maybe_journal: SqliteJournal | None, between_sweep_and_finish: At, live: type[Live]
) -> None:
    held, options = LIMITS[limit]()
    free = ControlledTool("free")
    at = between_sweep_and_finish
    with Harness([held, free], tool_calls=options, journal=maybe_journal, fault=at) as harness:
        harness.send(tool_request("k", ("held", {}), ("held", {}), *[] if limit == "batch" else [("free", {})]))
        harness.run()
        body = held.running[0]
        at.do = lambda: body.succeed("finished") if how == "success" else body.fail(LookupError("gone"))
        if maybe_journal is not None:
            harness.checkpoint()  # The state knows nothing of what follows, the journal does.
            harness.advance(100)
            harness.crash()
        elif limit != "batch":
            harness.advance(100)
            harness.checkpoint()
            harness.crash()
        else:
            harness.advance(100)
        harness.run()
        assert len(live(held, harness)) == (1 if limit == "batch" and maybe_journal is None else 0)
        for other in live(free, harness).all:
            other.succeed("free")
        harness.run()
        first = "finished" if how == "success" else "tool_error"
        assert kinds(harness)[:2] == [first, "timeout"]
        assert len(held.begun) == 2


@pytest.mark.rule(22, 37, 38)
def test_a_mapped_handle_whose_call_ends_between_the_cancellation_and_the_last_look(
    as_action: Callable[..., list[Any]], maybe_journal: SqliteJournal | None, between_sweep_and_finish: At
) -> None:
    held = ControlledTool("held")
    mapped: list[Any] = []

    async def scenario(ctx: Any) -> Any:
        def double(value: int) -> int:
            mapped.append(value)
            return value * 2

        handles = [ctx.call_tool("held", {"n": n}).map(double) for n in range(3)]
        outcomes = await ctx.gather(*handles, timeout="100ms", max_in_flight=2)
        seen = [o.result() if o.succeeded else type(o.exception).__name__ for o in outcomes]
        await ctx.call_tool("held", {"n": "after"})
        return seen

    returned = as_action(scenario)
    at = between_sweep_and_finish
    with Harness([held], journal=maybe_journal, fault=at) as harness:
        harness.send(tool_request("k"))
        harness.run()
        at.do = lambda: held.running[0].succeed(21)
        harness.advance(100)
        harness.checkpoint()
        harness.crash()
        harness.run()
        # The mapping ran again on the recorded value; the body did not.
        assert mapped == [21, 21]
        held.running[-1].succeed(None)
        harness.run()
        assert returned == [[42, "CallTimeout", "NotStarted"]]
        assert [call.arguments["n"] for call in held.begun] == [0, 1, "after", "after"]


class Remote(AsyncTool):
    """An asynchronous tool whose call is one of a controlled tool, mapped."""

    def __init__(self, behind: ControlledTool) -> None:
        self.spec = ToolSpec("remote", "Answers through a handle", {"type": "object"})
        self.behind = behind.spec.name
        self.submitted = 0

    def submit(self, ctx: Any, arguments: dict[str, Any]) -> Any:
        self.submitted += 1
        return ctx.call_tool(self.behind, arguments)


@pytest.mark.rule(37, 38, 55)
def test_an_asynchronous_tool_whose_call_ends_between_the_cancellation_and_the_last_look(
    maybe_journal: SqliteJournal | None, between_sweep_and_finish: At
) -> None:
    held = ControlledTool("held")
    remote = Remote(held)
    at = between_sweep_and_finish
    options = ToolCallOptions(timeout_ms=100, max_in_flight=3)
    with Harness([held, remote], tool_calls=options, journal=maybe_journal, fault=at) as harness:
        calls = [("remote", {"n": 0}), ("held", {"n": 1}), ("remote", {"n": 2}), ("remote", {"n": 3})]
        harness.send(tool_request("k", *calls))
        harness.run()
        harness.checkpoint()
        at.do = lambda: held.running[0].succeed("from afar")
        harness.advance(100)
        expected = ["from afar", "timeout", "timeout", "not_started"]
        assert kinds(harness) == expected
        assert [r["tool"] for r in harness.results()] == ["remote", "held", "remote", "remote"]
        assert remote.submitted == 2
        harness.crash()
        harness.run()
        # Without a journal the second life knows only that they had begun when the deadline passed.
        assert kinds(harness) == (expected if maybe_journal else ["timeout", *expected[1:]])
        assert remote.submitted == 2


def end_of(body: HeldCall, chance: random.Random) -> Any:
    """End a body in one of three ways; return what its result must then say."""
    way = chance.randrange(3)
    if way == 0:
        body.succeed("own")
        return "own"
    if way == 1:
        body.fail(ValueError("own"))
        return "tool_error"
    # The body took the cancellation for itself: its time is over, and that is what is recorded.
    body.fail(asyncio.CancelledError())
    return "timeout" if body.cancelled else "tool_error"


@EACH_LIMIT
@pytest.mark.rule(38, 39)
@pytest.mark.parametrize("order", ["end first", "limit first"])
def test_case_17_an_end_within_a_moment_of_its_limit_is_one_outcome(limit: str, order: str) -> None:
    chance = random.Random(17)
    held, options = LIMITS[limit]()
    expected: list[Any] = []

    def at_the_last_moment(point: str) -> None:
        if point == "before:expired" and moment == 2:
            expected.append(end_of(body, chance))

    with Harness([held], tool_calls=options, fault=at_the_last_moment) as harness:
        for _ in range(RACES):
            moment = chance.randrange(3) if order == "end first" else 3
            harness.send(tool_request("k", ("held", {})))
            harness.run()
            body = held.running[-1]
            if moment == 0:  # handed over, but not looked at when the limit comes
                expected.append(end_of(body, chance))
            elif moment == 1:  # the tool answers to its token at once
                body.call.token.on_cancel(lambda body=body: expected.append(end_of(body, chance)))  # type: ignore[misc]
            harness.advance(100)
            if moment == 3:
                expected.append("timeout")
                end_of(body, chance)
                harness.run()
        assert kinds(harness) == expected
        assert len(expected) == len(harness.responses) == len(held.begun) == RACES
        assert harness.workers.threads.used == harness.workers.threads.strays == 0
        counts = harness.counters.counts
        assert counts["strays"] == counts["in_flight"] == counts["queued"] == 0
        assert counts["succeeded"] + counts["failed"] == RACES


@pytest.mark.rule(39, 45)
@pytest.mark.parametrize("order", ["end first", "limit first"])
def test_case_17_no_body_begins_after_the_final_outcome(order: str) -> None:
    retry = RetryPolicy(attempts=2, initial_ms=10, jitter=0, on=(ValueError, TimeoutError))
    held = ControlledTool("held", timeout_ms=100, deadline_ms=205, retry=retry)
    with Harness([held]) as harness:
        for n in range(RACES):
            harness.send(tool_request("k", ("held", {})))
            harness.run()
            first = held.begun[-1]
            harness.clock_ms += 100
            if order == "end first":
                first.fail(ValueError("first"))
            harness.run()
            if order != "end first":
                # What the first body returns comes when the second waits for its begin.
                first.succeed("too late")
            harness.advance(10)
            assert len(held.begun) == 2 * n + 2
            second = held.begun[-1]
            harness.clock_ms += 95
            if order == "end first":
                second.succeed("second")
            harness.run()
            if order != "end first":
                second.succeed("too late")
            harness.advance(1000)
            assert len(held.begun) == 2 * n + 2
            assert len(harness.responses) == n + 1 if n % 1000 == 0 else True
        assert kinds(harness) == ["second" if order == "end first" else "timeout"] * RACES
        assert {r["attempts"] for r in harness.results()} == {2}
        assert harness.workers.threads.used == harness.workers.threads.strays == 0


@pytest.mark.rule(33, 39, 40)
@pytest.mark.parametrize("order", ["end first", "limit first"])
def test_case_18_a_late_result_overwrites_nothing_and_its_worker_comes_back(order: str) -> None:
    held = ControlledTool("held", timeout_ms=100)
    with Harness([held], workers=WorkerOptions(threads=1, max_strays=1)) as harness:
        for n in range(RACES):
            harness.send(tool_request("k", ("held", {"n": n}), ("held", {"n": n})))
            harness.run()
            (blocked,) = held.running
            harness.advance(100)
            # The stray is replaced by one worker, so that the second call begins.
            assert [body is blocked for body in held.running] == [True, False]
            second = held.running[1]
            for body in (blocked, second) if order == "limit first" else (second, blocked):
                body.succeed("late" if body is blocked else "own")
                harness.run()
            assert harness.workers.threads.strays == harness.workers.threads.used == 0
        assert kinds(harness) == ["timeout", "own"] * RACES
        assert harness.counters.counts["strays"] == 0


@pytest.mark.rule(33, 39)
@EACH_LIMIT
@pytest.mark.parametrize("order", ["end first", "limit first"])
def test_with_a_journal_the_outcome_that_is_recorded_is_the_one_that_is_answered(
    journal: SqliteJournal, limit: str, order: str
) -> None:
    chance = random.Random(39)
    held, options = LIMITS[limit]()
    expected: list[Any] = []
    with Harness([held], tool_calls=options, journal=journal) as harness:
        for n in range(max(1, RACES // 20)):
            harness.send(tool_request(n, ("held", {})))
            harness.run()
            body = held.running[-1]
            if order == "end first":
                body.call.token.on_cancel(lambda body=body: expected.append(end_of(body, chance)))  # type: ignore[misc]
            harness.advance(100)
            if order == "limit first":
                expected.append("timeout")
                end_of(body, chance)
                harness.run()
        assert kinds(harness) == expected
        rows = {row.call.key: row.outcome for row in journal.calls(CallFilter())}
        recorded = [rows[str(n)] for n in range(len(expected))]
        told = [outcome.failure.kind if isinstance(outcome, Failed) else "own" for outcome in recorded if outcome]
        assert told == expected


@pytest.fixture
def cpu_load() -> Any:
    """Keep every core busy, so that threads are switched at any place."""
    over = threading.Event()

    def burn() -> None:
        while not over.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=burn, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.rule(38, 39, 40)
@pytest.mark.usefixtures("cpu_load")
@pytest.mark.parametrize("limit", ["timeout", "deadline", "batch"])
@pytest.mark.parametrize("execution", ["thread", "async"])
def test_cases_17_and_18_on_real_threads_under_load(
    threaded: Callable[..., Any], maybe_journal: SqliteJournal | None, limit: str, execution: str
) -> None:
    ends: Counter[int] = Counter()

    def work(n: int, us: int) -> int:
        """End close to the limit."""
        time.sleep(us / 1e6)
        ends[n] += 1
        return n

    async def work_async(n: int, us: int) -> int:
        """End close to the limit."""
        await asyncio.sleep(us / 1e6)
        ends[n] += 1
        return n

    function = work if execution == "thread" else work_async
    bounds: dict[str, Any] = {} if limit == "batch" else {limit: "20ms"}
    tool = FunctionDeclaration(function, name="work", **bounds)
    options = ToolCallOptions(timeout_ms=20 if limit == "batch" else None, max_in_flight=4)
    workers = WorkerOptions(threads=8, max_strays=64)
    harness = threaded(tool, tool_calls=options, journal=maybe_journal, workers=workers)
    chance = random.Random(18)
    requests = STRESS_CALLS // 3
    for key in range(requests):
        calls = [("work", {"n": 3 * key + i, "us": chance.randrange(14_000, 26_000)}) for i in range(3)]
        harness.send(tool_request(key, *calls))
    harness.until(lambda: len(harness.responses) == requests)
    told = {r["request_id"]: [x.get("value", x.get("error", {}).get("kind")) for x in r["results"]]
            for r in harness.responses}  # fmt: skip
    assert len(told) == requests
    for key in range(requests):
        for i, outcome in enumerate(told[f"{key}/1"]):
            n = 3 * key + i
            assert outcome in (n, "timeout", "not_started")
            if outcome == n:
                assert ends[n] == 1
            elif outcome == "not_started":
                assert ends[n] == 0
    permits = (harness.workers.threads, harness.workers.coroutines)
    harness.until(lambda: all(kind.used == kind.strays == 0 for kind in permits))
    harness.until(lambda: harness.counters.counts["strays"] == 0)
    assert harness.counters.counts["in_flight"] == harness.counters.counts["queued"] == 0
    assert all(times == 1 for times in ends.values())
    if maybe_journal is not None:
        assert harness._journal_writer.wait(20)
        for row in maybe_journal.calls(CallFilter()):
            answered = told[f"{row.call.key}/1"][row.call.index]
            recorded: Any = row.outcome
            assert answered == (recorded.failure.kind if isinstance(recorded, Failed) else int(recorded.text))
