"""Slots, identity and replay through the engine, without Flink."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from flink_agents.durable.store import StateName
from flink_agents.errors import IdentityMismatch, StateFormat
from flink_agents.faults import FAULT_POINTS
from flink_agents.options import Mode, OnMismatch, ToolCallOptions, WorkerOptions
from flink_agents.testing import ControlledTool, CrashAt, Harness, tool_request
from flink_agents.testing.tools import HeldCall
from flink_agents.tools.base import Body, Tool, ToolSpec

BOTH_MODES = pytest.mark.parametrize("mode", [Mode.PARALLEL, Mode.SEQUENTIAL])


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Noting(Tool):
    """Notes when one of its calls is prepared and when its body runs."""

    def __init__(self, noted: list[str]) -> None:
        self.spec = ToolSpec("noting", "Notes what happens to it")
        self.noted = noted

    def prepare(self, arguments: dict[str, Any]) -> Body:
        """Note the preparation."""
        self.noted.append("prepare")
        return lambda: self.noted.append("body")


@pytest.mark.rule(11)
def test_all_slots_of_a_batch_are_reserved_before_any_call_is_prepared() -> None:
    noted: list[str] = []

    def fault(point: str) -> None:
        if point in ("after:reserve", "after:start"):
            noted.append(point)

    with Harness([Noting(noted)], tool_calls=ToolCallOptions(max_in_flight=2), fault=fault) as harness:
        harness.send(tool_request("k", *[("noting", {"n": n}) for n in range(3)]))
        harness.run()
    begin = ["prepare", "after:start"]
    assert noted == ["after:reserve"] * 3 + begin * 2 + ["body", *begin, "body", "body"]


@pytest.mark.rule(11, 17)
def test_slots_stand_in_input_order_with_their_identity() -> None:
    tools = [ControlledTool("a"), ControlledTool("b")]
    with Harness(tools) as harness:
        harness.send(tool_request("k", ("a", {"x": 1, "y": 2}), ("b", {"y": 2, "x": 1}), ("missing", {})))
        harness.run()
        slots = harness.slots("k")
        assert list(slots) == ["1/0", "1/1", "1/2"]
        assert [(slot["k"], slot["n"], slot["p"]) for slot in slots.values()] == [
            ("tool", "a", 0),
            ("tool", "b", 1),
            ("tool", "missing", 2),
        ]
        assert slots["1/0"]["d"] == slots["1/1"]["d"] != slots["1/2"]["d"]


@pytest.mark.rule(12)
@BOTH_MODES
def test_a_finished_call_is_stored_while_its_batch_goes_on(mode: Mode) -> None:
    tool = ControlledTool("held")
    with Harness([tool], tool_calls=ToolCallOptions(mode=mode)) as harness:
        harness.send(tool_request("k", ("held", {"n": 0}), ("held", {"n": 1})))
        harness.run()
        tool.running[0].succeed("first")
        harness.run()
        slots = harness.slots("k")
        assert (slots["1/0"]["s"], slots["1/0"]["o"]) == ("succeeded", "first")
        assert slots["1/1"]["s"] == "started"


class PreparationFails(Tool):
    """Its preparation fails as told."""

    def __init__(self, error: BaseException) -> None:
        self.spec = ToolSpec("broken", "Cannot be prepared")
        self.error = error
        self.prepared = 0

    def prepare(self, arguments: dict[str, Any]) -> Body:
        """Fail."""
        self.prepared += 1
        raise self.error


@pytest.mark.rule(13, 14)
def test_a_failed_preparation_is_the_slots_outcome_and_is_not_tried_again() -> None:
    broken, held = PreparationFails(ValueError("cannot prepare")), ControlledTool("held")
    with Harness([broken, held]) as harness:
        harness.send(tool_request("k", ("broken", {}), ("held", {})))
        harness.run()
        assert harness.slots("k")["1/0"]["s"] == "failed"
        harness.checkpoint()
        harness.crash()
        held.running[-1].succeed(1)
        harness.run()
        assert broken.prepared == 1
        assert harness.results()[0]["error"]["message"] == "cannot prepare"
        assert harness.results()[0]["replayed"] is True


@pytest.mark.rule(13, 43)
def test_a_fault_while_preparing_leaves_the_slot_pending_and_fails_the_task() -> None:
    broken, held = PreparationFails(MemoryError()), ControlledTool("held")
    with Harness([held, broken], tool_calls=ToolCallOptions(mode=Mode.SEQUENTIAL)) as harness:
        harness.send(tool_request("k", ("held", {}), ("broken", {})))
        harness.run()
        held.running[0].succeed(1)
        with pytest.raises(MemoryError):
            harness.run()
        # The failed turn wrote nothing: the last state that reached the store still has the call pending.
        assert harness.slots("k")["1/1"]["s"] == "reserved"
        assert harness.responses == []


@pytest.mark.rule(14)
@BOTH_MODES
def test_a_terminal_slot_answers_and_neither_preparation_nor_body_runs(mode: Mode) -> None:
    first, second = ControlledTool("first"), ControlledTool("second")
    with Harness([first, second], tool_calls=ToolCallOptions(mode=mode)) as harness:
        harness.send(tool_request("k", ("first", {}), ("first", {}), ("second", {})))
        harness.run()
        first.running[0].succeed({"v": 1})
        harness.run()
        first.running[0].fail(LookupError("gone"))
        harness.run()
        harness.checkpoint()
        harness.crash()
        second.running[-1].succeed(3)
        harness.run()
        assert (first.prepared, len(first.begun)) == (2, 2)
        results = harness.results()
        assert [result["replayed"] for result in results] == [True, True, False]
        assert results[0]["value"] == {"v": 1}
        assert results[1]["error"] == {"kind": "tool_error", "type": "LookupError", "message": "gone"}


@pytest.mark.rule(15, 29)
def test_a_call_cut_off_runs_again_and_is_not_taken_for_a_failure() -> None:
    tool = ControlledTool("held")
    with Harness([tool]) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.checkpoint()
        harness.crash()
        harness.crash()
        assert len(tool.begun) == 3
        tool.running[-1].succeed("third time")
        harness.run()
        (result,) = harness.results()
        assert (result["status"], result["value"], result["attempts"]) == ("succeeded", "third time", 3 - 1)
        assert harness.statistics["reran"] == 1


@pytest.mark.rule(17)
def test_case_5_another_process_with_another_hash_seed_finds_every_recorded_call() -> None:
    program = """
import json, sys
from flink_agents.testing import ControlledTool, Harness, tool_request
tool = ControlledTool("held")
harness = Harness([tool])
shared = {"b": 1, "a": [1, 2]}
harness.send(tool_request("k", ("held", {"z": shared, "y": shared, "x": 2**70}), ("held", {"names": ["b", "a"]})))
harness.run()
print(json.dumps([slot["d"] for slot in harness.slots("k").values()]))
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "77")
    }
    assert len(outputs) == 1
    assert len(json.loads(outputs.pop())) == 2


def _recorded_then_changed(harness: Harness, tool: ControlledTool, **changed: Any) -> None:
    """Record the first of two calls, then change what the stored request asks for, as new code would."""
    harness.send(tool_request("k", ("held", {"n": 0}), ("held", {"n": 1})))
    harness.run()
    tool.running[0].succeed("of the old call")
    harness.run()
    stored = json.loads(harness.backend.entries('"k"', StateName.REQUESTS)["1"])
    stored["r"]["tool_calls"][0]["function"] |= changed
    harness.backend.current_key = '"k"'
    harness.backend.put(StateName.REQUESTS, "1", json.dumps(stored))
    harness.checkpoint()


@pytest.mark.rule(18)
@pytest.mark.parametrize("changed", [{"name": "other"}, {"arguments": {"n": 7}}], ids=["tool", "arguments"])
def test_case_10_a_recorded_result_never_answers_a_different_call(
    changed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    held, other = ControlledTool("held"), ControlledTool("other")
    with Harness([held, other]) as harness:
        _recorded_then_changed(harness, held, **changed)
        began = len(held.begun) + len(other.begun)
        with caplog.at_level(logging.WARNING):
            harness.crash()
        assert "expected slot 0: tool" in caplog.text
        assert "recorded slot 0: tool 'held'" in caplog.text
        assert len(held.begun) + len(other.begun) == began + 2
        for call in held.running[1:] + other.running:
            call.succeed("of the new call")
        harness.run()
        assert [result["value"] for result in harness.results()] == ["of the new call"] * 2


@pytest.mark.rule(18)
def test_a_mismatch_drops_the_slots_after_it_from_state_too() -> None:
    held, other = ControlledTool("held"), ControlledTool("other")
    with Harness([held, other]) as harness:
        _recorded_then_changed(harness, held, name="other")
        harness.crash()
        assert [slot["s"] for slot in harness.slots("k").values()] == ["started", "started"]
        assert harness.slots("k")["1/0"]["n"] == "other"


@pytest.mark.rule(18)
def test_on_mismatch_fail_fails_the_job_with_both_identities() -> None:
    held, other = ControlledTool("held"), ControlledTool("other")
    options = ToolCallOptions(on_mismatch=OnMismatch.FAIL)
    with Harness([held, other], tool_calls=options) as harness:
        _recorded_then_changed(harness, held, name="other")
        with pytest.raises(IdentityMismatch, match=r"expected slot 0: tool 'other'.*recorded slot 0: tool 'held'"):
            harness.crash()


@pytest.mark.rule(19, 20)
@pytest.mark.parametrize(
    "value",
    # A backslash in its name keeps a test from being asked for by name.
    [None, "", 0, False, [], {}, (1, 2), {1, 2}, pytest.param(b"\xff", id="bytes"), {1: "a"}, 2**70],
    ids=repr,
)
def test_first_run_and_replay_hand_over_equal_values(value: Any) -> None:
    values = []
    for crash in (False, True):
        held = ControlledTool("held")
        with Harness([held]) as harness:
            harness.send(tool_request("k", ("held", {}), ("held", {})))
            harness.run()
            held.running[0].succeed(value)
            harness.run()
            if crash:
                harness.checkpoint()
                harness.crash()
            held.running[-1].succeed(None)
            harness.run()
            assert len(held.begun) == (3 if crash else 2)
            values.append(harness.results()[0]["value"])
    assert values[0] == values[1]


@pytest.mark.rule(21)
def test_a_recorded_failure_replays_with_the_same_type_and_text() -> None:
    class MadeInTheTool(LookupError):
        """Cannot be imported by anybody."""

        def __init__(self, order: int, reason: str) -> None:
            super().__init__(f"order {order}: {reason}")

    errors = []
    for crash in (False, True):
        held = ControlledTool("held")
        with Harness([held]) as harness:
            harness.send(tool_request("k", ("held", {}), ("held", {})))
            harness.run()
            held.running[0].fail(MadeInTheTool(7, "gone"))
            harness.run()
            if crash:
                harness.checkpoint()
                harness.crash()
            held.running[-1].succeed(None)
            harness.run()
            errors.append(harness.results()[0]["error"])
    assert errors[0] == errors[1] == {"kind": "tool_error", "type": "MadeInTheTool", "message": "order 7: gone"}


@pytest.mark.rule(24)
def test_a_body_does_not_start_when_its_record_cannot_be_written() -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.backend.fail_writes = True
        with pytest.raises(OSError, match="refuses writes"):
            harness.send(tool_request("k", ("held", {})))
        assert held.begun == []


@pytest.mark.rule(24)
def test_an_outcome_that_cannot_be_written_fails_the_task_and_is_not_answered() -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.checkpoint()
        held.running[0].succeed(1)
        harness.backend.fail_writes = True
        with pytest.raises(OSError, match="refuses writes"):
            harness.run()
        assert harness.responses == []
        harness.backend.fail_writes = False
        harness.crash()
        held.running[-1].succeed(2)
        harness.run()
        assert [result["value"] for result in harness.results()] == [2]


@BOTH_MODES
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", [p for p in FAULT_POINTS if p not in ("timer", "drain", "open")])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.rule(1, 12, 14)
def test_a_crash_at_any_point_answers_every_request_once(mode: Mode, when: str, point: str, nth: int) -> None:
    runs: list[int] = []

    def note(n: int) -> int:
        """Note the run."""
        runs.append(n)
        return n

    fault = CrashAt(f"{when}:{point}", nth)
    with Harness([note], tool_calls=ToolCallOptions(mode=mode), fault=fault) as harness:
        for key in ("a", "b"):
            for n in range(2):
                harness.send(tool_request(key, ("note", {"n": 2 * n}), ("note", {"n": 2 * n + 1}), id=f"{key}{n}"))
        harness.checkpoint()
        while harness._guarded(harness._settle_once) or harness._guarded(harness.workers.step):
            harness.checkpoint()
        assert harness.crashes == 1
        assert sorted(response["request_id"] for response in harness.responses) == ["a0", "a1", "b0", "b1"]
        assert [result["value"] for result in harness.results()[:2]] == [0, 1]
        # A checkpoint follows every step, so at most the body that was cut off runs a second time... per key.
        assert len(runs) <= 8 + 2


@pytest.mark.rule(14)
@BOTH_MODES
def test_replaying_after_every_turn_changes_nothing(mode: Mode) -> None:
    runs: list[int] = []

    def note(n: int) -> int:
        """Note the run."""
        runs.append(n)
        return n

    with Harness(
        [note],
        tool_calls=ToolCallOptions(mode=mode, max_in_flight=2),
        workers=WorkerOptions(threads=2),
        always_replay=True,
    ) as harness:
        for key in ("a", "b", "c"):
            harness.send(tool_request(key, *[("note", {"n": n}) for n in range(6)]))
        harness.run()
        assert [[result["value"] for result in response["results"]] for response in harness.responses] == [
            [*range(6)]
        ] * 3
        assert sorted(runs) == sorted([*range(6)] * 3)
        assert harness.workers.threads.used == 0


@pytest.mark.rule(33)
def test_what_a_left_over_body_returns_reaches_nobody() -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.checkpoint()
        old: HeldCall = held.running[0]
        harness.crash()
        old.succeed("from the old life")
        harness.run()
        assert harness.responses == []
        assert harness.slots("k")["1/0"]["s"] == "started"
        held.running[-1].succeed("from the new life")
        harness.run()
        assert [result["value"] for result in harness.results()] == ["from the new life"]


def test_case_8_a_checkpoint_while_a_call_is_awaited_resumes_after_the_restore() -> None:
    held = ControlledTool("held")
    with Harness([held], tool_calls=ToolCallOptions(mode=Mode.SEQUENTIAL)) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(3)]))
        for n in range(3):
            harness.run()
            harness.checkpoint()
            harness.crash()
            held.running[-1].succeed(n)
        harness.run()
        assert [result["value"] for result in harness.results()] == [0, 1, 2]


def test_case_12_restored_keys_do_not_wait_for_each_other() -> None:
    gone, held = ControlledTool("gone"), ControlledTool("held")
    with Harness([gone, held]) as harness:
        harness.send(tool_request("first", ("gone", {})))
        for key in range(5):
            harness.send(tool_request(key, ("held", {})))
        harness.run()
        harness.checkpoint()
        harness.crash(tools=[held])
        assert harness.responses[0]["results"][0]["error"]["kind"] == "unknown_tool"
        for call in held.running[5:]:
            call.succeed("ok")
        harness.run()
        assert len(harness.responses) == 6


@pytest.mark.parametrize("name", [StateName.HEAD, StateName.REQUESTS, StateName.SLOTS])
@pytest.mark.parametrize("text", ['{"v":99}', "[]", "junk"])
def test_state_of_an_unknown_format_is_refused_with_its_place(name: StateName, text: str) -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.backend.current_key = '"k"'
        field = {StateName.HEAD: "", StateName.REQUESTS: "1", StateName.SLOTS: "1/0"}[name]
        harness.backend.put(name, field, text)
        harness.checkpoint()
        with pytest.raises(StateFormat, match=r"head|request 1 of key|slot 0"):
            harness.crash()
