"""A running job whose PostgreSQL is stopped and started again under load: its calls wait, and nothing runs twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from flink_agents.durable.journal.opening import JournalSpec, JournalType
from flink_agents.durable.journal.postgresql import PostgresqlJournal
from flink_agents.durable.journal.rows import CallFilter, RunRow
from flink_agents.options import OperatorOptions

if TYPE_CHECKING:
    from flink_agents.cluster.embedded import EmbeddedCluster
    from tests.conftest import PostgresServer

pytest.importorskip("pyflink")
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SECRET = "n0t-for-logs"
REQUESTS, KEYS = 400, 20
DEADLINE_S = 60.0


def noting(folder: Path) -> Callable[..., Any]:
    """Return a tool that notes its runs."""
    runs = str(folder / "runs.txt")

    def note(call: str) -> None:
        with open(runs, "a", encoding="utf-8") as lines:
            lines.write(call + "\n")

    async def work(call: str) -> str:
        """Take a moment."""
        note(call)
        await asyncio.sleep(0.1)
        return call

    return work


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def lines_of(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("part-*") if path.is_file()]
    return [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.flink
@pytest.mark.rule(1, 24, 49)
def test_postgresql_stopped_and_started_under_load(
    own_postgres: PostgresServer, cluster: EmbeddedCluster, cluster_output: list[str], tmp_path: Path
) -> None:
    from flink_agents.connectors.jsonl_sink import write_jsonl_each_checkpoint
    from flink_agents.connectors.jsonl_source import read_jsonl
    from flink_agents.datastream import attach

    dsn = own_postgres.database()
    journal = PostgresqlJournal(dsn)
    journal.create_run(RunRow("run-1", "job", 0))
    requests = tmp_path / "requests.jsonl"
    requests.write_text("".join(f"{request_of(n)}\n" for n in range(REQUESTS)), encoding="utf-8")

    def build(env: Any) -> None:
        streams = attach(
            read_jsonl(env, requests, follow=False),
            OperatorOptions("key"),
            [noting(tmp_path)],
            journal=JournalSpec(JournalType.POSTGRESQL, dsn=dsn),
            run_id="run-1",
        )
        write_jsonl_each_checkpoint(streams.responses, tmp_path / "out", name="responses")

    job = cluster.submit(
        "journal",
        {
            "parallelism.default": "1",
            "execution.checkpointing.interval": "500 ms",
            "restart-strategy.type": "none",
        },
        build,
    )
    runs = tmp_path / "runs.txt"
    until(lambda: runs.exists() and len(runs.read_text(encoding="utf-8").split()) >= 100)
    own_postgres.stop(signal.SIGQUIT)
    # Nothing more can be recorded, so no key goes on to its next request: what runs comes to its end.
    before = cluster.rest.job(job)
    assert not before.ended
    own_postgres.start()
    report = cluster.rest.wait(job, timeout_s=DEADLINE_S)
    assert report.state == "FINISHED", cluster.rest.failure(job)
    responses = [json.loads(line) for line in lines_of(tmp_path / "out")]
    assert Counter(response["request_id"] for response in responses) == Counter(f"r{n}" for n in range(REQUESTS))
    assert {result["status"] for response in responses for result in response["results"]} == {"succeeded"}
    assert set(Counter(runs.read_text(encoding="utf-8").split()).values()) == {1}
    assert len(list(journal.calls(CallFilter()))) == REQUESTS * 2
    journal.close()
    told = "".join(cluster_output) + cluster.log_file.read_text(encoding="utf-8", errors="replace")
    assert "operations wait for the journal" in told, "the job never met the stopped server: it proves nothing"
    assert SECRET not in told


def request_of(number: int) -> str:
    calls = [{"function": {"name": "work", "arguments": {"call": f"{number}/{i}"}}} for i in range(2)]
    return json.dumps({"id": f"r{number}", "key": f"k{number % KEYS}", "tool_calls": calls})


@pytest.mark.flink
def test_a_dsn_from_the_environment_is_written_nowhere(own_postgres: PostgresServer, tmp_path: Path) -> None:
    (tmp_path / "echo_tools.py").write_text("def work(call: str) -> str:\n    return call\n", encoding="utf-8")
    (tmp_path / "requests.jsonl").write_text(f"{request_of(0)}\n", encoding="utf-8")
    job = {
        "name": "secret",
        "source": {"type": "jsonl", "path": "requests.jsonl"},
        "key_by": "key",
        "tools": [{"function": "echo_tools:work", "on_interrupt": "fail"}],
        "journal": {"type": "postgresql", "dsn": {"env": "JOURNAL_DSN"}},
        "sink": {"type": "jsonl", "path": "out"},
        "flink": {"restart": {"attempts": 0}},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job), encoding="utf-8")
    environ = {**os.environ, "JOURNAL_DSN": own_postgres.database()}
    command = [str(Path(sys.executable).with_name("flink-agents")), "run", "job.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    (response,) = map(json.loads, lines_of(tmp_path / "out"))
    assert [result["value"] for result in response["results"]] == ["0/0", "0/1"]
    listing = [command[0], "calls", "job.yaml", "--json"]
    listed = subprocess.run(listing, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert [json.loads(line)["value"] for line in listed.stdout.splitlines()] == ['"0/0"', '"0/1"']
    said = (done.stdout + done.stderr + listed.stdout + listed.stderr).encode()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "flink.log" for path in files)
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert SECRET.encode() not in said
