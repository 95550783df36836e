"""The execute tool in a running job: its outcomes, and that a cancelled or failed job leaves nothing behind."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.tools.execute import ExecuteProvider, ExecuteResult, ExecuteTool, LocalProcess, ProcessOptions
from tests.runtime.conftest import OperatorJob
from tests.tools.execute.conftest import eventually, running

# Nothing on the TaskManager can import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def record(key: str, *calls: tuple[str, dict[str, Any]]) -> str:
    wanted = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return json.dumps({"id": key, "key": key, "tool_calls": wanted})


def shell(code: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "execute", {"runtime": "shell", "code": code, **more}


def folders(homes: Path) -> list[Path]:
    return list(homes.glob("*/*"))


class Broken(ExecuteProvider):
    """Fails, or cancels itself, as its code says."""

    @property
    def runtimes(self) -> tuple[str, ...]:
        return ("any",)

    def execute(self, request: Any, token: Any) -> ExecuteResult:
        if request.code == "cancel":
            token.cancel()
        raise OSError("sandbox lost")


@pytest.mark.flink
@pytest.mark.rule(63, 65, 66)
def test_a_failed_task_ends_its_executions_and_runs_them_again(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    tag = f"984.{uuid.uuid4().int % 10**12:012}"
    (homes := tmp_path / "homes").mkdir()
    begun, failed = tmp_path / "begun", tmp_path / "failed"

    def fail() -> str:
        """Bring the task down once, when the execution of the other key has begun."""
        import time

        while not begun.exists():
            time.sleep(0.01)
        if not failed.exists():
            failed.touch()
            raise MemoryError
        return "on"

    job = OperatorJob(cluster, tmp_path)
    long = f"if [ -e {begun} ]; then echo again; else touch {begun}; trap '' TERM; setsid sleep {tag} & sleep {tag}; fi"
    calls = [shell(long, time_limit_s=60), shell("exit 3"), shell("sleep 60", time_limit_s=0.1)]
    broken = [("broken", {"runtime": "any", "code": code}) for code in ("fail", "cancel")]
    job.add("a.jsonl", [record("a", *calls, ("execute", {"runtime": "ruby", "code": ""}), *broken)])
    job.add("b.jsonl", [record("b", ("fail", {}))])
    tools: list[ExecuteTool | Callable[..., Any]] = [
        ExecuteTool(LocalProcess(["shell"], ProcessOptions(folder=str(homes), grace_ms=50))),
        ExecuteTool(Broken(), name="broken"),
        fail,
    ]
    restart = {"restart__strategy_type": "fixed-delay", "restart__strategy_fixed__delay_attempts": "2"}
    submitted = job.submit(tools, **restart, restart__strategy_fixed__delay_delay="10 ms")
    job.finish(submitted)
    (response,) = [each for each in job.responses() if each["request_id"] == "a"]
    again, code, timed_out, refused, lost, cancelled = response["results"]
    assert again["value"]["stdout"] == "again\n"
    assert (code["value"]["exit_code"], timed_out["value"]["timed_out"]) == (3, True)
    assert "'ruby' is not supported; supported are shell" in refused["error"]["message"]
    assert lost["error"]["message"] == "Execute: provider failed: sandbox lost"
    assert cancelled["error"]["message"] == "Execute: cancelled"
    eventually(lambda: not running(f"sleep\0{tag}"))
    eventually(lambda: not folders(homes))


@pytest.mark.flink
@pytest.mark.rule(66)
def test_a_cancelled_job_leaves_no_process_and_no_folder(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    tag = f"984.{uuid.uuid4().int % 10**12:012}"
    (homes := tmp_path / "homes").mkdir()
    job = OperatorJob(cluster, tmp_path, follow=True)
    job.add("a.jsonl", [record("a", shell(f"trap '' TERM; (setsid sleep {tag} &); sleep {tag}", time_limit_s=60))])
    submitted = job.submit([ExecuteTool(LocalProcess(["shell"], ProcessOptions(folder=str(homes))))])
    eventually(lambda: len(running(f"sleep\0{tag}")) == 2)
    assert folders(homes)
    cluster.rest.cancel(submitted)
    eventually(lambda: not running(tag))
    eventually(lambda: not folders(homes))
