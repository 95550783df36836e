"""Attempts that are over: what their threads return goes nowhere, and hundreds of them leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from flink_agents.options import MIB, WorkerOptions
from flink_agents.testing.crash_file import CrashFile

if TYPE_CHECKING:
    from tests.recovery.conftest import RecoveryJob

pytest.importorskip("pyflink")
cloudpickle.register_pickle_by_value(sys.modules[__name__])

RESTARTS = 200
WEIGHED_EACH = 10
OURS = (
    "Attempt",
    "Subtask",
    "ActionRun",
    "KeyActivity",
    "ToolCallOperator",
    "RunningCall",
    "MailWakeups",
    "FlinkStore",
)


def stubborn_tools(folder: Path) -> list[Any]:
    """Return tools that do not stop when asked: the first body answers ``old`` when it may, a later one ``new``."""

    def begin(name: str) -> str:
        try:
            (folder / f"{name}-old-began").touch(exist_ok=False)
        except FileExistsError:
            (folder / f"{name}-new-began").touch()
            return "new"
        return "old"

    def stay(call: str, ms: int) -> str:
        """Stay on a thread."""
        mine = begin("stay")
        while not (folder / f"{mine}-may-end").exists():
            time.sleep(0.01)
        return mine

    async def remain(call: str, ms: int) -> str:
        """Remain on the loop."""
        mine = begin("remain")
        while not (folder / f"{mine}-may-end").exists():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                (folder / "cancelled").touch()
        return mine

    def follow(call: str, ms: int) -> str:
        """Run on the thread that ``stay`` leaves."""
        (folder / "follow-began").touch()
        return "followed"

    async def answer(call: str, ms: int) -> str:
        """Answer."""
        return "answered"

    return [stay, remain, follow, answer]


@pytest.mark.flink
@pytest.mark.rule(33)
def test_what_a_dead_attempt_returns_reaches_neither_state_nor_output_nor_counters(
    recovery_job: Callable[..., RecoveryJob], request_of: Callable[..., str], tmp_path: Path
) -> None:
    job = recovery_job(
        fault=CrashFile(str(tmp_path), ("after:emitted",)), workers=WorkerOptions(threads=2, async_limit=4), follow=True
    )
    job.add("requests.jsonl", [request_of(0, "a", ("stay", 0)), request_of(1, "b", ("remain", 0))])
    job.submit(restarts=1, tools=stubborn_tools(tmp_path))
    job.until(lambda: len(list(tmp_path.glob("*-old-began"))) == 2)
    job.add("trigger.jsonl", [request_of(2, "t", ("answer", 0))])
    job.until(lambda: len(list(tmp_path.glob("*-new-began"))) == 2)
    # Both threads are taken, one of them by a body of the dead attempt: this call begins when that one has ended.
    job.add("next.jsonl", [request_of(3, "c", ("follow", 0))])
    job.until((tmp_path / "cancelled").exists)
    (tmp_path / "old-may-end").touch()
    job.until((tmp_path / "follow-began").exists)
    job.until(lambda: {"r2", "r3"} <= {response["request_id"] for response in job.responses()})
    # What is answered in this attempt is counted in it: the trigger's response was lost with the crash.
    names = frozenset({"succeeded", "responses"})
    job.until(lambda: job.cluster.rest.counters(job.job_id, names) == {"succeeded": 2, "responses": 2})
    assert not any(f'"request_id":"r{n}"' in job.written() for n in (0, 1))
    (tmp_path / "new-may-end").touch()
    job.until(lambda: job.cluster.rest.counters(job.job_id, names) == {"succeeded": 4, "responses": 4})
    job.cluster.rest.stop_with_savepoint(job.job_id, f"file://{tmp_path}/savepoints", drain=True)
    values = {response["request_id"]: response["results"][0]["value"] for response in job.responses()}
    assert values == {"r0": "new", "r1": "new", "r2": "answered", "r3": "followed"}
    assert job.statistics()["succeeded"] == 4
    assert job.restarts == 1


@pytest.mark.flink
@pytest.mark.rule(1, 41)
def test_permits_of_dead_attempts_come_back(
    recovery_job: Callable[..., RecoveryJob], request_of: Callable[..., str], tmp_path: Path
) -> None:
    # Each crash finds calls that were granted one of the two threads and have not begun.
    crashes = 12
    fault = CrashFile(str(tmp_path), ("before:start",) * crashes, nth=5)
    job = recovery_job(fault=fault, workers=WorkerOptions(threads=2, async_limit=2))
    job.add("requests.jsonl", [request_of(n, f"k{n}", ("block", 5), ("wait", 5), ("block", 5)) for n in range(20)])
    job.submit(restarts=crashes)
    job.finish()
    assert job.restarts == crashes
    assert Counter(response["request_id"] for response in job.responses()) == Counter(f"r{n}" for n in range(20))


@dataclass(frozen=True)
class Weigh:
    """Fault that notes at each tenth crash what the process holds, and then does what ``inner`` does."""

    file: str
    inner: CrashFile

    def __call__(self, point: str) -> None:
        """Weigh before an attempt opens."""
        if point == "before:open" and self.inner.crashes % WEIGHED_EACH == 0:
            self._weigh()
        self.inner(point)

    def _weigh(self) -> None:
        gc.collect()
        kinds = Counter(type(found).__name__ for found in gc.get_objects())
        entry = {
            "threads": len(os.listdir("/proc/self/task")),
            "python_threads": threading.active_count(),
            "blocks": sys.getallocatedblocks(),
            **{name: kinds[name] for name in OURS},
        }
        with open(self.file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(entry) + "\n")


@pytest.mark.flink
@pytest.mark.timeout(300)
def test_hundreds_of_restarts_in_one_process_leave_nothing_behind(
    recovery_job: Callable[..., RecoveryJob], request_of: Callable[..., str], tmp_path: Path
) -> None:
    weights = tmp_path / "weights.jsonl"
    fault = Weigh(str(weights), CrashFile(str(tmp_path), ("after:recorded",) * RESTARTS, nth=10))
    job = recovery_job(fault=fault)
    calls = (("wait", 3), ("block", 3), ("reckon", 0), ("wait", 20))
    job.add("requests.jsonl", [request_of(n, f"k{n}", *calls) for n in range(30)])
    job.submit(restarts=RESTARTS)
    job.until(lambda: fault.inner.crashes >= 3 * WEIGHED_EACH)
    heap_before = heap_in_use()
    job.finish(timeout_s=240)
    assert job.restarts == RESTARTS
    assert len(job.responses()) == 30
    weighed = [json.loads(line) for line in weights.read_text(encoding="utf-8").splitlines()]
    assert len(weighed) == RESTARTS // WEIGHED_EACH + 1
    # Classes are loaded and pools filled in the first restarts.
    early, late = weighed[3], weighed[-1]
    for name in OURS:
        # The bodies of the newest attempts may not have ended yet; one object left behind by each attempt is more.
        assert late[name] < RESTARTS / 2, f"{name}: {[weight[name] for weight in weighed]}"
    # Workers start when they are needed, Flink's pools grow and shrink.
    assert late["python_threads"] <= early["python_threads"] + 8
    assert late["threads"] <= early["threads"] + 16
    # The bridge to Java keeps what it learned of each class, once for each attempt and every Python operator.
    assert (late["blocks"] - early["blocks"]) / (RESTARTS - 3 * WEIGHED_EACH) < 3000
    assert heap_in_use() < heap_before + 32 * MIB
    assert "Full thread dump" in thread_dump()
    assert job.cluster.rest.job(job.job_id).state == "FINISHED", "the JVM did not survive the thread dump"


def heap_in_use() -> int:
    """Return the bytes of the JVM's heap that survive a collection."""
    from pyflink.java_gateway import get_gateway

    lang = get_gateway().jvm.java.lang
    lang.System.gc()
    return int(lang.Runtime.getRuntime().totalMemory() - lang.Runtime.getRuntime().freeMemory())


def thread_dump() -> str:
    """Return what ``jstack`` prints of the JVM, which looks at every thread that ever attached to it."""
    from pyflink.java_gateway import get_gateway

    gateway = get_gateway()
    java, javax = gateway.jvm.java, gateway.jvm.javax
    arguments = gateway.new_array(java.lang.Object, 4)
    arguments[0] = javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    arguments[1] = "threadPrint"
    arguments[2] = gateway.new_array(java.lang.Object, 1)
    arguments[2][0] = gateway.new_array(java.lang.String, 0)
    arguments[3] = gateway.new_array(java.lang.String, 1)
    arguments[3][0] = "[Ljava.lang.String;"
    # The server's own class is not public, so its method is called through the interface.
    methods = java.lang.Class.forName("javax.management.MBeanServer").getMethods()
    invoke = next(method for method in methods if method.getName() == "invoke")
    server = java.lang.management.ManagementFactory.getPlatformMBeanServer()
    return str(invoke.invoke(server, arguments))
