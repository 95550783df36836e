"""The time that an action was told: what the journal knows of it stands, and what it cannot know ends the attempt."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents import ActionContext, InputEvent
from flink_agents.clock import now_ms
from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.operations import Operation
from flink_agents.durable.journal.rows import CallKey, StartAnswer, StartStatus
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.outcome import Succeeded
from flink_agents.errors import FrameworkFault, JournalLost
from flink_agents.options import WorkerOptions
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.call_journal import CallJournal
from flink_agents.scheduler.workers import Workers
from flink_agents.testing import Harness

if TYPE_CHECKING:
    from tests.conftest import Trial


@pytest.mark.rule(24)
def test_a_time_that_only_the_journal_knows_is_told_again(trial: Trial, journal: SqliteJournal) -> None:
    told: list[datetime] = []

    async def scenario(event: InputEvent, ctx: ActionContext) -> str:
        told.append(ctx.now())
        await ctx.sleep("1h")
        return told[-1].isoformat()

    with Harness([], agent=trial.acting(scenario), journal=journal) as harness:
        harness.clock_ms = 1000
        harness.send({"id": "r", "key": "k"})
        harness.run()
        harness.clock_ms = 2000
        harness.crash()
        harness.run()
    assert len(told) == 2
    assert told[0] == told[1]


class Answering:
    """A writer that answers when the test says so."""

    def __init__(self) -> None:
        self.answer: Callable[[Any], None] | None = None

    def submit(
        self,
        operation: Operation,
        on_done: Callable[[Any], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        self.answer = on_done


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (StartAnswer(StartStatus.TERMINAL, 1, 0, "a", Succeeded("1000")), None),
        (StartAnswer(StartStatus.TERMINAL, 1, 0, "b", Succeeded("999")), FrameworkFault),
        (JournalLost("gone"), JournalLost),
    ],
    ids=["its own", "another attempt's", "lost"],
)
def test_a_time_that_does_not_stand_ends_the_attempt(answer: Any, failure: type[BaseException] | None) -> None:
    attempt, writer = Attempt(), Answering()
    calls = CallJournal(writer, Workers(WorkerOptions()), attempt, now_ms, 3)
    calls.note(CallKey.of("run", '"k"', 1, Identity(0, "now", "now", -1, "digest")), Succeeded("1000"))
    assert writer.answer is not None
    writer.answer(answer)
    assert (None if attempt.failure is None else type(attempt.failure)) is failure
