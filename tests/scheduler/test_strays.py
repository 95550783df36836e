"""Bodies that outlive their time-out: counted, replaced, refused beyond a bound; closing waits for none of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents.durable.journal.rows import CallFilter
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.options import ToolCallOptions, WorkerOptions
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.workers import Permits
from flink_agents.testing import ControlledTool, Harness, tool_request
from flink_agents.tools.registry import FunctionDeclaration


def kinds(harness: Harness) -> list[Any]:
    """Return each result's value, or the kind of its error."""
    return [r["value"] if r["status"] == "succeeded" else r["error"]["kind"] for r in harness.results()]


@pytest.mark.rule(40)
def test_strays_are_counted_and_replaced_up_to_the_bound_and_beyond_it_calls_are_refused() -> None:
    held, free = ControlledTool("held", timeout_ms=100), ControlledTool("free")
    with Harness([held, free], workers=WorkerOptions(threads=2, max_strays=1)) as harness:
        for key in ("a", "b"):
            harness.send(tool_request(key, ("held", {})))
        harness.run()
        first, second = held.running
        harness.advance(50)
        first.succeed("in time")
        harness.run()
        harness.send(tool_request("c", ("held", {})))
        harness.advance(50)
        # One body is stray and its place is taken by another worker.
        assert harness.counters.counts["strays"] == harness.workers.threads.strays == 1
        harness.send(tool_request("d", ("free", {})))
        harness.run()
        assert harness.workers.threads.used == 3
        waiting = [tool_request("e", ("free", {"n": n}), ("held", {})) for n in range(2)]
        harness.send(*waiting)
        harness.run()
        assert harness.counters.counts["queued"] == 2
        # The second stray is one too many: what waits is refused, and what comes is.
        harness.advance(50)
        assert harness.workers.threads.strays == 2
        assert kinds(harness) == ["in time", "timeout", "timeout", *["not_started"] * 4]
        assert harness.counters.counts["refused_strays"] == 4
        assert "max_strays" in harness.results()[3]["error"]["message"]
        assert {r["attempts"] for r in harness.results()[3:]} == {0}
        assert harness.counters.counts["queued"] == 0
        # Another body ends, which changes nothing; a stray returns, and there is room again.
        free.running[0].succeed("free")
        second.succeed("late")
        harness.send(tool_request("f", ("free", {})))
        harness.run()
        assert len(free.running) == 1
        assert harness.counters.counts["strays"] == 1
        assert "late" not in kinds(harness)


@pytest.mark.rule(40)
def test_a_refused_call_of_a_running_batch_disturbs_no_other() -> None:
    held, free = ControlledTool("held", timeout_ms=100), ControlledTool("free")
    options = ToolCallOptions(max_in_flight=1)
    with Harness([held, free], tool_calls=options, workers=WorkerOptions(threads=2, max_strays=0)) as harness:
        harness.send(tool_request("k", ("held", {}), ("free", {}), ("held", {})))
        harness.advance(100)
        assert kinds(harness) == ["timeout", "not_started", "not_started"]


@pytest.mark.rule(33, 39, 40)
def test_what_a_stray_returns_reaches_neither_state_nor_journal(maybe_journal: SqliteJournal | None) -> None:
    held = ControlledTool("held", timeout_ms=100)
    options = ToolCallOptions(max_in_flight=1)
    with Harness([held], tool_calls=options, journal=maybe_journal) as harness:
        harness.send(tool_request("k", ("held", {"n": 0}), ("held", {"n": 1})))
        harness.advance(100)
        late, second = held.running
        late.succeed("late")
        harness.run()
        assert harness.slots("k")["1/0"]["f"]["kind"] == "timeout"
        second.succeed("own")
        harness.run()
        assert kinds(harness) == ["timeout", "own"]
        if maybe_journal is not None:
            assert [row.status.value for row in maybe_journal.calls(CallFilter())] == ["failed", "succeeded"]


@pytest.mark.rule(40)
def test_a_stray_whose_request_is_answered_and_whose_key_is_idle_is_counted_off() -> None:
    held = ControlledTool("held", timeout_ms=100)
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.advance(100)
        assert len(harness.responses) == 1
        assert not harness.subtask.has_work
        assert harness.counters.counts["strays"] == 1
        held.running[0].fail(MemoryError())
        harness.run()
        assert harness.counters.counts["strays"] == harness.workers.threads.strays == 0


@pytest.mark.rule(40)
def test_a_stray_of_a_dead_attempt_is_still_a_stray_of_the_process() -> None:
    held = ControlledTool("held", timeout_ms=100)
    with Harness([held], workers=WorkerOptions(threads=1, max_strays=0)) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.advance(100)
        harness.checkpoint()
        harness.crash()
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        assert kinds(harness) == ["timeout", "not_started"]
        held.running[0].succeed("late")
        assert harness.workers.threads.strays == 0


@pytest.mark.rule(40)
def test_a_body_that_has_just_ended_is_no_stray() -> None:
    permits = Permits(1, 1)
    attempt = Attempt()
    assert permits.try_acquire(attempt)
    held = ControlledTool("held", timeout_ms=100)
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        call = held.running[0].call
        permits.begin(attempt)
        permits.release(call)
        assert not permits.note_stray(call)
        assert permits.strays == 0


@pytest.mark.rule(40)
def test_a_blocked_thread_neither_holds_its_worker_nor_the_end(threaded: Callable[..., Any]) -> None:
    go_on = threading.Event()

    def block(n: int) -> int:
        """Block, however often it is asked to stop."""
        if n == 0:
            go_on.wait(20)
        return n

    tool = FunctionDeclaration(block, timeout="50ms")
    harness = threaded(tool, workers=WorkerOptions(threads=1, max_strays=1))
    harness.send(tool_request("k", ("block", {"n": 0})), tool_request("k", ("block", {"n": 1})))
    harness.until(lambda: len(harness.responses) == 2)
    assert kinds(harness) == ["timeout", 1]
    # Closing does not wait for it.
    harness.interrupt()
    harness.close()
    assert not go_on.is_set()
    assert harness.workers.threads.strays == 1
    go_on.set()
    harness.until(lambda: harness.workers.threads.strays == 0)
