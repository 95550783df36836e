"""What an action may not do with asyncio and with its context, and what it is told instead."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents import ActionContext, InputEvent, OutputEvent
from flink_agents.errors import HandleMisuse

if TYPE_CHECKING:
    from tests.conftest import Trial


def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def _sleeper() -> None:
    await asyncio.sleep(0)


async def _nested(ctx: ActionContext) -> None:
    await asyncio.gather(ctx.call_tool("double", {"n": 1}), ctx.call_tool("double", {"n": 2}))


async def _task_group(ctx: ActionContext) -> None:
    async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]
        group.create_task(_sleeper())


async def _timeout(ctx: ActionContext) -> None:
    async with asyncio.timeout(1):  # type: ignore[attr-defined,unused-ignore]
        await ctx.call_tool("double", {"n": 1})


async def _locked(ctx: ActionContext) -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    await lock.acquire()


def _run_until_complete(ctx: ActionContext) -> None:
    loop = asyncio.new_event_loop()
    sleeper = _sleeper()
    try:
        loop.run_until_complete(sleeper)
    finally:
        sleeper.close()
        loop.close()


def _run(ctx: ActionContext) -> None:
    sleeper = _sleeper()
    try:
        asyncio.run(sleeper)
    finally:
        sleeper.close()


MISUSES: dict[str, tuple[Callable[[ActionContext], Any], str]] = {
    "sleep": (lambda ctx: asyncio.sleep(1), r"ctx\.sleep"),
    "sleep 0": (lambda ctx: asyncio.sleep(0), r"handles of its context"),
    "gather": (_nested, r"ctx\.gather"),
    "create_task": (lambda ctx: asyncio.create_task(_sleeper()), r"ctx\.gather"),
    "ensure_future": (lambda ctx: asyncio.ensure_future(ctx.call_tool("double", {"n": 1})), r"ctx\.gather"),
    "wait_for": (lambda ctx: asyncio.wait_for(ctx.call_tool("double", {"n": 1}), 1), r"ctx\.(gather|sleep)"),
    "shield": (lambda ctx: asyncio.shield(ctx.call_tool("double", {"n": 1})), r"ctx\.gather"),
    "to_thread": (lambda ctx: asyncio.to_thread(double, 1), r"ctx\.durable_execute"),
    "future": (lambda ctx: asyncio.Future(), r"handles of its context"),
    "create_future": (lambda ctx: asyncio.get_running_loop().create_future(), r"ctx\.sleep"),
    "call_soon": (lambda ctx: asyncio.get_event_loop().call_soon(print), r"handles of ctx"),
    "lock": (_locked, r"handles of ctx"),
    "event": (lambda ctx: asyncio.Event().wait(), r"handles of ctx"),
    "queue": (lambda ctx: asyncio.Queue().get(), r"handles of ctx"),
    "run": (_run, r"ctx\.durable_execute"),
    "run_until_complete": (_run_until_complete, r"ctx\.durable_execute"),
    **({"task group": (_task_group, r"ctx\.gather")} if hasattr(asyncio, "TaskGroup") else {}),
    **({"timeout": (_timeout, r"ctx\.gather")} if hasattr(asyncio, "timeout") else {}),
}


@pytest.mark.parametrize("name", MISUSES)
def test_asyncio_in_an_action_gives_an_error_that_names_what_to_use(trial: Trial, name: str) -> None:
    misuse, expected = MISUSES[name]

    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        wrong = misuse(ctx)
        return await wrong if hasattr(wrong, "__await__") else wrong

    with trial.run(trial.acting(scenario)) as harness:
        error = trial.error_of(harness)
        assert error["type"] == "ForeignAwaitable"
        assert re.search(expected, error["message"]), error["message"]
    # What an action may not use, its surroundings may: nothing of the guard is left.
    assert asyncio._get_running_loop() is None


def test_a_harness_runs_within_a_loop_of_the_test(trial: Trial) -> None:
    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        return await ctx.durable_execute(double, 1, execution="inline")

    async def main() -> Any:
        with trial.run(trial.acting(scenario)) as harness:
            assert asyncio.get_running_loop() is not None
            await asyncio.sleep(0)
            return harness.responses[0]["output"]

    assert asyncio.run(main()) == 2


@pytest.mark.parametrize("execution", ["thread", "inline"])
def test_the_context_stays_in_the_action(trial: Trial, execution: str) -> None:
    def ask(ctx: list[ActionContext], what: int) -> Any:
        return USES[what](ctx[0])

    holder: list[ActionContext] = []

    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        holder[:] = [ctx]
        calls = [
            ctx.durable_execute(partial_of(ask, holder), what, id=f"use {what}", execution=execution)
            for what in range(len(USES))
        ]
        return [type(outcome.exception).__name__ for outcome in await ctx.gather(*calls)]

    with trial.run(trial.acting(scenario)) as harness:
        assert harness.responses[0]["output"] == ["HandleMisuse"] * len(USES)


def partial_of(function: Callable[..., Any], holder: list[ActionContext]) -> Callable[..., Any]:
    def bound(what: int) -> Any:
        return function(holder, what)

    return bound


USES: list[Callable[[ActionContext], Any]] = [
    lambda ctx: ctx.now(),
    lambda ctx: ctx.uuid(),
    lambda ctx: ctx.sleep(1),
    lambda ctx: ctx.memory.set("a", 1),
    lambda ctx: ctx.send_event(OutputEvent(1)),
    lambda ctx: ctx.call_tool("double", {"n": 1}),
    lambda ctx: ctx.durable_execute(double, 1),
]


@pytest.mark.parametrize("use", range(len(USES)))
def test_a_context_of_an_action_that_has_ended_is_of_no_use(trial: Trial, use: int) -> None:
    holder: list[ActionContext] = []

    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        if holder:
            return USES[use](holder[0])
        holder.append(ctx)
        return "kept"

    with trial.run(trial.acting(scenario), trial.record(1), trial.record(2)) as harness:
        kept, refused = harness.responses
        assert kept["output"] == "kept"
        assert "belongs to an action that has ended" in refused["error"]["message"]


def _gather(max_in_flight: Any) -> Callable[[ActionContext], Any]:
    return lambda ctx: ctx.gather(ctx.completed(1), max_in_flight=max_in_flight)


NUMBER: Any = 5
NOTHING: Any = None
SPAN = "sleep is seconds as a number, a timedelta, or text such as '5s', not negative and at most 100 years: not "
WRONG_ARGUMENTS: list[tuple[Callable[[ActionContext], Any], str]] = [
    (lambda ctx: ctx.call_tool(NUMBER, {}), "call_tool takes the name of a tool and its arguments, as in .*, not 5"),
    (_gather("3"), "max_in_flight must be a whole number of at least 1, not '3'"),
    (_gather(1.5), "max_in_flight must be a whole number of at least 1, not 1.5"),
    (_gather(True), "max_in_flight must be a whole number of at least 1, not True"),
    (_gather(0), "max_in_flight must be a whole number of at least 1, not 0"),
    (lambda ctx: ctx.gather(ctx.completed(1), timeout=1e20), "timeout is seconds as a number, "),
    (lambda ctx: ctx.sleep(float("nan")), SPAN + "nan"),
    (lambda ctx: ctx.sleep(float("inf")), SPAN + "inf"),
    (lambda ctx: ctx.sleep(NOTHING), SPAN + "None"),
    (lambda ctx: ctx.sleep(True), SPAN + "True"),
    (lambda ctx: ctx.sleep(-1), SPAN + "-1"),
    (lambda ctx: ctx.sleep("5"), "sleep: no unit in '5'; expected a duration such as 200ms, .*; did you mean '5s'"),
]


@pytest.mark.parametrize(("misuse", "told"), WRONG_ARGUMENTS, ids=range(len(WRONG_ARGUMENTS)))
def test_a_wrong_argument_is_refused_where_it_is_written(
    trial: Trial, misuse: Callable[[ActionContext], Any], told: str
) -> None:
    async def scenario(_: Any, ctx: ActionContext) -> str:
        with pytest.raises(HandleMisuse, match=told):
            misuse(ctx)
        return "refused"

    with trial.run(trial.acting(scenario)) as harness:
        assert harness.responses[0]["output"] == "refused"
