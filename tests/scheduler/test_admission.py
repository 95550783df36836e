"""Windows, bounds per tool and permits of the process."""

from __future__ import annotations

import pytest

from flink_agents.durable.identity import Identity
from flink_agents.durable.slots import Slot
from flink_agents.options import Execution, ToolCallOptions, WorkerOptions
from flink_agents.scheduler.admission import Admission
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.call import RunningCall
from flink_agents.scheduler.prepared import CallTerms, Prepared
from flink_agents.scheduler.tool_context import Origin
from flink_agents.scheduler.workers import Permits
from flink_agents.testing import ControlledTool, Harness, tool_request


@pytest.mark.rule(36)
def test_the_window_slides_instead_of_running_in_waves() -> None:
    held = ControlledTool("held")
    with Harness([held], tool_calls=ToolCallOptions(max_in_flight=3)) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(6)]))
        harness.run()
        assert [call.arguments["n"] for call in held.running] == [0, 1, 2]
        held.running[1].succeed("ok")
        harness.run()
        assert [call.arguments["n"] for call in held.running] == [0, 2, 3]
        while held.running:
            assert len(held.running) <= 3
            held.running[-1].succeed("ok")
            harness.run()
        assert len(harness.results()) == 6


@pytest.mark.rule(36)
def test_a_window_of_one_is_one_after_another() -> None:
    held = ControlledTool("held")
    with Harness([held], tool_calls=ToolCallOptions(max_in_flight=1)) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(4)]))
        for n in range(4):
            harness.run()
            (call,) = held.running
            assert call.arguments["n"] == n
            call.succeed(n)
        harness.run()
        assert len(harness.responses) == 1


@pytest.mark.rule(41)
def test_five_hundred_actions_wait_while_two_bodies_run() -> None:
    held = ControlledTool("held")
    with Harness([held], workers=WorkerOptions(threads=2)) as harness:
        for key in range(500):
            harness.send(tool_request(key, ("held", {}), ("held", {})))
        harness.run()
        # What dashboards see: two bodies run, and of each key the two calls of its request wait.
        assert (harness.counters.counts["queued"], harness.counters.counts["in_flight"]) == (998, 2)
        most = 0
        while held.running:
            most = max(most, len(held.running))
            assert harness.workers.threads.used == len(held.running)
            held.running[0].succeed("ok")
            harness.run()
        assert most == 2
        assert (harness.counters.counts["queued"], harness.counters.counts["in_flight"]) == (0, 0)
        assert len(harness.responses) == 500
        assert harness.workers.threads.used == 0


def test_max_concurrent_bounds_one_tool_and_leaves_the_others_alone() -> None:
    narrow, wide = ControlledTool("narrow", max_concurrent=2), ControlledTool("wide")
    with Harness([narrow, wide]) as harness:
        for key in range(5):
            harness.send(tool_request(key, ("narrow", {}), ("wide", {})))
        harness.run()
        assert (len(narrow.running), len(wide.running)) == (2, 5)
        narrow.running[0].succeed("ok")
        harness.run()
        assert (len(narrow.running), len(narrow.begun)) == (2, 3)


def test_a_crash_returns_what_was_granted_and_never_began() -> None:
    held = ControlledTool("held")
    with Harness([held], workers=WorkerOptions(threads=3)) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(6)]))
        harness.run()
        harness.checkpoint()
        running = list(held.running)
        harness.crash()
        # The bodies of the old life still occupy their workers: nothing new begins until they return.
        assert harness.workers.threads.used == 3
        for call in running:
            call.succeed("stray")
        harness.run()
        assert harness.workers.threads.used == 3
        assert [call.arguments["n"] for call in held.running] == [0, 1, 2]


def test_permits_wake_an_attempt_that_waits_for_one() -> None:
    permits = Permits(1)
    first, second, woken = Attempt(), Attempt(), []
    second.notify = lambda: woken.append("second")
    assert permits.try_acquire(first)
    assert not permits.try_acquire(second)
    permits.begin(first)
    permits.release()
    assert woken == ["second"]
    assert permits.try_acquire(second)


def test_permits_of_a_dead_attempt_come_back_unless_its_body_runs() -> None:
    permits = Permits(2)
    attempt = Attempt()
    attempt.on_interrupt(lambda: permits.reclaim(attempt))
    assert permits.try_acquire(attempt)
    assert permits.try_acquire(attempt)
    permits.begin(attempt)
    attempt.interrupt()
    assert permits.used == 1
    assert not permits.try_acquire(attempt)
    permits.release()
    assert permits.used == 0


def test_a_permit_that_nobody_holds_cannot_be_given_back() -> None:
    permits = Permits(1)
    attempt = Attempt()
    permits.give_back(attempt)
    assert permits.used == 0
    assert permits.try_acquire(attempt)
    permits.give_back(attempt)
    permits.give_back(attempt)
    assert permits.used == 0


def test_one_look_gives_away_all_the_room_there_is() -> None:
    held = ControlledTool("held")
    with Harness([held], workers=WorkerOptions(threads=3)) as harness:
        harness.send(tool_request("a", *[("held", {})] * 3))
        harness.send(tool_request("b", *[("held", {})] * 3))
        harness.run()
        for body in list(held.running):
            body.succeed("done")
        assert harness.workers.threads.used == 0
        # Nothing may ring again before one of these bodies ends.
        harness.subtask.due_keys()
        assert harness.workers.threads.used == 3


def test_a_tool_without_room_does_not_hold_up_the_one_behind_it() -> None:
    first, second = (ControlledTool(name, max_concurrent=1) for name in ("first", "second"))
    with Harness([first, second]) as harness:
        harness.send(tool_request("a", *[("first", {})] * 2, *[("second", {})] * 2))
        harness.run()
        assert (len(first.begun), len(second.begun)) == (1, 1)
        second.running[0].succeed("done")
        harness.run()
        assert (len(first.begun), len(second.begun)) == (1, 2)


def test_a_call_that_was_admitted_to_nothing_gives_nothing_back() -> None:
    permits, attempt = Permits(1), Attempt()
    admission = Admission(lambda _: permits)
    slot = Slot(0, Identity(0, "tool", "tool", 0, "digest"))
    prepared = Prepared(lambda: None, CallTerms("tool", Execution.THREAD, max_concurrent=1))
    first, second = (RunningCall(Origin("run", "k", '"k"', "r", 1), slot, prepared, attempt, 1) for _ in range(2))
    assert admission.admit(first)
    for ends in (admission.ended, admission.withdraw):
        ends(second)
    assert permits.used == 1
    assert not admission.admit(second)
