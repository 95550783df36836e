"""User failure, interruption, fatal error, framework fault: four things, whatever wraps the code that raised them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents.durable.journal.rows import CallFilter
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.errors import (
    CallTimeout,
    FrameworkFault,
    Interrupted,
    NotStarted,
    StateFormat,
    Uncapturable,
)
from flink_agents.options import Execution, OnInterrupt, ToolCallOptions
from flink_agents.retry import RetryPolicy
from flink_agents.scheduler.call_journal import NOT_STARTED
from flink_agents.testing import ControlledTool, Harness, tool_request
from flink_agents.tools.registry import FunctionDeclaration

USER = [ValueError("u"), TimeoutError("u"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), CallTimeout("mine"),
        NotStarted("mine"), StopIteration("u")]  # fmt: skip
CANCELLATION = [asyncio.CancelledError("c"), Interrupted("c")]
FATAL = [MemoryError("f"), type("Marked", (Uncapturable,), {})("f")]
FAULT = [FrameworkFault("w"), StateFormat("w")]
RETRY = RetryPolicy(attempts=5, initial_ms=0, jitter=0, on=(BaseException,))


class Stage:
    """A tool that raises where it is told to: in its body, its preparation, or its reconciler; and a sibling of it."""

    def __init__(self, where: str, raised: BaseException, journal: SqliteJournal) -> None:
        self.where = where
        self.raised = raised
        self.lives = 0
        self.before: Callable[[], Any] = lambda: None
        self.held = ControlledTool("held")
        self.first = ControlledTool("stage", on_interrupt=OnInterrupt.FAIL)
        is_asked = where == "reconciler"
        tools = [self.held, self.first if is_asked else self._tool()]
        self.journal = journal if is_asked else None
        self.harness = Harness(tools, journal=self.journal)

    def begin(self) -> None:
        """Send the request; for a reconciler the call is in doubt when it begins."""
        self.harness.send(tool_request("k", ("held", {}), ("stage", {})))
        self.harness.run()
        if self.where == "reconciler":
            assert len(self.first.begun) == 1
            self.harness.crash(tools=[self.held, self._tool()])
            self.harness.run()

    def recorded(self) -> list[Any]:
        """Return the outcomes in the journal."""
        rows = [] if self.journal is None else self.journal.calls(CallFilter())
        return [row.outcome for row in rows if row.outcome is not None]

    def _tool(self) -> Any:
        if self.where == "preparation":
            return Unprepared(self)
        execution = {"loop": Execution.ASYNC, "task thread": Execution.INLINE}.get(self.where, Execution.THREAD)
        is_asked = self.where == "reconciler"
        return FunctionDeclaration(
            self._raise_async if self.where == "loop" else self.fail,
            name="stage",
            execution=execution.value,
            on_interrupt="reconcile" if is_asked else None,
            reconcile=self.fail if is_asked else None,
            retry=RETRY,
        )

    def fail(self) -> None:
        """Raise."""
        self.lives += 1
        self.before()
        raise self.raised

    async def _raise_async(self) -> None:
        """Raise."""
        self.fail()


class Unprepared(ControlledTool):
    def __init__(self, stage: Stage) -> None:
        super().__init__("stage", retry=RETRY)
        self.stage = stage

    def prepare(self, arguments: dict[str, Any]) -> Any:
        self.stage.fail()


WHERE = pytest.mark.parametrize("where", ["thread", "loop", "task thread", "preparation", "reconciler"])


@WHERE
@pytest.mark.rule(4, 13, 31, 43, 44)
@pytest.mark.parametrize("raised", [*USER, *CANCELLATION], ids=repr)
def test_a_user_failure_is_that_calls_result_wherever_it_is_raised(
    where: str, raised: BaseException, journal: SqliteJournal
) -> None:
    stage = Stage(where, raised, journal)
    with stage.harness as harness:
        stage.begin()
        for _ in range(10):
            harness.advance(1)
        stage.held.running[-1].succeed("untouched")
        harness.run()
        first, second = harness.results()
        assert first["value"] == "untouched"
        assert second["status"] == "failed"
        # A coroutine cannot raise StopIteration: Python itself makes another error of it.
        is_remade = where == "loop" and isinstance(raised, StopIteration)
        assert second["error"]["type"] == ("RuntimeError" if is_remade else type(raised).__name__)
        assert len(harness.responses) == 1


@WHERE
@pytest.mark.rule(13, 16, 27, 30)
@pytest.mark.parametrize("raised", CANCELLATION, ids=repr)
def test_an_interruption_records_nothing_and_is_not_retried_wherever_it_is_raised(
    where: str, raised: BaseException, journal: SqliteJournal
) -> None:
    stage = Stage(where, raised, journal)
    with stage.harness as harness:
        stage.before = lambda: harness.interrupt()
        stage.begin()
        harness.advance(10)
        assert harness.responses == []
        assert stage.lives == 1
        assert harness.slots("k")["1/1"]["s"] in ("reserved", "started")
        assert stage.recorded() == []


@WHERE
@pytest.mark.rule(13, 16, 43)
@pytest.mark.parametrize("raised", [*FATAL, *FAULT], ids=repr)
def test_what_is_fatal_fails_the_task_and_records_no_outcome_wherever_it_is_raised(
    where: str, raised: BaseException, journal: SqliteJournal
) -> None:
    stage = Stage(where, raised, journal)
    with stage.harness as harness:
        with pytest.raises(type(raised)) as told:
            stage.begin()
        assert told.value is raised
        assert stage.lives == 1
        assert harness.responses == []
        assert all(slot["s"] in ("reserved", "started") for slot in harness.slots("k").values())
        assert stage.recorded() == []


@pytest.mark.rule(43)
def test_a_fault_of_the_engine_in_a_body_that_timed_out_is_still_nobodys_result() -> None:
    held = ControlledTool("held", timeout_ms=10)
    with Harness([held], tool_calls=ToolCallOptions(max_in_flight=2)) as harness:
        harness.send(tool_request("k", ("held", {}), ("held", {})))
        harness.advance(10)
        # Its call has its outcome; what the body says after that concerns nobody.
        held.running[0].fail(FrameworkFault("late"))
        harness.run()
        assert [r["error"]["kind"] for r in harness.results()] == ["timeout", "timeout"]


@pytest.mark.rule(15)
def test_a_call_in_doubt_whose_tool_has_no_reconciler_after_all_does_not_run_again(journal: SqliteJournal) -> None:
    held = ControlledTool("held", on_interrupt=OnInterrupt.RECONCILE)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.crash()
        harness.run()
        assert len(held.begun) == 1
        assert [r["error"]["kind"] for r in harness.results()] == ["in_doubt"]
        assert "on_interrupt: reconcile" in harness.results()[0]["error"]["message"]


def test_the_answer_not_started_is_one_object_wherever_it_travels() -> None:
    assert pickle.loads(pickle.dumps(NOT_STARTED)) is NOT_STARTED
    assert repr(NOT_STARTED) == "NOT_STARTED"
