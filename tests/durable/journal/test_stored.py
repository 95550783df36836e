"""How a batch is parted into statements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flink_agents.durable.journal.operations import Answered, LookUp, Operation, PutRequest, RenewLease, Start
from flink_agents.durable.journal.rows import CallKey, RequestRow
from flink_agents.durable.journal.stored import outcome_from, rounds, run_in_use
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


def test_operations_on_different_rows_go_together() -> None:
    places = [("run-1", '"k"', 1), ("run-1", '"k"', 2), ("run-1", '"l"', 1), ("run-2", '"k"', 1)]
    puts = [PutRequest(RequestRow(run_id, key, intake, "a", "d")) for run_id, key, intake in places]
    leases = [RenewLease(run_id, "job", 1, 1) for run_id in ("run-1", "run-2", "run-1")]
    assert rounds([*puts, *leases]) == [{PutRequest: [0, 1, 2, 3], RenewLease: [4, 5]}, {RenewLease: [6]}]


@pytest.mark.parametrize(
    ("owner", "until_ms", "now_ms", "message"),
    [
        ("job 2", 9_500, 2_000, "run run-1 is in use by job 2; its lease runs for another 7.5 s"),
        ("job 2", 9_500, 9_500, "run run-1 is in use by job 2; its lease runs for another 0.0 s"),
        ("job 2", 1_009_500, 9_500, "run run-1 is in use by job 2; its lease runs for another 1000.0 s"),
        ("job 2", 9_500, 50_000, "run run-1 is in use by job 2; its lease runs for another 0.0 s"),
        ("job 2", None, 2_000, "run run-1 is in use by job 2; its lease runs for another 0.0 s"),
    ],
)
def test_a_lease_of_somebody_else_says_for_how_long(
    owner: str, until_ms: int | None, now_ms: int, message: str
) -> None:
    assert str(run_in_use("run-1", owner, until_ms, now_ms)) == (
        f"{message} unless it is renewed: stop that job, or wait until its lease ends"
    )


@pytest.mark.parametrize("text", ["", "[1]", '{"kind":"tool_error"}'])
def test_a_failure_that_cannot_be_read_is_said_to_be_so(text: str) -> None:
    with pytest.raises(StateFormat, match="cannot be read"):
        outcome_from("failed", text)
