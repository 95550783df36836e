"""The quickstart as a newcomer runs it: every kind of result that its README promises, twice the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Request -> (status or kind of error) of each call, in the order of the request.
EXPECTED = {
    "r-01": ["succeeded", "succeeded", "succeeded"],
    "r-02": ["succeeded"],
    "r-03": ["succeeded", "tool_error"],
    "r-04": ["tool_error", "succeeded", "tool_error"],
    "r-05": ["invalid_arguments", "invalid_arguments", "invalid_arguments"],
    "r-06": ["invalid_arguments", "invalid_arguments"],
    "r-07": ["unknown_tool", "succeeded"],
    "r-08": ["succeeded", "too_large"],
    "r-09": ["unserializable"],
    "r-11": ["succeeded"],
    "chatcmpl-1": ["succeeded"],
}
WITHOUT_ID = ["succeeded", "succeeded", "succeeded"]


def kinds(response: dict[str, Any]) -> list[str]:
    return [result["error"]["kind"] if "error" in result else result["status"] for result in response["results"]]


def without_durations(responses: list[dict[str, Any]]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for response in responses:
        shown = [{k: v for k, v in result.items() if k != "duration_ms"} for result in response["results"]]
        results[response["request_id"]] = {**response, "results": shown}
    return results


@pytest.mark.flink
@pytest.mark.timeout(240)
@pytest.mark.rule(1, 2, 4, 5, 6, 7)
def test_every_kind_of_result_twice(run_job: Callable[[str], Any], tmp_path: Path) -> None:
    first = run_job("quickstart")
    by_id = {response["request_id"]: response for response in first.responses}
    (unnamed,) = [response for request_id, response in by_id.items() if request_id not in EXPECTED]
    assert {name: kinds(response) for name, response in by_id.items() if name in EXPECTED} == EXPECTED
    assert kinds(unnamed) == WITHOUT_ID
    assert [result["call_id"] for result in unnamed["results"]] == ["same", "same", None]
    assert [result["value"] for result in unnamed["results"]] == [1.0, 2.0, 3.0]
    assert [result["tool"] for result in by_id["r-01"]["results"]] == ["track_parcel", "lookup_order", "convert"]
    assert all(result["error"]["expected"]["properties"] for result in by_id["r-05"]["results"])
    (reject,) = first.rejects
    assert "refund everything" in reject["record"]
    counted = {name: first.summary[name] for name in ("requests", "responses", "rejects", "calls", "failed")}
    assert counted == {"requests": 12, "responses": 12, "rejects": 1, "calls": 24, "failed": 11}

    second = run_job("quickstart")
    assert without_durations(second.responses) == without_durations(first.responses)
    assert second.rejects == first.rejects
    with sqlite3.connect(tmp_path / "quickstart" / "state" / "ledger.db") as ledger:
        paid = ledger.execute("SELECT refund_id, amount_cents, left_cents FROM refunds").fetchall()
    ledger.close()
    assert paid == [("R-1", 1500, 2750)]
