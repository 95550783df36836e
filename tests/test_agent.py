"""Agents: which action takes which event, what leaves, and what an action may not do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents import ActionContext, Agent, InputEvent, OutputEvent, action, tool
from flink_agents.agent import resolve_agent
from flink_agents.durable.store import StateName
from flink_agents.errors import IdentityMismatch, InvalidInput, Uncapturable
from flink_agents.events import ToolCall, ToolRequestEvent, ToolResponseEvent
from flink_agents.options import OnMismatch
from flink_agents.testing import ControlledTool, Harness, tool_request

if TYPE_CHECKING:
    from tests.conftest import Trial


def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@dataclass(frozen=True)
class Order:
    number: int


@dataclass(frozen=True)
class Urgent(Order):
    pass


def test_events_go_to_every_action_that_takes_their_type_in_the_order_they_were_sent(trial: Trial) -> None:
    seen: list[str] = []

    class Desk(Agent):
        @action(InputEvent)
        async def read(self, event: InputEvent, ctx: ActionContext) -> None:
            ctx.send_event(Order(1))
            ctx.send_event(Urgent(2))
            ctx.send_event(OutputEvent("read"))
            seen.append("read")

        @action(Order)
        async def note(self, event: Order, ctx: ActionContext) -> None:
            seen.append(f"note {event.number}")
            if event.number == 1:
                ctx.send_event(Order(3))

        @action(Urgent, int)
        async def hurry(self, event: Urgent, ctx: ActionContext) -> None:
            seen.append(f"hurry {event.number}")
            ctx.send_event(OutputEvent({"hurried": event.number}))

    with trial.run(Desk()) as harness:
        # Base types take derived events too; each event is handled wholly before the next one.
        assert seen == ["read", "note 1", "note 2", "hurry 2", "note 3"]
        assert harness.responses == [
            {"request_id": "r1", "key": "k", "output": "read"},
            {"request_id": "r1", "key": "k", "output": {"hurried": 2}},
        ]
        assert (harness.statistics["request"], harness.statistics["response"]) == (1, 1)


@pytest.mark.rule(9)
def test_requests_of_a_key_are_handled_one_at_a_time_with_all_that_follows_from_them(trial: Trial) -> None:
    held = ControlledTool("held")

    class Desk(Agent):
        @action(InputEvent)
        async def read(self, event: InputEvent, ctx: ActionContext) -> None:
            await ctx.call_tool("held", {"n": event.input["n"]})
            ctx.send_event(Order(event.input["n"]))

        @action(Order)
        async def note(self, event: Order, ctx: ActionContext) -> None:
            await ctx.call_tool("held", {"order": event.number})
            ctx.send_event(OutputEvent(event.number))

    with trial.run(Desk(), trial.record(1, n=1), trial.record(2, n=2), tools=[held]) as harness:
        for expected in ({"n": 1}, {"order": 1}, {"n": 2}, {"order": 2}):
            (call,) = held.running
            assert call.arguments == expected
            call.succeed(None)
            harness.run()
        assert [line["output"] for line in harness.responses] == [1, 2]


def test_without_an_action_for_them_tool_requests_go_to_the_built_in_action() -> None:
    class Desk(Agent):
        @action(ToolResponseEvent)
        async def answer(self, event: ToolResponseEvent, ctx: ActionContext) -> None:
            ctx.send_event(OutputEvent([result.value for result in event.results]))

    with Harness([double], agent=Desk) as harness:
        harness.send(tool_request("k", ("double", {"n": 2}), ("double", {"n": 4})), {"key": "k"})
        harness.run()
        assert [line["output"] for line in harness.responses] == [[4, 8]]
        # Records must be requests then.
        assert [reject["field"] for reject in harness.rejects] == ["tool_calls"]


def test_an_action_asks_for_tool_calls_and_the_response_reaches_the_sink(trial: Trial) -> None:
    async def scenario(event: InputEvent, ctx: ActionContext) -> str:
        calls = (ToolCall(0, "c0", "double", {"n": 21}), ToolCall(1, None, "missing", {}))
        ctx.send_event(ToolRequestEvent(event.request_id, event.key, calls))
        return "asked"

    with trial.run(trial.acting(scenario)) as harness:
        asked, response = harness.responses
        assert asked["output"] == "asked"
        assert [result.get("value", result.get("error", {}).get("kind")) for result in response["results"]] == [
            42,
            "unknown_tool",
        ]


def test_an_event_that_nobody_takes_fails_the_request_and_says_what_to_write(trial: Trial) -> None:
    async def scenario(event: InputEvent, ctx: ActionContext) -> None:
        ctx.send_event(Order(1))

    with trial.run(trial.acting(scenario)) as harness:
        assert trial.error_of(harness)["message"] == "no action takes Order: decorate one with @action(Order)"


class Undecided(Agent):
    on_mismatch = "retry"

    @action(InputEvent)
    async def do_nothing(self, event: InputEvent, ctx: ActionContext) -> None:
        pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: action(), "takes the classes of the events"),
        (lambda: action("InputEvent"), "takes the classes of the events"),  # type: ignore[arg-type]
        (lambda: action(InputEvent)(lambda event, ctx: None), "write `async def <lambda>`"),
        (lambda: action(OutputEvent), "goes to the sink"),
        (lambda: resolve_agent(Agent), "has no action"),
        (lambda: resolve_agent("json:loads"), "expected an Agent"),
        (lambda: resolve_agent(Undecided), "on_mismatch must be 'rerun' or 'fail'"),
    ],
)
def test_what_is_no_agent_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_actions_and_tools_are_inherited_in_order_and_an_override_stays_an_action(trial: Trial) -> None:
    seen: list[str] = []

    class Base(Agent):
        @action(InputEvent)
        async def first(self, event: InputEvent, ctx: ActionContext) -> None:
            seen.append("base first")

        @action(InputEvent)
        async def second(self, event: InputEvent, ctx: ActionContext) -> None:
            seen.append("base second")

        @action(InputEvent)
        async def third(self, event: InputEvent, ctx: ActionContext) -> None:
            seen.append("base third")

        @tool
        def look_up(self, n: int) -> int:
            """Look up."""
            return n

    class Derived(Base):
        async def first(self, event: InputEvent, ctx: ActionContext) -> None:
            seen.append("derived first")

        third = None  # type: ignore[assignment]

        @action(InputEvent)
        async def fourth(self, event: InputEvent, ctx: ActionContext) -> None:
            seen.append(f"fourth {await ctx.call_tool('look_up', {'n': 4})}")

    with trial.run(Derived()):
        assert seen == ["derived first", "base second", "fourth 4"]

    class Sync(Base):
        def first(self, event: InputEvent, ctx: ActionContext) -> None:  # type: ignore[override]
            """Is no coroutine."""

    with pytest.raises(InvalidInput, match="write `async def first`"):
        resolve_agent(Sync)


@pytest.mark.rule(60)
def test_an_action_must_not_leave_a_handle_behind(trial: Trial) -> None:
    async def scenario(event: InputEvent, ctx: ActionContext) -> str:
        first, second = ctx.call_tool("double", {"n": 1}), ctx.durable_execute(double, 2)
        if event.input.get("cancels"):
            second.cancel()
        ctx.memory.set("seen", True)
        return str(await first)

    with trial.run(trial.acting(scenario), trial.record(1), trial.record(2, cancels=True)) as harness:
        left, ended = harness.responses
        assert "test_agent.double' unresolved: await it, gather it, or cancel() it" in left["error"]["message"]
        assert ended["output"] == "2"


@pytest.mark.rule(60)
def test_a_gather_that_nobody_awaits_is_left_behind_too_unless_cancelled(trial: Trial) -> None:
    async def scenario(event: InputEvent, ctx: ActionContext) -> str:
        batch = ctx.gather(ctx.call_tool("double", {"n": 1}), ctx.durable_execute(double, 2).map(str))
        if event.input.get("cancels"):
            batch.cancel()
        return "done"

    with trial.run(trial.acting(scenario), trial.record(1), trial.record(2, cancels=True)) as harness:
        assert ["error" in line for line in harness.responses] == [True, False]


def test_a_failed_action_leaves_one_line_with_its_error_and_nothing_else(trial: Trial) -> None:
    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        ctx.send_event(OutputEvent("lost"))
        ctx.memory.set("count", ctx.memory.get("count", 0) + 1)
        if event.input.get("fails"):
            raise LookupError("no such customer")
        return ctx.memory.get("count")

    with trial.run(trial.acting(scenario), trial.record(1, fails=True), trial.record(2)) as harness:
        failed, *rest = harness.responses
        assert failed == {
            "request_id": "r1",
            "key": "k",
            "error": {"kind": "action_error", "type": "LookupError", "message": "no such customer"},
        }
        assert [line["output"] for line in rest] == ["lost", 1]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
@pytest.mark.rule(31, 43)
def test_whatever_an_action_raises_by_itself_is_its_failure(trial: Trial, error: BaseException) -> None:
    async def scenario(event: InputEvent, ctx: ActionContext) -> None:
        raise error

    with trial.run(trial.acting(scenario)) as harness:
        assert trial.error_of(harness)["type"] == type(error).__name__


class Burnt(Uncapturable):
    pass


@pytest.mark.rule(43)
@pytest.mark.parametrize("error", [MemoryError(), Burnt()], ids=["memory", "uncapturable"])
def test_a_fatal_error_of_an_action_fails_the_task(trial: Trial, error: BaseException) -> None:
    async def scenario(event: InputEvent, ctx: ActionContext) -> None:
        raise error

    harness = Harness([], agent=trial.acting(scenario))
    with pytest.raises(type(error)):
        harness.send(trial.record())
    assert harness.responses == []


@pytest.mark.rule(27, 29)
def test_an_interruption_cannot_be_swallowed(trial: Trial) -> None:
    held = ControlledTool("held")
    swallowed: list[str] = []

    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        try:
            return await ctx.call_tool("held", {})
        except BaseException as stopped:
            swallowed.append(type(stopped).__name__)
            return await ctx.call_tool("held", {"again": True})

    with trial.run(trial.acting(scenario), tools=[held]) as harness:
        harness.checkpoint()
        harness.crash()
        harness.run()
        assert swallowed == ["Interrupted"]
        assert [call.arguments for call in held.begun] == [{}, {}]
        held.running[-1].succeed("once")
        harness.run()
        assert [line["output"] for line in harness.responses] == ["once"]


@pytest.mark.rule(18)
@pytest.mark.parametrize("how", ["awaits", "now"])
def test_a_mismatch_fails_the_job_with_a_hint_whatever_the_action_catches(trial: Trial, how: str) -> None:
    held = ControlledTool("held")
    lives: list[int] = []

    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        lives.append(1)
        try:
            if len(lives) > 1 and how == "now":
                ctx.now()
            await ctx.call_tool("double", {"n": len(lives)})
        except BaseException:
            pass
        return await ctx.call_tool("held", {})

    with trial.run(trial.acting(scenario), tools=[double, held]) as harness:
        harness.checkpoint()
        with pytest.raises(IdentityMismatch, match=r"slot 0.*ctx\.now\(\).*on_mismatch: rerun"):
            harness.crash()


@pytest.mark.rule(18)
def test_an_agent_may_ask_to_go_on_from_a_mismatch(trial: Trial) -> None:
    held = ControlledTool("held")
    lives: list[int] = []

    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        lives.append(1)
        doubled = await ctx.call_tool("double", {"n": len(lives)})
        await ctx.call_tool("held", {})
        return doubled

    with trial.run(trial.acting(scenario, on_mismatch=OnMismatch.RERUN), tools=[double, held]) as harness:
        harness.checkpoint()
        harness.crash()
        harness.run()
        held.running[-1].succeed(None)
        harness.run()
        assert [line["output"] for line in harness.responses] == [4]


@pytest.mark.parametrize("key", ["k", "other"])
def test_a_handle_belongs_to_its_request(trial: Trial, key: str) -> None:
    held = ControlledTool("held")
    kept: list[Any] = []

    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        if event.request_id == "r1":
            kept.append(ctx.call_tool("held", {}))
            return await (kept[0] if key == "other" else ctx.gather())
        return await kept[0]

    with trial.run(trial.acting(scenario), trial.record(1), {"id": "r2", "key": key}, tools=[held]) as harness:
        (refused,) = [line for line in harness.responses if line["request_id"] == "r2"]
        assert "belongs to another request" in refused["error"]["message"]
        for call in held.running:
            call.succeed("mine")
        harness.run()
        assert len(held.begun) == (1 if key == "other" else 0)


def test_a_handle_that_was_kept_over_a_restore_is_refused(trial: Trial) -> None:
    held = ControlledTool("held")
    kept: list[Any] = []

    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        kept.append(ctx.call_tool("held", {}))
        return await kept[0]

    with trial.run(trial.acting(scenario), tools=[held]) as harness:
        harness.checkpoint()
        harness.crash()
        harness.run()
        assert "belongs to another request" in trial.error_of(harness)["message"]


@pytest.mark.rule(34, 23)
def test_gather_takes_the_same_mapped_and_completed_handles(trial: Trial) -> None:
    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        call = ctx.call_tool("double", {"n": 2})
        cancelled = ctx.call_tool("double", {"n": 3})
        cancelled.cancel()
        handles = [call, call, call.map(str), ctx.completed("ready"), call.map(lambda n: 1 // (n - 4)), call]
        outcomes = await ctx.gather(*handles)
        again = await ctx.gather(*handles)
        messages = []
        for wrong in (lambda: ctx.gather(ctx.gather(call)), lambda: ctx.gather(call).map(len), lambda: ctx.gather(7)):  # type: ignore[arg-type]
            try:
                wrong()
            except Exception as error:
                messages.append(type(error).__name__)
        try:
            await ctx.gather(call, cancelled)
        except Exception as error:
            messages.append(str(error))
        return [
            [outcome.result() if outcome.succeeded else type(outcome.exception).__name__ for outcome in round_]
            for round_ in (outcomes, again)
        ] + [messages]

    with trial.run(trial.acting(scenario)) as harness:
        first, again, messages = harness.responses[0]["output"]
        assert first == again == [4, 4, "4", "ready", "ZeroDivisionError", 4]
        assert messages[:3] == ["NestedGather", "HandleMisuse", "HandleMisuse"]
        assert "was cancelled" in messages[3]
        assert harness.counters.counts["succeeded"] == 1


@pytest.mark.rule(3, 17)
def test_arguments_that_the_action_changes_afterwards_are_recorded_as_asked(trial: Trial) -> None:
    held = ControlledTool("held")

    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        arguments = {"n": [1]}
        call = ctx.call_tool("held", arguments)
        function = ctx.durable_execute(len, arguments["n"], execution="inline")
        arguments["n"].append(2)
        counted = await function
        return [counted, await call]

    with trial.run(trial.acting(scenario), tools=[held]) as harness:
        assert held.running[0].arguments == {"n": [1]}
        harness.checkpoint()
        harness.crash()
        harness.run()
        held.running[-1].succeed("ended")
        harness.run()
        assert [line["output"] for line in harness.responses] == [[1, "ended"]]


@pytest.mark.rule(4)
def test_arguments_that_are_no_json_fail_their_call_and_what_cannot_be_recorded_its_action(trial: Trial) -> None:
    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        if event.request_id == "r2":
            return await ctx.call_tool("double", {"n": threading.Lock()})
        asked = [{"n": ctx.now()}, {"n": 1}, "{}", 7, {"n": 2}]
        outcomes = await ctx.gather(*(ctx.call_tool("double", arguments) for arguments in asked))
        return [outcome.succeeded or type(outcome.exception).__name__ for outcome in outcomes]

    with trial.run(trial.acting(scenario), trial.record(1), trial.record(2)) as harness:
        failed, refused = harness.responses
        assert failed["output"] == ["InvalidArguments", True, "InvalidArguments", "InvalidArguments", True]
        assert refused["error"]["type"] == "Unserializable"


@pytest.mark.rule(4)
@pytest.mark.parametrize("late", [False, True])
def test_an_output_that_cannot_be_written_fails_its_action_and_the_next_request_is_answered(
    trial: Trial, late: bool
) -> None:
    class Speaker(Agent):
        @action(InputEvent)
        async def speak(self, event: InputEvent, ctx: ActionContext) -> None:
            said: dict[str, Any] = {"n": 1} if late or event.request_id == "r2" else {"lock": threading.Lock()}
            ctx.memory.set(event.request_id, 1)
            ctx.send_event(OutputEvent("first"))
            ctx.send_event(OutputEvent(said))
            if late and event.request_id == "r1":
                said["lock"] = threading.Lock()

    with Harness([], agent=Speaker()) as harness:
        harness.send(trial.record(1), trial.record(2))
        harness.run()
        failed, *answered = harness.responses
        assert (failed["error"]["kind"], failed["error"]["type"]) == ("action_error", "Unserializable")
        assert "OutputEvent cannot be written: cannot carry _thread.lock at $.lock" in failed["error"]["message"]
        assert [line["output"] for line in answered] == ["first", {"n": 1}]
        assert list(harness.backend.entries('"k"', StateName.MEMORY)) == ["r2"]


def test_the_log_and_the_metrics_of_an_action_are_silent_on_replay(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    held = ControlledTool("held")

    async def scenario(event: InputEvent, ctx: ActionContext) -> Any:
        ctx.log.warning("begins")
        ctx.metrics.count("begun")
        await ctx.call_tool("held", {})
        ctx.log.warning("ends")
        return None

    with trial.run(trial.acting(scenario), tools=[held]) as harness:
        harness.checkpoint()
        harness.crash()
        harness.run()
        held.running[-1].succeed(None)
        harness.run()
        told = [entry.getMessage() for entry in caplog.records if entry.name == "flink_agents.actions"]
        assert told == ["[key=k request=r1] begins", "[key=k request=r1] ends"]
        assert harness.counters.counts["action.begun"] == 1
