"""One JVM, our own cluster in it, and what it says about jobs after they ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.cluster.rest import FlinkRest
from flink_agents.errors import ClusterFault, JobNotFound

pytestmark = pytest.mark.flink

Submit = Callable[..., str]
WAIT_S = 60.0


def written(folder: Path) -> list[str]:
    return sorted(line for part in folder.glob("*.jsonl") for line in part.read_text(encoding="utf-8").splitlines())


def test_jobs_one_after_the_other_and_side_by_side(cluster: EmbeddedCluster, submit: Submit, tmp_path: Path) -> None:
    def echo(line: str) -> str:
        return line

    first = submit(echo, ["a", "b"], name="first")
    assert cluster.rest.wait(first, timeout_s=WAIT_S).state == "FINISHED"
    rest = [submit(echo, [name, "ü"], name=name, parallelism=2) for name in ("second", "third")]
    assert [cluster.rest.wait(job, timeout_s=WAIT_S).state for job in rest] == ["FINISHED", "FINISHED"]
    assert written(tmp_path / "first" / "out") == ["a", "b"]
    assert written(tmp_path / "second" / "out") == ["second", "ü"]
    assert written(tmp_path / "third" / "out") == ["third", "ü"]
    report = cluster.rest.job(first)
    assert report.name == "first"
    assert report.ended_ms is not None
    assert report.ended_ms >= report.started_ms
    assert cluster.rest.restarts(first) == 0
    assert cluster.rest.failure(first) is None
    assert cluster.rest.completed_checkpoints(first) >= 1


def test_python_in_the_jvm_is_this_environment(cluster: EmbeddedCluster, submit: Submit, tmp_path: Path) -> None:
    def prefix(_line: str) -> str:
        import sys

        import pydantic

        return f"{sys.prefix} {pydantic.__file__}"

    import pydantic

    job = submit(prefix, ["x"])
    assert cluster.rest.wait(job, timeout_s=WAIT_S).state == "FINISHED"
    assert written(tmp_path / "job" / "out") == [f"{sys.prefix} {pydantic.__file__}"]


def test_a_failed_job_tells_its_python_cause_and_restarts(cluster: EmbeddedCluster, submit: Submit) -> None:
    def fail(line: str) -> str:
        raise ValueError(f"cannot do {line}")

    job = submit(fail, ["this"], attempts=2)
    assert cluster.rest.wait(job, timeout_s=WAIT_S).state == "FAILED"
    cause = cluster.rest.failure(job)
    assert cause is not None
    assert cause.python
    assert cause.summary == "ValueError: cannot do this"
    assert cause.text.startswith("Traceback")
    assert 'test_embedded.py", line' in cause.text
    assert "org.apache.flink" not in cause.text
    assert cluster.rest.restarts(job) == 2


def test_cancel_ends_a_job_and_its_checkpoints_stay(cluster: EmbeddedCluster, submit: Submit, tmp_path: Path) -> None:
    def echo(line: str) -> str:
        return line

    job = submit(echo, ["a"], follow=True)
    rest = cluster.rest
    while rest.completed_checkpoints(job) < 1:
        assert not rest.job(job).ended
    rest.cancel(job)
    assert rest.wait(job, timeout_s=WAIT_S).state == "CANCELED"
    rest.cancel(job)
    kept = rest.latest_checkpoint(job)
    assert kept is not None
    assert (Path(kept.removeprefix("file:")) / "_metadata").exists()


def test_stop_with_savepoint(cluster: EmbeddedCluster, submit: Submit, tmp_path: Path) -> None:
    def echo(line: str) -> str:
        return line

    job = submit(echo, ["a"], follow=True)
    cluster.rest.wait(job, timeout_s=WAIT_S, states=frozenset({"RUNNING"}))
    while cluster.rest.completed_checkpoints(job) < 1:
        assert not cluster.rest.job(job).ended
    savepoint = cluster.rest.stop_with_savepoint(job, f"file://{tmp_path / 'savepoints'}")
    assert Path(savepoint.removeprefix("file:")).parent == tmp_path / "savepoints"
    assert (Path(savepoint.removeprefix("file:")) / "_metadata").exists()
    assert cluster.rest.wait(job, timeout_s=WAIT_S).state == "FINISHED"


def test_waiting_for_a_state_that_cannot_come_ends(cluster: EmbeddedCluster, submit: Submit) -> None:
    def echo(line: str) -> str:
        return line

    job = submit(echo, ["a"])
    with pytest.raises(ClusterFault, match="is FINISHED, not FAILED"):
        cluster.rest.wait(job, timeout_s=WAIT_S, states=frozenset({"FAILED"}))


def test_an_unknown_job_is_not_found(cluster: EmbeddedCluster) -> None:
    with pytest.raises(JobNotFound, match="does not know this job"):
        cluster.rest.job("0" * 32)
    with pytest.raises(JobNotFound, match=r"^'0000' is no job id: Flink's have 32"):
        cluster.rest.job("0000")


def test_a_wrong_option_is_a_sentence(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    def build(env: object) -> None:
        raise AssertionError

    with pytest.raises(ClusterFault, match=r"'soon' for key 'execution\.checkpointing\.interval'") as refused:
        cluster.submit("job", {"execution.checkpointing.interval": "soon"}, build)
    assert "\n" not in str(refused.value)


def test_a_second_cluster_in_one_process_is_refused(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    second = EmbeddedCluster(tmp_path, slots=1)
    with pytest.raises(ClusterFault, match="already runs in this process"):
        second.start()
    second.close()
    cluster.check_alive()


def test_nobody_listens_there() -> None:
    with FlinkRest("http://127.0.0.1:9", timeout_s=2) as rest, pytest.raises(ClusterFault, match=r"127\.0\.0\.1:9"):
        rest.job("0" * 32)
