"""How a batch is parted into statements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flink_agents.durable.journal.operations import Answered, LookUp, Operation, PutRequest, RenewLease, Start
from flink_agents.durable.journal.rows import CallKey, RequestRow
from flink_agents.durable.journal.stored import outcome_from, rounds
from flink_agents.errors import StateFormat


def test_operations_on_one_row_keep_their_order_and_marks_come_last(call_of: Callable[..., CallKey]) -> None:
    request = PutRequest(RequestRow("run-1", '"k"', 1, "a", "d"))
    operations: list[Operation] = [
        Answered("run-1", '"k"', 1, 5),
        Start(call_of(0), "first", 1),
        Start(call_of(1), "first", 1),
        LookUp(call_of(0)),
        request,
        RenewLease("run-1", "job", 1, 1),
        Start(call_of(0), "second", 1),
        request,
    ]
    assert rounds(operations) == [
        {Start: [1, 2], PutRequest: [4], RenewLease: [5]},
        {LookUp: [3], PutRequest: [7]},
        {Start: [6]},
        {Answered: [0]},
    ]
    assert rounds([]) == []


@pytest.mark.parametrize("text", ["", "[1]", '{"kind":"tool_error"}'])
def test_a_failure_that_cannot_be_read_is_said_to_be_so(text: str) -> None:
    with pytest.raises(StateFormat, match="cannot be read"):
        outcome_from("failed", text)
