"""Asynchronous tools: a handle instead of a value, in the call's own slot, beside ordinary calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flink_agents import (
    Agent,
    AsyncTool,
    InputEvent,
    Mode,
    OnInterrupt,
    OutputEvent,
    RetryPolicy,
    ToolCallOptions,
    ToolSpec,
)
from flink_agents.context import ActionContext
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.testing import ControlledTool, Harness, tool_request

Submit = Callable[[ActionContext, dict[str, Any]], Any]


class Remote(AsyncTool):
    """Does in ``submit`` what the test says."""

    def __init__(self, submit: Submit, name: str = "remote", **spec: Any) -> None:
        self.spec = ToolSpec(name=name, description="Ask a remote agent.", parameters={"type": "object"}, **spec)
        self._submit = submit
        self.submitted: list[dict[str, Any]] = []

    def submit(self, ctx: ActionContext, arguments: dict[str, Any]) -> Any:
        self.submitted.append(arguments)
        return self._submit(ctx, arguments)


def answer(n: int = 0) -> dict[str, Any]:
    return {"n": n}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = SqliteJournal(tmp_path / "journal.db")
    yield opened
    opened.close()


@pytest.mark.rule(11, 13, 14, 55)
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("recorded", ["slot", "journal"])
def test_a_failed_submission_uses_up_its_slot(mode: Mode, recorded: str, journal: Journal) -> None:
    runs: list[int] = []
    lives = [1]

    def submit(ctx: ActionContext, arguments: dict[str, Any]) -> Any:
        if lives[0] == 1:
            raise ConnectionError("the agent is away")
        return ctx.durable_execute(answer, 1)

    def follow(n: int) -> int:
        """Follow."""
        runs.append(n)
        return n

    remote, held = Remote(submit), ControlledTool("held")
    options = ToolCallOptions(mode=mode)
    kept = journal if recorded == "journal" else None
    with Harness([remote, follow, held], tool_calls=options, journal=kept) as harness:
        harness.send(tool_request("k", ("remote", {"n": 1}), ("follow", {"n": 2}), ("held", {})))
        harness.run()
        if recorded == "slot":
            harness.checkpoint()
        lives[0] = 2
        harness.crash()
        harness.run()
        # In this life it would succeed, and what follows would be another call's if it took no slot.
        assert (runs, len(remote.submitted)) == ([2], 1)
        held.running[-1].succeed("ended")
        harness.run()
        failed, followed, ended = harness.results()
        assert (failed["error"]["type"], failed["error"]["message"]) == ("ConnectionError", "the agent is away")
        assert [failed["replayed"], followed["replayed"], ended["replayed"]] == [True, True, False]
        assert [followed["value"], ended["value"]] == [2, "ended"]


@pytest.mark.rule(2, 55)
@pytest.mark.parametrize("mode", list(Mode))
def test_handles_run_beside_ordinary_calls_in_the_order_of_the_request(mode: Mode) -> None:
    async def later(n: int) -> int:
        return n

    def submit(ctx: ActionContext, arguments: dict[str, Any]) -> Any:
        n = arguments["n"]
        handles: list[Callable[[], Any]] = [
            lambda: ctx.durable_execute(answer, n),
            lambda: ctx.durable_execute(later, n),
            lambda: ctx.durable_execute(answer, n, execution="inline").map(lambda found: found["n"] + 100),
            lambda: ctx.durable_execute(later, n).map(str).map(list),
            lambda: ctx.completed([n]),
            lambda: ctx.completed(n).map(str),
            lambda: ctx.call_tool("plain", {"n": n}),
        ]
        return handles[n]()

    def plain(n: int) -> int:
        """Stay plain."""
        return -n

    asked = [("remote", {"n": n}) for n in range(7)]
    with Harness([Remote(submit), plain], tool_calls=ToolCallOptions(mode=mode), always_replay=True) as harness:
        harness.send(tool_request("k", *asked, ("plain", {"n": 9})))
        harness.run()
        values = [result["value"] for result in harness.results()]
        assert values == [{"n": 0}, 1, 102, ["3"], [4], "5", -6, -9]
        assert [result["tool"] for result in harness.results()] == ["remote"] * 7 + ["plain"]


def deep() -> Any:
    value: Any = 1
    for _ in range(5_000):
        value = [value]
    return value


def cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


class Opaque:
    pass


@pytest.mark.rule(58)
@pytest.mark.parametrize("where", ["body", "mapping", "completed", "completed mapping"])
@pytest.mark.parametrize("make", [deep, cyclic, Opaque, lambda: {1, (2,)}, lambda: b"\xff"])
def test_results_become_json_or_a_failure_of_that_call(make: Callable[[], Any], where: str) -> None:
    def submit(ctx: ActionContext, arguments: dict[str, Any]) -> Any:
        ways: dict[str, Callable[[], Any]] = {
            "body": lambda: ctx.durable_execute(make, id="made"),
            "mapping": lambda: ctx.durable_execute(answer).map(lambda _: make()),
            "completed": lambda: ctx.completed(make()),
            "completed mapping": lambda: ctx.completed(1).map(lambda _: make()),
        }
        return ways[where]()

    with Harness([Remote(submit)], always_replay=True) as harness:
        harness.send(tool_request("k", ("remote", {}), ("remote", {"n": 1})))
        harness.run()
        kinds = {result.get("error", {}).get("kind") for result in harness.results()}
        assert kinds == ({"unserializable"} if make in (deep, cyclic, Opaque) else {None})


def _two(ctx: ActionContext, _: Any) -> Any:
    ctx.durable_execute(answer, 1)
    return ctx.durable_execute(answer, 2)


def _two_cancelled(ctx: ActionContext, _: Any) -> Any:
    ctx.durable_execute(answer, 1).cancel()
    return ctx.durable_execute(answer, 2)


def _cancelled(ctx: ActionContext, _: Any) -> Any:
    handle = ctx.durable_execute(answer, 1)
    handle.cancel()
    return handle


WRONG: list[tuple[Submit, str | None]] = [
    (lambda ctx, _: {"value": 1}, "must return the handle of one call, not {'value': 1}"),
    (lambda ctx, _: ctx.gather(ctx.durable_execute(answer)), "must return the handle of one call"),
    (lambda ctx, _: answer, "must return the handle of one call"),
    (lambda ctx, _: ctx.now(), "may make handles and nothing else"),
    (lambda ctx, _: ctx.uuid(), "may make handles and nothing else"),
    (lambda ctx, _: ctx.sleep(1), "may make handles and nothing else"),
    (lambda ctx, _: ctx.memory.get("a"), "may make handles and nothing else"),
    (lambda ctx, _: ctx.send_event(OutputEvent(1)), "may make handles and nothing else"),
    (_two, "made 2 handles: it must cancel()"),
    (_two_cancelled, None),
    (_cancelled, "must return a handle that it has made for this call"),
    (lambda ctx, _: 1 / 0, "division by zero"),
]


@pytest.mark.rule(13, 60)
@pytest.mark.parametrize("in_agent", [False, True])
@pytest.mark.parametrize(("submit", "message"), WRONG)
def test_a_wrong_submission_is_that_calls_failure_only(submit: Submit, message: str | None, in_agent: bool) -> None:
    async def act(event: InputEvent, ctx: ActionContext) -> None:
        outcomes = await ctx.gather(ctx.call_tool("remote", {}), ctx.durable_execute(answer, 3))
        told = [str(outcome.exception) if outcome.exception else outcome.result() for outcome in outcomes]
        ctx.send_event(OutputEvent(told))

    agent = Agent()
    agent.action(InputEvent)(act)
    with Harness([Remote(submit)], agent=agent if in_agent else None) as harness:
        harness.send({"key": "k", "tool_calls": [{"function": {"name": "remote", "arguments": {}}}]})
        harness.run()
        (line,) = harness.responses
        (failed, *rest) = line["output"] if in_agent else [r.get("error", {}).get("message") for r in line["results"]]
        assert (message in failed) if message is not None else failed in (None, {"n": 2})
        assert rest == ([{"n": 3}] if in_agent else [])


@pytest.mark.rule(39, 55)
def test_the_tools_own_bounds_are_stronger_than_those_of_its_handle() -> None:
    begun: list[int] = []

    def fail_once(n: int) -> int:
        begun.append(n)
        if len(begun) == 1:
            raise ConnectionError("not yet")
        return n

    def submit(ctx: ActionContext, arguments: dict[str, Any]) -> Any:
        return ctx.durable_execute(fail_once, 1, timeout=60)

    remote = Remote(submit, retry=RetryPolicy(attempts=2, initial_ms=100))
    with Harness([remote]) as harness:
        harness.send(tool_request("k", ("remote", {})))
        harness.run()
        assert harness.results() == []
        harness.advance(1_000)
        (result,) = harness.results()
        # A further attempt is a further submission.
        assert (result["value"], result["attempts"], len(remote.submitted)) == (1, 2, 2)


@pytest.mark.rule(15, 16)
@pytest.mark.parametrize("mapped", [False, True])
def test_a_reconciler_of_the_handle_decides_about_a_call_in_doubt(journal: Journal, mapped: bool) -> None:
    def find(n: int) -> int:
        return n * 100

    def submit(ctx: ActionContext, arguments: dict[str, Any]) -> Any:
        handle = ctx.durable_execute(answer, 7, reconcile=find)
        return handle.map(str) if mapped else handle

    with Harness([Remote(submit)], journal=journal) as harness:
        harness.send(tool_request("k", ("remote", {})))
        # The started row is down, and the body has not begun.
        assert harness.writer is not None
        while not harness.workers._ready:
            harness._settle_once()
            harness._commit()
        harness.crash()
        harness.run()
        assert [result["value"] for result in harness.results()] == ["700" if mapped else 700]


@pytest.mark.rule(15)
def test_the_tools_own_word_about_interruption_stands(journal: Journal) -> None:
    remote = Remote(lambda ctx, _: ctx.durable_execute(answer, 7), on_interrupt=OnInterrupt.FAIL)
    with Harness([remote], journal=journal) as harness:
        harness.send(tool_request("k", ("remote", {})))
        while not harness.workers._ready:
            harness._settle_once()
            harness._commit()
        harness.crash()
        harness.run()
        assert [result["error"]["kind"] for result in harness.results()] == ["in_doubt"]
