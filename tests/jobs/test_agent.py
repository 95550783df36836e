"""The agent as a newcomer runs it: the lines that its README promises, twice the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

REFUNDED = [
    {
        "request_id": name,
        "key": customer,
        "output": {
            "order": order,
            "carrier": "swift",
            "receipt": f"{customer}/{order}/{cents}",
            "refunded_cents": total,
        },
    }
    for name, customer, order, cents, total in (
        ("r-1", "ada", "A-1001", 3900, 3900),
        ("r-2", "bob", "A-1003", 45000, 45000),
        ("r-3", "ada", "A-1002", 12900, 16800),
    )
]
REFUSED = [
    ("r-4", "ada", {"order": "A-1003", "refused": "a clerk has to look", "refunded_cents": 16800}),
    ("r-5", "bob", {"order": "A-9999", "refused": "no such order"}),
]
EXPECTED = [
    *REFUNDED,
    *({"request_id": name, "key": customer, "output": output} for name, customer, output in REFUSED),
    {"request_id": "r-6", "key": "bob", "error": {"kind": "action_error", "type": "KeyError", "message": "'order'"}},
]


@pytest.mark.flink
@pytest.mark.timeout(240)
def test_every_kind_of_line_twice(run_job: Callable[[str], Any]) -> None:
    for _ in range(2):
        outcome = run_job("agent")
        assert sorted(outcome.responses, key=lambda line: line["request_id"]) == EXPECTED
        assert [reject["field"] for reject in outcome.rejects] == ["customer"]
        counted = {name: outcome.summary[name] for name in ("requests", "responses", "rejects", "calls", "timed_out")}
        # Five orders looked up, three times two carriers asked, three refunds.
        assert counted == {"requests": 6, "responses": 6, "rejects": 1, "calls": 14, "timed_out": 3}
