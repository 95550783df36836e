"""Planned crashes whose memory is a folder: what one attempt counted, the next one knows."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest

from flink_agents.testing import PlannedCrash
from flink_agents.testing.crash_file import CrashFile, completed_checkpoint


def crashes_at(fault: CrashFile, point: str) -> bool:
    """Pass a point as a new attempt of the task does: with a fault of its own, fresh from its pickle."""
    fault = pickle.loads(pickle.dumps(fault))
    try:
        fault(point)
    except PlannedCrash:
        return True
    return False


def complete(checkpoints: Path, number: int) -> None:
    folder = checkpoints / "job" / f"chk-{number}"
    folder.mkdir(parents=True)
    (folder / "_metadata").touch()


def test_crashes_once_at_the_nth_passing(tmp_path: Path) -> None:
    fault = CrashFile(str(tmp_path), ("after:recorded",), nth=3)
    assert [crashes_at(fault, "after:recorded") for _ in range(6)] == [False, False, True, False, False, False]
    assert fault.crashes == 1


def test_the_planned_crashes_come_one_after_the_other(tmp_path: Path) -> None:
    fault = CrashFile(str(tmp_path), ("after:recorded", "before:open", "before:open"))
    passed = ["before:open", "after:recorded", "after:recorded", "before:open", "before:open", "before:open"]
    assert [crashes_at(fault, point) for point in passed] == [False, True, False, True, True, False]
    assert fault.crashes == 3


def test_the_crash_says_where_it_was_planned(tmp_path: Path) -> None:
    with pytest.raises(PlannedCrash, match="planned crash at before:timer"):
        CrashFile(str(tmp_path), ("before:timer",))("before:timer")


def test_waits_for_checkpoints(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    fault = CrashFile(str(tmp_path), ("before:timer",), after_checkpoints=5, checkpoints=str(checkpoints))
    assert not crashes_at(fault, "before:timer")
    complete(checkpoints, 4)
    (checkpoints / "job" / "chk-5").mkdir()
    assert completed_checkpoint(str(checkpoints)) == 4
    assert not crashes_at(fault, "before:timer")
    (checkpoints / "job" / "chk-5" / "_metadata").touch()
    assert crashes_at(fault, "before:timer")


def test_waits_for_checkpoints_between_crashes(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    fault = CrashFile(str(tmp_path), ("before:timer",) * 2, between=2, checkpoints=str(checkpoints))
    complete(checkpoints, 7)
    assert crashes_at(fault, "before:timer")
    complete(checkpoints, 8)
    assert not crashes_at(fault, "before:timer")
    complete(checkpoints, 9)
    assert crashes_at(fault, "before:timer")


def test_only_one_of_many_threads_crashes(tmp_path: Path) -> None:
    fault = CrashFile(str(tmp_path), ("after:body_ended",), nth=5)
    crashed = []
    threads = [
        threading.Thread(target=lambda: crashed.append(crashes_at(fault, "after:body_ended"))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(crashed) == [False] * 19 + [True]


def test_is_equal_in_every_attempt_so_that_they_share_workers(tmp_path: Path) -> None:
    fault = CrashFile(str(tmp_path), ("before:timer",))
    again = pickle.loads(pickle.dumps(fault))
    assert again == fault
    assert hash(again) == hash(fault)


def test_refuses_a_point_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no fault point 'after:lunch'"):
        CrashFile(str(tmp_path), ("after:lunch",))
