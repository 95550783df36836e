"""The sums of a run's statistics records."""

from __future__ import annotations

from pathlib import Path

import pytest

from flink_agents.cluster import statistics
from flink_agents.cluster.statistics import COUNTED, FOLDED, StatisticsFolder
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


def part(folder: Path, name: str, text: str = RESPONSE) -> Path:
    path = folder / f"part-{name}-0.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_folding_keeps_the_sums_and_drops_the_parts(tmp_path: Path) -> None:
    part(tmp_path, "a")
    first = StatisticsFolder(tmp_path)
    assert first.totals()["calls"] == 4
    first.fold()
    assert [path.name for path in tmp_path.iterdir()] == [FOLDED]
    part(tmp_path, "b")
    assert first.totals()["calls"] == 8
    first.fold()
    first.fold()
    part(tmp_path, "c")
    # The next command sees what this one left.
    second = StatisticsFolder(tmp_path)
    assert second.totals()["calls"] == 12
    second.fold()
    assert StatisticsFolder(tmp_path).totals()["calls"] == 12


@pytest.mark.parametrize("left", [("a",), ("b",), ("a", "b")])
def test_a_kill_while_folding_counts_nothing_twice(tmp_path: Path, left: tuple[str, ...]) -> None:
    for name in ("a", "b"):
        part(tmp_path, name)
    folder = StatisticsFolder(tmp_path)
    folder.totals()
    folder.fold()
    # The sums were written, and some parts not yet deleted.
    for name in left:
        part(tmp_path, name)
    part(tmp_path, "c")
    again = StatisticsFolder(tmp_path)
    assert again.totals()["calls"] == 12
    again.fold()
    assert StatisticsFolder(tmp_path).totals()["calls"] == 12
    assert [path.name for path in tmp_path.iterdir()] == [FOLDED]


def test_a_part_that_was_not_read_is_not_folded(tmp_path: Path) -> None:
    folder = StatisticsFolder(tmp_path)
    folder.totals()
    late = part(tmp_path, "late")
    folder.fold()
    assert late.exists()
    assert folder.totals()["calls"] == 4


def test_long_runs_are_folded_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "FOLD_ABOVE", 3)
    folder = StatisticsFolder(tmp_path)
    for number in range(10):
        part(tmp_path, str(number))
        assert folder.totals()["responses"] == number + 1
        assert len(list(tmp_path.glob("part-*"))) <= 3
    assert StatisticsFolder(tmp_path).totals()["responses"] == 10


def test_what_was_never_committed_goes_when_the_run_is_over(tmp_path: Path) -> None:
    unfinished = tmp_path / ".part-a-1.jsonl.inprogress.x"
    unfinished.touch()
    folder = StatisticsFolder(tmp_path)
    folder.fold()
    assert unfinished.exists()
    folder.fold(over=True)
    assert not unfinished.exists()


def test_a_damaged_fold_is_named(tmp_path: Path) -> None:
    (tmp_path / FOLDED).write_text("{}")
    with pytest.raises(ClusterFault, match=f"{FOLDED} holds no statistics"):
        StatisticsFolder(tmp_path).totals()
