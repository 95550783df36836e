"""The sums of a run's statistics records."""

from __future__ import annotations

from pathlib import Path

import pytest

from flink_agents.cluster.statistics import COUNTED, StatisticsFolder
from flink_agents.errors import ClusterFault

RESPONSE = (
    '{"request":1,"response":1,"reject":0,"calls":4,"succeeded":3,"failed":1,"timed_out":0,"replayed":2,"reran":1}\n'
)
REJECT = (
    '{"request":0,"response":0,"reject":1,"calls":0,"succeeded":0,"failed":0,"timed_out":0,"replayed":0,"reran":0}\n'
)


def test_only_committed_parts_count_and_each_once(tmp_path: Path) -> None:
    folder = StatisticsFolder(tmp_path)
    assert set(folder.totals().values()) == {0}
    (tmp_path / "part-a-0.jsonl").write_text(RESPONSE + REJECT, encoding="utf-8")
    (tmp_path / ".part-a-1.jsonl.inprogress.x").write_text(RESPONSE, encoding="utf-8")
    first = folder.totals()
    assert first == {
        "requests": 1, "responses": 1, "rejects": 1, "calls": 4, "succeeded": 3, "failed": 1,
        "timed_out": 0, "replayed": 2, "reran": 1,
    }  # fmt: skip
    assert folder.totals() == first
    (tmp_path / "part-a-1.jsonl").write_text(RESPONSE, encoding="utf-8")
    assert folder.totals()["calls"] == 8


def test_a_folder_that_is_not_there_yet_counts_nothing(tmp_path: Path) -> None:
    assert StatisticsFolder(tmp_path / "later").totals() == dict.fromkeys(COUNTED, 0)


@pytest.mark.parametrize("line", ["{", "[1]", '{"calls":"x"}'])
def test_anything_else_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "part-a-0.jsonl").write_text(RESPONSE + line + "\n", encoding="utf-8")
    with pytest.raises(ClusterFault, match=r"part-a-0\.jsonl:2 is no statistics record"):
        StatisticsFolder(tmp_path).totals()
