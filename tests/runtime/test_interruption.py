"""Interruption: the runtime asks running calls to stop; nothing is recorded as failed."""

from __future__ import annotations

import asyncio
import concurrent.futures

import pytest

from flink_agents.errors import Interrupted, Uncapturable
from flink_agents.options import Mode, ToolCallOptions
from flink_agents.testing import ControlledTool, Harness, tool_request

CANCELLATIONS = pytest.mark.parametrize(
    "cancellation", [asyncio.CancelledError(), concurrent.futures.CancelledError(), Interrupted()], ids=repr
)


@pytest.mark.rule(27, 30)
@CANCELLATIONS
def test_an_interrupted_call_stays_pending_and_nothing_later_starts(cancellation: BaseException) -> None:
    held = ControlledTool("held")
    with Harness([held], tool_calls=ToolCallOptions(mode=Mode.SEQUENTIAL)) as harness:
        harness.send(tool_request("k", ("held", {"n": 0}), ("held", {"n": 1})))
        harness.run()
        harness.interrupt()
        assert held.running[0].cancelled
        held.running[0].fail(cancellation)
        harness.run()
        assert harness.responses == []
        assert len(held.begun) == 1
        assert [slot["s"] for slot in harness.slots("k").values()] == ["started", "reserved"]


@pytest.mark.rule(28, 29, 32)
def test_case_3_in_a_batch_finished_calls_stay_recorded_and_the_rest_runs_after_recovery() -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(4)]))
        harness.run()
        first, second, third, fourth = held.running
        first.succeed("before the interruption")
        harness.run()
        harness.interrupt()
        # These three come back together: a real outcome, an interruption, and a real outcome after it.
        second.succeed("although interrupted")
        third.fail(asyncio.CancelledError())
        fourth.fail(ValueError("a real failure"))
        harness.run()
        assert [slot["s"] for slot in harness.slots("k").values()] == ["succeeded", "succeeded", "started", "failed"]
        assert harness.responses == []
        harness.checkpoint()
        harness.crash()
        (again,) = [call for call in held.running if call.call.attempt is harness.attempt]
        assert again.arguments == {"n": 2}
        again.succeed("after recovery")
        harness.run()
        values = [result.get("value", result.get("error", {}).get("message")) for result in harness.results()]
        assert values == ["before the interruption", "although interrupted", "after recovery", "a real failure"]


@pytest.mark.rule(30)
def test_an_interruption_that_a_worker_calls_a_failure_is_still_an_interruption() -> None:
    from flink_agents.durable.outcome import Failed
    from flink_agents.failures import capture
    from flink_agents.scheduler.call import Completion, Ending

    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        call = held.running[0].call
        harness.interrupt()
        error = asyncio.CancelledError()
        harness.attempt.deliver(Completion(call, Ending.ENDED, Failed(capture(error), error), None, 1))
        harness.run()
        assert harness.slots("k")["1/0"]["s"] == "started"
        assert harness.responses == []


@pytest.mark.rule(31)
@CANCELLATIONS
def test_a_cancellation_that_nobody_asked_for_is_an_ordinary_failure(cancellation: BaseException) -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {}), ("held", {})))
        harness.run()
        held.running[0].fail(cancellation)
        held.running[0].succeed("untouched")
        harness.run()
        results = harness.results()
        assert results[0]["error"]["kind"] == "tool_error"
        assert results[1]["value"] == "untouched"


@pytest.mark.rule(43)
@pytest.mark.parametrize("fatal", [MemoryError(), type("Marked", (Uncapturable,), {})()], ids=["memory", "marked"])
def test_a_fatal_error_fails_the_task_and_records_nothing(fatal: BaseException) -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {}), ("held", {})))
        harness.run()
        harness.checkpoint()
        held.running[0].fail(fatal)
        with pytest.raises(type(fatal)):
            harness.run()
        assert [slot["s"] for slot in harness.slots("k").values()] == ["started", "started"]
        assert harness.responses == []


@pytest.mark.rule(43)
@pytest.mark.parametrize("leaving", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_tool_that_tries_to_end_the_process_fails_alone(leaving: BaseException) -> None:
    def leave() -> None:
        """Try to end the process."""
        raise leaving

    async def leave_async() -> None:
        """Try to end the process from the loop."""
        raise leaving

    with Harness([leave, leave_async]) as harness:
        harness.send(tool_request("k", ("leave", {}), ("leave_async", {})))
        harness.run()
        assert [result["error"]["type"] for result in harness.results()] == [type(leaving).__name__] * 2
