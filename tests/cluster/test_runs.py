"""Run ids and what run.json says about a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flink_agents.cluster.runs import Ending, Run, Totals, create_run, digest, last_run, read_run, run_of_state
from flink_agents.errors import RunRefused


def written(run: Run) -> dict[str, object]:
    content: dict[str, object] = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    return content


def test_the_life_of_a_run(tmp_path: Path) -> None:
    run = create_run(tmp_path, "job", digest("a"))
    assert run.folder == tmp_path / "job" / run.run_id
    begun = written(run)
    assert begun["run_id"] == run.run_id
    assert begun["job"] == "job"
    assert begun["yaml_digest"] == digest("a")
    # Nothing says how it ended: a run that is killed now was cut off.
    assert (begun["job_id"], begun["ended"], begun["how"]) == (None, None, None)
    run.submitted("0" * 32, digest("b"), {"key_by": "key"})
    assert (written(run)["job_id"], written(run)["yaml_digest"]) == ("0" * 32, digest("b"))
    run.ended(Ending.FINISHED, "/checkpoints/chk-3")
    over = written(run)
    assert (over["how"], over["checkpoint"]) == ("finished", "/checkpoints/chk-3")
    assert str(over["started"]) <= str(over["ended"])
    assert [path.name for path in run.folder.iterdir()] == ["run.json"]


def test_every_run_has_an_id_of_its_own(tmp_path: Path) -> None:
    assert len({create_run(tmp_path, "job", "").run_id for _ in range(20)}) == 20


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        create_run(tmp_path / "file", "job", "")


def test_the_digest_tells_configurations_apart() -> None:
    assert digest("a") == digest("a") != digest("b")


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = create_run(tmp_path, "job", digest("a"))
    run.submitted("0" * 32, digest("a"), {"key_by": "key"})
    run.progress(Totals(1, 2, 3.0))
    run.ended(Ending.CUT_OFF, None)
    assert read_run(run.folder).record == run.record


def test_totals_add_up_over_the_jobs_of_a_run(tmp_path: Path) -> None:
    run = create_run(tmp_path, "job", "")
    for number in range(2):
        run.submitted(str(number), "", {})
        run.progress(Totals(1, 1, 0.5))
        run.progress(Totals(1, 4, 2.0))
    assert run.totals == Totals(2, 8, 4.0)
    assert run.record.lives == 2
    run = read_run(run.folder)
    run.submitted("2", "", {})
    run.progress(Totals(0, 1, 1.0))
    assert run.totals == Totals(2, 9, 5.0)


def test_a_savepoint_carries_the_record(tmp_path: Path) -> None:
    run = create_run(tmp_path, "job", "")
    savepoint = run.savepoints / "savepoint-1"
    savepoint.mkdir(parents=True)
    run.ended(Ending.STOPPED, str(savepoint))
    assert read_run(savepoint).record == run.record
    found = run_of_state(tmp_path, "job", f"file:{savepoint}")
    assert found is not None
    assert found.folder == run.folder
    moved = savepoint.rename(tmp_path / "moved")
    found = run_of_state(tmp_path / "elsewhere", "job", str(moved))
    assert found is not None
    assert (found.run_id, found.folder) == (run.run_id, tmp_path / "elsewhere" / "job" / run.run_id)
    with pytest.raises(RunRefused, match="is of job 'job', not of 'other'"):
        run_of_state(tmp_path, "other", str(moved))
    assert run_of_state(tmp_path, "job", str(tmp_path / "unknown" / "a" / "b")) is None


def test_the_last_run_is_the_last_that_reached_flink(tmp_path: Path) -> None:
    assert last_run(tmp_path / "job") is None
    runs = [create_run(tmp_path, "job", "") for _ in range(5)]
    assert last_run(tmp_path / "job") is None
    started = "2026-01-01T00:00:00.00{}+00:00"
    for number, run in enumerate(runs[:4]):
        run.record = replace(run.record, started=started.format(number))
        run.submitted("0" * 32, "", {})
    found = last_run(tmp_path / "job")
    assert found is not None
    assert found.run_id == runs[3].run_id


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "how": "ended"}', '{"format": 1}'])
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, content: str) -> None:
    run = create_run(tmp_path, "job", "")
    (run.folder / "run.json").write_text(content)
    with pytest.raises(RunRefused, match=r"run\.json cannot be read .*--fresh"):
        last_run(tmp_path / "job")
