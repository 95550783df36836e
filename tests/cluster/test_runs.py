"""Run ids and what run.json says about a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flink_agents.cluster.runs import Ending, Run, create_run, digest


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
    run.submitted("0" * 32)
    assert written(run)["job_id"] == "0" * 32
    run.ended(Ending.FINISHED, "file:/checkpoints/chk-3")
    over = written(run)
    assert (over["how"], over["checkpoint"]) == ("finished", "file:/checkpoints/chk-3")
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
