"""Requests of inline tools are answered in one piece: everything seen of them is as for calls that go through slots."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from flink_agents.context import ActionContext
from flink_agents.errors import Interrupted, Uncapturable
from flink_agents.options import Limits, ToolCallOptions
from flink_agents.runtime import inline as inline_module
from flink_agents.scheduler.tool_context import ToolContext, current_tool_context
from flink_agents.testing import ControlledTool, Harness, tool_request
from flink_agents.tools.registry import FunctionDeclaration


def add(a: int, b: int) -> int:
    return a + b


def fail(text: str) -> str:
    raise LookupError(text)


def leave() -> None:
    raise SystemExit(3)


def lock() -> Any:
    return threading.Lock()


def large() -> str:
    return "x" * 5000


def late() -> Any:
    async def never() -> int:
        return 1

    return never()


def told(ctx: ToolContext) -> list[Any]:
    ctx.count("seen")
    other = current_tool_context()
    return [
        ctx.key,
        ctx.request_id,
        ctx.call_id,
        ctx.tool,
        ctx.attempt,
        ctx.idempotency_key,
        other is ctx,
        ctx.cancelled,
    ]


def rich() -> dict[Any, Any]:
    return {1: b"bytes", "set": {1, 2}, "big": 2**70}


TOOLS = [FunctionDeclaration(f, execution="inline") for f in (add, fail, leave, lock, large, late, told, rich)]
CALLS: list[tuple[str, Any]] = [
    ("add", {"a": 1, "b": 2}),
    ("add", '{"a": 1, "b": "x"}'),
    ("add", '{"a": 1'),
    ("add", None),
    ("add", {"a": 1, "b": 2, "c": 3}),
    ("add", {"a": 1, "b": "y" * 400}),
    ("fail", {"text": "no"}),
    ("leave", {}),
    ("lock", {}),
    ("large", {}),
    ("late", {}),
    ("told", {}),
    ("told", {}),
    ("rich", {}),
]


def through_slots(point: str) -> None:
    """A fault that breaks nothing: where one is armed, every call goes through slots."""


def answered(calls: list[tuple[str, Any]], **options: Any) -> tuple[Any, dict[str, int], dict[str, int], Any]:
    with Harness(TOOLS, limits=Limits(result=1000, arguments=300), run_id="r", **options) as harness:
        harness.send(*[tool_request("k", *calls, id=f"id-{n}", metadata={"n": n}) for n in range(2)])
        harness.run()
        responses = harness.responses
        for result in (result for response in responses for result in response["results"]):
            assert result.pop("duration_ms") >= 0
        counts = {name: n for name, n in harness.counters.counts.items() if n}
        return responses, counts, harness.statistics, harness.head("k")


@pytest.mark.parametrize("calls", [[call] for call in CALLS] + [CALLS], ids=lambda calls: str(calls)[:40])
def test_an_answer_in_one_piece_is_the_answer_through_slots(calls: list[tuple[str, Any]]) -> None:
    assert answered(calls) == answered(calls, fault=through_slots)


def test_such_requests_really_take_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(ActionContext, "call_tool", refuse)
    with Harness(TOOLS) as harness:
        harness.send(tool_request("k", ("add", {"a": 1, "b": 2})))
        assert harness.results()[0]["value"] == 3
        assert harness.backend.writes == 1  # the head


@pytest.mark.parametrize(
    "calls",
    [[("add", {"a": 1, "b": 2}), ("held", {})], [("add", {"a": 1, "b": 2}), ("unknown", {})], []],
    ids=["a worker's", "an unknown tool's", "none"],
)
def test_a_request_with_any_other_call_goes_through_slots(
    calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_module, "running_call", None)  # nothing of it may run in one piece
    held = ControlledTool("held")
    with Harness([*TOOLS, held]) as harness:
        harness.send(tool_request("k", *calls))
        for call in held.running:
            call.succeed("ok")
        harness.run()
        assert len(harness.results()) == len(calls)


def test_a_request_behind_others_of_its_key_waits_for_them() -> None:
    held = ControlledTool("held")
    with Harness([*TOOLS, held]) as harness:
        harness.send(tool_request("k", ("held", {}), id="1"), tool_request("k", ("add", {"a": 1, "b": 2}), id="2"))
        assert harness.responses == []
        harness.send(tool_request("other", ("add", {"a": 1, "b": 2}), id="3"))
        held.running[0].succeed("ok")
        harness.run()
        assert [response["request_id"] for response in harness.responses] == ["3", "1", "2"]


@pytest.mark.rule(43)
@pytest.mark.parametrize("fatal", [MemoryError, type("Mine", (Uncapturable,), {})])
def test_a_fatal_error_fails_the_task_and_answers_nothing(fatal: type[BaseException]) -> None:
    def broken() -> None:
        raise fatal

    with Harness([FunctionDeclaration(broken, execution="inline")]) as harness:
        with pytest.raises(fatal):
            harness.send(tool_request("k", ("broken", {})))
        assert harness.responses == []
        assert harness.head("k") is None


@pytest.mark.rule(27)
def test_a_body_that_the_runtime_stops_sends_no_response() -> None:
    def stopped() -> None:
        harness.interrupt()
        raise Interrupted

    with Harness([FunctionDeclaration(stopped, execution="inline")]) as harness:
        with pytest.raises(Interrupted):
            harness.send(tool_request("k", ("stopped", {})))
        assert harness.responses == []


def test_a_deadline_of_the_batch_goes_through_slots() -> None:
    with Harness(TOOLS, tool_calls=ToolCallOptions(timeout_ms=1000)) as harness:
        harness.send(tool_request("k", ("add", {"a": 1, "b": 2})))
        harness.run()
        assert json.dumps(harness.results()[0]["value"]) == "3"
