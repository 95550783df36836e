"""``timeout``: one body, from its begin; strays it leaves behind are in test_strays.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents.durable.journal.rows import CallFilter
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.options import OnInterrupt, ToolCallOptions, WorkerOptions
from flink_agents.redaction import Redaction
from flink_agents.scheduler.call_journal import NOT_STARTED
from flink_agents.scheduler.tool_context import current_tool_context
from flink_agents.testing import ControlledTool, Harness, tool_request
from flink_agents.tools.registry import FunctionDeclaration


def kinds(harness: Harness) -> list[Any]:
    """Return each result's value, or the kind of its error."""
    return [r["value"] if r["status"] == "succeeded" else r["error"]["kind"] for r in harness.results()]


@pytest.mark.rule(39, 47)
def test_a_body_that_runs_for_its_timeout_is_a_failed_result_and_the_action_goes_on(
    maybe_journal: SqliteJournal | None,
) -> None:
    held = ControlledTool("held", timeout_ms=100)
    with Harness([held], journal=maybe_journal) as harness:
        harness.advance(1_000)
        harness.send(tool_request("k", ("held", {})), tool_request("k", ("held", {})))
        harness.advance(99)
        assert harness.responses == []
        assert not held.running[0].cancelled
        harness.advance(1)
        assert kinds(harness) == ["timeout"]
        (result,) = harness.results()
        assert result["error"]["type"] == "CallTimeout"
        assert "100 ms" in result["error"]["message"]
        assert (result["attempts"], result["duration_ms"]) == (1, 100)
        assert harness.statistics["timed_out"] == 1
        # The next request of the key is on its way, and this one is in time.
        held.running[-1].succeed("in time")
        harness.run()
        assert kinds(harness) == ["timeout", "in time"]


@pytest.mark.rule(39)
def test_the_timeout_counts_from_the_begin_of_the_body_and_not_from_its_request() -> None:
    held = ControlledTool("held", timeout_ms=100)
    with Harness([held], workers=WorkerOptions(threads=1)) as harness:
        harness.send(tool_request("k", ("held", {"n": 0}), ("held", {"n": 1})))
        harness.advance(90)
        held.running[0].succeed("first")
        harness.run()
        # The second has waited for the worker for longer than its time-out by the end of this.
        harness.advance(99)
        assert harness.responses == []
        held.running[0].succeed("second")
        harness.run()
        assert kinds(harness) == ["first", "second"]


@pytest.mark.rule(39, 15)
def test_a_body_that_begins_late_because_its_started_row_took_its_time_has_its_whole_timeout(
    journal: SqliteJournal,
) -> None:
    held = ControlledTool("held", timeout_ms=100, on_interrupt=OnInterrupt.FAIL)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.clock_ms += 250
        # The row is still not written: what is due finds a body that has not begun, and looks again later.
        assert harness._settle_once()
        assert held.begun == []
        assert harness.responses == []
        harness.run()
        assert len(held.running) == 1
        harness.advance(99)
        assert harness.responses == []
        harness.advance(1)
        assert kinds(harness) == ["timeout"]


@pytest.mark.rule(38, 39)
def test_a_body_that_never_began_by_the_batch_deadline_is_not_started_although_it_was_handed_over(
    journal: SqliteJournal,
) -> None:
    held = ControlledTool("held", on_interrupt=OnInterrupt.FAIL)
    options = ToolCallOptions(timeout_ms=100)
    with Harness([held], journal=journal, tool_calls=options) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.clock_ms += 100
        # Handed to the journal, which has not written its started row yet.
        harness._settle_once()
        assert kinds(harness) == ["not_started"]
        assert harness.results()[0]["attempts"] == 0
        harness.run()
        assert held.begun == []
        assert harness.workers.threads.used == 0


@pytest.mark.rule(39)
def test_the_token_of_a_timed_out_body_reaches_its_tool(threaded: Callable[..., Any]) -> None:
    stopped = threading.Event()

    def patient() -> str:
        """Wait for the token."""
        context = current_tool_context()
        remaining = context.remaining_s
        assert remaining is not None
        assert 0 < remaining <= 0.03
        assert context.token.wait(20)
        stopped.set()
        return "too late"

    harness = threaded(FunctionDeclaration(patient, timeout="30ms"))
    harness.send(tool_request("k", ("patient", {})))
    harness.until(lambda: len(harness.responses) == 1)
    assert kinds(harness) == ["timeout"]
    assert stopped.wait(20)


@pytest.mark.rule(39)
def test_an_async_body_that_times_out_is_cancelled_and_gives_its_place_back(threaded: Callable[..., Any]) -> None:
    cancelled: list[bool] = []

    async def patient() -> None:
        """Wait for ever."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    harness = threaded(FunctionDeclaration(patient, timeout="30ms"), workers=WorkerOptions(async_limit=1))
    harness.send(tool_request("k", ("patient", {}), ("patient", {})))
    harness.until(lambda: len(harness.responses) == 1)
    assert kinds(harness) == ["timeout", "timeout"]
    harness.until(lambda: harness.workers.coroutines.used == 0)
    assert cancelled == [True, True]
    assert harness.counters.counts["strays"] == 0


def test_a_tool_without_any_bound_has_no_end_and_the_nearest_bound_counts(
    as_action: Callable[..., list[Any]],
) -> None:
    remaining: dict[str, Any] = {}

    def look(name: str) -> None:
        """Note how much time is left."""
        remaining[name] = current_tool_context().remaining_s

    tools = [
        FunctionDeclaration(look, name="free"),
        FunctionDeclaration(look, name="deadline", deadline="5s"),
        FunctionDeclaration(look, name="both", deadline="5s", timeout="2s"),
    ]
    names = ("free", "deadline", "both")

    async def scenario(ctx: Any) -> Any:
        await ctx.gather(*[ctx.call_tool(name, {"name": name}) for name in names])
        await ctx.gather(ctx.call_tool("both", {"name": "batch"}), timeout=1)

    as_action(scenario)
    with Harness(tools) as harness:
        harness.send(tool_request("k"))
        harness.run()
        assert remaining == {"free": None, "deadline": 5.0, "both": 2.0, "batch": 1.0}


@pytest.mark.rule(39, 40, 15)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_deadline_reaches_a_reconciler_that_runs_in_the_bodys_place(
    journal: SqliteJournal, threaded: Callable[..., Any], is_async: bool
) -> None:
    lives: list[str] = []
    go_on = threading.Event()

    def pay() -> str:
        """Run until the deadline of the second life."""
        lives.append("body")
        go_on.wait(20)
        return "paid"

    def look() -> str:
        """Look for longer than there is time."""
        lives.append("reconciler")
        go_on.wait(20)
        return "too late"

    async def look_async() -> str:
        """Look for longer than there is time."""
        lives.append("reconciler")
        await asyncio.Event().wait()
        return "never"

    reconcile = look_async if is_async else look
    pay_tool = FunctionDeclaration(pay, on_interrupt="reconcile", reconcile=reconcile, deadline="300ms")
    harness = threaded(pay_tool, journal=journal)
    harness.send(tool_request("k", ("pay", {})))
    harness.until(lambda: lives == ["body"])
    harness.checkpoint()
    harness.crash()
    harness.until(lambda: len(harness.responses) == 1)
    assert lives == ["body", "reconciler"]
    # The call began in the first life: nothing says that it took no effect.
    assert kinds(harness) == ["timeout"]
    # Only a thread can be left behind.
    assert harness.workers.threads.strays == harness.counters.counts["strays"] == (0 if is_async else 1)
    go_on.set()
    harness.until(lambda: harness.workers.threads.used == 0 and not harness.counters.counts["strays"])
    assert harness.workers.threads.strays == 0


@pytest.mark.rule(39, 15)
@pytest.mark.parametrize("restored", [True, False], ids=["slot restored", "slot not in the restored state"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_reconciler_that_runs_for_the_tools_timeout_ends_the_call_for_good(
    journal: SqliteJournal, threaded: Callable[..., Any], is_async: bool, restored: bool
) -> None:
    lives: list[str] = []
    go_on = threading.Event()
    remaining: list[float | None] = []

    def pay() -> str:
        """Be cut off."""
        lives.append("body")
        go_on.wait(20)
        return "paid"

    def look() -> str:
        """Look for longer than there is time."""
        lives.append("reconciler")
        remaining.append(current_tool_context().remaining_s)
        go_on.wait(20)
        return "too late"

    async def look_async() -> str:
        """Look for longer than there is time."""
        lives.append("reconciler")
        remaining.append(current_tool_context().remaining_s)
        await asyncio.Event().wait()
        return "never"

    pay_tool = FunctionDeclaration(
        pay,
        on_interrupt="reconcile",
        reconcile=look_async if is_async else look,
        timeout="300ms",
        retry={"attempts": 3, "initial": "1ms", "on": [TimeoutError]},
    )
    harness = threaded(pay_tool, journal=journal)
    harness.send(tool_request("k", ("pay", {})))
    harness.until(lambda: lives == ["body"])
    if restored:
        harness.checkpoint()
    harness.crash()
    harness.until(lambda: len(harness.responses) == 1)
    # No further body, whatever the retries: nothing says that the first took no effect.
    assert lives == ["body", "reconciler"]
    assert remaining[0] is not None
    assert 0 < remaining[0] <= 0.3
    (result,) = harness.results()
    assert (result["error"]["kind"], result["attempts"]) == ("timeout", 1)
    assert "the reconciler ran longer than the tool's timeout of 300 ms" in result["error"]["message"]
    assert harness.workers.threads.strays == harness.counters.counts["strays"] == (0 if is_async else 1)
    (row,) = journal.calls(CallFilter())
    assert (row.status.value, row.attempts) == ("failed", 1)
    go_on.set()


@pytest.mark.rule(39, 15)
def test_a_body_that_a_reconciler_lets_begin_has_a_timeout_of_its_own_and_may_be_a_stray(
    journal: SqliteJournal, threaded: Callable[..., Any]
) -> None:
    lives: list[str] = []
    go_on = threading.Event()

    def pay() -> str:
        """Run for longer than there is time."""
        lives.append("body")
        go_on.wait(20)
        return "paid"

    def look() -> Any:
        """Say at once that nothing happened."""
        lives.append("reconciler")
        return NOT_STARTED

    harness = threaded(
        FunctionDeclaration(pay, on_interrupt="reconcile", reconcile=look, timeout="300ms"), journal=journal
    )
    harness.send(tool_request("k", ("pay", {})))
    harness.until(lambda: lives == ["body"])
    harness.checkpoint()
    harness.crash()
    harness.until(lambda: len(harness.responses) == 1)
    assert lives == ["body", "reconciler", "body"]
    (result,) = harness.results()
    assert (result["error"]["kind"], result["attempts"]) == ("timeout", 2)
    assert "the attempt ran longer" in result["error"]["message"]
    assert harness.workers.threads.strays == harness.counters.counts["strays"] == 1
    go_on.set()


@pytest.mark.rule(39)
def test_a_cancellation_that_tells_a_secret_is_still_one_once_the_time_is_over(
    maybe_journal: SqliteJournal | None, between_sweep_and_finish: Any
) -> None:
    held = ControlledTool("held", timeout_ms=100)
    with Harness([held], journal=maybe_journal, fault=between_sweep_and_finish) as harness:
        harness.attempt.secrets = Redaction(["hunter22"])
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        between_sweep_and_finish.do = lambda: held.running[0].fail(asyncio.CancelledError("stopped with hunter22"))
        harness.advance(100)
        assert kinds(harness) == ["timeout"]
