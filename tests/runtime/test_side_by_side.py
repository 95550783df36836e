"""Requests of plain tools run without the action's coroutine: everything seen of them is as on the ordinary way."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents.context import ActionContext
from flink_agents.durable.journal.operations import Finish
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.outcome import Succeeded
from flink_agents.errors import Uncapturable
from flink_agents.options import Execution, Limits, Mode, ToolCallOptions, WorkerOptions
from flink_agents.scheduler.run import ActionRun
from flink_agents.scheduler.tool_context import ToolContext
from flink_agents.testing import ControlledTool, Harness, PlannedCrash, tool_request
from flink_agents.tools.base import Body, Tool, ToolSpec
from flink_agents.tools.registry import FunctionDeclaration


def add(a: int, b: int) -> int:
    return a + b


async def later(a: int, b: int = 0) -> list[int]:
    return [a, b]


async def fail(text: str) -> str:
    raise LookupError(text)


def leave() -> None:
    raise SystemExit(3)


async def cancelled() -> None:
    raise asyncio.CancelledError


def lock() -> Any:
    return threading.Lock()


def large() -> str:
    return "x" * 5000


def told(ctx: ToolContext) -> list[Any]:
    ctx.count("seen", 2)
    return [ctx.key, ctx.request_id, ctx.call_id, ctx.tool, ctx.attempt, ctx.idempotency_key, ctx.remaining_s]


def rich() -> dict[Any, Any]:
    return {1: b"bytes", "set": {1, 2}, "big": 2**70}


TOOLS = [add, later, fail, leave, cancelled, lock, large, told, rich]
CALLS: list[tuple[str, Any]] = [
    ("add", {"a": 1, "b": 2}),
    ("later", {"a": 1}),
    ("later", '{"a": 5, "b": 6}'),
    ("add", '{"a": 1, "b": "x"}'),
    ("add", '{"a": 1'),
    ("add", None),
    ("add", {"a": 1, "b": 2, "c": 3}),
    ("add", {"a": 1.0, "b": True}),
    ("add", {"a": 2**63, "b": -(2**70)}),
    ("fail", {"text": "no é \U0001f600"}),
    ("fail", {"text": {"nested": [1, {"a": None}]}}),
    ("fail", {"text": "y" * 400}),
    ("leave", {}),
    ("cancelled", {}),
    ("lock", {}),
    ("large", {}),
    ("told", {}),
    ("told", {}),
    ("rich", {}),
]
REQUESTS = [[call] for call in CALLS] + [CALLS, CALLS[:4] * 3]


class Watched:
    """What is seen of a run: at each point that a crash could come, the state; at the end everything else."""

    def __init__(self, journal: Journal | None = None, **options: Any) -> None:
        limits = Limits(result=1000, arguments=300)
        self.harness = Harness(
            TOOLS, limits=limits, journal=journal, tool_calls=ToolCallOptions(max_in_flight=len(CALLS)), **options
        )
        self.states: list[Any] = []

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.harness.close()

    def look(self) -> None:
        self.states.append([self.harness.slots("k"), self.harness.head("k"), self.harness.pending_requests("k")])

    def run(self, *records: dict[str, Any]) -> Any:
        harness = self.harness
        for record in records:
            harness.send(record)
            self.look()
        while harness._settle_once() or harness.workers.step() or harness._commit():
            self.look()
        return self.seen()

    def seen(self) -> Any:
        harness = self.harness
        permits = [harness.workers.permits(each).used for each in (Execution.THREAD, Execution.ASYNC)]
        gates = {name: gate.running for name, gate in harness.subtask._admission._gates.items() if gate.running}
        counts = {name: n for name, n in harness.counters.counts.items() if n}
        responses = harness.responses
        for result in (result for response in responses for result in response["results"]):
            assert result.pop("duration_ms") >= 0
        assert permits == [0, 0]
        assert gates == {}
        assert "in_flight" not in counts
        return responses, counts, harness.statistics, plain(self.states, harness.attempt.id)


def plain(states: Any, attempt: str) -> str:
    """Return the states as text in which nothing differs from run to run, and no trace names the engine's functions."""

    def of(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: of(value) for name, value in node.items() if name not in ("ms", "trace")}
        return [of(value) for value in node] if isinstance(node, list) else node

    return repr(of(states)).replace(attempt, "ATTEMPT")


@pytest.fixture(params=["no journal", "journal"])
def journal_of(request: pytest.FixtureRequest, tmp_path: Any) -> Callable[[str], Journal | None]:
    return lambda name: None if request.param == "no journal" else SqliteJournal(tmp_path / f"{name}.db")


@pytest.mark.rule(1, 7)
@pytest.mark.parametrize("calls", REQUESTS, ids=[f"{n}-{calls[0][0]}-{len(calls)}" for n, calls in enumerate(REQUESTS)])
def test_all_that_is_seen_is_as_on_the_ordinary_way(
    calls: list[tuple[str, Any]], journal_of: Callable[[str], Journal | None]
) -> None:
    records = [tool_request("k", *calls, id=f"id-{n}", metadata={"n": n}) for n in range(3)]
    seen = []
    for short in (True, False):
        with Watched(journal_of(str(short)), side_by_side=short) as watched:
            seen.append(watched.run(*records))
    assert seen[0] == seen[1]


def test_such_requests_really_run_without_the_action(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(ActionContext, "call_tool", refuse)
    with Harness(TOOLS) as harness:
        harness.send(tool_request("k", ("add", {"a": 1, "b": 2}), ("later", {"a": 1}), ("add", {})))
        assert {slot["s"] for slot in harness.slots("k").values()} == {"started", "failed"}
        harness.run()
        assert [result["status"] for result in harness.results()] == ["succeeded", "succeeded", "failed"]


OTHERS: dict[str, tuple[list[tuple[str, Any]], dict[str, Any]]] = {
    "an unknown tool's": ([("add", {"a": 1, "b": 2}), ("unknown", {})], {}),
    "an inline tool's": ([("here", {}), ("add", {"a": 1, "b": 2})], {}),
    "a bounded tool's": ([("bounded", {})], {}),
    "more than may be in flight": ([("add", {"a": 1, "b": n}) for n in range(3)], {"max_in_flight": 2}),
    "one after another": ([("add", {"a": 1, "b": n}) for n in range(3)], {"mode": Mode.SEQUENTIAL}),
    "with a deadline": ([("add", {"a": 1, "b": 2})], {"timeout_ms": 1000}),
    "none": ([], {}),
}


@pytest.mark.parametrize("which", OTHERS)
def test_a_request_with_any_other_call_goes_the_ordinary_way(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, options = OTHERS[which]
    begun: list[str] = []
    begin = ActionRun.begin

    def note(run: ActionRun, action: Any) -> None:
        begun.append(run.origin.request_id)
        begin(run, action)

    monkeypatch.setattr(ActionRun, "begin", note)
    here = FunctionDeclaration(lambda: 1, name="here", execution="inline")
    bounded = FunctionDeclaration(lambda: 1, name="bounded", max_concurrent=1)
    with Harness([*TOOLS, here, bounded], tool_calls=ToolCallOptions(**options)) as harness:
        harness.send(tool_request("k", *calls))
        harness.run()
        assert len(harness.results()) == len(calls)
    assert len(begun) == 1


def test_without_workers_for_all_calls_they_wait_their_turn_one_by_one() -> None:
    held = ControlledTool("held")
    with Harness([held], workers=WorkerOptions(threads=2)) as harness:
        harness.send(tool_request("k", *[("held", {})] * 3))
        assert len(held.running) == 2
        assert harness.workers.threads.used == 2
        held.running[0].succeed(1)
        harness.run()
        assert len(held.running) == 2
        for call in list(held.running):
            call.succeed(2)
        harness.run()
        assert [result["value"] for result in harness.results()] == [1, 2, 2]
        assert harness.workers.threads.used == 0


class Refusing(Tool):
    """Raises when a call is prepared, and counts how often it was asked."""

    def __init__(self, error: BaseException, hook: Callable[[], None] = lambda: None) -> None:
        self.spec = ToolSpec("refusing", "Refuse.")
        self.error = error
        self.hook = hook
        self.asked = 0

    def prepare(self, arguments: dict[str, Any]) -> Body:
        self.asked += 1
        self.hook()
        raise self.error


@pytest.mark.rule(13, 14)
def test_a_call_that_cannot_be_prepared_is_asked_once_and_gives_its_worker_back() -> None:
    refusing, held = Refusing(ValueError("no")), ControlledTool("held")
    with Harness([refusing, held]) as harness:
        harness.send(tool_request("k", ("refusing", {}), ("held", {}), ("refusing", {})))
        assert (refusing.asked, harness.workers.threads.used) == (2, 1)
        assert [slot["s"] for slot in harness.slots("k").values()] == ["failed", "started", "failed"]
        held.running[0].succeed(1)
        harness.run()
        assert [(r["status"], r["attempts"]) for r in harness.results()] == [
            ("failed", 0),
            ("succeeded", 1),
            ("failed", 0),
        ]


@pytest.mark.rule(43)
@pytest.mark.parametrize("fatal", [MemoryError("no"), type("Mine", (Uncapturable,), {})()], ids=["memory", "own"])
def test_a_fatal_error_fails_the_task_and_answers_nothing(fatal: BaseException) -> None:
    def broken() -> None:
        raise fatal

    with Harness([broken, Refusing(fatal)]) as harness:
        with pytest.raises(type(fatal)):
            harness.send(tool_request("k", ("refusing", {})))
        harness.send(tool_request("other", ("broken", {})))
        with pytest.raises(type(fatal)):
            harness.run()
        assert harness.responses == []


@pytest.mark.rule(27)
def test_an_interruption_answers_nothing_and_leaves_the_slots_pending() -> None:
    held = ControlledTool("held")
    with Harness([held, add]) as harness:
        harness.send(tool_request("k", ("held", {}), ("add", {"a": 1, "b": 2})))
        harness.checkpoint()
        harness.interrupt()
        for call in list(held.running):
            call.fail(asyncio.CancelledError())
        harness.run()
        assert harness.responses == []
        assert {slot["s"] for slot in harness.slots("k").values()} <= {"started", "succeeded"}
        harness.crash()
        held.running[-1].succeed("again")
        harness.run()
        assert [result["value"] for result in harness.results()] == ["again", 3]


@pytest.mark.rule(24)
def test_the_outcome_that_another_attempt_recorded_first_stands(tmp_path: Any) -> None:
    journal, held = SqliteJournal(tmp_path / "j.db"), ControlledTool("held")
    with Harness([held, add], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {}), ("add", {"a": 1, "b": 2})))
        harness.run()
        row = held.running[0].call.row
        journal.apply([Finish(row, Succeeded('"theirs"'), 3, "another attempt", 0, 1)])
        held.running[0].succeed("ours")
        harness.run()
        seen = [(result["value"], result["replayed"], result["attempts"]) for result in harness.results()]
        assert seen == [("theirs", True, 3), (3, False, 1)]
        assert (harness.counters.counts["replayed"], harness.statistics["replayed"]) == (1, 1)


POINTS = [
    f"{when}:{name}"
    for name in ("reserve", "start", "body_ended", "outcome_queued", "recorded", "resumed", "emitted", "cleaned")
    for when in ("before", "after")
]


@pytest.mark.rule(33, 39)
def test_what_a_timed_out_body_of_the_request_before_returns_is_nobodys(
    journal_of: Callable[[str], Journal | None],
) -> None:
    slow, plain = ControlledTool("slow", timeout_ms=100), ControlledTool("plain")
    with Harness([slow, plain], journal=journal_of("late")) as harness:
        harness.send(tool_request("k", ("slow", {}), ("slow", {})), tool_request("k", ("plain", {})))
        harness.run()
        harness.advance(200)
        late = list(slow.running)
        assert (len(late), len(plain.running)) == (2, 1)
        late[0].succeed("late")
        late[1].fail(MemoryError())
        harness.run()
        assert len(harness.responses) == 1
        assert harness.counters.counts["strays"] == 0
        plain.running[0].succeed("own")
        harness.run()
        assert [each["value"] for each in harness.responses[1]["results"]] == ["own"]
        assert harness.counters.counts["in_flight"] == 0


def test_a_body_that_returns_between_two_requests_of_its_key_gives_its_place_back() -> None:
    class Deferring(Harness):
        """Serves a key that wants a further turn only after what is due then, as the operator does under load."""

        later: tuple[str, ...] = ()

        def _turn(self, key: str, decide: Any) -> None:
            def deferred(store: Any) -> Any:
                turn = decide(store)
                self.later += tuple(turn.wake)
                turn.wake = []
                return turn

            super()._turn(key, deferred)

    slow = ControlledTool("slow", timeout_ms=100, max_concurrent=1)
    deferring = Deferring([slow, FunctionDeclaration(add, execution="inline")])
    with deferring as harness:
        quick = [tool_request("k", ("add", {"a": 1, "b": 2}))] * 70
        harness.send(tool_request("k", ("slow", {})), *quick)
        harness.run()
        harness.advance(200)
        slow.running[0].succeed("too late")
        assert deferring.later
        for key in {**dict.fromkeys(deferring.later), **dict.fromkeys(harness.subtask.due_keys())}:
            harness._wake(key)
        harness.run()
        harness.send(tool_request("other", ("slow", {})))
        harness.run()
        assert len(slow.running) == 1
        assert harness.counters.counts["strays"] == 0


@pytest.mark.rule(1)
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_loses_and_doubles_nothing(
    point: str, journal_of: Callable[[str], Journal | None]
) -> None:
    dice = random.Random(point)
    for times in range(6):
        left = [dice.randint(0, 6)]

        def fault(passed: str, left: list[int] = left) -> None:
            if passed == point:
                left[0] -= 1
                if left[0] == -1:
                    raise PlannedCrash(passed)

        ran: list[int] = []

        def count(n: int, ran: list[int] = ran) -> int:
            ran.append(n)
            return n

        with Harness([count, later], fault=fault, journal=journal_of(f"{times}")) as harness:
            for n in range(4):
                harness.send(tool_request(f"k{n % 2}", ("count", {"n": n}), ("later", {"a": n}), id=f"r{n}"))
                if dice.random() < 0.5:
                    harness.checkpoint()
                if dice.random() < 0.5:
                    harness.run()
            harness.run()
            assert sorted(response["request_id"] for response in harness.responses) == ["r0", "r1", "r2", "r3"]
            for response in harness.responses:
                n = int(response["request_id"][1:])
                assert [result["value"] for result in response["results"]] == [n, [n, 0]]
            assert harness.pending_requests("k0") == harness.pending_requests("k1") == []
            assert harness.workers.threads.used == harness.workers.coroutines.used == 0


@pytest.mark.rule(1)
@pytest.mark.parametrize("first", [True, False])
def test_what_one_way_recorded_the_other_goes_on_with(first: bool) -> None:
    held = ControlledTool("held")
    with Harness([held, add], side_by_side=first) as harness:
        harness.send(
            tool_request("k", ("held", {}), ("add", {"a": 1, "b": 2})), tool_request("k", ("add", {"a": 3, "b": 4}))
        )
        harness.run()
        harness.checkpoint()
        harness._side_by_side = not first
        harness.crash()
        held.running[-1].succeed("again")
        harness.run()
        results = harness.results()
        assert [(result["value"], result["replayed"], result["attempts"]) for result in results] == [
            ("again", False, 2),
            (3, True, 1),
            (7, False, 1),
        ]
