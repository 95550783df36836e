"""``deadline`` of a call and of a batch: absolute times that a failover does not move; what each call is then told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.durable.journal.rows import CallFilter
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.options import Mode, OnInterrupt, ToolCallOptions, WorkerOptions
from flink_agents.retry import RetryPolicy
from flink_agents.testing import ControlledTool, CrashAt, Harness, tool_request

if TYPE_CHECKING:
    from tests.scheduler.conftest import Live

BATCH = ToolCallOptions(timeout_ms=100, max_in_flight=2)
BATCH_OF_FOUR = ToolCallOptions(timeout_ms=100, max_in_flight=4)


def kinds(harness: Harness) -> list[Any]:
    """Return each result's value, or the kind of its error."""
    return [r["value"] if r["status"] == "succeeded" else r["error"]["kind"] for r in harness.results()]


@pytest.mark.rule(39)
def test_the_deadline_bounds_the_call_with_the_waits_between_its_bodies(maybe_journal: SqliteJournal | None) -> None:
    retry = RetryPolicy(attempts=10, initial_ms=40, multiplier=1, jitter=0)
    held = ControlledTool("held", deadline_ms=100, retry=retry)
    with Harness([held], journal=maybe_journal) as harness:
        harness.advance(1_000)
        harness.send(tool_request("k", ("held", {})))
        for _ in range(2):
            harness.run()
            held.running[0].fail(ValueError("down"))
            harness.run()
            harness.advance(40)
        assert len(held.running) == 1
        assert harness.slots("k")["1/0"]["u"] == 1_100
        harness.advance(19)
        assert harness.responses == []
        harness.advance(1)
        (result,) = harness.results()
        assert (result["error"]["kind"], result["attempts"]) == ("timeout", 3)
        assert "deadline" in result["error"]["message"]


@pytest.mark.rule(39, 45)
def test_a_failure_whose_next_body_would_begin_after_the_deadline_is_the_last(
    maybe_journal: SqliteJournal | None,
) -> None:
    held = ControlledTool("held", deadline_ms=100, retry=RetryPolicy(attempts=10, initial_ms=200, jitter=0))
    with Harness([held], journal=maybe_journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        held.running[0].fail(ValueError("down"))
        harness.run()
        assert harness.results()[0]["error"]["message"] == "down"


@pytest.mark.rule(39, 37)
@pytest.mark.parametrize("at_ms", [1_150, 90_000])
def test_a_deadline_is_absolute_and_kept_through_a_failover(
    maybe_journal: SqliteJournal | None, live: type[Live], at_ms: int
) -> None:
    held = ControlledTool("held", deadline_ms=200)
    with Harness([held], journal=maybe_journal) as harness:
        harness.advance(1_000)
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.checkpoint()
        harness.clock_ms = at_ms
        harness.crash()
        harness.run()
        if at_ms < 1_200:
            assert len(live(held, harness)) == 1
            harness.advance(1_199 - at_ms)
            assert harness.responses == []
            harness.advance(1)
        else:
            # It passed while the job was down: nothing starts.
            assert len(live(held, harness)) == 0
        assert kinds(harness) == ["timeout"]


@pytest.mark.rule(38, 39)
def test_a_call_that_no_worker_was_free_for_is_not_started_and_that_is_recorded(
    maybe_journal: SqliteJournal | None,
) -> None:
    slow, bounded = ControlledTool("slow"), ControlledTool("bounded", deadline_ms=100)
    with Harness([slow, bounded], journal=maybe_journal, workers=WorkerOptions(threads=1)) as harness:
        harness.send(tool_request("k", ("slow", {}), ("bounded", {})))
        harness.advance(100)
        slot = harness.slots("k")["1/1"]
        assert (slot["s"], slot["f"]["kind"]) == ("failed", "not_started")
        assert harness.counters.counts["queued"] == 0
        slow.running[0].succeed("done")
        harness.run()
        assert kinds(harness) == ["done", "not_started"]
        assert bounded.begun == []


@pytest.mark.rule(38, 15)
def test_a_call_in_doubt_whose_deadline_passed_while_the_job_was_down_is_not_said_to_be_not_started(
    journal: SqliteJournal, live: type[Live]
) -> None:
    held = ControlledTool("held", deadline_ms=100, on_interrupt=OnInterrupt.FAIL, max_concurrent=1)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {}), ("held", {})))
        harness.run()
        # The deadline is stored. That the body began is known to the journal alone.
        harness.checkpoint()
        held.running[0].succeed("done")
        harness.run()
        assert len(held.begun) == 2
        harness.clock_ms += 1_000
        harness.crash()
        harness.run()
        assert kinds(harness) == ["done", "timeout"]
        assert harness.results()[1]["attempts"] == 1
        assert "while the job was down" in harness.results()[1]["error"]["message"]
        assert len(held.begun) == 2


@pytest.mark.rule(37, 38, 47)
@pytest.mark.parametrize("always_replay", [False, True])
def test_case_4_finished_keep_running_time_out_queued_say_not_started(
    maybe_journal: SqliteJournal | None, always_replay: bool
) -> None:
    held = ControlledTool("held")
    with Harness([held], tool_calls=BATCH, journal=maybe_journal, always_replay=always_replay) as harness:
        harness.advance(1_000)
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(10)]), tool_request("k", ("held", {})))
        harness.advance(50)
        first, second = held.running
        first.succeed("finished")
        second.fail(ValueError("failed"))
        harness.advance(49)
        assert [call.arguments["n"] for call in held.running] == [2, 3]
        pending = {field: slot["s"] for field, slot in harness.slots("k").items() if slot["s"] == "reserved"}
        assert list(pending) == [f"1/{n}" for n in range(4, 10)]
        harness.advance(1)
        assert kinds(harness) == ["finished", "tool_error", "timeout", "timeout", *["not_started"] * 6]
        assert [result["attempts"] for result in harness.results()] == [1, 1, 1, 1, *[0] * 6]
        # Nothing of it starts afterwards, and the next request has begun.
        assert [call.arguments.get("n") for call in held.begun] == [0, 1, 2, 3, None]
        assert harness.statistics["timed_out"] == 2


@pytest.mark.rule(37, 38)
def test_the_slots_of_calls_that_never_began_stay_pending(
    as_action: Callable[..., list[Any]], maybe_journal: SqliteJournal | None
) -> None:
    held = ControlledTool("held")

    async def scenario(ctx: Any) -> Any:
        outcomes = await ctx.gather(
            *[ctx.call_tool("held", {"n": n}) for n in range(10)], timeout="100ms", max_in_flight=2
        )
        await ctx.call_tool("held", {"n": "after"})
        return [type(outcome.exception).__name__ for outcome in outcomes]

    returned = as_action(scenario)
    with Harness([held], journal=maybe_journal) as harness:
        harness.advance(1_000)
        harness.send(tool_request("k"))
        harness.run()
        harness.checkpoint()
        held.running[0].succeed("finished")
        harness.run()
        harness.advance(100)
        states = [harness.slots("k")[f"1/{n}"]["s"] for n in range(10)]
        assert states == ["succeeded", "failed", "failed", *["reserved"] * 7]
        assert {slot.get("b", 1_100) for slot in harness.slots("k").values()} == {1_100}
        begun = len(held.begun)
        # Replayed after the deadline, from what is recorded and from the time before it: nothing of the batch starts.
        if maybe_journal is not None:
            harness.crash()
            harness.run()
        harness.checkpoint()
        harness.crash()
        harness.run()
        assert [call.arguments["n"] for call in held.begun[begun:]] == ["after"] * (2 if maybe_journal else 1)
        held.running[-1].succeed("ok")
        harness.run()
        assert returned == [["NoneType", "CallTimeout", "CallTimeout", *["NotStarted"] * 7]]


@pytest.mark.rule(37)
def test_a_replay_after_the_deadline_starts_nothing_and_takes_what_the_journal_knows(
    journal: SqliteJournal, live: type[Live]
) -> None:
    held = ControlledTool("held", on_interrupt=OnInterrupt.FAIL)
    with Harness([held], tool_calls=BATCH, journal=journal) as harness:
        harness.advance(1_000)
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(6)]))
        harness.run()
        # The batch's deadline is stored. What follows is known to the journal alone.
        harness.checkpoint()
        held.running[0].succeed("finished")
        held.running[0].fail(ValueError("failed"))
        harness.run()
        held.running[0].succeed("finished too")
        harness.run()
        assert [call.arguments["n"] for call in held.running] == [3, 4]
        harness.clock_ms += 60_000
        harness.crash()
        harness.run()
        assert len(live(held, harness)) == 0
        assert kinds(harness) == ["finished", "tool_error", "finished too", "timeout", "timeout", "not_started"]
        assert [result["replayed"] for result in harness.results()] == [True, True, True, False, False, False]
        assert [result["attempts"] for result in harness.results()] == [1, 1, 1, 1, 1, 0]
        assert "while the job was down" in harness.results()[3]["error"]["message"]


@pytest.mark.rule(37)
def test_a_replay_after_the_deadline_on_state_alone_starts_nothing(live: type[Live]) -> None:
    held = ControlledTool("held")
    with Harness([held], tool_calls=BATCH) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(4)]))
        harness.run()
        held.running[0].succeed("finished")
        harness.run()
        harness.checkpoint()
        harness.clock_ms += 60_000
        harness.crash()
        harness.run()
        assert len(live(held, harness)) == 0
        assert kinds(harness) == ["finished", "timeout", "timeout", "not_started"]


@pytest.mark.rule(37)
def test_a_batch_deadline_that_has_not_passed_after_a_failover_is_the_old_one(live: type[Live]) -> None:
    held = ControlledTool("held")
    with Harness([held], tool_calls=BATCH) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.checkpoint()
        harness.clock_ms += 60
        harness.crash()
        harness.run()
        assert len(live(held, harness)) == 1
        harness.advance(39)
        assert harness.responses == []
        harness.advance(1)
        assert kinds(harness) == ["timeout"]


def test_the_deadline_of_a_sequential_batch(maybe_journal: SqliteJournal | None) -> None:
    held = ControlledTool("held")
    options = ToolCallOptions(mode=Mode.SEQUENTIAL, timeout_ms=100)
    with Harness([held], tool_calls=options, journal=maybe_journal) as harness:
        harness.send(tool_request("k", *[("held", {}) for _ in range(3)]))
        harness.run()
        held.running[0].succeed("finished")
        harness.run()
        harness.advance(100)
        assert kinds(harness) == ["finished", "timeout", "not_started"]


@pytest.mark.rule(38)
def test_nothing_starts_in_the_place_that_a_cancelled_body_leaves() -> None:
    held = ControlledTool("held")
    with Harness([held], workers=WorkerOptions(threads=1), tool_calls=ToolCallOptions(timeout_ms=100)) as harness:
        harness.send(tool_request("k", ("held", {"n": 0}), ("held", {"n": 1})))
        harness.run()
        body = held.running[0]
        # It ends the moment it is told to: its worker is free while the batch is still being ended.
        body.call.token.on_cancel(lambda: body.fail(asyncio.CancelledError()))
        harness.advance(100)
        assert kinds(harness) == ["timeout", "not_started"]
        assert [call.arguments["n"] for call in held.begun] == [0]
        assert harness.workers.threads.used == 0


@pytest.mark.rule(38, 39)
def test_the_cancellation_of_a_body_whose_time_is_over_is_not_what_the_journal_records(
    journal: SqliteJournal,
) -> None:
    held = ControlledTool("held", timeout_ms=100)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        body = held.running[0]
        body.call.token.on_cancel(lambda: body.fail(asyncio.CancelledError()))
        harness.advance(100)
        assert kinds(harness) == ["timeout"]
        (row,) = journal.calls(CallFilter())
        assert getattr(row.outcome, "failure").kind == "timeout"  # noqa: B009


@pytest.mark.rule(39, 43)
@pytest.mark.parametrize("how", ["unknown tool", "timed out", "cancels itself"])
def test_a_batch_deadline_while_the_journal_records_a_calls_end_leaves_that_end(
    journal: SqliteJournal, how: str
) -> None:
    held = ControlledTool("held", timeout_ms=90)
    with Harness([held], journal=journal, tool_calls=ToolCallOptions(timeout_ms=100)) as harness:
        harness.send(tool_request("k", ("nobody" if how == "unknown tool" else "held", {})))
        if how == "unknown tool":
            harness.clock_ms += 100
        else:
            harness.run()
            if how == "cancels itself":
                held.running[0].fail(asyncio.CancelledError())
            harness.clock_ms += 90
            harness._settle_once()
            harness.clock_ms += 10
        # The commit that records the end is still under way when the deadline of the batch comes.
        harness._settle_once()
        harness.run()
        expected = {"unknown tool": "unknown_tool", "timed out": "timeout", "cancels itself": "tool_error"}
        assert kinds(harness) == [expected[how]]
        (row,) = journal.calls(CallFilter())
        assert getattr(row.outcome, "failure").kind == expected[how]  # noqa: B009
        assert harness.counters.counts["strays"] == (1 if how == "timed out" else 0)


@pytest.mark.rule(37)
@pytest.mark.parametrize("point", ["before:expired", "after:expired"])
def test_a_crash_around_the_end_of_a_batch_gives_the_same_outcomes(
    maybe_journal: SqliteJournal | None, point: str
) -> None:
    held = ControlledTool("held")
    with Harness([held], tool_calls=BATCH, journal=maybe_journal, fault=CrashAt(point)) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(4)]))
        harness.run()
        held.running[0].succeed("finished")
        harness.run()
        harness.checkpoint()
        harness.advance(100)
        assert harness.crashes == 1
        assert kinds(harness) == ["finished", "timeout", "timeout", "not_started"]
        assert len(held.begun) == 3


@pytest.mark.rule(37, 38)
@pytest.mark.parametrize("strays", [0, 1])
def test_what_ended_in_the_turn_of_the_deadline_is_kept_and_what_was_granted_in_it_never_begins(
    maybe_journal: SqliteJournal | None, strays: int
) -> None:
    held, other = ControlledTool("held"), ControlledTool("other", timeout_ms=100)
    workers = WorkerOptions(threads=3, max_strays=0)
    with Harness([held, other], workers=workers, journal=maybe_journal, tool_calls=BATCH_OF_FOUR) as harness:
        if strays:
            harness.send(tool_request("other", ("other", {})))
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(4)]))
        harness.run()
        finished = list(held.running)
        for body in finished:
            body.succeed("finished")
        # Its worker is granted to a call that waits, or, where one body more than allowed is stray, that is refused.
        harness.advance(100)
        kept = [r["value"] for r in harness.results() if r["status"] == "succeeded" and r["tool"] == "held"]
        assert kept == ["finished"] * len(finished)
        assert {"not_started"} == {kind for kind in kinds(harness) if kind not in ("finished", "timeout")}
        assert len(held.begun) == len(finished)
        assert harness.workers.threads.used == strays
        assert harness.subtask._admission.waiting == harness.counters.counts["queued"] == 0
