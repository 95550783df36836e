"""An interruption while time limits, the queue and the journal are at work: nothing starts, nothing false is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.durable.journal.operations import PutRequest, Start
from flink_agents.durable.journal.rows import CallFilter, RequestRow
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.store import StateName
from flink_agents.errors import FrameworkFault, JournalLost, JournalUnavailable, StateFormat
from flink_agents.options import Execution, Mode, OnInterrupt, ToolCallOptions, WorkerOptions
from flink_agents.scheduler.attempt import Attempt, CancellationToken
from flink_agents.testing import ControlledTool, Harness, tool_request
from flink_agents.tools.registry import FunctionDeclaration

if TYPE_CHECKING:
    from tests.scheduler.conftest import At


@pytest.mark.rule(27, 32)
def test_a_call_that_finishes_although_interrupted_is_recorded_and_the_next_one_does_not_start(
    maybe_journal: SqliteJournal | None,
) -> None:
    held = ControlledTool("held")
    options = ToolCallOptions(mode=Mode.SEQUENTIAL)
    with Harness([held], tool_calls=options, journal=maybe_journal) as harness:
        harness.send(tool_request("k", ("held", {}), ("held", {})))
        harness.run()
        harness.interrupt()
        held.running[0].succeed("finished")
        harness.run()
        assert [slot["s"] for slot in harness.slots("k").values()] == ["succeeded", "reserved"]
        assert len(held.begun) == 1
        assert harness.responses == []


@pytest.mark.rule(27, 30, 37)
@pytest.mark.parametrize("limit", ["timeout", "deadline", "batch"])
def test_an_interruption_at_the_last_look_leaves_every_call_pending(
    limit: str, maybe_journal: SqliteJournal | None, between_sweep_and_finish: At
) -> None:
    held = ControlledTool(
        "held", timeout_ms=100 if limit == "timeout" else None, deadline_ms=100 if limit == "deadline" else None
    )
    options = ToolCallOptions(timeout_ms=100 if limit == "batch" else None, max_in_flight=3)
    at = between_sweep_and_finish
    with Harness([held], tool_calls=options, journal=maybe_journal, fault=at) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(3)]))
        harness.run()

        def end_and_interrupt() -> None:
            held.running[0].succeed("finished")
            harness.interrupt()
            held.running[0].fail(asyncio.CancelledError())

        at.do = end_and_interrupt
        harness.advance(100)
        assert [slot["s"] for slot in harness.slots("k").values()][1:] == ["started", "started"]
        assert harness.responses == []
        if maybe_journal is not None:
            assert [row.outcome is None for row in maybe_journal.calls(CallFilter())] == [False]


@pytest.mark.rule(27)
def test_time_that_is_over_after_an_interruption_records_nothing() -> None:
    held = ControlledTool("held", timeout_ms=100)
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.interrupt()
        harness.advance(100)
        assert harness.slots("k")["1/0"]["s"] == "started"
        assert harness.responses == []


@pytest.mark.rule(27)
def test_a_call_that_was_granted_a_worker_when_its_action_was_interrupted_gives_it_back() -> None:
    held = ControlledTool("held")
    with Harness([held], workers=WorkerOptions(threads=1)) as harness:
        harness.send(tool_request("k", ("held", {"n": 0}), ("held", {"n": 1})))
        harness.run()
        held.running[0].fail(ConnectionError())
        assert harness.subtask.due_keys() == ['"k"']
        assert harness.workers.threads.used == 1
        harness.interrupt()
        harness._wake('"k"')
        assert len(held.begun) == 1
        assert harness.workers.threads.used == 0
        assert harness.counters.counts["queued"] == 0


@pytest.mark.rule(54, 15)
def test_a_call_that_a_later_attempt_has_begun_does_not_begin(journal: SqliteJournal) -> None:
    held = ControlledTool("held", on_interrupt=OnInterrupt.FAIL)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        assert harness.writer is not None
        (row,) = [operation.call for operation, *_ in harness.writer._waiting if isinstance(operation, Start)]
        journal.open_attempt("run", "later", 0, 1)
        journal.apply([Start(row, "later", 1)])
        harness.run()
        assert held.begun == []
        assert harness.responses == []
        assert harness.slots("k")["1/0"]["s"] == "started"
        assert harness.workers.threads.used == 0


@pytest.mark.rule(54)
def test_a_number_that_a_later_attempt_gave_to_another_request_ends_this_attempt(journal: SqliteJournal) -> None:
    held = ControlledTool("held")
    with Harness([held], journal=journal) as harness:
        journal.apply([PutRequest(RequestRow("run", '"k"', 1, "other", "digest"))])
        harness.send(tool_request("k", ("held", {})))
        with pytest.raises(FrameworkFault, match="another request 1"):
            harness.run()


@pytest.mark.rule(24)
@pytest.mark.parametrize("policy", [OnInterrupt.RERUN, OnInterrupt.FAIL], ids=lambda policy: policy.value)
def test_a_journal_that_is_lost_fails_the_task_before_a_body_begins(
    journal: SqliteJournal, policy: OnInterrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = ControlledTool("held", on_interrupt=policy)
    with Harness([held], journal=journal) as harness:

        def lost(_operations: Any) -> Any:
            raise JournalUnavailable("gone")

        monkeypatch.setattr(journal, "apply", lost)
        harness.send(tool_request("k", ("held", {})))
        with pytest.raises(JournalLost):
            harness.run()
        assert harness.responses == []
        assert len(held.begun) == (policy is OnInterrupt.RERUN)


@pytest.mark.rule(20)
@pytest.mark.parametrize("execution", list(Execution), ids=lambda execution: execution.value)
def test_a_result_that_cannot_be_carried_is_never_retried(execution: Execution) -> None:
    bodies: list[int] = []

    def odd() -> Any:
        """Return what no codec carries."""
        bodies.append(1)
        return (n for n in range(3))

    async def odd_async() -> Any:
        """Return what no codec carries."""
        return odd()

    retry = {"attempts": 3, "initial": "0ms", "on": [Exception]}
    function = odd_async if execution is Execution.ASYNC else odd
    with Harness([FunctionDeclaration(function, name="odd", execution=execution.value, retry=retry)]) as harness:
        harness.send(tool_request("k", ("odd", {})))
        harness.advance(1_000)
        assert harness.results()[0]["error"]["kind"] == "unserializable"
        assert bodies == [1]


def test_a_token_that_is_set_ends_every_wait_at_once_and_a_dead_attempt_answers_at_once() -> None:
    token, attempt, called = CancellationToken(), Attempt(), []
    assert not token.wait(0)
    token.cancel()
    assert token.wait(None)
    token.on_cancel(lambda: called.append("token"))()
    attempt.interrupt()
    attempt.on_interrupt(lambda: called.append("attempt"))
    assert called == ["token", "attempt"]


def test_a_request_that_is_missing_from_state_is_a_fault_that_names_it() -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {})), tool_request("k", ("held", {})))
        harness.run()
        harness.backend.current_key = '"k"'
        harness.backend.remove(StateName.REQUESTS, "2")
        held.running[0].succeed("first")
        with pytest.raises(StateFormat, match='request 2 of key "k" is missing'):
            harness.run()
