"""What ends an attempt reaches its running tools within a second, and leaves no trace: the action runs again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents import tool
from flink_agents.options import Mode, ToolCallOptions
from flink_agents.testing.crash_file import CrashFile, completed_checkpoint

if TYPE_CHECKING:
    from tests.recovery.conftest import RecoveryJob

pytest.importorskip("pyflink")

WAYS = pytest.mark.parametrize("way", ["cancel", "savepoint", "elsewhere", "ours"])
MODES = pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)


@dataclass
class Interrupted:
    """A job with a finished call, held calls and later ones, and the ways in which its attempt can end."""

    job: RecoveryJob
    resumed: RecoveryJob
    trigger: str
    ended_at: float = 0.0
    snapshot: str = field(default="")

    @property
    def folder(self) -> Path:
        """Where everything of the test is."""
        return self.job.folder

    def after_two_checkpoints(self) -> None:
        """Wait until two more checkpoints have completed: the second one began after this call."""
        checkpoints = str(self.folder / "checkpoints")
        seen = completed_checkpoint(checkpoints)
        self.job.until(lambda: completed_checkpoint(checkpoints) >= seen + 2)

    def end_by(self, way: str) -> None:
        """End the attempt and note when that was seen from outside."""
        if way == "cancel":
            self.ended_at = time.time()
            self.job.cluster.rest.cancel(self.job.job_id)
            self.job.cluster.rest.wait(self.job.job_id, timeout_s=30, states=frozenset({"CANCELED"}))
            number = completed_checkpoint(f"{self.folder}/checkpoints")
            (newest,) = (self.folder / "checkpoints").glob(f"*/chk-{number}")
            self.snapshot = str(newest)
        elif way == "savepoint":
            location = self.job.cluster.rest.stop_with_savepoint(self.job.job_id, f"file://{self.folder}/savepoints")
            self.ended_at = time.time()
            self.snapshot = location.removeprefix("file:")
        else:
            self.job.add("trigger.jsonl", [self.trigger])
            crashed = self.folder / "crashed-0"
            self.job.until(crashed.exists)
            self.ended_at = crashed.stat().st_mtime

    def resume(self) -> RecoveryJob:
        """Go on from what the end left behind; a job that restarts goes on by itself."""
        if not self.snapshot:
            return self.job
        self.resumed.submit(tools=holding_tools(self.folder), execution_state__recovery_path=f"file://{self.snapshot}")
        return self.resumed


def holding_tools(folder: Path) -> list[Any]:
    """Return tools that hold until the file ``release`` exists, and note when they began and were stopped."""
    release, runs, stopped = folder / "release", str(folder / "runs.jsonl"), str(folder / "stopped.jsonl")

    def note(file: str, call: str) -> None:
        # One write a line, so that lines of several threads never mix.
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(f'{{"at":{time.time()},"call":"{call}","checkpoint":0}}\n')

    async def hold_async(call: str, ms: int) -> str:
        """Hold on the loop."""
        note(runs, call)
        try:
            for _ in iter(release.exists, True):
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            note(stopped, call)
            raise
        return f"value of {call}"

    def hold_thread(call: str, ms: int) -> str:
        """Hold on a thread that looks at its token."""
        from flink_agents.scheduler.tool_context import current_tool_context

        token = current_tool_context().token
        note(runs, call)
        while not release.exists():
            if token.wait(0.02):
                note(stopped, call)
                raise asyncio.CancelledError
        return f"value of {call}"

    def quick(call: str, ms: int) -> str:
        """Answer at once."""
        note(runs, call)
        return f"value of {call}"

    return [hold_async, hold_thread, quick]


def crash_once_at(marker: Path) -> Callable[[str], str]:
    """Return a map function that fails once, at the response of the trigger."""

    def fail(response: str) -> str:
        if '"request_id":"r9"' in response and not marker.exists():
            marker.touch()
            msg = "another operator of the job fails"
            raise RuntimeError(msg)
        return response

    return fail


@pytest.fixture
def interrupted(
    recovery_job: Callable[..., RecoveryJob], request_of: Callable[..., str], tmp_path: Path, way: str, mode: Mode
) -> Interrupted:
    """Return a running job: request 0 has one call recorded and two that hold, the rest waits behind them."""
    options = {"tool_calls": ToolCallOptions(mode=mode), "follow": True}
    if way == "elsewhere":
        options["behind"] = crash_once_at(tmp_path / "crashed-0")
    fault = CrashFile(str(tmp_path), ("after:emitted",) if way == "ours" else ())
    job = recovery_job(fault=fault, **options)
    job.add(
        "requests.jsonl",
        [
            request_of(0, "a", ("quick", 0), ("hold_async", 0), ("hold_async", 0), ("quick", 0)),
            request_of(1, "a", ("quick", 0)),
            request_of(2, "b", ("quick", 0), ("hold_thread", 0), ("hold_thread", 0), ("quick", 0)),
        ],
    )
    retention = {"execution_checkpointing_externalized__checkpoint__retention": "RETAIN_ON_CANCELLATION"}
    job.submit(restarts=1, tools=holding_tools(tmp_path), **retention)
    begun = 4 if mode is Mode.SEQUENTIAL else 8
    job.until(lambda: len(job.runs()) == begun)
    trigger = request_of(9, "t", ("quick", 0))
    ready = Interrupted(job, recovery_job(**options), trigger)
    ready.after_two_checkpoints()
    return ready


@pytest.mark.flink
@pytest.mark.rule(27, 28, 29)
@MODES
@WAYS
def test_case_3_an_end_reaches_running_tools_and_the_action_runs_again(
    interrupted: Interrupted, mode: Mode, way: str
) -> None:
    job = interrupted.job
    held = {"0/1", "2/1"} if mode is Mode.SEQUENTIAL else {"0/1", "0/2", "2/1", "2/2"}
    finished = {"0/0", "2/0"} if mode is Mode.SEQUENTIAL else {"0/0", "0/3", "2/0", "2/3"}
    assert {run.call for run in job.runs()} == held | finished
    interrupted.end_by(way)
    job.until(lambda: set(job.stopped()) == held)
    assert max(job.stopped().values()) - interrupted.ended_at < 1.0
    assert not any(f'"request_id":"r{n}"' in job.written() for n in range(3))
    if interrupted.snapshot:
        assert {run.call for run in job.runs()} == held | finished, "a later call began after the end"
        texts = b"".join(path.read_bytes() for path in Path(interrupted.snapshot).rglob("*") if path.is_file())
        assert texts.count(b'"s":"succeeded"') == len(finished)
        assert texts.count(b'"s":"started"') == len(held)
        assert b'"s":"failed"' not in texts
    resumed = interrupted.resume()
    resumed.until(lambda: all(Counter(run.call for run in resumed.runs())[call] == 2 for call in held))
    (job.folder / "release").touch()
    answered = {"r0", "r1", "r2"} if interrupted.snapshot else {"r0", "r1", "r2", "r9"}
    resumed.until(lambda: answered <= {response["request_id"] for response in resumed.responses()})
    resumed.cluster.rest.stop_with_savepoint(resumed.job_id, f"file://{job.folder}/savepoints", drain=True)
    check_resumed(resumed, held, finished)


def check_resumed(job: RecoveryJob, held: set[str], finished: set[str]) -> None:
    """Assert that finished calls replayed, held ones ran again, later ones ran once, and all succeeded."""
    results = {
        f"{response['request_id'][1:]}/{result['position']}": result
        for response in job.responses()
        for result in response["results"]
        if response["request_id"] != "r9"
    }
    assert len(results) == 9
    for call, result in results.items():
        assert (result["status"], result["value"]) == ("succeeded", f"value of {call}")
        assert result["replayed"] == (call in finished)
        assert result["attempts"] == (2 if call in held else 1)
    times = Counter(run.call for run in job.runs() if run.call in results)
    assert times == {call: 2 if call in held else 1 for call in results}
    counted = Counter(response["request_id"] for response in job.responses())
    assert max(counted.values()) == 1


@pytest.mark.flink
@pytest.mark.rule(43)
@pytest.mark.parametrize("execution", ["thread", "async", "inline"])
def test_a_fatal_error_fails_the_task_and_is_no_outcome(
    recovery_job: Callable[..., RecoveryJob], request_of: Callable[..., str], tmp_path: Path, execution: str
) -> None:
    job = recovery_job()
    job.add("requests.jsonl", [request_of(n, f"k{n}", ("run_out", 0), ("leave", 0)) for n in range(3)])
    job.submit(restarts=1, tools=fatal_tools(tmp_path, execution))
    job.finish()
    assert job.restarts == 1
    cause = job.cluster.rest.failure(job.job_id)
    assert cause is not None
    assert cause.summary.endswith("MemoryError: out of memory")
    responses = job.responses()
    assert Counter(response["request_id"] for response in responses) == Counter(["r0", "r1", "r2"])
    for response in responses:
        ran_out, left = response["results"]
        assert ran_out["status"] == "succeeded"
        assert (left["status"], left["error"]["kind"], left["error"]["type"]) == ("failed", "tool_error", "SystemExit")


def fatal_tools(folder: Path, execution: str) -> list[Any]:
    """Return a tool that runs out of memory once, and one that asks the process to end."""
    marker = folder / "ran-out"

    def run_out_of_memory() -> str:
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return "enough memory"
        raise MemoryError("out of memory")

    @tool(execution=None if execution == "async" else execution)
    def run_out(call: str, ms: int) -> str:
        """Run out of memory, the first time."""
        return run_out_of_memory()

    async def run_out_on_loop(call: str, ms: int) -> str:
        """Run out of memory, the first time."""
        return run_out_of_memory()

    @tool(execution=None if execution == "async" else execution)
    def leave(call: str, ms: int) -> str:
        """Leave."""
        raise SystemExit(3)

    async def leave_on_loop(call: str, ms: int) -> str:
        """Leave."""
        raise SystemExit(3)

    if execution == "async":
        return [tool(name="run_out")(run_out_on_loop), tool(name="leave")(leave_on_loop)]
    return [run_out, leave]
