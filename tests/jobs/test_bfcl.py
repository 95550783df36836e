"""The replay of real requests: nothing lost, nothing rejected, each call answered with what was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REQUESTS = Path(__file__).resolve().parent.parent.parent / "jobs" / "bfcl" / "requests.jsonl"


@pytest.mark.flink
@pytest.mark.rule(1, 2, 9)
def test_every_request_is_answered_with_what_it_asked(run_job: Callable[[str], Any]) -> None:
    outcome = run_job("bfcl")
    counted = {name: outcome.summary[name] for name in ("requests", "responses", "rejects", "calls", "succeeded")}
    assert counted == {"requests": 357, "responses": 357, "rejects": 0, "calls": 996, "succeeded": 996}
    requests = {r["id"]: r for r in map(json.loads, REQUESTS.read_text(encoding="utf-8").splitlines())}
    assert sorted(response["request_id"] for response in outcome.responses) == sorted(requests)
    for response in outcome.responses:
        request = requests[response["request_id"]]
        asked = [
            {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
            for call in request["tool_calls"]
        ]
        assert [result["value"] for result in response["results"]] == asked
        assert [result["call_id"] for result in response["results"]] == [call["id"] for call in request["tool_calls"]]
    for category in {request["category"] for request in requests.values()}:
        answered = [response["request_id"] for response in outcome.responses if response["key"] == category]
        assert answered == [name for name, request in requests.items() if request["category"] == category]
