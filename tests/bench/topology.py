"""The jobs that are measured: the operator and the pass-through beside it, between the same source and the same sink.

What a job takes from this module travels in the job itself, because nothing on the TaskManager can import it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import orjson
from pyflink.common import Types
from pyflink.datastream.functions import KeyedProcessFunction, MapFunction

from flink_agents.agent import Agent
from flink_agents.connectors.jsonl_sink import write_jsonl_each_checkpoint
from flink_agents.connectors.jsonl_source import read_jsonl
from flink_agents.datastream import attach
from flink_agents.durable.journal.opening import JournalSpec, JournalType
from flink_agents.durable.journal.rows import RunRow
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.faults import Fault
from flink_agents.options import Limits, OperatorOptions, ToolCallOptions, WorkerOptions
from flink_agents.tools.registry import FunctionDeclaration
from tests.bench.bodies import tools
from tests.bench.cluster import BenchCluster
from tests.bench.floor import Floor
from tests.bench.records import add_file

__all__ = ["BenchJob", "Stamped", "marks_of"]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

DEADLINE_S = 600.0
END_OF_INPUT = 2**63 - 2**40
RUN_ID = "bench"


def marker(folder: Path, points: Sequence[str]) -> Fault:
    """Return a fault that breaks nothing: it notes when the named points are passed."""
    wanted = frozenset(points)
    file = str(folder / "marks.jsonl")

    def mark(point: str) -> None:
        if point in wanted:
            with open(file, "a", encoding="utf-8") as lines:
                now = {"s": time.monotonic(), "epoch_s": time.time(), "cpu_s": time.thread_time()}
                lines.write(json.dumps({"point": point, **now, "process_cpu_s": time.process_time()}) + "\n")

    return _of_the_shell(mark)


def profiler(folder: Path, mark: Fault) -> Fault:
    """Return a fault that marks like ``mark`` and profiles the task's thread from its opening to the end of input."""
    import cProfile

    file = str(folder / "operator.pstats")
    running: list[cProfile.Profile] = []

    def profile(point: str) -> None:
        mark(point)
        if point == "after:open":
            running.append(cProfile.Profile())
            running[-1].enable()
        elif point == "after:drain":
            running[-1].disable()
            running[-1].dump_stats(file)

    return _of_the_shell(profile)


def _of_the_shell(fault: Fault) -> Fault:
    vars(fault)["shell_only"] = True
    return fault


def marks_of(folder: Path) -> dict[str, dict[str, float]]:
    """Return when each point was last passed: ``s`` on the monotonic clock, ``epoch_s`` since 1970.

    ``cpu_s`` is the processor time of the task's thread until then, ``process_cpu_s`` that of the whole JVM.
    """
    lines = (folder / "marks.jsonl").read_text(encoding="utf-8").splitlines()
    return {entry["point"]: entry for entry in map(json.loads, lines)}


class PassThrough(KeyedProcessFunction):  # type: ignore[misc]  # pyflink has no types
    """The least that a keyed operator in Python can do: hand the record on."""

    def __init__(self, mark: Fault) -> None:
        self._mark = mark
        self._touched = False

    def open(self, runtime_context: Any) -> None:
        """Note when the operator opens."""
        self._mark("after:open")

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Hand the record on."""
        if not self._touched:
            self._touched = True
            ctx.timer_service().register_event_time_timer(END_OF_INPUT)
        yield value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """Note when the input ends."""
        self._mark("after:drain")
        yield from ()


class Paced(MapFunction):  # type: ignore[misc]  # pyflink has no types
    """Lets ``metadata.gap_ms`` pass before each record, on a schedule that a late record does not push back."""

    def open(self, runtime_context: Any) -> None:
        """Begin a schedule."""
        self._due_s = 0.0

    def map(self, value: str) -> str:
        """Wait until the record's time."""
        gap_ms = orjson.loads(value).get("metadata", {}).get("gap_ms", 0)
        if gap_ms:
            now = time.monotonic()
            # After a pause the schedule begins anew; otherwise a wait that was too long is made up for.
            self._due_s = now if now - self._due_s > 1.0 else self._due_s + gap_ms / 1000
            if self._due_s > now:
                time.sleep(self._due_s - now)
        return value


@dataclass(frozen=True)
class Stamped:
    """One response and when it left the operator: in nanoseconds of the monotonic clock, and in seconds since 1970."""

    at_ns: int
    epoch_s: float
    response: dict[str, Any]

    @property
    def values(self) -> list[int]:
        """What the calls returned."""
        return [result["value"] for result in self.response["results"]]


_STAMP_BEGINS = '{"at_ns":'


def _stamp(line: str) -> str:
    return f'{_STAMP_BEGINS}{time.monotonic_ns()},"epoch_s":{time.time()},"response":{line}}}'


def _plain_key(record: str) -> str:
    return str(orjson.loads(record)["key"])


@dataclass
class BenchJob:
    """One job below ``folder``: what goes in, how it is built, what came out.

    ``paced`` and ``stamped`` put a map before and after the operator, each in the task that is there anyway.
    ``journal`` is the file of a SQLite journal; jobs with one are one run, whatever their folder. With an ``agent``,
    its actions take the records.
    """

    cluster: BenchCluster
    folder: Path
    pass_through: bool = False
    floor: bool = False
    follow: bool = False
    paced: bool = False
    stamped: bool = False
    checkpoint_ms: int = 1000
    backend: str = "hashmap"
    workers: WorkerOptions = field(default_factory=WorkerOptions)
    limits: Limits = field(default_factory=Limits)
    tool_calls: ToolCallOptions = field(default_factory=ToolCallOptions)
    parallelism: int = 1
    tools: Callable[[], list[FunctionDeclaration]] = tools
    savepoint: str | None = None
    profile: bool = False
    wrap_fault: Callable[[Path, Fault], Fault] | None = None
    journal: Path | None = None
    agent: Agent | None = None

    def __post_init__(self) -> None:
        self.requests = self.folder / "requests"
        self.requests.mkdir(parents=True, exist_ok=True)
        self.out = self.folder / "out"
        self._counted: dict[Path, int] = {}

    def add(self, name: str, lines: Iterable[str]) -> None:
        """Put a file of requests before the source."""
        add_file(self.requests, name, lines)

    def submit(self) -> str:
        """Submit the job and return its id."""
        options = {
            "parallelism.default": str(self.parallelism),
            "execution.checkpointing.interval": f"{self.checkpoint_ms} ms",
            "execution.checkpointing.dir": f"file://{self.folder / 'checkpoints'}",
            "execution.checkpointing.unaligned.enabled": "true",
            "execution.checkpointing.aligned-checkpoint-timeout": "0 ms",
            "state.backend.type": self.backend,
            # As with any large state: Flink's default writes all of RocksDB anew at each checkpoint.
            "execution.checkpointing.incremental": str(self.backend == "rocksdb").lower(),
            "restart-strategy.type": "none",
        }
        if self.savepoint is not None:
            options["execution.state-recovery.path"] = self.savepoint
        return self.cluster.submit(self.folder.name, options, self._build)

    def wait(self, job: str) -> None:
        """Wait for the end of bounded input.

        Raises:
            RuntimeError: with Flink's cause, where the job ended otherwise.
        """
        report = self.cluster.rest.wait(job, timeout_s=DEADLINE_S, states=frozenset({"FINISHED", "FAILED"}))
        if report.state != "FINISHED":
            msg = f"a measured job failed: {self.cluster.rest.failure(job)}"
            raise RuntimeError(msg)

    def until_answered(self, job: str, count: int) -> None:
        """Wait until ``count`` responses are committed; for jobs whose input does not end."""
        self.until(lambda: self.lines_out() >= count, job)

    def until_in_flight(self, job: str, count: int) -> None:
        """Wait until ``count`` bodies are running."""
        rest, name = self.cluster.rest, "in_flight"
        self.until(lambda: rest.counters(job, frozenset({name})).get(name, 0) >= count, job)

    def until(self, condition: Callable[[], bool], job: str) -> None:
        """Poll until the condition holds.

        Raises:
            RuntimeError: where the job ended, or the time is over.
        """
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            report = self.cluster.rest.job(job)
            if report.ended or time.monotonic() > deadline:
                msg = f"a measured job is {report.state} too early: {self.cluster.rest.failure(job)}"
                raise RuntimeError(msg)
            time.sleep(0.05)

    def cancel(self, job: str) -> None:
        """End the job and wait for its end."""
        self.cluster.rest.cancel(job)
        self.cluster.rest.wait(job, timeout_s=60)

    def responses(self) -> list[Stamped]:
        """Return the committed responses of a stamped job."""
        return [
            Stamped(**orjson.loads(line))
            for path in self._files_out()
            for line in path.read_text(encoding="utf-8").splitlines()
        ]

    def lines_out(self) -> int:
        """Return how many records are committed."""
        # What is committed does not change, and may be much.
        for path in self._files_out():
            if path not in self._counted:
                self._counted[path] = path.read_bytes().count(b"\n")
        return sum(self._counted.values())

    def times_ns(self) -> list[int]:
        """Return when the committed responses of a stamped job left, in no order; cheaper than ``responses``."""
        start = len(_STAMP_BEGINS)
        return [
            int(line[start : line.index(",", start)])
            for path in self._files_out()
            for line in path.read_text(encoding="utf-8").splitlines()
        ]

    def _journal(self) -> JournalSpec | None:
        if self.journal is None:
            return None
        with closing(SqliteJournal(self.journal)) as opened:
            opened.create_run(RunRow(RUN_ID, "bench", 0))
            if lease := opened.find_lease(RUN_ID):
                # As a client that resumes does: the job before is known to be over.
                opened.release_lease(RUN_ID, lease.owner)
        return JournalSpec(JournalType.SQLITE, path=str(self.journal))

    def _files_out(self) -> list[Path]:
        return [path for path in self.out.rglob("*") if path.is_file() and not path.name.startswith(".")]

    def _build(self, env: Any) -> None:
        stream = read_jsonl(env, self.requests, follow=self.follow)
        if self.paced:
            stream = stream.map(Paced(), Types.STRING())
        mark = marker(self.folder, ["before:open", "after:open", "after:drain"])
        if self.profile and not self.floor:
            mark = profiler(self.folder, mark)
        if self.wrap_fault is not None:
            mark = self.wrap_fault(self.folder, mark)
        if self.pass_through or self.floor:
            keyed = stream.key_by(_plain_key, key_type=Types.STRING())
            plain = Floor(mark) if self.floor else PassThrough(mark)
            responses = keyed.process(plain, output_type=Types.STRING())
        else:
            options = OperatorOptions(
                key_by="key", workers=self.workers, limits=self.limits, tool_calls=self.tool_calls
            )
            streams = attach(
                stream, options, self.tools(), mark, journal=self._journal(), run_id=RUN_ID, agent=self.agent
            )
            responses = streams.responses
        if self.stamped:
            responses = responses.map(_stamp, Types.STRING())
        write_jsonl_each_checkpoint(responses, self.out, name="responses")
