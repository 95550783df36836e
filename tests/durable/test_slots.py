"""The state machine of one call, and its stored form."""

from __future__ import annotations

import itertools

import pytest

from flink_agents.durable.identity import Identity
from flink_agents.durable.outcome import Failed, Succeeded
from flink_agents.durable.slots import MOVES, Slot, SlotStatus
from flink_agents.errors import IllegalMove, StateFormat
from flink_agents.failures import capture

IDENTITY = Identity(3, "tool", "refund", 1, "ab" * 32)


def fields(slot: Slot) -> tuple[object, ...]:
    return (
        slot.identity,
        slot.status,
        slot.attempts,
        slot.attempt_id,
        slot.started_ms,
        slot.duration_ms,
        slot.outcome,
    )


def slot_in(status: SlotStatus) -> Slot:
    slot = Slot(3, IDENTITY)
    slot.status = status
    slot.attempts = int(status is SlotStatus.STARTED)
    return slot


@pytest.mark.parametrize(("source", "target"), list(itertools.product(SlotStatus, SlotStatus)))
def test_only_the_listed_moves_are_possible(source: SlotStatus, target: SlotStatus) -> None:
    slot = slot_in(source)

    def move() -> None:
        if target is SlotStatus.STARTED:
            slot.start("attempt", 5)
        elif target is SlotStatus.RESERVED:
            slot.unstart()
        elif target is SlotStatus.SUCCEEDED:
            slot.settle(Succeeded("1"), 2)
        elif target is SlotStatus.FAILED:
            slot.settle(Failed(capture(ValueError("x"))), 2)

    if target in MOVES[source]:
        move()
        assert slot.status is target
    else:
        with pytest.raises(
            IllegalMove, match=f"slot 3: tool 'refund'.* is {source.value} and cannot become {target.value}"
        ):
            move()
        assert slot.status is source


def test_a_terminal_slot_keeps_its_outcome_for_good() -> None:
    slot = Slot(3, IDENTITY)
    slot.start("attempt", 5)
    slot.settle(Succeeded('"first"'), 1)
    with pytest.raises(IllegalMove):
        slot.settle(Succeeded('"late"'), 1)
    assert slot.outcome == Succeeded('"first"')
    assert slot.status.is_terminal
    assert not SlotStatus.STARTED.is_terminal


def test_taking_a_start_back_leaves_the_starts_before_it() -> None:
    slot = Slot(3, IDENTITY)
    slot.start("attempt", 5)
    slot.start("attempt", 6)
    seen = []
    for _ in range(2):
        slot.unstart()
        seen.append((slot.status, slot.attempts))
    assert seen == [(SlotStatus.STARTED, 1), (SlotStatus.RESERVED, 0)]


@pytest.mark.rule(19)
@pytest.mark.parametrize("text", ["null", '""', "0", "false", "[]", "{}", '{"a":[1,2.5,"x"]}', '{"$type":"x"}'])
def test_a_value_survives_the_stored_form(text: str) -> None:
    slot = Slot(3, IDENTITY)
    slot.start("attempt", 5)
    slot.settle(Succeeded(text), 7)
    assert fields(Slot.from_text(3, slot.to_text())) == fields(slot)


def test_a_failure_and_the_pending_states_survive_the_stored_form() -> None:
    slot = Slot(3, IDENTITY)
    assert fields(Slot.from_text(3, slot.to_text())) == fields(slot)
    slot.start("attempt", 5)
    slot.start("another attempt", 6)
    restored = Slot.from_text(3, slot.to_text())
    assert fields(restored) == fields(slot)
    assert (restored.attempts, restored.attempt_id, restored.started_ms) == (2, "another attempt", 6)
    slot.settle(Failed(capture(KeyError("gone"))), 7)
    assert fields(Slot.from_text(3, slot.to_text())) == fields(slot)


@pytest.mark.parametrize(
    "text", ["", "junk", "[]", "{}", '{"v":1}', '{"v":2,"s":"reserved","k":"tool","n":"x","p":0,"d":""}']
)
def test_what_is_no_slot_of_a_known_version_is_refused(text: str) -> None:
    with pytest.raises(StateFormat, match="slot 3"):
        Slot.from_text(3, text)
