"""``rate`` and ``max_concurrent``, and that keys take turns under both."""

from __future__ import annotations

import random

import pytest

from flink_agents.options import Execution, Rate, ToolCallOptions, WorkerOptions
from flink_agents.scheduler.admission import Admission
from flink_agents.testing import ControlledTool, Harness, tool_request
from flink_agents.tools.registry import FunctionDeclaration

WIDE = ToolCallOptions(max_in_flight=20_000)


def test_no_period_has_more_beginnings_than_the_rate_and_none_is_wasted() -> None:
    held = ControlledTool("held", rate=Rate(3, 1_000))
    begun_ms: list[int] = []
    chance = random.Random(3)
    with Harness([held], tool_calls=WIDE) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(30)]))
        harness.run()
        while len(begun_ms) < 30:
            begun_ms += [harness.clock_ms] * (len(held.begun) - len(begun_ms))
            for body in list(held.running):
                if chance.random() < 0.5:
                    body.succeed(body.arguments["n"])
            harness.advance(chance.choice((1, 40, 333, 1_000)))
        windows = [sum(at <= other < at + 1_000 for other in begun_ms) for at in begun_ms]
        assert max(windows) == 3
        while held.running:
            held.running[0].succeed(held.running[0].arguments["n"])
        harness.run()
        assert [r["value"] for r in harness.results()] == list(range(30))


def test_the_next_turn_comes_by_itself_when_the_rate_has_room_again() -> None:
    held = ControlledTool("held", rate=Rate(2, 1_000))
    with Harness([held], tool_calls=WIDE) as harness:
        harness.send(tool_request("k", ("held", {}), ("held", {}), ("held", {})))
        harness.run()
        assert len(held.running) == 2
        # A free worker is no reason: the alarm says when to look again.
        assert harness.subtask.next_alarm_ms() == 1_000
        held.running[0].succeed(1)
        harness.advance(999)
        assert len(held.begun) == 2
        harness.advance(1)
        assert len(held.begun) == 3
        assert harness.subtask.next_alarm_ms() is None


@pytest.mark.parametrize("execution", list(Execution), ids=lambda execution: execution.value)
def test_a_rate_holds_wherever_the_body_runs(execution: Execution) -> None:
    begun: list[int] = []

    def note(n: int) -> int:
        """Note the number."""
        begun.append(n)
        return n

    async def note_async(n: int) -> int:
        """Note the number."""
        return note(n)

    function = note_async if execution is Execution.ASYNC else note
    tool = FunctionDeclaration(function, name="note", execution=execution.value, rate="2/s")
    with Harness([tool], tool_calls=WIDE) as harness:
        harness.send(tool_request("k", *[("note", {"n": n}) for n in range(5)]))
        for expected in (2, 4, 5):
            harness.run()
            assert len(begun) == expected
            harness.advance(1_000)
        assert [r["value"] for r in harness.results()] == list(range(5))


def test_one_tools_rate_does_not_hold_another_tool_up() -> None:
    slow, free = ControlledTool("slow", rate=Rate(1, 60_000)), ControlledTool("free")
    with Harness([slow, free], tool_calls=WIDE, workers=WorkerOptions(threads=4)) as harness:
        harness.send(tool_request("k", *[("slow", {})] * 5, *[("free", {})] * 3))
        harness.run()
        assert (len(slow.running), len(free.running)) == (1, 3)


def test_a_call_whose_deadline_passes_while_the_rate_is_used_up_never_begins() -> None:
    held = ControlledTool("held", rate=Rate(1, 1_000), deadline_ms=500)
    with Harness([held], tool_calls=WIDE) as harness:
        harness.send(tool_request("k", ("held", {}), ("held", {})))
        harness.run()
        held.running[0].succeed("first")
        harness.advance(500)
        kinds = [r.get("value") or r["error"]["kind"] for r in harness.results()]
        assert kinds == ["first", "not_started"]
        # It is out of the line: the next one has its turn as soon as the rate has room.
        harness.advance(200)
        harness.send(tool_request("k", ("held", {})))
        harness.advance(299)
        assert len(held.begun) == 1
        harness.advance(1)
        assert len(held.begun) == 2


@pytest.mark.rule(9, 41)
@pytest.mark.parametrize("bound", ["workers", "max_concurrent", "rate"])
def test_a_key_with_ten_thousand_calls_does_not_starve_a_hundred_keys_with_one(bound: str) -> None:
    many, keys = 10_000, 100
    held = ControlledTool(
        "held",
        max_concurrent=4 if bound == "max_concurrent" else None,
        rate=Rate(4, 1_000) if bound == "rate" else None,
    )
    workers = WorkerOptions(threads=4 if bound == "workers" else 64)
    with Harness([held], tool_calls=WIDE, workers=workers) as harness:
        harness.send(tool_request("many", *[("held", {"n": n}) for n in range(many)]))
        harness.run()
        harness.send(*[tool_request(key, ("held", {})) for key in range(keys)])
        # As many bodies as twice the keys, and every key with one call has had its turn.
        while len(held.begun) < 2 * keys + 8:
            assert len(held.running) <= 4
            for body in list(held.running):
                body.succeed(None)
            harness.advance(1_000)
        assert {body.call.key for body in held.begun} >= {str(key) for key in range(keys)}
        assert len(harness.responses) >= keys


def test_calls_that_were_given_up_leave_the_line_without_a_trace() -> None:
    held = ControlledTool("held", deadline_ms=100)
    blocker = ControlledTool("blocker")
    with Harness([held, blocker], tool_calls=WIDE, workers=WorkerOptions(threads=1)) as harness:
        harness.send(tool_request("b", ("blocker", {})))
        harness.send(tool_request("k", *[("held", {})] * 5))
        harness.advance(100)
        admission: Admission = harness.subtask._admission
        assert admission.waiting == 0
        harness.send(tool_request("c", ("held", {})))
        blocker.running[0].succeed("done")
        harness.run()
        assert [body.call.key for body in held.running] == ['"c"']
        assert harness.workers.threads.used == 1
