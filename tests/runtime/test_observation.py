"""The observer of a chaos run: what it notes, how it stretches, and what it switches off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.operations import Finish, LookUp, Operation
from flink_agents.durable.journal.rows import CallKey, StartAnswer, StartStatus
from flink_agents.durable.outcome import Succeeded
from flink_agents.durable.slots import Slot
from flink_agents.options import Execution
from flink_agents.runtime.observation import Guarantee, Observation, Observer
from flink_agents.runtime.subtask import JournalPort
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.call import RunningCall
from flink_agents.scheduler.prepared import CallTerms, Prepared
from flink_agents.scheduler.tool_context import Origin

CALL = CallKey.of("run", '"k"', 1, Identity(0, "tool", "f", 0, "ab" * 32))
STANDS = StartAnswer(StartStatus.TERMINAL, 1, attempt_id="first", outcome=Succeeded('"first"'))


class AnsweringWriter:
    """A journal in which another attempt's outcome stands."""

    def __init__(self) -> None:
        self.asked: list[Operation] = []

    def submit(
        self,
        operation: Operation,
        on_done: Callable[[Any], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        self.asked.append(operation)
        if on_done is not None:
            on_done(STANDS)
        if then is not None:
            then()


def call_of(body: Callable[[], Any], execution: Execution, request_id: str = "r") -> RunningCall:
    slot = Slot(0, Identity(0, "tool", "f", 0, "ab" * 32))
    return RunningCall(
        Origin("run", "k", '"k"', request_id, 1), slot, Prepared(body, CallTerms("f", execution)), Attempt(), 100
    )


def finish() -> Finish:
    return Finish(CALL, Succeeded('"own"'), 1, "second", 1, 2)


def noted(folder: Path) -> list[tuple[str, str]]:
    (log,) = folder.glob("*.jsonl")
    return [(entry["e"], entry.get("by", "")) for entry in map(json.loads, log.read_text().splitlines())]


def observed(folder: Path, broken: Guarantee | None = None) -> tuple[AnsweringWriter, Any]:
    writer = AnsweringWriter()
    observer = Observer(Observation(str(folder), broken=broken).to_text(), Attempt())
    port = observer.port(JournalPort(writer, False, lambda key, number, also: [], lambda call: None))
    assert port is not None
    return writer, port.writer


def test_the_parameter_travels_as_text() -> None:
    observation = Observation("folder", 7, 50, 2000, Guarantee.FENCE)
    assert Observation.from_text(observation.to_text()) == observation


def test_a_body_takes_as_long_each_time_for_one_seed() -> None:
    observation = Observation("folder", 7, 50, 2000)
    calls = [call_of(str, Execution.THREAD, f"r{i}") for i in range(50)]
    times = [observation.stretch_s(call) for call in calls]
    assert times == [observation.stretch_s(call) for call in calls]
    assert 0.05 <= min(times) < max(times) <= 2.0
    assert times != [Observation("folder", 8, 50, 2000).stretch_s(call) for call in calls]


def test_bodies_are_noted_whatever_becomes_of_them(tmp_path: Path) -> None:
    async def answer() -> str:
        return "answer"

    def fail() -> None:
        raise ValueError("no")

    observer = Observer(Observation(str(tmp_path)).to_text(), Attempt())
    failing, answering = call_of(fail, Execution.THREAD), call_of(answer, Execution.ASYNC)
    observer.watch([failing, answering])
    with pytest.raises(ValueError, match="no"):
        failing.prepared.body()
    assert asyncio.run(answering.prepared.body()) == "answer"
    assert [event for event, _ in noted(tmp_path)] == ["open", "begin", "end", "begin", "end"]


def test_what_stands_is_noted_and_passed_on(tmp_path: Path) -> None:
    answers: list[Any] = []
    writer, watched = observed(tmp_path)
    watched.submit(LookUp(CALL), answers.append, lambda: answers.append("then"))
    watched.submit(finish(), answers.append, lambda: answers.append("then"))
    assert answers == [STANDS, "then", STANDS, "then"]
    assert len(writer.asked) == 2
    assert noted(tmp_path) == [("open", ""), ("look", ""), ("found", "first"), ("commit", "first")]


def test_a_journal_that_is_off_says_recorded_and_records_nothing(tmp_path: Path) -> None:
    answers: list[Any] = []
    writer, watched = observed(tmp_path, Guarantee.JOURNAL)
    watched.submit(LookUp(CALL), answers.append)
    watched.submit(finish(), answers.append, lambda: answers.append("then"))
    assert [answer.status for answer in answers[:2]] == [StartStatus.FRESH, StartStatus.TERMINAL]
    assert answers[2:] == ["then"]
    # The answer comes on the thread that it always comes on.
    assert writer.asked == [LookUp(CALL)]
    assert noted(tmp_path) == [("open", ""), ("commit", "second")]


def test_without_the_fence_nobody_asks_and_each_goes_on_with_its_own(tmp_path: Path) -> None:
    answers: list[Any] = []
    writer, watched = observed(tmp_path, Guarantee.FENCE)
    watched.submit(LookUp(CALL), answers.append)
    watched.submit(finish(), answers.append)
    assert answers[0].status is StartStatus.FRESH
    assert answers[1].outcome == Succeeded('"own"')
    assert len(writer.asked) == 1
    assert noted(tmp_path) == [("open", ""), ("commit", "second")]
