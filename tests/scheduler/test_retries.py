"""Retries: which failures, after what wait, how often, and what survives a failover."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.durable.journal.rows import CallFilter
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.outcome import Failed
from flink_agents.options import Execution, Mode, OnInterrupt, ToolCallOptions, WorkerOptions
from flink_agents.retry import NonRetryable, RetryLater, RetryPolicy
from flink_agents.scheduler.call_journal import NOT_STARTED
from flink_agents.scheduler.tool_context import current_tool_context
from flink_agents.testing import ControlledTool, CrashAt, Harness, tool_request
from flink_agents.tools.registry import FunctionDeclaration

if TYPE_CHECKING:
    from tests.scheduler.conftest import Live

RETRY = RetryPolicy(attempts=3, initial_ms=100, multiplier=2, jitter=0)
MODES = pytest.mark.parametrize("mode", [Mode.PARALLEL, Mode.SEQUENTIAL], ids=lambda mode: mode.value)


def kinds(harness: Harness) -> list[Any]:
    """Return each result's value, or the kind of its error."""
    return [r["value"] if r["status"] == "succeeded" else r["error"]["kind"] for r in harness.results()]


@pytest.mark.rule(45)
def test_a_failure_is_followed_by_further_bodies_after_growing_waits(maybe_journal: SqliteJournal | None) -> None:
    held = ControlledTool("held", retry=RETRY)
    with Harness([held], journal=maybe_journal) as harness:
        harness.send(tool_request("k", ("held", {"n": 1})))
        for body, wait_ms in enumerate((100, 200), start=1):
            harness.run()
            held.running[0].fail(ConnectionError(f"body {body}"))
            harness.run()
            harness.advance(wait_ms - 1)
            assert held.running == []
            harness.advance(1)
        assert [call.call.attempts for call in held.begun] == [1, 2, 3]
        assert [call.arguments for call in held.begun] == [{"n": 1}] * 3
        held.running[0].succeed("at last")
        harness.run()
        assert kinds(harness) == ["at last"]
        assert harness.results()[0]["attempts"] == 3
        assert harness.counters.counts["retried"] == 2
        if maybe_journal is not None:
            (row,) = maybe_journal.calls(CallFilter())
            assert row.attempts == 3


@pytest.mark.rule(45)
def test_the_recorded_failure_is_the_tools_own_last_error(maybe_journal: SqliteJournal | None) -> None:
    held = ControlledTool("held", retry=RETRY)
    with Harness([held], journal=maybe_journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        for body in (1, 2, 3):
            harness.run()
            held.running[0].fail(ConnectionError(f"body {body}"))
            harness.run()
            harness.advance(1_000)
        (result,) = harness.results()
        assert (result["error"]["type"], result["error"]["message"]) == ("ConnectionError", "body 3")
        assert result["attempts"] == 3
        # Never again after the final outcome.
        harness.advance(100_000)
        assert len(held.begun) == 3


@pytest.mark.rule(45, 41)
def test_the_wait_occupies_no_worker_and_other_keys_go_on() -> None:
    held = ControlledTool("held", retry=RETRY)
    with Harness([held], workers=WorkerOptions(threads=1)) as harness:
        harness.send(tool_request("a", ("held", {})))
        harness.run()
        held.running[0].fail(ConnectionError())
        harness.run()
        assert harness.workers.threads.used == 0
        harness.send(tool_request("b", ("held", {})))
        harness.run()
        assert held.running[0].call.key == '"b"'
        # The other one's time has come, its worker has not.
        harness.advance(100)
        assert len(held.running) == 1
        held.running[0].succeed("b")
        harness.run()
        assert held.running[0].call.key == '"a"'


@pytest.mark.rule(45)
def test_a_sleeping_call_keeps_its_place_in_the_window_and_its_siblings_finish() -> None:
    held = ControlledTool("held", retry=RETRY)
    with Harness([held], tool_calls=ToolCallOptions(max_in_flight=2)) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(3)]))
        harness.run()
        held.running[0].fail(ConnectionError())
        harness.run()
        assert [call.arguments["n"] for call in held.running] == [1]
        held.running[0].succeed(1)
        harness.run()
        assert [call.arguments["n"] for call in held.running] == [2]
        held.running[0].succeed(2)
        harness.advance(100)
        held.running[0].succeed(0)
        harness.run()
        assert kinds(harness) == [0, 1, 2]


@MODES
@pytest.mark.rule(45, 48)
@pytest.mark.parametrize("recovered_after_ms", [30, 5_000])
@pytest.mark.parametrize(
    ("policy", "with_journal"),
    [(OnInterrupt.RERUN, False), *((policy, True) for policy in OnInterrupt)],
)
def test_case_11_killed_in_the_middle_of_the_back_off(
    mode: Mode,
    recovered_after_ms: int,
    policy: OnInterrupt,
    with_journal: bool,
    journal: SqliteJournal,
    live: type[Live],
) -> None:
    held = ControlledTool("held", retry=RETRY, on_interrupt=policy, reconcile=lambda _: "never asked")
    options = ToolCallOptions(mode=mode)
    with Harness([held], tool_calls=options, journal=journal if with_journal else None) as harness:
        harness.send(tool_request("k", ("held", {"n": 0}), ("held", {"n": 1})))
        harness.run()
        held.running[0].fail(ConnectionError("first"))
        harness.run()
        harness.checkpoint()
        harness.clock_ms += recovered_after_ms
        harness.crash()
        harness.run()
        again = [body for body in live(held, harness).all if body.arguments["n"] == 0]
        # The back-off goes on where it was, or is over.
        assert len(again) == (1 if recovered_after_ms > 100 else 0)
        harness.advance(70)
        first = live(held, harness)[-1] if recovered_after_ms < 100 else again[0]
        # The count survived, so the next failure waits longer and the one after it is the last.
        assert (first.arguments["n"], first.call.attempts) == (0, 2)
        first.fail(ConnectionError("second"))
        harness.run()
        harness.advance(199)
        assert all(body.arguments["n"] == 1 for body in live(held, harness).all)
        harness.advance(1)
        last = next(body for body in live(held, harness).all if body.arguments["n"] == 0)
        assert last.call.attempts == 3
        last.fail(ConnectionError("third"))
        harness.run()
        while bodies := live(held, harness).all:
            bodies[0].succeed("other")
            harness.run()
        if mode is Mode.PARALLEL and policy is OnInterrupt.FAIL:
            # The sibling ran when the job was killed.
            assert kinds(harness) == ["tool_error", "in_doubt"]
        elif mode is Mode.PARALLEL and policy is OnInterrupt.RECONCILE:
            assert kinds(harness) == ["tool_error", "never asked"]
        else:
            assert kinds(harness) == ["tool_error", "other"]
        assert harness.results()[0]["error"]["message"] == "third"
        assert harness.results()[0]["attempts"] == 3


@pytest.mark.rule(45)
def test_the_count_of_the_journals_row_survives_where_the_checkpoint_is_older(
    journal: SqliteJournal, live: type[Live]
) -> None:
    held = ControlledTool("held", retry=RETRY)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.checkpoint()
        harness.run()
        held.running[0].fail(ConnectionError("first"))
        harness.run()
        harness.advance(100)
        assert held.running[0].call.attempts == 2
        harness.crash()
        harness.run()
        # The second body was cut off, which is no failure; the first one's failure is known.
        (third,) = live(held, harness).all
        assert third.call.context.attempt == 3
        third.fail(ConnectionError("third body, second failure"))
        harness.run()
        harness.advance(200)
        (fourth,) = live(held, harness).all
        fourth.fail(ConnectionError("fourth body, third failure"))
        harness.run()
        assert harness.results()[0]["error"]["message"] == "fourth body, third failure"
        assert harness.results()[0]["attempts"] == 4


@pytest.mark.rule(15, 45)
@pytest.mark.parametrize("policy", [OnInterrupt.FAIL, OnInterrupt.RECONCILE], ids=lambda policy: policy.value)
def test_a_further_body_that_was_cut_off_is_in_doubt_like_a_first_one(
    journal: SqliteJournal, policy: OnInterrupt
) -> None:
    asked: list[Any] = []

    def look(arguments: dict[str, Any]) -> Any:
        asked.append(arguments)
        return "it took effect"

    held = ControlledTool("held", retry=RETRY, on_interrupt=policy, reconcile=look)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        held.running[0].fail(ConnectionError("first"))
        harness.run()
        # The checkpoint knows of the first body and its failure, the journal of the second as well.
        harness.checkpoint()
        harness.advance(100)
        assert len(held.begun) == 2
        harness.crash()
        harness.run()
        harness.advance(100_000)
        assert len(held.begun) == 2
        assert kinds(harness) == (["in_doubt"] if policy is OnInterrupt.FAIL else ["it took effect"])
        assert harness.results()[0]["attempts"] == 2
        if policy is OnInterrupt.FAIL:
            assert harness.results()[0]["duration_ms"] == 0
        assert len(asked) == (policy is OnInterrupt.RECONCILE)


@pytest.mark.rule(15, 45)
def test_a_body_that_a_reconciler_sends_out_again_is_retried_by_the_failures_of_before(
    journal: SqliteJournal, live: type[Live]
) -> None:
    held = ControlledTool("held", retry=RETRY, on_interrupt=OnInterrupt.RECONCILE, reconcile=lambda _: NOT_STARTED)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.crash()
        harness.run()
        for wait_ms in (100, 200, 0):
            (body,) = live(held, harness).all
            body.fail(ConnectionError(f"then {wait_ms}"))
            harness.run()
            harness.advance(wait_ms)
        assert harness.results()[0]["error"]["message"] == "then 0"
        # The one that was cut off began too.
        assert harness.results()[0]["attempts"] == 4


@pytest.mark.rule(15, 45)
def test_a_reconciler_that_fails_is_not_asked_again(journal: SqliteJournal) -> None:
    asked: list[Any] = []

    def look(arguments: dict[str, Any]) -> Any:
        asked.append(arguments)
        raise ConnectionError("no answer")

    held = ControlledTool("held", retry=RETRY, on_interrupt=OnInterrupt.RECONCILE, reconcile=look)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.crash()
        harness.run()
        harness.advance(100_000)
        assert harness.results()[0]["error"]["message"] == "no answer"
        assert harness.results()[0]["attempts"] == 1
        assert (len(asked), len(held.begun)) == (1, 1)


@pytest.mark.rule(27, 45)
@pytest.mark.parametrize("on", [None, (BaseException,)], ids=["default", "everything"])
def test_an_interruption_is_never_retried(maybe_journal: SqliteJournal | None, on: Any) -> None:
    held = ControlledTool("held", retry=RetryPolicy(attempts=3, initial_ms=0, on=on))
    with Harness([held], journal=maybe_journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.interrupt()
        held.running[0].fail(asyncio.CancelledError())
        harness.advance(10_000)
        assert len(held.begun) == 1
        assert harness.responses == []
        assert harness.slots("k")["1/0"]["s"] == "started"
        assert "fa" not in harness.slots("k")["1/0"]


@pytest.mark.rule(27, 45)
def test_an_attempt_that_is_interrupted_during_the_back_off_begins_no_further_body() -> None:
    held = ControlledTool("held", retry=RETRY)
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        held.running[0].fail(ConnectionError())
        harness.run()
        harness.interrupt()
        harness.advance(10_000)
        assert len(held.begun) == 1
        assert harness.responses == []
        assert harness.slots("k")["1/0"]["fa"] == 1


@pytest.mark.rule(45)
@pytest.mark.parametrize(
    ("raised", "is_retried"),
    [
        (ConnectionError("x"), True),
        (ValueError("x"), False),
        (RetryLater(7), True),
        (NonRetryable("x"), False),
        (TimeoutError("the tool's own"), True),
        (SystemExit(1), False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("execution", list(Execution), ids=lambda execution: execution.value)
def test_on_retry_later_and_non_retryable_decide_wherever_the_body_runs(
    raised: BaseException, is_retried: bool, execution: Execution, maybe_journal: SqliteJournal | None
) -> None:
    bodies: list[int] = []

    def flaky() -> str:
        """Fail the first time."""
        bodies.append(current_tool_context().attempt)
        if len(bodies) == 1:
            raise raised
        return "fine"

    async def flaky_async() -> str:
        """Fail the first time."""
        return flaky()

    retry = {"attempts": 2, "initial": "1s", "jitter": 0, "on": [OSError]}
    function = flaky_async if execution is Execution.ASYNC else flaky
    tool = FunctionDeclaration(function, name="flaky", execution=execution.value, retry=retry)
    with Harness([tool], journal=maybe_journal) as harness:
        harness.send(tool_request("k", ("flaky", {})))
        harness.run()
        waits_ms = 7_000 if isinstance(raised, RetryLater) else 1_000
        harness.advance(waits_ms - 1)
        assert bodies == [1]
        harness.advance(1)
        assert bodies == ([1, 2] if is_retried else [1])
        assert kinds(harness) == (["fine"] if is_retried else ["tool_error"])


@pytest.mark.rule(39, 45)
@pytest.mark.parametrize(
    ("on", "bodies"), [(None, 1), ((OSError,), 1), ((Exception,), 1), ((TimeoutError,), 3)], ids=str
)
def test_a_time_out_is_retried_only_where_on_names_it(
    on: Any, bodies: int, maybe_journal: SqliteJournal | None
) -> None:
    held = ControlledTool("held", timeout_ms=50, retry=RetryPolicy(attempts=3, initial_ms=100, jitter=0, on=on))
    with Harness([held], journal=maybe_journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        for wait_ms in (50, 100, 50, 200, 50):
            harness.advance(wait_ms)
        assert len(held.begun) == bodies
        assert kinds(harness) == ["timeout"]
        assert harness.results()[0]["attempts"] == bodies
        # What the earlier ones return reaches nothing.
        for body in list(held.running):
            body.succeed("late")
        harness.run()
        assert kinds(harness) == ["timeout"]
        assert harness.counters.counts["strays"] == harness.workers.threads.strays == 0


@pytest.mark.rule(45, 38)
def test_a_failure_before_the_batchs_deadline_is_kept_where_no_further_body_fits(
    maybe_journal: SqliteJournal | None,
) -> None:
    held = ControlledTool("held", retry=RETRY)
    with Harness([held], tool_calls=ToolCallOptions(timeout_ms=150), journal=maybe_journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        held.running[0].fail(ConnectionError("first"))
        harness.run()
        harness.advance(100)
        held.running[0].fail(ConnectionError("second"))
        harness.run()
        assert harness.results()[0]["error"]["message"] == "second"


def test_a_further_body_that_cannot_be_prepared_ends_the_call(maybe_journal: SqliteJournal | None) -> None:
    class Forgetful(ControlledTool):
        def prepare(self, arguments: dict[str, Any]) -> Any:
            if self.prepared:
                raise LookupError("gone")
            return super().prepare(arguments)

    held = Forgetful("held", retry=RETRY)
    with Harness([held], journal=maybe_journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        held.running[0].fail(ConnectionError())
        harness.run()
        harness.advance(100)
        assert harness.results()[0]["error"]["message"] == "gone"
        assert harness.results()[0]["attempts"] == 1


@pytest.mark.rule(48, 49, 45)
@pytest.mark.parametrize("point", ["before:start", "after:start", "before:recorded", "after:recorded"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_crash_at_each_point_of_a_retried_call_ends_in_one_answer(
    point: str, nth: int, maybe_journal: SqliteJournal | None
) -> None:
    bodies: list[int] = []

    def flaky() -> str:
        """Fail twice."""
        bodies.append(1)
        if len(bodies) < 3:
            raise ConnectionError
        return "fine"

    tool = FunctionDeclaration(flaky, retry=RetryPolicy(attempts=10, initial_ms=100, jitter=0))
    with Harness([tool], journal=maybe_journal, fault=CrashAt(point, nth)) as harness:
        harness.send(tool_request("k", ("flaky", {})))
        for _ in range(12):
            harness.checkpoint()
            harness.advance(100)
        assert kinds(harness) == ["fine"]
        # The crash comes before the last body, or its outcome is in the journal, or it runs once more.
        assert len(bodies) in (3, 4)
        if maybe_journal is not None and "recorded" in point:
            (row,) = maybe_journal.calls(CallFilter())
            assert not isinstance(row.outcome, Failed)


@pytest.mark.rule(29, 53)
def test_a_call_that_was_cut_off_on_a_thread_runs_again_inline_where_the_tool_was_changed() -> None:
    def held(n: int) -> int:
        """Answer at once."""
        return n

    inline = FunctionDeclaration(held, execution="inline")
    with Harness([ControlledTool("held")]) as harness:
        harness.send(tool_request("k", ("held", {"n": 1})))
        harness.run()
        harness.checkpoint()
        harness.crash(tools=[inline])
        harness.run()
        (result,) = harness.results()
        assert (result["value"], result["attempts"], result["replayed"]) == (1, 2, False)
        assert harness.statistics["reran"] == harness.counters.counts["reran"] == 1
        harness.send(tool_request("k", ("held", {"n": 2})))
        harness.run()
        assert (harness.results()[1]["attempts"], harness.results()[1]["replayed"]) == (1, False)
        assert harness.statistics["reran"] == 1
