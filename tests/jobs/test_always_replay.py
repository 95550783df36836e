"""Each shipped job in the harness, its actions run again from the top after every turn: the same lines come out."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from flink_agents.config.build import prepare
from flink_agents.testing import Harness

JOBS = Path(__file__).resolve().parent.parent.parent / "jobs"


def lines_of(folder: Path, *, always_replay: bool, most: int) -> list[Any]:
    prepared = prepare(folder / "job.yaml")
    config = prepared.config
    records = config.source.path.read_text(encoding="utf-8").splitlines()[:most]
    options: dict[str, Any] = {"key_by": config.key_by, "limits": prepared.options.limits, "agent": config.agent}
    with Harness(prepared.tools, always_replay=always_replay, **options) as harness:
        harness.send(*records)
        harness.run()
        return [*map(_plain, harness.responses), *harness.rejects]


def _plain(response: Any) -> Any:
    """Return a line without what a replay may change: how long it took, and whether it was recorded before."""
    for result in response.get("results", ()):
        for name in ("duration_ms", "replayed"):
            del result[name]
    return response


@pytest.mark.rule(14, 20, 29)
@pytest.mark.parametrize("name", ["quickstart", "bfcl", "agent"])
def test_a_shipped_job_is_safe_to_replay(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its tools may write beside themselves, and its modules come onto the path.
    folder = tmp_path / name
    shutil.copytree(JOBS / name, folder, ignore=shutil.ignore_patterns("state", "out", "rejects"))
    monkeypatch.setattr("sys.path", [*sys.path])
    if name == "agent":
        prepare(folder / "job.yaml")
        # The harness runs each body to its end, so nobody is too slow here.
        monkeypatch.setattr("returns_agent.SLOW_S", 0)
    first = lines_of(folder, always_replay=False, most=40)
    assert lines_of(folder, always_replay=True, most=40) == first
    assert len(first) >= 7
