from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flink_agents.chaos.own_job import WorkFolder, own_job
from flink_agents.config.build import PreparedJob, prepare
from flink_agents.durable.journal.opening import JournalType
from flink_agents.errors import InvalidInput
from flink_agents.job import flink_options
from flink_agents.tools.registry import build_registry

JOB = """
name: owned
source: {type: jsonl, path: requests.jsonl}
key_by: key
tools:
  - {function: "owned_tools:add", execution: inline}
  - {class: "owned_tools:Shop"}
sink: {type: print}
flink:
  checkpoints: {interval: 10m}
  restart: {attempts: 0}
  options: {"pipeline.operator-chaining.enabled": "false"}
"""

TOOLS = '''
from flink_agents import tool

def add(a: int) -> int:
    """Add."""
    return a

class Shop:
    @tool
    async def ask(self) -> None:
        """Ask."""

    @tool(execution="inline")
    def look(self) -> None:
        """Look."""
'''


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "owned_tools.py").write_text(TOOLS)
    (tmp_path / "requests.jsonl").touch()
    (tmp_path / "job.yaml").write_text(JOB)
    return lambda *overrides: prepare(tmp_path / "job.yaml", overrides)


@pytest.fixture
def own(prepared: Any, tmp_path: Path) -> PreparedJob:
    return own_job(prepared(), WorkFolder(tmp_path / "work"))


def test_nothing_of_the_users_is_written_to(own: PreparedJob, tmp_path: Path) -> None:
    config, work = own.config, tmp_path / "work"
    sink: Any = config.sink
    rejects: Any = config.rejects
    paths = [config.source.path, sink.path, rejects.path, config.flink.checkpoints.directory]
    assert all(path.is_relative_to(work) for path in paths)
    assert own.journal is not None
    assert own.journal.path == str(work / "journal.db")
    assert config.source.follow


def test_a_job_that_would_give_up_does_not(own: PreparedJob, tmp_path: Path) -> None:
    class Run:
        checkpoints = tmp_path / "checkpoints"

    options = flink_options(own.config, Run())  # type: ignore[arg-type]  # all that is asked of it
    assert options["restart-strategy.type"] == "exponential-delay"
    assert options["execution.checkpointing.timeout"] == "5 s"
    assert int(options["execution.checkpointing.tolerable-failed-checkpoints"]) > 1000
    assert options["execution.checkpointing.dir"] == f"file://{tmp_path}/checkpoints"
    assert options["execution.checkpointing.interval"] == "1000 ms"
    assert options["pipeline.operator-chaining.enabled"] == "false"


def test_a_tool_of_the_task_thread_runs_on_a_worker(own: PreparedJob, tmp_path: Path) -> None:
    specs = build_registry(own.tools, [tmp_path]).specs()
    assert {spec.name: spec.execution.value for spec in specs} == {"add": "thread", "ask": "async", "look": "thread"}


def test_a_database_stays_the_users(prepared: Any, tmp_path: Path) -> None:
    dsn = "postgresql://somewhere/db"
    own = own_job(prepared("journal.type=postgresql", f"journal.dsn={dsn}"), WorkFolder(tmp_path / "work"))
    assert own.journal is not None
    assert (own.journal.type, own.journal.dsn) == (JournalType.POSTGRESQL, dsn)


def test_a_job_without_a_journal_is_refused(prepared: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"journal: chaos proves .* this job has none"):
        own_job(prepared("journal=none"), WorkFolder(tmp_path / "work"))


def test_a_job_with_an_agent_is_refused_with_what_to_do_instead(prepared: Any, tmp_path: Path) -> None:
    (tmp_path / "owned_agents.py").write_text(
        "from flink_agents import Agent, InputEvent, action\n\n"
        "class Desk(Agent):\n    @action(InputEvent)\n    async def read(self, event, ctx): ...\n"
    )
    job = prepared("agent=owned_agents:Desk")
    with pytest.raises(InvalidInput, match=r"agent: chaos checks the responses of tool calls.*Harness\(agent=...\)"):
        own_job(job, WorkFolder(tmp_path / "work"))
