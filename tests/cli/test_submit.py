"""``submit``, ``stop`` and ``cluster`` as their user meets them, on a standalone cluster of two TaskManagers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.cluster.java import choose_java
from flink_agents.cluster.standalone import StandaloneCluster
from flink_agents.durable.journal.sqlite import SqliteJournal

if TYPE_CHECKING:
    from tests.cli.conftest import Ended, Job

JOBS = Path(__file__).resolve().parents[2] / "jobs"
WAIT_S = 100.0
QUICK = "env.java.opts.all: -XX:TieredStopAtLevel=1"

TOOLS = """
import os
import time


def count(number: int, gate: str) -> int:
    while number >= 4 and not os.path.exists(gate):
        time.sleep(0.02)
    time.sleep(0.1)
    return number
"""


class Far:
    """A job's folder, and the commands on it as a job of the cluster."""

    def __init__(self, job: Job, cluster: StandaloneCluster) -> None:
        self.job = job
        self.cluster = cluster
        self.rest = cluster.rest
        self.job_id = ""
        (job.folder / "far_tools.py").write_text(TOOLS, encoding="utf-8")

    @property
    def gate(self) -> Path:
        """Calls of all but the first four requests return once this file is there."""
        return self.job.folder / "gate"

    def write(self, requests: int, parallelism: int = 1) -> Far:
        """Write a job with two keys, whose requests run one at a time each."""
        folder = self.job.folder
        lines = [
            json.dumps({**json.loads(self.job.request(n, "count", number=n, gate=str(self.gate))), "key": n % 2})
            for n in range(requests)
        ]
        self.job.follow(
            *lines,
            tools=[{"function": "far_tools:count"}],
            journal="none",
            sink={"type": "jsonl", "path": str(folder / "out"), "roll": "200ms"},
            rejects={"type": "jsonl", "path": str(folder / "rejects")},
            flink={**self.job.flink, "parallelism": parallelism},
        )
        return self

    def command(self, *arguments: str, **environ: str) -> tuple[int, list[str]]:
        process = self.job.command(*arguments, "--jobmanager", self.cluster.address, **environ)
        out, _ = process.communicate(timeout=WAIT_S)
        return process.returncode, out.splitlines()

    def submit(self, *options: str, **environ: str) -> tuple[int, list[str]]:
        folder = self.job.folder
        source = ["--set", f"source.path={folder / 'requests'}"]
        return self.command("submit", str(folder / "job.yaml"), *source, *options, **environ)

    def submitted(self, *options: str) -> str:
        code, out = self.submit(*options)
        assert code == 0, self.job.stderr
        job_id, line = out
        assert line == f"flink-agents stop {job_id} --jobmanager {self.cluster.address}"
        return job_id

    def responses(self) -> list[int]:
        return sorted(int(name.removeprefix("r")) for name in self.job.responses())


@pytest.fixture
def far(job: Job, standalone: StandaloneCluster) -> Far:
    return Far(job, standalone)


@pytest.mark.flink
def test_the_quickstart_and_then_a_second_job_by_flinks_own_command(
    far: Far, standalone: StandaloneCluster, tmp_path: Path
) -> None:
    """Both run in both TaskManagers, the second under the first one's interpreter."""
    folder = tmp_path / "quickstart"
    folder.mkdir()
    for name in ("job.yaml", "shop_tools.py", "requests.jsonl"):
        shutil.copy(JOBS / "quickstart" / name, folder)
    changes = {
        "journal": "none",
        "source.path": str(folder / "requests.jsonl"),
        "sink.path": str(folder / "out"),
        "rejects.path": str(folder / "rejects"),
        "flink.parallelism": "2",
        "flink.options": f"{{{QUICK}}}",
    }
    options = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    code, out = far.command("submit", str(folder / "job.yaml"), *options)
    assert code == 0, far.job.stderr
    assert standalone.rest.wait(out[0], timeout_s=WAIT_S).state == "FINISHED"
    first = read(folder / "out")
    assert len(first) == len((folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()) - 1
    assert len(read(folder / "rejects")) == 1
    # Flink keeps no checkpoint of it; that it finished is found out when somebody asks.
    code, out = far.command("stop", out[0])
    assert (code, out) == (1, [])
    assert "it is FINISHED" in far.job.stderr
    (record,) = (folder / "state" / "checkpoints" / "quickstart").glob("*/run.json")
    assert json.loads(record.read_text(encoding="utf-8"))["how"] == "finished"

    command = Path(sys.executable).parent
    import pyflink

    done = subprocess.run(
        [
            Path(pyflink.__file__).parent / "bin" / "flink", "run", "-m", standalone.address,
            "-pym", "flink_agents.job", folder / "job.yaml", *options,
        ],
        env={
            "PATH": f"{command}:/usr/bin:/bin",
            "JAVA_HOME": str(choose_java({}).home),
            "FLINK_LOG_DIR": str(tmp_path),
        },
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    again = read(folder / "out")
    assert sorted(each["request_id"] for each in again) == sorted(2 * [each["request_id"] for each in first])


def read(folder: Path) -> list[dict[str, Any]]:
    found = [line for part in folder.glob("part-*") for line in part.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line) for line in found]


@pytest.mark.flink
@pytest.mark.rule(50, 52)
def test_stop_with_a_savepoint_resume_at_another_parallelism_and_drain(far: Far) -> None:
    total = 40
    job, rest = far.write(total, parallelism=2).job, far.rest
    first = far.submitted()
    job.until(lambda: len(far.responses()) == 4)
    # Both slots are taken now.
    code, out = far.submit("--set", "name=third", "--wait", "500ms")
    assert (code, out) == (1, [])
    assert "no free slot within" in job.stderr
    code, out = far.submit("--resume")
    assert (code, out) == (2, [])
    assert f"is live: Flink job {first} is RUNNING" in job.stderr
    code, out = far.command("stop", first)
    assert code == 0, job.stderr
    savepoint = Path(out[0])
    assert savepoint.parent == job.run_folder / "savepoints"
    kept = json.loads((savepoint / "run.json").read_text(encoding="utf-8"))
    assert (kept["how"], kept["checkpoint"]) == ("stopped", str(savepoint))
    assert json.loads((job.run_folder / "run.json").read_text(encoding="utf-8")) == kept
    assert far.responses() == list(range(4))

    second = far.submitted("--resume", "--set", "flink.parallelism=1")
    assert "goes on from savepoint" in job.stderr
    record = job.record
    assert (record["job_id"], record["lives"], record["run_id"]) == (second, 2, kept["run_id"])
    far.gate.touch()
    job.until(lambda: len(far.responses()) > 4)
    code, out = far.command("stop", second, "--drain", "--savepoint-dir", str(job.folder / "drained"))
    assert code == 0, job.stderr
    assert Path(out[0]).parent == job.folder / "drained"
    assert (Path(out[0]) / "run.json").exists()
    assert rest.job(second).state == "FINISHED"
    assert far.responses() == list(range(total))
    assert job.record["checkpoint"] == out[0]


@pytest.mark.flink
@pytest.mark.rule(26)
def test_two_jobs_side_by_side_with_one_journal(
    standalone: StandaloneCluster, tmp_path: Path, another_job: Callable[[Path], Job]
) -> None:
    """Each has a TaskManager, and neither sees the other's runs; a job that is alive keeps a second one off its run."""
    journal = {"type": "sqlite", "path": str(tmp_path / "journal.db")}
    sides = []
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        far = Far(another_job(tmp_path / name), standalone).write(8)
        sides.append(far)
        far.job_id = far.submitted("--set", f"journal={json.dumps(journal)}", "--set", f"name={name}")
    for far in sides:
        far.job.until(lambda far=far: len(far.responses()) == 4)  # type: ignore[misc]
    rest, left = standalone.rest, sides[0]
    assert [rest.job(far.job_id).state for far in sides] == ["RUNNING", "RUNNING"]
    assert rest.overview()["slots-available"] == 0

    # As if the cluster could not be asked: only the journal knows that the job lives.
    (record,) = (left.job.folder / "state" / "left").glob("*/run.json")
    known = json.loads(record.read_text(encoding="utf-8"))
    record.write_text(json.dumps({**known, "jobmanager": "127.0.0.1:1"}), encoding="utf-8")
    again = ["--set", f"journal={json.dumps(journal)}", "--set", "name=left", "--resume"]
    code, out = left.submit(*again)
    assert (code, out) == (2, [])
    assert f"run {known['run_id']} is live: Flink job {left.job_id} works on it" in left.job.stderr
    record.write_text(json.dumps(known), encoding="utf-8")

    for far in sides:
        far.gate.touch()
        code, _ = far.command("stop", far.job_id, "--drain")
        assert code == 0, far.job.stderr
        assert far.responses() == list(range(8))
    with closing(SqliteJournal(Path(journal["path"]))) as kept:
        runs = Counter(row.call.run_id for row in kept.calls())
    assert sorted(runs.values()) == [8, 8]
    assert known["run_id"] in runs


@pytest.mark.flink
def test_another_release_on_the_client_is_named(far: Far, tmp_path: Path) -> None:
    far.write(1)
    metadata = tmp_path / "newer" / "flink_agents_toolcall-99.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: flink-agents-toolcall\nVersion: 99.0\n")
    attempts = ["--set", "flink.restart.attempts=20"]
    code, out = far.submit(*attempts, PYTHONPATH=str(metadata.parent))
    assert (code, out) == (1, [])
    assert "versions differ: the job was submitted by flink-agents-toolcall 99.0" in far.job.stderr
    # It is given up at once, whatever its restart strategy says.
    (run,) = (tmp_path / "state" / "trial").glob("*/run.json")
    assert json.loads(run.read_text(encoding="utf-8"))["job_id"] is None


@pytest.fixture
def plain(folder: Path) -> Path:
    """A job that could be submitted."""
    text = (folder / "job.yaml").read_text(encoding="utf-8").replace("path: requests.jsonl", "path: /in")
    (folder / "job.yaml").write_text(f"{text}journal: none\n", encoding="utf-8")
    return folder


def test_nobody_answers(plain: Path, command: Callable[..., Ended]) -> None:
    for ended in (
        command("submit", "job.yaml", "--jobmanager", "127.0.0.1:9"),
        command("stop", "0" * 32, "--jobmanager", "127.0.0.1:9"),
    ):
        assert (ended.code, ended.out) == (1, "")
        assert "http://127.0.0.1:9 does not answer" in ended.err
    assert not (plain / "state").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jobmanager", "nowhere"], "is not of the form HOST:PORT"),
        (["--jobmanager", "a:1", "--resume", "--savepoint", "x"], "exclude each other"),
        (["--jobmanager", "a:1", "--savepoint", "gone"], "there is no such folder"),
        (["--jobmanager", "a:1", "--wait", "soon"], "--wait soon"),
        (["--jobmanager", "a:1", "--set", "source.path=in"], "source.path: is a path of the cluster"),
        (["--jobmanager", "a:1", "--set", "tools.0.function=gone:gone"], "gone"),
    ],
)
def test_bad_input(plain: Path, command: Callable[..., Ended], options: list[str], message: str) -> None:
    ended = command("submit", "job.yaml", *options)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


@pytest.mark.flink
def test_a_cluster_by_command(job: Job, tmp_path: Path) -> None:
    def cluster(action: str) -> tuple[int, str]:
        # By processes of their own, which the cluster outlives.
        process = job.command("cluster", action, XDG_STATE_HOME=str(tmp_path))
        out, _ = process.communicate(timeout=WAIT_S)
        return process.returncode, out

    assert cluster("status") == (1, "")
    assert f"no cluster was started in {tmp_path / 'flink-agents' / 'cluster'}" in job.stderr
    try:
        code, started = cluster("start")
        assert code == 0, job.stderr
        assert started.count("at work") == 2
        assert "1 of 1 free" in started
        # Once more changes nothing.
        assert cluster("start") == (0, started)
        assert cluster("status") == (0, started)
    finally:
        code, stopped = cluster("stop")
    assert code == 0
    assert "is stopped" in stopped
    code, stopped = cluster("stop")
    assert (code, "was not running" in stopped) == (0, True)
    code, status = cluster("status")
    assert (code, status.count("not running"), "pid" in status) == (1, 1, False)
