"""``flink-agents chaos`` on a small generated job: it holds under kills, and notices each guarantee switched off."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flink_agents.chaos.remains import orphans

SCRIPT = Path(sys.executable).with_name("flink-agents")
KEYS = 23

on_a_cluster = [pytest.mark.flink, pytest.mark.chaos, pytest.mark.timeout(300)]

JOB = Path(__file__).resolve().parents[2] / "jobs" / "generated"

Run = Callable[..., tuple[int, str, str]]


def generate(folder: Path, count: int) -> str:
    """Copy the job with ``count`` requests of one to four calls in two files and return its YAML's path."""
    shutil.copytree(JOB, folder, ignore=shutil.ignore_patterns("requests", "state", "out", "rejects", "__pycache__"))
    size = ["--requests", str(count), "--calls", "4", "--keys", str(KEYS)]
    subprocess.run([sys.executable, str(folder / "generate.py"), *size], check=True, capture_output=True)
    return str(folder / "job.yaml")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run ``flink-agents chaos`` on a job of ``count`` requests in a folder of its own."""

    def command(*arguments: str, count: int = 100) -> tuple[int, str, str]:
        done = subprocess.run(
            [SCRIPT, "chaos", generate(tmp_path / "job", count), *arguments],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return command


class TestOnACluster:
    pytestmark = on_a_cluster

    @pytest.mark.rule(48)
    @pytest.mark.rule(49)
    def test_three_kills_that_count_break_nothing(self, run: Run, tmp_path: Path) -> None:
        work = tmp_path / "work"
        code, out, err = run("--kills", "3", "--seed", "5", "--duration", "24s", "--dir", str(work), "--json")
        assert code == 0, (out, err)
        report = json.loads(out.splitlines()[-1])
        assert (report["verdict"], report["counted"], report["asked"]) == ("holds", 3, 3)
        counted = [kill for kill in report["kills"] if kill["counted"]]
        assert all(kill["running"] and kill["recorded"] for kill in counted)
        logs = {int(log.stem) for log in (work / "executions").glob("*.jsonl")}
        assert {kill["pid"] for kill in counted} <= logs
        assert (report["requests"], report["rejects"]) == (96, 4)
        # Nothing but what the test wrote is in the job's own folder.
        assert sorted(path.name for path in (tmp_path / "job").iterdir() if path.name != "__pycache__") == [
            "README.md", "generate.py", "generated_tools.py", "job.yaml", "requests"
        ]  # fmt: skip

    @pytest.mark.parametrize("guarantee", ["journal", "fence"])
    def test_a_guarantee_that_is_off_is_noticed(self, run: Run, guarantee: str) -> None:
        asked = ["--kills", "1", "--seed", "5", "--duration", "6s", "--call-time", "50ms..700ms", "--json"]
        code, out, err = run(*asked, "--break", guarantee, count=60)
        assert code == 1, (out, err)
        report = json.loads(out.splitlines()[-1])
        assert report["verdict"] == "broken"
        broken = {check["name"] for check in report["checks"] if not check["holds"]}
        assert "no recorded call runs again" in broken
        # The outputs of these tools are the same each time, so nothing but logs and journal shows it.
        assert not broken & {"each request is answered once", "rejects are exact", "no process is left"}

    def test_told_to_end_it_leaves_nothing_behind(self, tmp_path: Path) -> None:
        work = tmp_path / "work"
        command = [str(SCRIPT), "chaos", generate(tmp_path / "job", 20), "--kills", "1", "--dir", str(work)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as chaos:
            assert chaos.stderr is not None
            assert any("is at work" in line for line in chaos.stderr)
            assert orphans(work / "cluster")
            chaos.send_signal(signal.SIGTERM)
            assert chaos.wait(60) == 130
        assert orphans(work / "cluster") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--taskmanagers", "1"], "flink.parallelism 2"),
        (["--call-time", "2s..1s"], "longer than the second"),
        (["--call-time", "soon"], "--call-time"),
        (["--duration", "long"], "--duration"),
        (["--set", "journal=none"], "journal"),
        (["--set", "source.path=missing"], "source.path"),
    ],
)
def test_bad_input(run: Run, arguments: list[str], said: str) -> None:
    code, out, err = run("--kills", "1", *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_a_work_folder_has_to_be_empty(run: Run, tmp_path: Path) -> None:
    code, _, err = run("--kills", "1", "--dir", str(tmp_path))
    assert code == 2
    assert "not an empty folder" in err
