"""The stored savepoint of state format 1 goes on with this release, and so does one made now by the same script."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.savepoints import make
from tests.savepoints.contents import held_in

if TYPE_CHECKING:
    from flink_agents.cluster.embedded import EmbeddedCluster
    from tests.savepoints.conftest import Lives

pytest.importorskip("pyflink")

DATA = Path(__file__).parent / "data"
ABSOLUTE_PATH = re.compile(rb"(?<![\w.:/])/(?:[\w.-]+/)+")
LEDGER = {
    "day": "2024-02-29",
    "at": "2024-02-29T12:00:00+00:00",
    "total": "12.30",
    "pair": [1, 2],
    "raw": {"base64": "AP8="},
}
VERSIONED = {"head": b'{"v":1,"next"', "request": b'{"v":1,"r"', "slot": b'{"v":1,"s"'}


def succeeded(position: int, call_id: str, tool: str, value: Any, *, attempts: int, replayed: bool) -> dict[str, Any]:
    return {
        "position": position,
        "call_id": call_id,
        "tool": tool,
        "status": "succeeded",
        "value": value,
        "attempts": attempts,
        "replayed": replayed,
    }


def check_results(results: dict[str, list[dict[str, Any]]]) -> None:
    """Assert what is recorded in the savepoint answers, and what was pending is answered by a second body."""
    first = results["a1"]
    assert first[0] == succeeded(0, "c0", "recall", "alpha", attempts=1, replayed=True)
    assert first[1] == succeeded(1, "c1", "ledger", LEDGER, attempts=1, replayed=True)
    assert first[3] == succeeded(3, "c3", "hold", "a1", attempts=2, replayed=False)
    assert [result["error"]["kind"] for result in first if "error" in result] == [
        "tool_error",
        "unknown_tool",
        "invalid_arguments",
    ]
    assert all(result["replayed"] for result in first if "error" in result)
    assert first[2]["error"] == {"kind": "tool_error", "type": "LookupError", "message": "no such account"}
    assert first[5]["error"]["expected"]["required"] == ["text"]
    assert results["a2"] == [
        succeeded(0, "c0", "hold", "a2", attempts=1, replayed=False),
        succeeded(1, "c1", "recall", "a2", attempts=1, replayed=False),
    ]
    assert results["b1"] == [
        succeeded(0, "c0", "hold", "b1", attempts=2, replayed=False),
        succeeded(1, "c1", "recall", "b1", attempts=1, replayed=True),
    ]
    assert [result["replayed"] for result in results["n1"]] == [True, False]
    assert results["m1"] == [succeeded(0, "u1", "hold", "m1", attempts=2, replayed=False)]
    assert results["k1"] == [succeeded(0, "c0", "linger", "k1", attempts=2, replayed=False)]


@pytest.mark.flink
@pytest.mark.rule(2, 14, 29)
@pytest.mark.parametrize("source", ["stored", "made now"])
def test_a_savepoint_of_format_1_goes_on(
    lives: Lives, stored: Path, cluster: EmbeddedCluster, tmp_path: Path, source: str
) -> None:
    savepoint = stored if source == "stored" else make.make(cluster, tmp_path / "new")
    lives.begin(lives.finishing_tools(), savepoint, foreign=True)
    lives.until_answered(len(make.PENDING))
    check_results(lives.results())
    assert sorted(lives.bodies()) == [
        "hold a1", "hold a2", "hold b1", "hold m1", "hold n1", "linger k1", "recall a2",
    ]  # fmt: skip
    # Idle keys go on counting where they were.
    call = {"tool_calls": [{"function": {"name": "recall", "arguments": {"text": "again"}}}]}
    lives.add("more.jsonl", [json.dumps({"key": "idle", **call}), json.dumps({"key": True, **call})])
    lives.until_answered(len(make.PENDING) + 2)
    assert set(lives.results()) == {*make.PENDING, "idle/3", "true/2"}
    held = held_in(*lives.stop().iterdir())
    assert held.only_heads
    assert len(held.heads) == 7


@pytest.mark.flink
@pytest.mark.parametrize("part", list(VERSIONED))
def test_state_of_a_later_version_is_refused_with_its_number(lives: Lives, stored: Path, part: str) -> None:
    lives.patch(stored, VERSIONED[part], VERSIONED[part].replace(b"1", b"2"))
    lives.begin(lives.finishing_tools(), stored, foreign=True, restart__strategy_type="none")
    cause = lives.failed()
    assert cause.startswith("flink_agents.errors.StateFormat: ")
    assert "has format version 2, this release reads 1" in cause
    assert lives.responses() == []


def test_the_stored_savepoint_holds_what_its_readme_says() -> None:
    make.check(held_in(*(DATA / "v1" / "savepoint").iterdir()))


def test_stored_savepoints_name_no_place_of_a_machine_and_are_small() -> None:
    files = [path for path in DATA.rglob("*") if path.is_file()]
    assert len(files) >= 2
    assert {path.name: ABSOLUTE_PATH.findall(path.read_bytes()) for path in files if path.name != "README.md"} == {
        "_metadata": []
    }
    assert sum(path.stat().st_size for path in files) < 32 * 1024
