"""Durable calls of functions: who they are, what they get, and what is prepared for them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from flink_agents import NOT_STARTED, ActionContext, Agent, InputEvent, OutputEvent, RetryPolicy
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import CallFilter
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.outcome import Succeeded
from flink_agents.durable_call import CallSettings, DurableCall
from flink_agents.errors import HandleMisuse, IdentityMismatch, Uncapturable, Unserializable
from flink_agents.options import OnMismatch
from flink_agents.testing import ControlledTool, CrashAt, Harness


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = SqliteJournal(tmp_path / "journal.db")
    yield opened
    opened.close()


def acting(scenario: Callable[[ActionContext], Awaitable[Any]]) -> Agent:
    agent = Agent()

    async def act(event: InputEvent, ctx: ActionContext) -> None:
        ctx.send_event(OutputEvent(await scenario(ctx)))

    agent.action(InputEvent)(act)
    return agent


def run(scenario: Callable[[ActionContext], Awaitable[Any]], *tools: Any, **options: Any) -> Harness:
    harness = Harness(tools, agent=acting(scenario), **options)
    harness.send({"key": "k"})
    harness.run()
    return harness


def add(a: Any, b: int = 0) -> Any:
    return a + b


async def add_later(a: int, b: int = 0) -> int:
    return a + b


@dataclass(frozen=True)
class Account:
    name: str

    def charge(self, cents: int) -> str:
        return f"{self.name} {cents}"


class Client:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def ask(self, what: str) -> str:
        return what

    def __call__(self, what: str) -> str:
        return what


def identity(function: Any, *args: Any, id: str | None = None, **kwargs: Any) -> tuple[str, str]:
    call = DurableCall(function, args, kwargs, CallSettings(id), has_journal=False)
    return call.name, call.digest


SAME: list[tuple[tuple[str, str], tuple[str, str]]] = [
    (identity(add, 1, b=2), identity(add, 1, b=2)),
    (identity(dict, a=1, b=2), identity(dict, b=2, a=1)),
    (identity(add, {"a": 1, "b": {2, "x", (1, 2)}}), identity(add, {"b": {(1, 2), "x", 2}, "a": 1})),
    (identity(add, Decimal("1.0")), identity(add, Decimal("1.0"))),
    (identity(functools.partial(add, 1), 2), identity(functools.partial(add, 1), 2)),
    (identity(functools.partial(Client(), "x")), identity(functools.partial(Client(), "x"))),
    (identity(functools.partial(add, threading.Lock())), identity(functools.partial(add, threading.Lock()))),
    (identity(Client().ask, "x"), identity(Client().ask, "x")),
    (identity(Account("a").charge, 1), identity(Account("a").charge, 1)),
    (identity(lambda: 1, id="one"), identity(lambda: 1, id="one")),
    (identity(functools.wraps(add)(lambda *a: add(*a)), 1), identity(add, 1)),
]
DIFFERENT: list[tuple[tuple[str, str], tuple[str, str]]] = [
    (identity(add, 1), identity(add, 2)),
    (identity(add, 1), identity(add, "1")),
    (identity(add, 1), identity(add, True)),
    (identity(add, 1, 2), identity(add, 1, b=2)),
    (identity(add, (1, 2)), identity(add, [1, 2])),
    (identity(add, {1, 2}), identity(add, [1, 2])),
    (identity(add, 1), identity(add_later, 1)),
    (identity(functools.partial(add, 1), 2), identity(functools.partial(add, 2), 2)),
    (identity(functools.partial(add, 1), 2), identity(add, 1, 2)),
    (identity(functools.partial(add, 1, b=1)), identity(functools.partial(add, 1, b=2))),
    (identity(Account("a").charge, 1), identity(Account("b").charge, 1)),
    (identity(add, 1), identity(add, 1, id="other")),
    (identity(add, {"$type": "set", "items": [1]}), identity(add, {1})),
]


@pytest.mark.rule(17)
@pytest.mark.parametrize("pair", SAME, ids=range(len(SAME)))
def test_equal_calls_have_one_identity(pair: tuple[Any, Any]) -> None:
    assert pair[0] == pair[1]


@pytest.mark.rule(17, 18)
@pytest.mark.parametrize("pair", DIFFERENT, ids=range(len(DIFFERENT)))
def test_other_calls_have_another_identity(pair: tuple[Any, Any]) -> None:
    assert pair[0] != pair[1]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"function": 7}, "takes a function and its arguments, not 7"),
    ({"function": lambda: 1}, "a lambda has no name"),
    ({"function": functools.partial(lambda: 1)}, "a lambda has no name"),
    ({"id": ""}, "id names the call"),
    ({"id": 7}, "id names the call"),
    ({"timeout": -1}, "timeout is seconds"),
    ({"timeout": "5 parsecs"}, "timeout:"),
    ({"timeout": 1e20}, "timeout is seconds as a number, .* at most 100 years: not 1e\\+20"),
    ({"deadline": timedelta(days=40_000)}, "deadline is seconds"),
    ({"timeout": 0.0001}, "^tests.*add: timeout must be at least 1ms, not 0ms"),
    ({"timeout": 5, "deadline": 2}, "deadline"),
    ({"execution": "process"}, "execution must be one of thread, async, inline"),
    ({"execution": "async"}, "is no coroutine function"),
    ({"function": add_later, "execution": "thread"}, "is a coroutine function"),
    ({"execution": "inline", "timeout": 1}, "add: timeout: nothing can stop the task thread, on which inline calls"),
    ({"retry": "often"}, "^[a-z_.]*add: retry must be a RetryPolicy or a mapping"),
    ({"reconcile": add}, "reconcile needs a journal"),
    ({"reconcile": 7}, "reconcile"),
    ({"prepare": 7}, "prepare must be a function, not 7"),
    ({"prepare": add_later}, "must not be a coroutine function"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_a_wrong_setting_is_refused_where_it_is_written(settings: dict[str, Any], message: str) -> None:
    settings = dict(settings)
    function = settings.pop("function", add)

    async def scenario(ctx: ActionContext) -> Any:
        with pytest.raises(HandleMisuse, match=message):
            ctx.durable_execute(function, **settings)
        return "refused"

    with run(scenario) as harness:
        assert harness.responses[0]["output"] == "refused"


@pytest.mark.rule(20)
def test_an_argument_that_cannot_be_recorded_is_refused() -> None:
    async def scenario(ctx: ActionContext) -> Any:
        with pytest.raises(Unserializable, match=r"add cannot be recorded.*Bind such things"):
            ctx.durable_execute(add, threading.Lock())
        # Bound, it takes no part in what is recorded.
        return await ctx.durable_execute(functools.partial(Client().ask, "bound"))

    with run(scenario) as harness:
        assert harness.responses[0]["output"] == "bound"


@pytest.mark.rule(3, 20)
@pytest.mark.parametrize("always_replay", [False, True])
def test_rich_values_come_and_go_as_they_are(always_replay: bool) -> None:
    given = [{1, 2}, (1, "a"), datetime(2026, 1, 1, tzinfo=timezone.utc), Account("a"), {"k": b"\xff"}]

    def spoil(values: list[Any], *, key: list[int]) -> list[Any]:
        taken = list(values)
        values.clear()
        key.append(1)
        return [taken, key]

    async def scenario(ctx: ActionContext) -> Any:
        key = [0]
        calls = [ctx.durable_execute(spoil, given, key=key, execution=where) for where in ("thread", "inline")]
        outcomes = await ctx.gather(*calls)
        assert (len(given), key) == (5, [0])
        return [outcome.result() == [given, [0, 1]] for outcome in outcomes]

    with run(scenario, always_replay=always_replay) as harness:
        assert harness.responses[0]["output"] == [True, True]


@pytest.mark.rule(18)
@pytest.mark.parametrize("on_mismatch", list(OnMismatch))
def test_a_recorded_result_never_answers_a_call_with_another_bound_argument(on_mismatch: OnMismatch) -> None:
    held = ControlledTool("held")
    lives: list[int] = []

    async def scenario(ctx: ActionContext) -> Any:
        lives.append(1)
        found = await ctx.durable_execute(functools.partial(add, len(lives)), 10)
        await ctx.call_tool("held", {})
        return found

    agent = acting(scenario)
    agent.on_mismatch = on_mismatch
    with Harness([held], agent=agent) as harness:
        harness.send({"key": "k"})
        harness.run()
        harness.checkpoint()
        if on_mismatch is OnMismatch.FAIL:
            with pytest.raises(IdentityMismatch, match="The arguments differ"):
                harness.crash()
            return
        harness.crash()
        harness.run()
        held.running[-1].succeed(None)
        harness.run()
        assert [line["output"] for line in harness.responses] == [12]


class Prepared:
    """A preparation that counts, and fails as the test says."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.threads: list[int] = []
        self.error: BaseException | None = None

    def __call__(self, *args: Any) -> str:
        self.asked.append(args)
        self.threads.append(threading.get_ident())
        if self.error is not None:
            raise self.error
        return f"session {len(self.asked)}"


def use(session: str, what: str) -> str:
    return f"{what} in {session}"


@pytest.mark.rule(11, 14)
@pytest.mark.parametrize("execution", ["thread", "inline"])
@pytest.mark.parametrize("recorded", ["slot", "journal"])
def test_preparation_comes_after_the_slot_and_not_for_a_call_that_has_ended(
    execution: str, recorded: str, journal: Journal
) -> None:
    prepare, held = Prepared(), ControlledTool("held")
    slots: list[int] = []

    async def scenario(ctx: ActionContext) -> Any:
        def noting(*args: Any) -> str:
            slots.append(ctx._run._reserved)
            return prepare(*args)

        first, second = (
            ctx.durable_execute(use, what, id=f"use {what}", prepare=noting, execution=execution) for what in "ab"
        )
        outcomes = await ctx.gather(first, second, max_in_flight=1)
        await ctx.call_tool("held", {})
        return [outcome.result() for outcome in outcomes]

    with run(scenario, held, journal=journal if recorded == "journal" else None) as harness:
        assert prepare.asked == [("a",), ("b",)]
        # Both slots were reserved before the first preparation.
        assert slots == [2, 2]
        assert set(prepare.threads) == {threading.get_ident()}
        if recorded == "slot":
            harness.checkpoint()
        harness.crash()
        harness.run()
        held.running[-1].succeed(None)
        harness.run()
        assert harness.responses[0]["output"] == ["a in session 1", "b in session 2"]
        assert len(prepare.asked) == 2


@pytest.mark.rule(13)
def test_a_preparation_that_fails_is_the_calls_failure() -> None:
    prepare = Prepared()
    prepare.error = LookupError("no session")
    ran: list[str] = []

    async def scenario(ctx: ActionContext) -> Any:
        retry = RetryPolicy(attempts=3)
        calls = [ctx.durable_execute(ran.append, "a", prepare=prepare, retry=retry), ctx.durable_execute(add, 1)]
        outcomes = await ctx.gather(*calls)
        return [str(outcome.exception) if outcome.exception else outcome.result() for outcome in outcomes]

    with run(scenario, always_replay=True) as harness:
        assert harness.responses[0]["output"] == ["no session", 1]
        assert (ran, len(prepare.asked)) == ([], 1)


class Broken(Uncapturable):
    pass


@pytest.mark.rule(13, 43)
def test_a_fault_while_preparing_leaves_the_slot_pending() -> None:
    prepare, held = Prepared(), ControlledTool("held")

    async def scenario(ctx: ActionContext) -> Any:
        await ctx.call_tool("held", {})
        return await ctx.durable_execute(use, "a", prepare=prepare)

    with run(scenario, held) as harness:
        harness.checkpoint()
        prepare.error = Broken()
        held.running[-1].succeed(None)
        with pytest.raises(Broken):
            harness.run()
        assert all("f" not in slot and "o" not in slot for slot in harness.slots("k").values())
        prepare.error = None
        harness.crash()
        held.running[-1].succeed(None)
        harness.run()
        assert harness.responses[0]["output"] == "a in session 2"


@pytest.mark.rule(14, 39)
def test_each_attempt_is_prepared_anew() -> None:
    prepare = Prepared()

    def fail_first(session: str, what: str) -> str:
        if session == "session 1":
            raise ConnectionError
        return session

    async def scenario(ctx: ActionContext) -> Any:
        retry = RetryPolicy(attempts=2, initial_ms=100)
        return await ctx.durable_execute(fail_first, "a", prepare=prepare, retry=retry)

    with run(scenario) as harness:
        harness.advance(1_000)
        assert harness.responses[0]["output"] == "session 2"


@pytest.mark.rule(15, 16, 26)
@pytest.mark.parametrize("answer", ["value", "failure", "not started"])
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_call_in_doubt_is_decided_by_its_reconciler(journal: Journal, answer: str, kind: str) -> None:
    runs: list[str] = []

    def find(a: int, b: int) -> Any:
        runs.append(f"find {a} {b}")
        if answer == "failure":
            raise LookupError("it went wrong")
        return NOT_STARTED if answer == "not started" else 100

    async def find_later(a: int, b: int) -> Any:
        return find(a, b)

    async def scenario(ctx: ActionContext) -> Any:
        try:
            return await ctx.durable_execute(
                add if kind == "thread" else add_later,
                1,
                b=2,
                reconcile=find if kind == "thread" else find_later,
            )
        except LookupError as error:
            return str(error)

    harness = Harness([], agent=acting(scenario), journal=journal)
    with harness:
        harness.send({"key": "k"})
        while not harness.workers._ready:
            harness._settle_once()
            harness._commit()
        harness.crash()
        harness.run()
        expected = {"value": 100, "failure": "it went wrong", "not started": 3}
        assert [line["output"] for line in harness.responses] == [expected[answer]]
        assert runs == ["find 1 2"]


@pytest.mark.rule(48, 49)
def test_the_time_that_calls_were_asked_with_survives_a_crash_that_loses_its_slot(journal: Journal) -> None:
    held = ControlledTool("held")
    asked: list[Any] = []

    async def scenario(ctx: ActionContext) -> Any:
        begun = ctx.now()
        asked.append([begun, ctx.uuid(), ctx.uuid()])
        await ctx.durable_execute(add, int(begun.timestamp() * 1000))
        await ctx.call_tool("held", {"at": begun.isoformat()})
        return begun.isoformat()

    with Harness([held], agent=acting(scenario), journal=journal) as harness:
        harness.advance(5_000)
        harness.send({"key": "k"})
        harness.run()
        harness.advance(60_000)
        harness.crash()
        harness.run()
        assert asked[0] == asked[1]
        assert asked[0][1] != asked[0][2]
        held.running[-1].succeed(None)
        harness.run()
        assert [line["output"] for line in harness.responses] == ["1970-01-01T00:00:05+00:00"]
        # The durable call; that the time and the names were found again is nobody's call.
        assert harness.statistics["replayed"] == 1


def test_a_time_that_another_attempt_has_recorded_stands_and_fails_this_one(journal: Journal) -> None:
    async def scenario(ctx: ActionContext) -> Any:
        return ctx.now().timestamp()

    with Harness([], agent=acting(scenario), journal=journal) as harness:
        harness.advance(5_000)
        harness.send({"key": "k"})
        harness.run()
        (row,) = [row for row in journal.calls(CallFilter(run_id="run")) if row.call.kind == "now"]
        note = harness.subtask._call_journal
        assert note is not None
        note.note(row.call, Succeeded("7000"))
        while harness._commit():
            pass
        assert "another attempt of the task has recorded another time" in str(harness.attempt.failure)


@pytest.mark.rule(37, 41)
@pytest.mark.parametrize("crashes", [False, True])
def test_a_sleep_ends_when_it_was_to_end(crashes: bool) -> None:
    async def scenario(ctx: ActionContext) -> Any:
        began = ctx.now()
        await ctx.sleep("10s")
        return (ctx.now() - began).total_seconds()

    with run(scenario) as harness:
        harness.advance(4_000)
        if crashes:
            harness.checkpoint()
            harness.clock_ms += 3_000
            harness.crash()
            harness.run()
            harness.clock_ms -= 3_000
        harness.advance(5_999)
        assert harness.responses == []
        harness.advance(1)
        assert [line["output"] for line in harness.responses] == [10.0]


@pytest.mark.rule(48)
@pytest.mark.parametrize("point", ["before:recorded", "after:recorded", "before:emitted", "after:emitted"])
@pytest.mark.parametrize("with_journal", [False, True])
def test_a_crash_at_any_point_gives_each_line_once(point: str, with_journal: bool, journal: Journal) -> None:
    async def scenario(ctx: ActionContext) -> Any:
        first = await ctx.durable_execute(add, 1)
        ctx.memory.set("first", first)
        outcomes = await ctx.gather(*(ctx.durable_execute(add_later, n) for n in range(3)))
        return [first, ctx.memory.get("first"), *(outcome.result() for outcome in outcomes)]

    with Harness(
        [], agent=acting(scenario), fault=CrashAt(point), journal=journal if with_journal else None
    ) as harness:
        harness.send({"key": "k"}, {"key": "k"}, {"key": "other"})
        harness.run()
        assert harness.crashes == 1
        assert [line["output"] for line in harness.responses] == [[1, 1, 0, 1, 2]] * 3
