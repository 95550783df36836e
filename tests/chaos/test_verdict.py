"""The verdict finds each kind of broken log, output and journal, and nothing in whole ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flink_agents.chaos.execution import Event, Kill, weigh
from flink_agents.chaos.expectations import expectations
from flink_agents.chaos.verdict import Evidence, Result, judge
from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.rows import CallKey, CallRow
from flink_agents.durable.outcome import Succeeded
from flink_agents.durable.slots import SlotStatus
from flink_agents.runtime.observation import outcome_digest

RECORDS = [
    json.dumps({"id": "r1", "key": "a", "tool_calls": [{"id": f"c{i}", "function": {"name": "f"}} for i in range(2)]}),
    json.dumps({"key": "b", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}),
    "no json",
]
DIGEST = "ab" * 32
KILL = Kill(1, "work", 1, 100, 2.0, running=1, recorded=1)


def call_key(key: str, index: int) -> CallKey:
    return CallKey.of("run", json.dumps(key), 1, Identity(index, "tool", "f", index, DIGEST))


def row(key: str, request_id: str, index: int) -> CallRow:
    value = Succeeded(json.dumps(f"{key}{index}"))
    return CallRow(call_key(key, index), request_id, SlotStatus.SUCCEEDED, 1, 0, "A", "A", 1, 1, 2, value)


def response(key: str, request_id: str, calls: list[str | None]) -> dict[str, Any]:
    results = [
        {"position": i, "call_id": call_id, "tool": "f", "status": "succeeded", "value": f"{key}{i}"}
        for i, call_id in enumerate(calls)
    ]
    return {"request_id": request_id, "key": key, "results": results}


def ran(key: str, index: int, at: int, attempt: str = "A") -> list[Event]:
    name = call_key(key, index).idempotency_key
    value = outcome_digest(Succeeded(json.dumps(f"{key}{index}")))
    return [
        Event(at, 100, "begin", attempt, name),
        Event(at + 5, 100, "end", attempt, name),
        Event(at + 7, 100, "commit", attempt, name, "A", value),
    ]


@pytest.fixture
def whole() -> Evidence:
    expected = expectations(RECORDS, "key", 1 << 20)
    return Evidence(
        expected=expected,
        responses=[response("a", "r1", ["c0", "c1"]), response("b", "b/1", [None])],
        rejects=list(expected.rejects),
        events=[*ran("a", 0, 10), *ran("a", 1, 10), *ran("b", 0, 20)],
        rows=[row("a", "r1", 0), row("a", "r1", 1), row("b", "b/1", 0)],
        in_state=0,
        orphans=[],
    )


def broken_checks(evidence: Evidence) -> list[str]:
    verdict = judge(evidence, [KILL], 1)
    assert verdict.result is (Result.HOLDS if all(check.holds for check in verdict.checks) else Result.BROKEN)
    return [check.name for check in verdict.checks if not check.holds]


def test_a_whole_run_holds(whole: Evidence) -> None:
    assert broken_checks(whole) == []


def test_too_few_kills_prove_nothing(whole: Evidence) -> None:
    idle = replace(KILL, running=0)
    assert judge(whole, [KILL, idle], 2).result is Result.NOT_PROVEN
    assert judge(whole, [KILL, idle, KILL], 2).result is Result.HOLDS


ONCE, ORDER, REJECTS = "each request is answered once", "results stand in the order of the calls", "rejects are exact"
AGAIN, FIRST = "no recorded call runs again", "the first outcome stands"
VALUE, BASELINE, ORPHANS = (
    "responses carry what the journal recorded",
    "the state is back to its baseline",
    "no process is left",
)


def swapped(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "results": answer["results"][::-1]}


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        pytest.param(lambda e: replace(e, responses=e.responses[1:]), [ONCE], id="lost"),
        pytest.param(lambda e: replace(e, responses=[*e.responses, e.responses[0]]), [ONCE], id="doubled"),
        pytest.param(
            lambda e: replace(e, responses=[*e.responses, e.responses[1]]), [ONCE], id="doubled without an id"
        ),
        pytest.param(lambda e: replace(e, responses=[swapped(e.responses[0]), e.responses[1]]), [ORDER], id="order"),
        pytest.param(lambda e: replace(e, rejects=[]), [REJECTS], id="reject lost"),
        pytest.param(lambda e: replace(e, rejects=[*e.rejects, "{}"]), [REJECTS], id="reject too much"),
        pytest.param(lambda e: replace(e, rows=e.rows[1:]), [FIRST, VALUE], id="said to be recorded"),
        pytest.param(
            lambda e: replace(e, rows=[replace(e.rows[0], outcome=Succeeded('"else"')), *e.rows[1:]]),
            [FIRST, VALUE],
            id="overwritten",
        ),
        pytest.param(
            lambda e: replace(e, rows=[replace(e.rows[0], attempt_id="B"), *e.rows[1:]]), [FIRST], id="by another"
        ),
        pytest.param(lambda e: replace(e, in_state=3), [BASELINE], id="state"),
        pytest.param(lambda e: replace(e, in_state=None), [BASELINE], id="no savepoint"),
        pytest.param(lambda e: replace(e, orphans=["process 7"]), [ORPHANS], id="orphan"),
    ],
)
def test_what_is_broken_is_found(whole: Evidence, damage: Callable[[Evidence], Evidence], found: list[str]) -> None:
    assert broken_checks(damage(whole)) == found


def test_a_body_that_began_without_asking_is_found(whole: Evidence) -> None:
    again = replace(whole, events=[*whole.events, *ran("a", 0, 50, "B")])
    assert broken_checks(again) == [AGAIN]


def test_a_body_whose_look_up_came_too_late_is_found(whole: Evidence) -> None:
    name = call_key("a", 0).idempotency_key
    late = [Event(40, 101, "look", "B", name), Event(45, 101, "begin", "B", name)]
    assert broken_checks(replace(whole, events=[*whole.events, *late])) == [AGAIN]


def test_a_body_that_was_looked_up_before_the_record_is_none(whole: Evidence) -> None:
    """Two attempts at once: the second asked before the first had recorded, and both go on with the first's outcome."""
    name = call_key("a", 0).idempotency_key
    look = Event(12, 101, "look", "B", name)
    assert broken_checks(replace(whole, events=[*whole.events, look, *ran("a", 0, 30, "B")])) == []


def test_an_attempt_that_goes_on_with_its_own_outcome_is_found(whole: Evidence) -> None:
    name = call_key("a", 0).idempotency_key
    own = [Event(12, 101, "look", "B", name), Event(40, 101, "commit", "B", name, "B", "other")]
    assert broken_checks(replace(whole, events=[*whole.events, *own])) == [FIRST]


def test_a_kill_counts_by_what_ran_and_what_no_checkpoint_knew() -> None:
    events = [
        Event(10, 1, "begin", "A", "x"),
        Event(11, 1, "begin", "A", "y"),
        Event(12, 2, "begin", "A", "z"),
        Event(20, 1, "end", "A", "y"),
        Event(21, 1, "commit", "A", "y", "A", "v"),
    ]
    assert weigh(events, pid=1, at=30, checkpoint=0) == (1, 1)
    assert weigh(events, pid=1, at=30, checkpoint=25) == (1, 0)
    assert weigh(events, pid=1, at=15, checkpoint=0) == (1, 0)
    assert weigh(events, pid=3, at=30, checkpoint=0) == (0, 1)
