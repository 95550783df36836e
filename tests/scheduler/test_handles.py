"""Handles and gather, with actions written for the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flink_agents import codec
from flink_agents.context import ActionContext
from flink_agents.errors import CallError, ForeignAwaitable, HandleMisuse, NestedGather
from flink_agents.events import ToolRequestEvent, ToolResponseEvent
from flink_agents.runtime import subtask as subtask_module
from flink_agents.scheduler.handles import GatherFuture, arguments_digest
from flink_agents.testing import ControlledTool, Harness, tool_request

Scenario = Callable[[ActionContext], Awaitable[Any]]


class Run:
    """Runs a coroutine in place of the built-in action, and keeps what it returned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scenario: Scenario, *tools: Any) -> None:
        self.returned: list[Any] = []

        class Action:
            def __init__(self, _options: Any) -> None:
                pass

            async def __call__(inner, event: ToolRequestEvent, ctx: ActionContext) -> ToolResponseEvent:  # noqa: N805
                self.returned.append(await scenario(ctx))
                return ToolResponseEvent(event.request_id, event.key, (), event.metadata)

        monkeypatch.setattr(subtask_module, "ToolCallAction", Action)
        self.harness = Harness(list(tools))

    def start(self) -> Harness:
        """Send the one request."""
        self.harness.send(tool_request("k"))
        self.harness.run()
        return self.harness


@pytest.mark.rule(34, 44)
def test_gather_gives_outcomes_in_order_and_await_raises_the_calls_own_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = ControlledTool("held")
    error = ValueError("outer")
    error.__cause__ = LookupError("inner")
    caught: list[BaseException] = []

    async def scenario(ctx: ActionContext) -> Any:
        handles = [ctx.call_tool("held", {"n": n}) for n in range(3)]
        outcomes = await ctx.gather(*handles)
        try:
            await handles[1]
        except ValueError as raised:
            caught.append(raised)
        return [outcome.succeeded and outcome.result() for outcome in outcomes], await handles[2]

    run = Run(monkeypatch, scenario, held)
    harness = run.start()
    first, second, third = held.running
    third.succeed("c")
    second.fail(error)
    harness.run()
    first.succeed("a")
    harness.run()
    assert run.returned == [(["a", False, "c"], "c")]
    # Live it is the same object, and the exception it wraps is not put in its place.
    assert caught == [error]


@pytest.mark.rule(23, 22)
def test_awaiting_a_handle_twice_runs_it_once_in_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    held = ControlledTool("held")

    async def scenario(ctx: ActionContext) -> Any:
        handle = ctx.call_tool("held", {})
        return [await handle, await handle, (await ctx.gather(handle, handle))[1].result()]

    run = Run(monkeypatch, scenario, held)
    harness = run.start()
    assert list(harness.slots("k")) == ["1/0"]
    held.running[0].succeed("once")
    harness.run()
    assert run.returned == [["once"] * 3]
    assert len(held.begun) == 1


@pytest.mark.rule(56)
def test_creating_a_handle_neither_reserves_nor_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    held = ControlledTool("held")

    async def scenario(ctx: ActionContext) -> Any:
        ctx.call_tool("held", {"never": True})
        return await ctx.call_tool("held", {"n": 1})

    run = Run(monkeypatch, scenario, held)
    harness = run.start()
    assert [call.arguments for call in held.begun] == [{"n": 1}]
    assert len(harness.slots("k")) == 1
    held.running[0].succeed(None)
    harness.run()
    assert run.returned == [None]


@pytest.mark.rule(35)
def test_a_gather_in_a_gather_is_refused_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(ctx: ActionContext) -> Any:
        with pytest.raises(NestedGather, match=r"argument 1.*pass the inner handles"):
            ctx.gather(ctx.call_tool("held", {}), ctx.gather())
        return "refused"

    run = Run(monkeypatch, scenario)
    run.start()
    assert run.returned == ["refused"]


@pytest.mark.parametrize("foreign", [lambda: asyncio.sleep(0), lambda: asyncio.sleep(1)], ids=["yield", "future"])
def test_awaiting_asyncio_in_an_action_names_what_to_use(monkeypatch: pytest.MonkeyPatch, foreign: Any) -> None:
    async def scenario(ctx: ActionContext) -> Any:
        with pytest.raises((ForeignAwaitable, RuntimeError), match=r"ctx\.gather|no running event loop"):
            await foreign()
        return await ctx.call_tool("held", {})

    held = ControlledTool("held")
    run = Run(monkeypatch, scenario, held)
    harness = run.start()
    held.running[0].succeed("goes on")
    harness.run()
    assert run.returned == ["goes on"]


@pytest.mark.rule(42)
def test_handles_of_a_gather_are_closed_on_the_way_out_of_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    handles: list[Any] = []

    async def scenario(ctx: ActionContext) -> Any:
        handles.extend(ctx.call_tool("held", {"n": n}) for n in range(3))
        return await ctx.gather(*handles)

    held = ControlledTool("held")
    harness = Run(monkeypatch, scenario, held).start()
    held.running[0].succeed("done")
    harness.run()
    harness.interrupt()
    held.running[0].fail(asyncio.CancelledError())
    harness.run()
    assert [handle.state.value for handle in handles] == ["settled", "closed", "closed"]


@pytest.mark.rule(42)
def test_handles_of_a_gather_are_closed_when_a_call_is_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    handles: list[Any] = []
    ways_out: list[str] = []

    async def scenario(ctx: ActionContext) -> Any:
        handles.extend(ctx.call_tool("held", {"n": n}) for n in range(2))
        try:
            return await ctx.gather(*handles)
        finally:
            ways_out.append("closed")

    held = ControlledTool("held")
    harness = Run(monkeypatch, scenario, held).start()
    held.running[0].fail(MemoryError())
    with pytest.raises(MemoryError):
        harness.run()
    assert [handle.state.value for handle in handles] == ["closed", "closed"]
    assert ways_out == ["closed"]


def test_a_window_below_one_and_foreign_arguments_are_refused() -> None:
    with pytest.raises(HandleMisuse, match="at least 1"):
        GatherFuture([], 0)
    with pytest.raises(HandleMisuse, match="argument 0 is int"):
        GatherFuture([3], 1)


def test_arguments_that_nest_too_deep_are_told_apart() -> None:
    def nested(value: int) -> Any:
        node: Any = value
        for _ in range(500):
            node = [node]
        return {"node": node}

    with pytest.raises(CallError):
        codec.digest(nested(1))
    assert arguments_digest(nested(1)) == arguments_digest(nested(1)) != arguments_digest(nested(2))
    one, other = ({"a": nested(1), "b": 2}, {"b": 2, "a": nested(1)})
    assert arguments_digest(one) == arguments_digest(other)
