"""A savepoint with pending and recorded calls goes on with other tools than it was made with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.options import OnMismatch, ToolCallOptions
from flink_agents.tools.registry import FunctionDeclaration
from tests.savepoints import make
from tests.savepoints.contents import held_in

if TYPE_CHECKING:
    from flink_agents.cluster.embedded import EmbeddedCluster
    from tests.savepoints.conftest import Lives

pytest.importorskip("pyflink")

RECORDED = {("a1", 0), ("a1", 1), ("a1", 2), ("a1", 4), ("a1", 5), ("b1", 1), ("n1", 0)}
PENDING = {
    "hold": {("a1", 3), ("a2", 0), ("b1", 0), ("n1", 1), ("m1", 0)},
    "linger": {("k1", 0)},
    # Of the request that had not begun.
    "recall": {("a2", 1)},
}
Results = dict[tuple[str, int], dict[str, Any]]


def go_on(lives: Lives, savepoint: Path, tools: list[Any], probe: tuple[str, dict[str, Any]]) -> Results:
    """Go on with other tools until all is answered, a new call of a tool there is too; return results by call.

    Whatever the tools, no task fails, recorded outcomes answer without a body, and no live work stays in state.
    """
    name, arguments = probe
    call = {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}
    lives.add("probe.jsonl", [json.dumps({"id": "probe", "key": "alpha", **call})])
    lives.begin(tools, savepoint, foreign=True)
    lives.until_answered(len(make.PENDING) + 1)
    results = {(name, part["position"]): part for name, parts in lives.results().items() for part in parts}
    assert {call for call, result in results.items() if result["replayed"]} == RECORDED
    assert results["a1", 0]["value"] == "alpha"
    assert results["a1", 1]["value"]["total"] == "12.30"
    assert results["b1", 1]["value"] == "b1"
    kinds = [results[call]["error"]["kind"] for call in (("a1", 2), ("a1", 4), ("a1", 5), ("n1", 0))]
    assert kinds == ["tool_error", "unknown_tool", "invalid_arguments", "tool_error"]
    assert results["probe", 0]["status"] == "succeeded"
    held = held_in(*lives.stop().iterdir())
    assert held.only_heads
    return results


def failed_as(results: Results, kind: str) -> set[tuple[str, int]]:
    """Return the calls that were not recorded and ended with this kind of failure."""
    return {call for call in results.keys() - RECORDED if results[call].get("error", {}).get("kind") == kind}


@pytest.mark.flink
@pytest.mark.rule(14, 53)
@pytest.mark.parametrize(
    "removed", [{"hold"}, {"linger"}, {"hold", "linger", "recall", "refuse"}], ids=lambda r: "+".join(sorted(r))
)
def test_cases_12_31_calls_of_removed_tools_fail_and_all_others_go_on(
    lives: Lives, stored: Path, removed: set[str]
) -> None:
    tools = [tool for tool in lives.finishing_tools() if tool.__name__ not in removed]
    results = go_on(lives, stored, tools, ("ledger", {"day": "2024-03-01"}))
    gone = {call for name in removed for call in PENDING.get(name, ())}
    assert failed_as(results, "unknown_tool") == gone
    for call in results.keys() - RECORDED - gone:
        assert results[call]["status"] == "succeeded"
    began = {line.split()[0] for line in lives.bodies()}
    assert began == {"hold", "linger", "recall", "ledger"} - removed


@pytest.mark.flink
@pytest.mark.rule(14, 53)
def test_case_31_a_renamed_tool_is_another_tool_and_the_failure_names_it(lives: Lives, stored: Path) -> None:
    tools = [
        FunctionDeclaration(tool, name="holds") if tool.__name__ == "hold" else tool for tool in lives.finishing_tools()
    ]
    results = go_on(lives, stored, tools, ("holds", {"text": "new"}))
    assert failed_as(results, "unknown_tool") == PENDING["hold"]
    assert "Did you mean 'holds'?" in results["b1", 0]["error"]["message"]


@pytest.mark.flink
@pytest.mark.rule(14, 53)
def test_case_31_pending_calls_without_a_new_required_parameter_fail_and_recorded_ones_answer(
    lives: Lives, stored: Path
) -> None:
    results = go_on(lives, stored, lives.stricter_tools(), ("hold", {"text": "new", "patience": 1}))
    assert failed_as(results, "invalid_arguments") == PENDING["hold"] | PENDING["recall"]
    assert results["b1", 0]["error"]["expected"]["required"] == ["text", "patience"]
    assert sorted(lives.bodies()) == ["hold new", "linger k1"]


@pytest.mark.flink
@pytest.mark.rule(14)
def test_an_added_tool_answers_new_calls_and_changes_no_recorded_failure(lives: Lives, stored: Path) -> None:
    note = lives.noting()

    def absent(text: str) -> str:
        """Be there now."""
        note(f"absent {text}")
        return text

    results = go_on(lives, stored, [absent, *lives.finishing_tools()], ("absent", {"text": "new"}))
    assert all(results[call]["status"] == "succeeded" for call in results.keys() - RECORDED)
    assert [line for line in lives.bodies() if line.startswith("absent")] == ["absent new"]


@pytest.mark.flink
@pytest.mark.rule(18)
def test_a_recorded_slot_of_another_call_fails_the_job_where_that_is_asked_for(lives: Lives, stored: Path) -> None:
    lives.patch(stored, b'"n":"recall","p":0', b'"n":"reckon","p":0')
    options = ToolCallOptions(on_mismatch=OnMismatch.FAIL)
    lives.begin(lives.finishing_tools(), stored, foreign=True, tool_calls=options, restart__strategy_type="none")
    cause = lives.failed()
    assert cause.startswith("flink_agents.errors.IdentityMismatch: ")
    assert "expected slot 0: tool 'recall'" in cause
    assert "recorded slot 0: tool 'reckon'" in cause
    assert not any(response["request_id"] == "a1" for response in lives.responses())


@pytest.mark.flink
@pytest.mark.rule(18)
def test_a_recorded_slot_of_another_call_runs_anew_with_all_behind_it(
    lives: Lives, stored: Path, cluster: EmbeddedCluster
) -> None:
    lives.patch(stored, b'"n":"refuse","p":2', b'"n":"rebuff","p":2')
    lives.begin(lives.finishing_tools(), stored, foreign=True)
    lives.until_answered(len(make.PENDING))
    results = lives.results()["a1"]
    assert [result["replayed"] for result in results] == [True, True, False, False, False, False]
    assert results[2]["error"] == {"kind": "tool_error", "type": "LookupError", "message": "no such account"}
    printed = cluster.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line for line in printed if "the action asks for another call than the recorded one" in line]
    assert any("tool 'refuse'" in line and "tool 'rebuff'" in line for line in told)
    assert lives.bodies().count("refuse no such account") == 1
    assert held_in(*lives.stop().iterdir()).only_heads
