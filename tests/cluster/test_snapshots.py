"""What a run has kept, told from the files alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from flink_agents.cluster.runs import Ending, Run, Totals, create_run
from flink_agents.cluster.snapshots import HEADER, MAGIC, check, newest
from flink_agents.errors import CannotRestore


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return create_run(tmp_path, "job", "")


def checkpoint(run: Run, number: int, content: bytes = b"", job: str = "a") -> Path:
    folder = run.checkpoints / job / f"chk-{number}"
    folder.mkdir(parents=True)
    (folder / "_metadata").write_bytes(HEADER.pack(MAGIC, 6, number) + content)
    return folder


def savepoint(run: Run, number: int, name: str = "savepoint-1") -> Path:
    folder = run.savepoints / name
    folder.mkdir(parents=True)
    (folder / "_metadata").write_bytes(HEADER.pack(MAGIC, 6, number))
    return folder


def state_file(folder: Path, content: bytes, noted: int | None = None) -> Path:
    """Write a state file and note it in the metadata as Flink does: by its name and its length."""
    file = folder / str(uuid4())
    file.write_bytes(content)
    length = len(content) if noted is None else noted
    with (folder / "_metadata").open("ab") as metadata:
        metadata.write(b"\x06\x00\x24" + file.name.encode() + length.to_bytes(8, "big"))
    return file


def test_a_new_run_has_nothing(run: Run) -> None:
    assert newest(run) is None


def test_the_newest_is_told_by_its_number_over_all_jobs_of_the_run(run: Run) -> None:
    checkpoint(run, 9, job="z")
    last = checkpoint(run, 12, job="a")
    savepoint(run, 10)
    (run.checkpoints / "a" / "chk-13").mkdir()
    (run.checkpoints / "a" / "shared").mkdir()
    found = newest(run)
    assert found is not None
    assert (found.folder, found.number, found.savepoint) == (last, 12, False)
    late = savepoint(run, 14, "savepoint-0")
    found = newest(run)
    assert found is not None
    assert (found.folder, found.savepoint) == (late, True)


def test_a_state_that_is_gone_is_not_replaced_by_an_older_one(run: Run) -> None:
    checkpoint(run, 3)
    kept = savepoint(run, 4)
    run.ended(Ending.STOPPED, str(kept))
    assert newest(run) is not None
    kept.rename(run.folder / "moved")
    with pytest.raises(CannotRestore, match=f"ended with {re.escape(str(kept))}, which is not there"):
        newest(run)


def test_a_run_that_completed_checkpoints_has_to_have_one(run: Run) -> None:
    run.record = replace(run.record, totals=Totals(checkpoints=2))
    with pytest.raises(CannotRestore, match="has completed checkpoints, but none is left"):
        newest(run)


def test_a_savepoint_of_unknown_age_is_named(run: Run) -> None:
    (savepoint(run, 4) / "_metadata").write_bytes(b"short")
    with pytest.raises(CannotRestore, match="savepoint-1 cannot be read"):
        newest(run)


def test_whole_state_passes(run: Run) -> None:
    folder = checkpoint(run, 3)
    state_file(folder, b"state")
    found = newest(run)
    assert found is not None
    check(found)


def test_damage_is_named(run: Run) -> None:
    folder = checkpoint(run, 3)
    found = newest(run)
    assert found is not None
    short = state_file(folder, b"state", noted=6)
    with pytest.raises(CannotRestore, match=f"{short.name} has 5 bytes where 6 were written"):
        check(found)
    short.unlink()
    with pytest.raises(CannotRestore, match=f"{short.name} is missing"):
        check(found)
    (folder / "_metadata").write_bytes(b"\0" * 100)
    with pytest.raises(CannotRestore, match="damaged or was written by something else"):
        check(found)
    (folder / "_metadata").unlink()
    with pytest.raises(CannotRestore, match="cannot be read: No such file"):
        check(found)
