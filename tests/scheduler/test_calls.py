"""Handles, tokens and calls one by one: what is told, what is counted, and what comes too late."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.outcome import Succeeded
from flink_agents.durable.slots import Slot
from flink_agents.errors import FrameworkFault, HandleMisuse, JournalLost
from flink_agents.options import Execution, WorkerOptions
from flink_agents.scheduler.admission import Admission
from flink_agents.scheduler.attempt import Attempt, CancellationToken
from flink_agents.scheduler.call import Ending, RunningCall, run_body
from flink_agents.scheduler.call_journal import CallJournal
from flink_agents.scheduler.handles import CallOutcome, DurableFuture, HandleState
from flink_agents.scheduler.prepared import CallTerms, Prepared
from flink_agents.scheduler.run import ActionRun, RunStatus
from flink_agents.scheduler.tool_context import Origin, current_tool_context
from flink_agents.scheduler.workers import Workers
from flink_agents.testing import ControlledTool, Harness, tool_request
from flink_agents.tools.registry import FunctionDeclaration

if TYPE_CHECKING:
    from tests.conftest import Trial


WAIT_S = 20


def a_call(body: Callable[[], Any] = int) -> RunningCall:
    """Return a call that nobody has begun."""
    slot = Slot(0, Identity(0, "tool", "tool", 0, "digest"))
    return RunningCall(
        Origin("run", "k", '"k"', "r", 1), slot, Prepared(body, CallTerms("tool", Execution.THREAD)), Attempt(), 1 << 20
    )


def test_mapped_and_completed_handles_can_be_awaited(trial: Trial) -> None:
    async def scenario(_: Any, ctx: Any) -> Any:
        call = ctx.call_tool("double", {"n": 2})
        text = await call.map(lambda n: n + 1).map(str)
        with pytest.raises(ZeroDivisionError):
            await call.map(lambda n: 1 // (n - 4))
        with pytest.raises(KeyError):
            (await ctx.gather(call.map({}.__getitem__)))[0].result()
        return [text, await ctx.completed("there"), await ctx.completed(2).map(lambda n: n * 5)]

    with trial.run(trial.acting(scenario)) as harness:
        assert harness.responses[0]["output"] == ["5", "there", 10]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (HandleState.CLOSED, "'look' was cancelled, or closed with its gather"),
        (HandleState.RESERVED, "'look' was kept from an earlier run"),
    ],
)
def test_a_handle_that_is_of_no_use_says_why(state: HandleState, told: str) -> None:
    handle = DurableFuture("tool", "look", 0, {})
    handle.check_usable(self_ := object())
    handle.state = state
    with pytest.raises(HandleMisuse, match=told):
        handle.check_usable(self_)


def test_a_handle_without_an_outcome_has_nothing_to_give() -> None:
    handle = DurableFuture("tool", "look", 0, {})
    assert not handle.submits
    assert handle.body_here() is None
    with pytest.raises(HandleMisuse, match="'look' was closed before"):
        handle.outcome_of()
    waiting = handle.settled()
    assert next(waiting).handles == (handle,)
    with pytest.raises(HandleMisuse, match="'look' was resumed without an outcome"):
        next(waiting)
    handle.cancel()
    with pytest.raises(HandleMisuse, match="'look' was closed before"):
        next(handle.settled())


def test_a_settled_handle_keeps_its_outcome_when_it_is_closed() -> None:
    handle = DurableFuture("tool", "look", 0, {})
    handle.settle(outcome := CallOutcome(Succeeded("3"), 1, 0, False))
    handle.close()
    assert handle.state is HandleState.SETTLED
    assert handle.outcome_of() is outcome


def test_uuids_differ_and_a_replay_gives_the_same(trial: Trial) -> None:
    asked: list[list[str]] = []

    async def scenario(_: Any, ctx: Any) -> Any:
        asked.append([str(ctx.uuid()), str(ctx.uuid())])
        return await ctx.call_tool("held", {})

    held = ControlledTool("held")
    with trial.run(trial.acting(scenario), tools=[held]) as harness:
        harness.checkpoint()
        harness.crash()
        harness.run()
        assert asked[0] == asked[1]
        assert asked[0][0] != asked[0][1]
        assert {text[14] for text in asked[0]} == {"4"}


@pytest.mark.parametrize("execution", ["inline", "thread"])
def test_what_a_tool_counts_and_logs_bears_its_name(execution: str, caplog: pytest.LogCaptureFixture) -> None:
    def look(n: int) -> int:
        """Look."""
        context = current_tool_context()
        context.count("pages", n)
        context.count("pages")
        context.count("errors", 0)
        context.log.warning("looked at %d", n)
        return n

    caplog.set_level(logging.WARNING, "flink_agents.tools")
    with Harness([FunctionDeclaration(look, name="look", execution=execution)]) as harness:
        harness.send(tool_request("k", ("look", {"n": 2}), ("look", {"n": 3}), id="r7"))
        harness.run()
        assert harness.counters.counts["tool.pages"] == 7
        assert harness.counters.counts["tool.errors"] == 0
        assert harness.counters.counts["succeeded"] == 2
    assert [record.getMessage() for record in caplog.records] == [
        "[look key=k request=r7] looked at 2",
        "[look key=k request=r7] looked at 3",
    ]


def test_quick_calls_are_counted_with_their_durations() -> None:
    def quick() -> int:
        """Do nothing."""
        return 1

    with Harness([FunctionDeclaration(quick, name="quick", execution="inline")]) as harness:
        harness.send(tool_request("k", ("quick", {}), ("quick", {})))
        harness.run()
        assert harness.counters.counts["succeeded"] == 2
        durations = harness.counters.latencies["call_ms"]
        assert [result["duration_ms"] for result in harness.results()] == durations
        assert len(durations) == 2


def test_quick_calls_of_an_agent_are_counted_with_their_durations(trial: Trial) -> None:
    async def scenario(_: Any, ctx: Any) -> Any:
        (outcome,) = await ctx.gather(ctx.durable_execute(abs, -2, execution="inline"))
        return [outcome.result(), outcome.duration_ms, outcome.attempts, outcome.replayed]

    with trial.run(trial.acting(scenario)) as harness:
        assert harness.counters.counts["succeeded"] == 1
        (duration_ms,) = harness.counters.latencies["call_ms"]
        assert harness.responses[0]["output"] == [2, duration_ms, 1, False]


def test_an_agents_statistics_count_what_state_and_journal_answered(trial: Trial, journal: SqliteJournal) -> None:
    returned: list[Any] = []

    async def scenario(_: Any, ctx: Any) -> Any:
        outcomes = await ctx.gather(*[ctx.call_tool("held", {"n": n}) for n in range(4)])
        returned.append([(outcome.result(), outcome.replayed, outcome.duration_ms) for outcome in outcomes])

    held = ControlledTool("held")
    with trial.run(trial.acting(scenario), tools=[held], journal=journal) as harness:
        bodies = list(held.running)
        bodies[0].succeed(0)
        harness.clock_ms += 7
        bodies[1].succeed(1)
        harness.run()
        harness.checkpoint()
        bodies[2].succeed(2)
        harness.run()
        harness.crash()
        harness.run()
        (live,) = [body for body in held.running if body.call.attempt is harness.attempt]
        live.succeed(3)
        harness.run()
        ((zero, one, two, three),) = returned
        assert [zero[:2], one[:2], two[:2], three[:2]] == [(0, True), (1, True), (2, True), (3, False)]
        assert all(type(duration_ms) is int for *_, duration_ms in returned[0])
        assert harness.statistics["replayed"] == 3
        assert harness.counters.counts["replayed"] == 3


def test_recorded_calls_that_wait_for_a_worker_are_all_answered_without_one(journal: SqliteJournal) -> None:
    held = ControlledTool("held")
    with Harness([held], journal=journal, workers=WorkerOptions(threads=3)) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(3)]))
        harness.run()
        for body in held.running[1:]:
            body.succeed("recorded")
        harness.run()
        harness.crash()
        harness.send(tool_request("other", *[("held", {"other": n}) for n in range(3)]))
        harness.run()
        slots = harness.slots("k")
        assert [slots[f"1/{n}"]["s"] for n in (1, 2)] == ["succeeded", "succeeded"]
        assert len([body for body in held.begun if body.arguments.get("n") in (1, 2)]) == 2


def test_slots_name_what_the_engine_answers_itself(trial: Trial) -> None:
    async def scenario(_: Any, ctx: Any) -> Any:
        ctx.now()
        ctx.uuid()
        await ctx.sleep(5)

    with trial.run(trial.acting(scenario)) as harness:
        slots = harness.slots("k").values()
        nothing = DurableFuture("", "", 0, {}).digest
        assert [(slot["k"], slot["n"], slot["p"]) for slot in slots] == [
            (name, name, -1) for name in ("now", "uuid", "sleep")
        ]
        assert [slot["d"] == nothing for slot in slots] == [True, True, False]


@pytest.mark.parametrize(("given", "named"), [(None, "a bare yield"), (3, "int")])
def test_a_foreign_awaitable_is_told_by_its_type(trial: Trial, given: Any, named: str) -> None:
    class Foreign:
        def __await__(self) -> Any:
            return (yield given)

    async def scenario(_: Any, ctx: Any) -> Any:
        await Foreign()

    with trial.run(trial.acting(scenario)) as harness:
        assert f"an action awaited {named}: it can await only handles" in trial.error_of(harness)["message"]


def test_a_gather_is_not_mapped(trial: Trial) -> None:
    async def scenario(_: Any, ctx: Any) -> Any:
        ctx.gather(ctx.completed(1)).map(len)

    with trial.run(trial.acting(scenario)) as harness:
        assert "a gather gives a list of outcomes: await it and map that" in trial.error_of(harness)["message"]


def test_what_a_finally_clause_answers_is_told_and_the_reason_stands(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(_: Any, ctx: Any) -> Any:
        try:
            await ctx.call_tool("held", {})
        finally:
            raise ValueError("of the clause")

    held = ControlledTool("held")
    with trial.run(trial.acting(scenario), tools=[held]) as harness:
        held.running[0].fail(MemoryError())
        with pytest.raises(MemoryError):
            harness.run()
    assert """the action of key "k" answered its end with ValueError('of the clause')""" in caplog.text


def test_there_is_no_context_outside_a_body() -> None:
    with pytest.raises(HandleMisuse, match="there is no tool call here"):
        current_tool_context()


def test_a_token_can_be_waited_for_again() -> None:
    token = CancellationToken()
    assert not token.wait(0)
    assert not token.wait(0)
    token.cancel()
    assert token.wait(0)


def test_a_handle_of_what_the_engine_answers_submits_nothing() -> None:
    handle = DurableFuture("now", "now", -1, {})
    assert not handle.submits
    assert handle.body_here() is None


def test_a_token_calls_each_of_its_callbacks_once_unless_withdrawn() -> None:
    token, called = CancellationToken(), []
    withdraw_first = token.on_cancel(lambda: called.append("first"))
    withdraw_second = token.on_cancel(lambda: called.append("second"))
    token.on_cancel(lambda: called.append("third"))
    withdraw_first()
    withdraw_first()
    token.cancel()
    token.cancel()
    withdraw_second()
    assert called == ["second", "third"]


def test_whoever_waits_for_a_token_wakes_when_it_is_set() -> None:
    token = CancellationToken()
    # Two who waited and gave up look at the same event.
    assert not token.wait(0)
    assert not token.wait(0)
    woken: list[bool] = []
    waiting = threading.Thread(target=lambda: woken.append(token.wait(WAIT_S)))
    waiting.start()
    token.cancel()
    waiting.join(WAIT_S)
    assert woken == [True]


def test_what_was_not_admitted_has_no_room_to_give_back() -> None:
    workers = Workers(WorkerOptions(threads=1))
    admission = Admission(workers.permits)
    call = a_call()
    workers.serve(call.attempt)
    admission.withdraw(call)
    admission.ended(call)
    assert admission.admit(call)
    assert workers.threads.used == 1
    admission.withdraw(call)
    assert workers.threads.used == 0


def test_what_comes_after_the_cancellation_of_a_call_learns_of_it_at_once() -> None:
    call, stopped = a_call(), []
    call.cancel()
    call.stopped_by(lambda: stopped.append("body"))
    assert stopped == ["body"]
    assert call.token.cancelled


def test_a_time_that_the_lost_journal_may_not_hold_fails_the_task() -> None:
    class Lost:
        def submit(
            self,
            operation: Any,
            on_done: Callable[[Any], None] | None = None,
            then: Callable[[], None] | None = None,
        ) -> None:
            assert on_done is not None
            on_done(lost)

    lost, call = JournalLost("gone"), a_call()
    journal = CallJournal(Lost(), Workers(WorkerOptions()), call.attempt, lambda: 5, 3)
    journal.note(call.row, Succeeded("5"))
    assert call.attempt.failure is lost


def test_a_body_that_was_forestalled_does_not_begin() -> None:
    begun: list[int] = []
    call = a_call(lambda: begun.append(1))
    assert call.forestall()
    assert run_body(call, lambda: 0.0).ending is Ending.INTERRUPTED
    assert begun == []


def test_what_is_admitted_together_is_admitted_whole_or_not_at_all() -> None:
    workers, attempt = Workers(WorkerOptions(threads=2, async_limit=1)), Attempt()
    workers.serve(attempt)
    admission = Admission(workers.permits)
    thread, on_loop = CallTerms("a", Execution.THREAD), CallTerms("b", Execution.ASYNC)
    assert not admission.admit_all(attempt, [thread, thread, on_loop, on_loop])
    assert (workers.threads.used, workers.coroutines.used) == (0, 0)
    assert admission.admit_all(attempt, [thread, on_loop, thread])
    assert (workers.threads.used, workers.coroutines.used) == (2, 1)


def test_a_run_that_has_ended_has_nothing_due_and_takes_no_handle_without_a_slot(trial: Trial) -> None:
    runs: list[Any] = []

    async def scenario(_: Any, ctx: Any) -> Any:
        handle = ctx.call_tool("held", {})
        await handle
        runs.append(handle.owner)

    held = ControlledTool("held")
    with trial.run(trial.acting(scenario), tools=[held]) as harness:
        held.running[0].succeed(1)
        harness.run()
        assert runs[0].next_ms() is None
        runs[0].expire(harness.clock_ms + 1)
        assert runs[0].status is RunStatus.DONE
        with pytest.raises(FrameworkFault, match="'look' has no slot"):
            runs[0].calls.start(DurableFuture("tool", "look", 0, {}))


def test_an_action_that_does_not_let_itself_be_ended_is_told(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    answered: list[str] = []

    async def scenario(_: Any, ctx: Any) -> Any:
        for _turn in range(2):
            try:
                await ctx.call_tool("held", {})
            except BaseException as reason:
                answered.append(type(reason).__name__)
        await ctx.call_tool("held", {})

    held = ControlledTool("held")
    with trial.run(trial.acting(scenario), tools=[held]) as harness:
        held.running[0].fail(MemoryError())
        with pytest.raises(MemoryError):
            harness.run()
    assert answered == ["MemoryError", "GeneratorExit"]
    assert 'the action of key "k" awaits something after its end' in caplog.text
    assert 'the action of key "k" does not let itself be ended' in caplog.text


def test_an_outcome_that_nobody_asks_for_any_more_is_recorded_all_the_same() -> None:
    held = ControlledTool("held")
    with Harness([held], side_by_side=False) as harness:
        harness.send(tool_request("k", ("held", {})))
        (activity,) = harness.subtask._busy.values()
        assert isinstance(activity._run, ActionRun)
        activity._run.calls.forget_handles()
        held.running[0].succeed("kept")
        harness.run()
        assert harness.responses == []
        assert harness.slots("k")["1/0"]["o"] == "kept"
        harness.checkpoint()
        harness.crash()
        assert [result["value"] for result in harness.results()] == ["kept"]
