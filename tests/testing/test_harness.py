"""The test kit keeps its own promises: it is what every other engine test relies on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flink_agents import ActionContext, Agent, InputEvent, OutputEvent, action
from flink_agents.faults import FAULT_POINTS
from flink_agents.testing import ControlledTool, CrashAt, Harness, PlannedCrash, tool_request
from flink_agents.tools.registry import ClassDeclaration


def double(n: int) -> int:
    """Double a number."""
    return 2 * n


def test_a_crash_takes_back_what_was_emitted_after_the_checkpoint_and_sends_the_input_again() -> None:
    with Harness([double]) as harness:
        harness.send(tool_request("a", ("double", {"n": 1}), id="r1"))
        harness.run()
        harness.checkpoint()
        harness.send(tool_request("b", ("double", {"n": 2}), id="r2"), "junk")
        harness.run()
        assert [response["request_id"] for response in harness.responses] == ["r1", "r2"]
        harness.crash()
        assert [response["request_id"] for response in harness.responses] == ["r1"]
        assert len(harness.rejects) == 1
        harness.run()
        assert [response["request_id"] for response in harness.responses] == ["r1", "r2"]
        assert harness.head("b") == {"v": 1, "next": 2, "answered": 1, "active": None}


def test_a_crash_without_a_checkpoint_starts_from_nothing() -> None:
    with Harness([double]) as harness:
        harness.send(tool_request("a", ("double", {"n": 1})))
        harness.run()
        harness.crash()
        assert harness.responses == []
        assert harness.head("a") is not None
        assert harness.crashes == 1
        harness.run()
        assert [result["value"] for result in harness.results()] == [2]


def test_the_clock_is_the_tests() -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.advance(5_000)
        harness.send(tool_request("a", ("held", {})))
        harness.run()
        assert harness.slots("a")["1/0"]["at"] == 5_000


def test_bodies_can_end_in_the_other_order() -> None:
    order: list[int] = []

    async def note(n: int) -> int:
        """Note the order."""
        await asyncio.sleep(0)
        order.append(n)
        return n

    with Harness([note]) as harness:
        harness.workers.newest_first = True
        harness.send(tool_request("a", *[("note", {"n": n}) for n in range(3)]))
        harness.run()
        assert order == [2, 1, 0]
        assert [result["value"] for result in harness.results()] == [0, 1, 2]


def test_an_armed_fault_point_crashes_once_at_the_nth_passing() -> None:
    fault = CrashAt("after:recorded", nth=2)
    fault("after:recorded")
    fault("before:recorded")
    with pytest.raises(PlannedCrash, match="after:recorded"):
        fault("after:recorded")
    fault("after:recorded")


@pytest.mark.parametrize("point", ["recorded", "during:recorded", "after:nothing", ""])
def test_an_unknown_fault_point_is_refused_with_the_list(point: str) -> None:
    with pytest.raises(ValueError, match=", ".join(FAULT_POINTS)):
        CrashAt(point)


def test_every_fault_point_of_the_engine_is_passed() -> None:
    passed: set[str] = set()
    with Harness([double], fault=passed.add) as harness:
        harness.send(tool_request("a", ("double", {"n": 1})))
        harness.run()
    of_the_shell = {"timer", "drain", "open"}
    assert passed == {f"{when}:{point}" for point in FAULT_POINTS for when in ("before", "after")} - {
        f"{when}:{point}" for point in of_the_shell for when in ("before", "after")
    }


def test_a_held_call_can_be_looked_at_and_runs_only_in_its_harness() -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.send(tool_request("a", ("held", {"n": 1})))
        harness.run()
        (call,) = held.running
        assert call.arguments == {"n": 1}
        assert not call.cancelled
        call.succeed("ok")
        assert held.running == []
        assert held.begun == [call]
    body: Any = held.prepare({})
    with pytest.raises(RuntimeError, match="runs only in its harness"):
        body()


def test_a_changed_deployment_is_a_crash_with_other_tools() -> None:
    def triple(n: int) -> int:
        """Triple a number."""
        return 3 * n

    held = ControlledTool("held")
    with Harness([held, double]) as harness:
        harness.send(tool_request("a", ("held", {}), ("double", {"n": 1})))
        harness.run()
        harness.checkpoint()
        harness.crash(tools=[triple])
        harness.run()
        # The recorded call keeps its result although its tool is gone; the pending one fails with the reason.
        assert harness.results()[0]["error"]["kind"] == "unknown_tool"
        assert harness.results()[1]["value"] == 2


def test_tools_are_opened_and_closed_with_each_life() -> None:
    seen: list[str] = []

    class Client:
        def open(self) -> None:
            seen.append("open")

        def close(self) -> None:
            seen.append("close")

        def ask(self) -> str:
            return ",".join(seen)

    with Harness([ClassDeclaration(Client)]) as harness:
        harness.send(tool_request("k", ("ask", {})))
        harness.run()
        harness.crash()
        harness.run()
        assert harness.results()[0]["value"] == "open,close,open"
    assert seen == ["open", "close"] * 2


@pytest.mark.parametrize("point", ["before:reserve", "after:reserve"])
def test_a_crash_within_an_action_is_a_crash_also_where_the_action_catches_everything(point: str) -> None:
    class Clock(Agent):
        @action(InputEvent)
        async def tell(self, event: InputEvent, ctx: ActionContext) -> None:
            try:
                ctx.now()
            except BaseException as error:
                ctx.send_event(OutputEvent(repr(error)))
            else:
                ctx.send_event(OutputEvent("told"))

    with Harness([], agent=Clock(), fault=CrashAt(point)) as harness:
        harness.send({"id": "r1", "key": "k"})
        harness.run()
        assert harness.crashes == 1
        assert [line["output"] for line in harness.responses] == ["told"]
