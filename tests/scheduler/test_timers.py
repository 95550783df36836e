"""Timers of an action and the alarms of keys; a thousand calls that run out of time in the same millisecond."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.durable.journal.rows import CallFilter
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.options import Rate, ToolCallOptions, WorkerOptions
from flink_agents.retry import RetryPolicy
from flink_agents.scheduler.timers import Alarms, Due, Timer, Timers
from flink_agents.testing import ControlledTool, Harness, tool_request

if TYPE_CHECKING:
    from tests.scheduler.conftest import Live

CALLS = 1_000


def test_timers_come_in_order_and_those_of_one_moment_in_the_order_of_making() -> None:
    dead: set[Any] = set()
    timers = Timers()

    def is_live(timer: Timer) -> bool:
        return timer.subject not in dead

    assert timers.next_ms(is_live) is None
    for subject, at_ms in enumerate((30, 10, 20, 10)):
        timers.set(at_ms, Due.SLEEP, subject)
    assert timers.next_ms(is_live) == 10
    assert [timer.subject for timer in timers.pop_due(20, is_live)] == [1, 3, 2]
    assert timers.pop_due(29, is_live) == []
    dead.add(0)
    assert timers.next_ms(is_live) is None
    timers.set(5, Due.SLEEP, 4)
    dead.add(4)
    assert timers.pop_due(5, is_live) == []


def test_an_alarm_moves_only_forward_and_one_that_rings_too_early_costs_one_look() -> None:
    wanted: dict[str, int | None] = {"a": 50, "b": None, "c": 20}
    looks: Counter[str] = Counter()

    def next_of(key: str) -> int | None:
        looks[key] += 1
        return wanted[key]

    alarms = Alarms(next_of)
    assert alarms.next_ms() is None
    for key, at_ms in (("a", 30), ("a", 10), ("a", 40), ("b", 10), ("c", 20)):
        alarms.set(key, at_ms)
    assert alarms.next_ms() == 10
    assert alarms.due(9) == []
    # The one wants to be woken later, the other has nothing to wait for any more.
    assert alarms.due(10) == []
    assert looks == {"a": 1, "b": 1}
    assert alarms.due(20) == ["c"]
    assert alarms.next_ms() == 50
    assert alarms.due(50) == ["a"]
    assert alarms.next_ms() is None


class Steps:
    """Counts the calls of Python functions, which no other load on the machine changes."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Steps:
        def note(_frame: Any, event: str, _argument: Any) -> None:
            self.count += event == "call"

        self._before = sys.getprofile()
        sys.setprofile(note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)


LIMITS: dict[str, Callable[[], tuple[ControlledTool, ToolCallOptions]]] = {
    "timeout": lambda: (ControlledTool("held", timeout_ms=100), ToolCallOptions(max_in_flight=CALLS)),
    "deadline": lambda: (ControlledTool("held", deadline_ms=100), ToolCallOptions(max_in_flight=CALLS)),
    "batch": lambda: (ControlledTool("held"), ToolCallOptions(timeout_ms=100, max_in_flight=CALLS)),
}
EACH_LIMIT = pytest.mark.parametrize("limit", LIMITS)


@EACH_LIMIT
@pytest.mark.rule(37, 38, 39)
def test_case_29_a_thousand_calls_of_one_key_with_the_same_deadline_have_one_outcome_each(
    limit: str, maybe_journal: SqliteJournal | None
) -> None:
    held, options = LIMITS[limit]()
    workers = WorkerOptions(threads=CALLS if limit == "timeout" else 600, max_strays=CALLS)
    with Harness([held], tool_calls=options, workers=workers, journal=maybe_journal) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(CALLS)]))
        harness.advance(50)
        for body in [body for body in held.running if body.arguments["n"] < 500]:
            body.succeed(body.arguments["n"])
        harness.advance(50)
        told = Counter(r.get("error", {}).get("kind", "value") for r in harness.results())
        assert len(harness.results()) == CALLS
        assert told["value"] == 500
        assert told["timeout"] + told["not_started"] == 500
        assert harness.counters.counts["succeeded"] == 500
        assert harness.counters.counts["queued"] == harness.counters.counts["in_flight"] == 0
        if maybe_journal is not None:
            assert len(list(maybe_journal.calls(CallFilter()))) == CALLS - told["not_started"] * (limit == "batch")
        # The late half returns at once, and nobody hears it.
        for body in list(held.running):
            body.succeed("late")
        harness.run()
        assert harness.counters.counts["strays"] == harness.workers.threads.used == 0
        assert len(harness.responses) == 1


@EACH_LIMIT
def test_case_29_the_cost_of_an_expiry_does_not_grow_with_their_number(limit: str) -> None:
    steps = {}
    for calls in (100, CALLS):
        held, options = LIMITS[limit]()
        workers = WorkerOptions(threads=calls // 2 if limit != "timeout" else calls, max_strays=calls)
        with Harness([held], tool_calls=options, workers=workers) as harness:
            harness.send(tool_request("k", *[("held", {"n": n}) for n in range(calls)]))
            harness.run()
            with Steps() as expiring:
                harness.advance(100)
            assert len(harness.results()) == calls
            steps[calls] = expiring.count / calls
    assert steps[CALLS] < 1.5 * steps[100]


@pytest.mark.parametrize("waiting", ["timeout", "retry", "sleep", "rate", "batch"])
def test_case_29_nothing_spins_while_time_passes(
    waiting: str, as_action: Callable[..., list[Any]], maybe_journal: SqliteJournal | None
) -> None:
    held = ControlledTool(
        "held",
        timeout_ms=1_000 if waiting == "timeout" else None,
        retry=RetryPolicy(attempts=2, initial_ms=1_000, jitter=0) if waiting == "retry" else None,
        rate=Rate(1, 1_000) if waiting == "rate" else None,
    )

    async def scenario(ctx: Any) -> Any:
        if waiting == "sleep":
            await ctx.sleep(1)
        return await ctx.gather(
            *[ctx.call_tool("held", {"n": n}) for n in range(10)], timeout=1 if waiting == "batch" else None
        )

    as_action(scenario)
    with Harness([held], journal=maybe_journal) as harness:
        harness.send(tool_request("k"))
        harness.run()
        if waiting == "retry":
            held.running[0].fail(ConnectionError())
            harness.run()
        # The next look is when something is due, not before.
        assert harness.subtask.next_alarm_ms() == 1_000
        harness.clock_ms = 999
        assert harness.subtask.due_keys() == []
        assert not harness._settle_once()
        harness.clock_ms = 1_000
        assert harness.subtask.due_keys() == ['"k"']


@EACH_LIMIT
@pytest.mark.rule(37, 39)
def test_case_29_restored_after_they_were_due(
    limit: str, maybe_journal: SqliteJournal | None, live: type[Live]
) -> None:
    held, options = LIMITS[limit]()
    with Harness(
        [held], tool_calls=options, workers=WorkerOptions(threads=2 * CALLS), journal=maybe_journal
    ) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(CALLS)]))
        harness.run()
        harness.checkpoint()
        for body in held.running[:100]:
            body.succeed("finished")
        harness.run()
        harness.clock_ms += 3_600_000
        harness.crash()
        harness.run()
        again = live(held, harness)
        told = Counter(r.get("value") or r["error"]["kind"] for r in harness.results())
        if limit != "timeout":
            # Nothing starts; what the journal knows is kept.
            assert len(again) == 0
            known = 100 if maybe_journal is not None else 0
            assert told == Counter({"finished": known, "timeout": CALLS - known})
        else:
            # A body's time-out begins anew with the body.
            assert harness.responses == []
            assert len(again) == (CALLS if maybe_journal is None else CALLS - 100)


@pytest.mark.rule(41)
def test_a_sleep_is_recorded_and_a_failover_does_not_make_it_longer(
    as_action: Callable[..., list[Any]], maybe_journal: SqliteJournal | None
) -> None:
    async def scenario(ctx: Any) -> Any:
        await ctx.sleep("100ms")
        slept = await ctx.gather(ctx.sleep("100ms"), ctx.sleep("1h"), timeout="150ms")
        return [type(outcome.exception).__name__ for outcome in slept]

    returned = as_action(scenario)
    with Harness([], journal=maybe_journal) as harness:
        harness.advance(1_000)
        harness.send(tool_request("k"))
        harness.run()
        harness.checkpoint()
        harness.clock_ms += 60
        harness.crash()
        harness.run()
        assert harness.workers.threads.used == 0
        harness.advance(39)
        assert len(harness.slots("k")) == 1
        harness.advance(1)
        harness.checkpoint()
        # Both of the second wait are due when it is replayed; the one had slept long enough before the other's end.
        harness.clock_ms += 500
        harness.crash()
        harness.run()
        assert returned == [["NoneType", "CallTimeout"]]
