"""A TaskManager that stands still while its job moves on, and then goes on: what it does reaches nobody."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.chaos.execution import Event, ExecutionLogs
from flink_agents.chaos.own_job import WorkFolder
from flink_agents.chaos.remains import committed, journal_rows, live_entries, parsed
from flink_agents.cluster.standalone import StandaloneCluster
from flink_agents.durable.journal.opening import JournalSpec, JournalType
from flink_agents.durable.outcome import Succeeded

if TYPE_CHECKING:
    from tests.conftest import PostgresServer

pytestmark = [pytest.mark.flink, pytest.mark.chaos, pytest.mark.timeout(240)]

WAIT_S = 90.0
SUBMIT = Path(__file__).with_name("submit_observed.py")

TOOLS = '''
import os
import time


def held(gate: str) -> int:
    """Return which process answered, once the gate is open; deaf to everything else, as a blocking library is."""
    while not os.path.exists(gate):
        time.sleep(0.02)
    return os.getpid()
'''


@dataclass
class Scene:
    """A job on two TaskManagers, of which it needs one."""

    cluster: StandaloneCluster
    folder: Path
    work: WorkFolder
    journal: JournalSpec
    job_id: str
    run_id: str
    run: Path

    def __post_init__(self) -> None:
        self.logs = ExecutionLogs(self.work.executions)

    def ask(self, name: str, gates: list[str]) -> None:
        """Move a file in with a request for each gate, each of a key of its own."""
        requests = [
            {"id": gate, "key": gate, "tool_calls": [{"function": {"name": "held", "arguments": {"gate": gate}}}]}
            for gate in gates
        ]
        made = self.folder / name
        made.write_text("".join(f"{json.dumps(request)}\n" for request in requests), encoding="utf-8")
        made.rename(self.work.source / name)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, self.cluster.rest.failure(self.job_id)
            time.sleep(0.05)
            self.logs.update()

    def events(self, kind: str, pid: int) -> list[Event]:
        return [event for event in self.logs.events if (event.kind, event.pid) == (kind, pid)]

    def responses(self) -> list[dict[str, Any]]:
        return parsed(committed(self.work.sink))


@pytest.fixture
def scene(tmp_path: Path, postgres: PostgresServer) -> Any:
    # A process that stands still may hold SQLite's lock, and everyone would wait for it: not a journal for this.
    dsn = postgres.database()
    (tmp_path / "held_tools.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "requests.jsonl").touch()
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: zombie\nsource: {type: jsonl, path: requests.jsonl}\nkey_by: key\n"
        "tools:\n  - function: held_tools:held\n"
        f"journal: {{type: postgresql, dsn: '{dsn}'}}\nsink: {{type: jsonl, path: out}}\n"
        "flink: {checkpoints: {interval: 300ms}}\n",
        encoding="utf-8",
    )
    options = {
        "heartbeat.interval": "500 ms",
        "heartbeat.timeout": "6 s",
        "env.java.opts.all": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    work = WorkFolder(tmp_path / "work")
    with StandaloneCluster(tmp_path / "cluster", taskmanagers=2, options=options) as cluster:
        command = [sys.executable, str(SUBMIT), str(job), str(work.folder), cluster.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        journal = JournalSpec(JournalType.POSTGRESQL, dsn=dsn)
        yield Scene(cluster, tmp_path, work, journal, told["job_id"], told["run_id"], Path(told["run"]))


@pytest.mark.rule(33)
@pytest.mark.rule(54)
def test_what_a_zombie_returns_reaches_nobody(scene: Scene) -> None:
    cluster, gates = scene.cluster, [str(scene.folder / f"gate-{i}") for i in range(4)]
    early, late = gates[0], gates[1:]
    scene.ask("first.jsonl", gates)
    scene.until(lambda: sum(event.kind == "begin" for event in scene.logs.events) == len(gates))
    zombie_pid = next(event.pid for event in scene.logs.events if event.kind == "begin")
    (zombie,) = [index for index in (1, 2) if cluster.pid(index) == zombie_pid]
    other_pid = cluster.pid(3 - zombie)
    Path(early).touch()
    scene.until(lambda: len(scene.responses()) == 1)

    cluster.pause_taskmanager(zombie)
    scene.until(lambda: len(scene.events("begin", other_pid)) == len(late))
    for gate in late:
        Path(gate).touch()
    scene.until(lambda: len(scene.responses()) == len(gates))
    before = scene.responses()

    cluster.continue_taskmanager(zombie)
    # Its bodies end now, and their outcomes reach the journal, where others stand.
    scene.until(lambda: len(scene.events("commit", zombie_pid)) == len(gates))
    later = [str(scene.folder / "gate-later")]
    Path(later[0]).touch()
    scene.ask("second.jsonl", later)
    scene.until(lambda: len(scene.responses()) == len(gates) + 1)
    location = cluster.rest.stop_with_savepoint(scene.job_id, f"file://{scene.folder}/savepoints", drain=True)
    cluster.rest.wait(scene.job_id, timeout_s=WAIT_S)

    by = {response["request_id"]: response["results"][0]["value"] for response in scene.responses()}
    assert Counter(response["request_id"] for response in scene.responses()) == dict.fromkeys([*gates, *later], 1)
    assert by == {early: zombie_pid, **dict.fromkeys([*late, *later], other_pid)}
    assert [response for response in before if response not in scene.responses()] == []
    (successor,) = {event.attempt for event in scene.events("begin", other_pid)}
    returned = scene.events("commit", zombie_pid)
    assert Counter(event.by == successor for event in returned) == {True: len(late), False: 1}
    rows = {row.request_id: row for row in journal_rows(scene.journal, scene.run_id)}
    assert {rows[gate].attempt_id for gate in late} == {successor}
    assert [rows[gate].outcome for gate in late] == [Succeeded(str(other_pid))] * len(late)
    assert live_entries(Path(location.removeprefix("file:"))) == 0
