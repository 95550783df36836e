"""One live run of a job: the lock, and who holds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flink_agents.cluster import lock
from flink_agents.cluster.lock import LOCK_FILE, JobLock
from flink_agents.errors import RunRefused

HOLD = """
import subprocess, sys
from pathlib import Path
from flink_agents.cluster.lock import JobLock
with JobLock(Path(sys.argv[1])) as held:
    child = subprocess.Popen(["sleep", "600"], pass_fds=(held.descriptor,), stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    sys.stdin.read()
    child.kill()
"""


def test_taken_left_and_taken_again(tmp_path: Path) -> None:
    with JobLock(tmp_path / "job") as held:
        assert held.descriptor > 2
        assert (tmp_path / "job" / LOCK_FILE).read_text().strip().isdigit()
    with pytest.raises(ValueError, match="is not locked"):
        _ = held.descriptor
    with JobLock(tmp_path / "job"):
        pass


def test_a_live_holder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "ALIVE_S", 0.1)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(RunRefused, match=f"running already: process {holder.pid} holds"), JobLock(tmp_path):
            pass
        holder.communicate("")
    with JobLock(tmp_path):
        pass


def test_a_killed_holder_is_waited_for_as_long_as_what_it_started_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "ORPHAN_S", 0.2)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        with pytest.raises(RunRefused, match="something that it started is still alive"), JobLock(tmp_path):
            pass
        subprocess.run(["kill", "-9", str(child)], check=True)
    monkeypatch.setattr(lock, "ORPHAN_S", 30.0)
    with JobLock(tmp_path):
        pass
