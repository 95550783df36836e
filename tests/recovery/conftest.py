"""Jobs that crash as planned: what goes in, what each tool notes of its runs, what a restored checkpoint held."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from flink_agents import tool
from flink_agents.agent import AgentSource
from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.connectors.jsonl_sink import write_jsonl_each_checkpoint
from flink_agents.connectors.jsonl_source import read_jsonl
from flink_agents.datastream import attach
from flink_agents.durable.journal.opening import JournalSpec, open_journal
from flink_agents.durable.journal.rows import RunRow
from flink_agents.faults import Fault
from flink_agents.options import Limits, OperatorOptions, ToolCallOptions, WorkerOptions
from flink_agents.testing.crash_file import CrashFile, completed_checkpoint

DEADLINE_S = 90.0
RECORDS_A_CHECKPOINT = 5
RUN = "run-1"

# Nothing on the TaskManager can import this module, so what a job takes from here travels in the job itself.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

_submitting = threading.Lock()


@dataclass(frozen=True)
class Run:
    """One body that a tool began: when (seconds since the epoch), of which call, and what it saw."""

    at: float
    call: str
    checkpoint: int
    """The newest completed checkpoint at that moment."""


@dataclass(frozen=True)
class Restore:
    """One restored attempt, at the moment it opened."""

    at: float
    checkpoint: int
    recorded: frozenset[str]
    """Calls whose outcome stands in the checkpoint, as its bytes say; RocksDB's also have what was deleted lately."""
    answered: frozenset[str]
    """Calls of requests whose response was committed by then."""


def append(file: str, entry: dict[str, Any]) -> None:
    """Add one line to a file, whole, whichever thread or attempt writes beside."""
    lines = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(lines, (json.dumps(entry) + "\n").encode())
    finally:
        os.close(lines)


def entries(file: Path) -> list[dict[str, Any]]:
    """Return what ``append`` wrote."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


@dataclass(frozen=True)
class KeepRestored:
    """Fault that keeps a copy of the checkpoint each restored attempt starts from, and then does what ``inner`` does.

    While an attempt opens, no checkpoint can complete: the newest is the one that is restored. ``inner`` is left alone
    until a response was committed, so that every restored checkpoint has some work behind it.
    """

    folder: str
    inner: CrashFile

    def __call__(self, point: str) -> None:
        """Copy before an attempt opens that follows a crash."""
        if point not in ("before:open", *self.inner.points):
            return
        has_crashed = self.inner.crashes > 0
        if point == "before:open" and has_crashed:
            self._copy()
        if has_crashed or any(Path(self.folder, "out").glob("part-*")):
            self.inner(point)

    def _copy(self) -> None:
        folder = Path(self.folder)
        number = completed_checkpoint(str(folder / "checkpoints"))
        (newest,) = (folder / "checkpoints").glob(f"*/chk-{number}")
        kept = folder / f"restored-{len(list(folder.glob('restored-*')))}"
        shutil.copytree(newest, kept)
        committed = sorted(path.name for path in (folder / "out").glob("part-*"))
        append(
            str(folder / "restores.jsonl"),
            {"at": time.time(), "checkpoint": number, "kept": kept.name, "committed": committed},
        )


def noting_tools(folder: Path) -> list[Any]:
    """Return a tool of each execution; each notes its runs and returns a value that names its call."""
    runs, stopped, checkpoints = str(folder / "runs.jsonl"), str(folder / "stopped.jsonl"), str(folder / "checkpoints")

    def note(call: str) -> None:
        append(runs, {"at": time.time(), "call": call, "checkpoint": completed_checkpoint(checkpoints)})

    def block(call: str, ms: int = 0) -> str:
        """Wait on a thread."""
        note(call)
        time.sleep(ms / 1000)
        return f"value of {call}"

    async def wait(call: str, ms: int = 0) -> str:
        """Wait on the loop."""
        note(call)
        try:
            await asyncio.sleep(ms / 1000)
        except asyncio.CancelledError:
            append(stopped, {"at": time.time(), "call": call})
            raise
        return f"value of {call}"

    @tool(execution="inline")
    def reckon(call: str, ms: int = 0) -> str:
        """Answer on the task thread."""
        note(call)
        return f"value of {call}"

    return [block, wait, reckon]


def request(number: int, key: str, *calls: tuple[str, int]) -> str:
    """Return a request record; each call is a tool and how long it takes, in milliseconds."""
    wanted = [
        {"id": f"c{i}", "function": {"name": name, "arguments": {"call": f"{number}/{i}", "ms": ms}}}
        for i, (name, ms) in enumerate(calls)
    ]
    return json.dumps({"id": f"r{number}", "key": key, "tool_calls": wanted})


def throttle(interval_s: float, checkpoints: str, records: int) -> Callable[[str], str]:
    """Return a map function that lets a record pass each ``interval_s`` seconds, slower where checkpoints fall behind.

    One checkpoint should complete for each ``records`` records; a barrier passes between any two of them.
    """
    passed = 0

    def slowly(record: str) -> str:
        nonlocal passed
        passed += 1
        is_behind = completed_checkpoint(checkpoints) < passed // records
        time.sleep(interval_s * 10 if is_behind else interval_s)
        return record

    return slowly


@dataclass
class RecoveryJob:
    """One job of source, throttle, operator and sinks below ``folder``. Its methods may run on any thread."""

    cluster: EmbeddedCluster
    folder: Path
    fault: Fault
    tool_calls: ToolCallOptions = field(default_factory=ToolCallOptions)
    workers: WorkerOptions = field(default_factory=lambda: WorkerOptions(threads=4, async_limit=100))
    limits: Limits = field(default_factory=Limits)
    interval_s: float = 0.0
    """Throttles the requests."""
    follow: bool = False
    polling: bool = False
    behind: Callable[[str], str] | None = None
    """A map function behind the operator, whose output is what the sink writes."""
    journal: JournalSpec | None = None
    """Where outcomes are kept between checkpoints; its run is ``RUN``."""
    agent: AgentSource | None = None
    """Whose actions take the records; its tools stand beside the job's."""
    job_id: str = ""

    def __post_init__(self) -> None:
        self.requests = self.folder / "requests"
        self.requests.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, records: Sequence[str]) -> None:
        """Move a file of records into the source's folder."""
        made = self.folder / name
        made.write_text("".join(f"{record}\n" for record in records), encoding="utf-8")
        made.rename(self.requests / name)

    def submit(self, *, restarts: int = 0, tools: Sequence[Any] | None = None, **flink: str) -> None:
        """Submit the job; it may restart ``restarts`` times and fails at the next failure."""
        options = {
            "parallelism.default": "1",
            "execution.checkpointing.interval": "200 ms",
            "execution.checkpointing.dir": f"file://{self.folder}/checkpoints",
            # So that the folder of a checkpoint has all of it, as text.
            "execution.checkpointing.incremental": "false",
            "state.backend.rocksdb.compression.per.level": "NO_COMPRESSION",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": str(restarts),
            "restart-strategy.fixed-delay.delay": "10 ms",
            **{name.replace("__", "-").replace("_", "."): value for name, value in flink.items()},
        }
        chosen = noting_tools(self.folder) if tools is None else tools
        if self.journal is not None:
            with closing(open_journal(self.journal)) as journal:
                journal.create_run(RunRow(RUN, "recovery", 0))
        # PyFlink's way from a topology to a job was not made for several threads.
        with _submitting:
            self.job_id = self.cluster.submit("recovery", options, lambda env: self._build(env, chosen))

    def _build(self, env: Any, tools: Sequence[Any]) -> None:
        from pyflink.common import Types

        options = OperatorOptions(
            "key", tool_calls=self.tool_calls, workers=self.workers, limits=self.limits, statistics=True
        )
        if self.polling:
            env.get_config().set_global_job_parameters({"flink-agents.wakeup": "poll"})
        stream = read_jsonl(env, self.requests, follow=self.follow)
        if self.interval_s:
            slowly = throttle(self.interval_s, f"{self.folder}/checkpoints", RECORDS_A_CHECKPOINT)
            stream = stream.map(slowly, output_type=Types.STRING())
        streams = attach(stream, options, tools, self.fault, journal=self.journal, run_id=RUN, agent=self.agent)
        responses = streams.responses
        if self.behind is not None:
            # A task of its own, so that its failure is one elsewhere in the job.
            responses = responses.map(self.behind, output_type=Types.STRING()).disable_chaining()
        write_jsonl_each_checkpoint(responses, self.folder / "out", name="responses")
        write_jsonl_each_checkpoint(streams.rejects, self.folder / "rejects", name="rejects")
        write_jsonl_each_checkpoint(streams.statistics, self.folder / "statistics", name="statistics")

    def finish(self, timeout_s: float = DEADLINE_S) -> None:
        """Wait for the end of a job that must end well."""
        report = self.cluster.rest.wait(self.job_id, timeout_s=timeout_s)
        assert report.state == "FINISHED", self.cluster.rest.failure(self.job_id)

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until the condition holds; for what can only be seen from outside the cluster."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.02)

    @property
    def restarts(self) -> int:
        """How often the job was restarted."""
        return self.cluster.rest.restarts(self.job_id)

    def responses(self) -> list[dict[str, Any]]:
        """Return the committed responses in the order written."""
        parts = sorted((self.folder / "out").glob("part-*"), key=lambda part: part.stat().st_mtime_ns)
        return [entry for part in parts for entry in entries(part)]

    def rejects(self) -> list[dict[str, Any]]:
        """Return the committed rejects."""
        return [entry for part in (self.folder / "rejects").glob("part-*") for entry in entries(part)]

    def statistics(self) -> dict[str, int]:
        """Return the sums of the committed statistics records."""
        sums: dict[str, int] = {}
        for part in (self.folder / "statistics").glob("part-*"):
            for entry in entries(part):
                for name, value in entry.items():
                    sums[name] = sums.get(name, 0) + value
        return sums

    def written(self) -> str:
        """Return everything that reached the responses sink, committed or not."""
        files = [path for path in (self.folder / "out").rglob("*") if path.is_file()]
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)

    def runs(self) -> list[Run]:
        """Return the bodies that began, in the order noted."""
        return [Run(**entry) for entry in entries(self.folder / "runs.jsonl")]

    def stopped(self) -> dict[str, float]:
        """Return the calls that saw a cancellation, and when."""
        return {entry["call"]: entry["at"] for entry in entries(self.folder / "stopped.jsonl")}

    def restores(self) -> list[Restore]:
        """Return what each restored attempt started from; only with ``KeepRestored``."""
        return [
            Restore(
                entry["at"],
                entry["checkpoint"],
                recorded_in(self.folder / entry["kept"]),
                frozenset(
                    call
                    for name in entry["committed"]
                    for response in entries(self.folder / "out" / name)
                    for call in calls_of(response)
                ),
            )
            for entry in entries(self.folder / "restores.jsonl")
        ]


def calls_of(response: dict[str, Any]) -> list[str]:
    """Return the names of a response's calls."""
    return [f"{response['request_id'][1:]}/{result['position']}" for result in response["results"]]


RECORDED = re.compile(rb'"s":"succeeded"[^{}]*"o":"value of (\d+/\d+)"')


def recorded_in(checkpoint: Path) -> frozenset[str]:
    """Return the calls whose outcome stands in the bytes of a checkpoint."""
    return frozenset(
        call.decode()
        for path in checkpoint.rglob("*")
        if path.is_file()
        for call in RECORDED.findall(path.read_bytes())
    )


@pytest.fixture(scope="session")
def job_in(cluster: EmbeddedCluster) -> Callable[..., RecoveryJob]:
    """Return a function that makes a job in a folder; the same folder again goes on with its files."""

    def make(folder: Path, **options: Any) -> RecoveryJob:
        return RecoveryJob(cluster, folder, **{"fault": CrashFile(str(folder), ()), **options})

    return make


@pytest.fixture(scope="session")
def request_of() -> Callable[..., str]:
    """Return :func:`request`."""
    return request


@pytest.fixture(scope="session")
def keep_restored() -> Callable[[CrashFile], KeepRestored]:
    """Return a function that makes a fault which also keeps the restored checkpoints, in the fault's folder."""
    return lambda inner: KeepRestored(inner.folder, inner)


@pytest.fixture
def recovery_job(job_in: Callable[..., RecoveryJob], tmp_path: Path) -> Callable[..., RecoveryJob]:
    """Return a function that makes a job in the test's folder."""
    return lambda **options: job_in(tmp_path, **options)
