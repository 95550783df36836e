"""A standalone cluster: what it starts, that it ends exactly that, and that a killed TaskManager costs no response."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from flink_agents.cluster.standalone import StandaloneCluster
from flink_agents.errors import ClusterFault

pytestmark = pytest.mark.flink

SCRIPT = Path(sys.executable).with_name("flink-agents")
WAIT_S = 100.0
REQUESTS = 60

TOOLS = """
import time


def work(number: int, ran: str) -> int:
    with open(ran, "a") as file:
        file.write(f"{number}\\n")
    time.sleep(0.15)
    return number
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lines(folder: Path) -> list[str]:
    return [line for part in folder.glob("part-*") for line in part.read_text(encoding="utf-8").splitlines()]


def test_what_it_is_made_of(standalone: StandaloneCluster) -> None:
    status = standalone.status()
    assert status.complete
    assert (status.slots, [each.index for each in status.taskmanagers]) == (2, [1, 2])
    # Another command finds the same, and may ask as often as it likes.
    with closing(StandaloneCluster(standalone.folder)) as found:
        assert [found.status().complete, found.status().complete] == [True, True]
        assert found.address == standalone.address
    for index in (None, 1, 2):
        environ = Path(f"/proc/{standalone.pid(index)}/environ").read_bytes().split(b"\0")
        assert any(entry.startswith(b"PATH=" + os.fsencode(Path(sys.executable).parent)) for entry in environ)
    assert {file.name for file in standalone.logs.glob("*.log")} == {
        "jobmanager.log", "taskmanager-1.log", "taskmanager-2.log"
    }  # fmt: skip


def test_it_listens_on_the_loopback_interface_only(standalone: StandaloneCluster) -> None:
    sockets = {
        os.readlink(entry) for index in (None, 1, 2) for entry in Path(f"/proc/{standalone.pid(index)}/fd").iterdir()
    }
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    ours = 0
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                ours += 1
                assert fields[1].partition(":")[0] in loopback
    assert ours >= 3


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        cluster = StandaloneCluster(tmp_path, rest_port=port)
        with pytest.raises(ClusterFault, match=f"port {port} of 127.0.0.1 is taken"):
            cluster.start()
    assert not cluster.stop()


def test_what_did_not_come_up_shows_the_end_of_its_log(tmp_path: Path) -> None:
    cluster = StandaloneCluster(tmp_path, options={"heartbeat.interval": "soon"})
    with pytest.raises(ClusterFault, match=r"(?s)jobmanager ended while it started.*soon"):
        cluster.start()
    assert not cluster.stop()


def test_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ClusterFault, match="no cluster was started in"):
        StandaloneCluster(tmp_path).status()


@pytest.mark.rule(48)
def test_a_killed_taskmanager_costs_no_response(standalone: StandaloneCluster, tmp_path: Path) -> None:
    """Without a journal; the second TaskManager takes over, and the first is started again meanwhile."""
    (tmp_path / "killed_tools.py").write_text(TOOLS, encoding="utf-8")
    ran, out = tmp_path / "ran", tmp_path / "out"
    source = tmp_path / "requests"
    source.mkdir()

    def request(number: int) -> str:
        calls = [{"id": "c", "function": {"name": "work", "arguments": {"number": number, "ran": str(ran)}}}]
        return json.dumps({"id": f"r{number}", "key": number % 8, "tool_calls": calls})

    (source / "all.jsonl").write_text("".join(f"{request(n)}\n" for n in range(REQUESTS)), encoding="utf-8")
    job = {
        "name": "killed",
        "source": {"type": "jsonl", "path": str(source), "follow": True},
        "key_by": "key",
        "tools": [{"function": "killed_tools:work"}],
        "sink": {"type": "jsonl", "path": str(out), "roll": "200ms"},
        "rejects": {"type": "jsonl", "path": str(tmp_path / "rejects")},
        "journal": "none",
        "flink": {
            "checkpoints": {"interval": "200ms", "directory": str(tmp_path / "state")},
            "options": {"env.java.opts.all": "-XX:TieredStopAtLevel=1"},
        },
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job), encoding="utf-8")
    submitted = subprocess.run(
        [SCRIPT, "submit", tmp_path / "job.yaml", "--jobmanager", standalone.address],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.split()[0]
    rest = standalone.rest
    try:
        # Some responses are committed, and others are being worked on.
        until(lambda: len(lines(out)) >= 4)
        assert len(lines(out)) < REQUESTS
        busy = [n for n in (1, 2) if "opened" in (standalone.logs / f"taskmanager-{n}.log").read_text(encoding="utf-8")]
        before = standalone.pid(busy[-1])
        for index in busy:
            standalone.kill_taskmanager(index)
            standalone.start_taskmanager(index, wait=False)
        assert standalone.pid(busy[-1]) != before
        until(lambda: len(lines(out)) >= REQUESTS)
        # A response that came twice would be behind the others.
        taken = rest.completed_checkpoints(job_id)
        until(lambda: rest.completed_checkpoints(job_id) > taken + 1)
        assert rest.restarts(job_id) >= 1
    finally:
        rest.cancel(job_id)
        rest.wait(job_id, timeout_s=WAIT_S)
    answered = sorted(json.loads(line)["request_id"] for line in lines(out))
    assert answered == sorted(f"r{number}" for number in range(REQUESTS))
    assert lines(tmp_path / "rejects") == []
    assert standalone.start().status().complete
