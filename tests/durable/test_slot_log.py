"""The slots of one request: what is asked again is found again, what is not is said to be so and dropped."""

from __future__ import annotations

import logging

import pytest

from flink_agents.durable.identity import Identity
from flink_agents.durable.outcome import Succeeded
from flink_agents.durable.slot_log import SlotLog
from flink_agents.durable.slots import SlotStatus
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import IdentityMismatch, StateFormat
from flink_agents.options import OnMismatch
from flink_agents.testing import InMemoryBackend

DIGEST = "ab" * 32


def call(index: int, name: str = "refund", digest: str = DIGEST, position: int = 0) -> Identity:
    return Identity(index, "tool", name, position, digest)


class Stored:
    """The state of one key over several turns of one request."""

    def __init__(self) -> None:
        self.backend = InMemoryBackend()

    def sync(self, log: SlotLog) -> None:
        view = WriteBehind(self.backend)
        log.sync(view)
        view.flush()

    def restored(self, on_mismatch: OnMismatch = OnMismatch.RERUN, intake: int = 7) -> SlotLog:
        log = SlotLog(intake, on_mismatch)
        log.restore(WriteBehind(self.backend))
        return log

    def ended(self, *calls: Identity) -> None:
        """Record these calls of request 7 as ended, each with its name."""
        log = self.restored()
        for each in calls:
            log.settle(log.reserve(len(log), each), Succeeded(f'"{each.name}"'), 3)
        self.sync(log)

    @property
    def fields(self) -> list[str]:
        return sorted(self.backend.fields(StateName.SLOTS))


@pytest.fixture
def stored() -> Stored:
    return Stored()


def test_slots_come_back_in_their_order_and_are_found_by_the_same_calls(stored: Stored) -> None:
    stored.ended(call(0, "a"), call(1, "b"))
    assert stored.fields == ["7/0", "7/1"]
    log = stored.restored()
    assert [log[index].outcome for index in range(len(log))] == [Succeeded('"a"'), Succeeded('"b"')]
    assert log.reserve(1, call(1, "b")) is log[1]
    assert log.reserve(2, call(2, "c")).status is SlotStatus.RESERVED
    assert len(log) == 3
    assert len(stored.restored(intake=8)) == 0


def test_every_change_is_written_at_the_end_of_its_turn(stored: Stored) -> None:
    log = stored.restored()
    slot = log.reserve(0, call(0))
    stored.sync(log)
    assert stored.restored()[0].status is SlotStatus.RESERVED
    log.start(slot, "attempt", 5)
    stored.sync(log)
    begun = stored.restored()[0]
    assert (begun.attempts, begun.attempt_id, begun.started_ms) == (1, "attempt", 5)
    log.unstart(slot)
    stored.sync(log)
    assert stored.restored()[0].status is SlotStatus.RESERVED
    slot.until_ms = 99
    log.touch(slot)
    stored.sync(log)
    assert stored.restored()[0].until_ms == 99
    log.settle(slot, Succeeded("1"), 3)
    stored.sync(log)
    assert [stored.restored()[0].outcome, stored.restored()[0].duration_ms] == [Succeeded("1"), 3]
    writes = stored.backend.writes
    stored.sync(log)
    assert stored.backend.writes == writes


def test_an_answered_request_leaves_nothing(stored: Stored) -> None:
    stored.ended(call(0), call(1))
    log = stored.restored()
    log.reserve(2, call(2))
    log.clear()
    stored.sync(log)
    assert (len(log), stored.fields) == (0, [])
    never_stored = SlotLog(8, OnMismatch.RERUN)
    never_stored.reserve(0, call(0))
    never_stored.clear()
    writes = stored.backend.writes
    stored.sync(never_stored)
    assert stored.backend.writes == writes


def test_a_call_that_is_not_the_recorded_one_drops_it_and_all_after_it(
    stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    stored.ended(call(0, "a"), call(1, "b"), call(2, "c"), call(3, "d"))
    log = stored.restored()
    log.touch(log[0])
    log.touch(log[3])
    with caplog.at_level(logging.WARNING):
        slot = log.reserve(1, call(1, "other"))
    assert (slot.status, len(log)) == (SlotStatus.RESERVED, 2)
    (record,) = caplog.records
    assert record.getMessage().endswith("; this slot and the 2 after it run as new")
    stored.sync(log)
    assert stored.fields == ["7/0", "7/1"]
    assert [stored.restored()[index].identity.name for index in (0, 1)] == ["a", "other"]


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        (call(0, "other"), "Its code was changed since, or it takes another way on each run"),
        (
            Identity(0, "sleep", "refund", 0, DIGEST),
            "Its code was changed since, or it takes another way on each run",
        ),
        (
            call(0, digest="cd" * 32),
            "The arguments differ: they depend on something that is not recorded, or the code was changed since",
        ),
        (call(0, position=4), "The order of its calls was changed since"),
    ],
)
def test_a_mismatch_says_what_was_expected_what_is_recorded_and_why(
    stored: Stored, asked: Identity, cause: str
) -> None:
    stored.ended(call(0))
    log = stored.restored(OnMismatch.FAIL)
    with pytest.raises(IdentityMismatch) as raised:
        log.reserve(0, asked)
    assert str(raised.value) == (
        "the action asks for another call than the recorded one; "
        f"expected slot 0: {asked.kind} '{asked.name}', call {asked.position}, arguments {asked.digest[:12]}; "
        f"recorded slot 0: tool 'refund', call 0, arguments abababababab. {cause}. "
        "Take the time from ctx.now() and random names from ctx.uuid(), iterate over nothing unordered. "
        "After a deliberate change, on_mismatch: rerun runs the calls from here on again"
    )
    assert log[0].outcome == Succeeded('"refund"')


def test_a_slot_that_cannot_be_read_is_said_to_be_so(stored: Stored) -> None:
    stored.ended(call(0))
    stored.backend.put(StateName.SLOTS, "7/1", "junk")
    with pytest.raises(StateFormat, match="slot 1 cannot be read from state"):
        stored.restored()
