"""Small jobs on the embedded cluster for the tests of the operator: what goes in, what is asked, what came out."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.connectors.jsonl_sink import write_jsonl
from flink_agents.connectors.jsonl_source import read_jsonl
from flink_agents.datastream import attach
from flink_agents.faults import Fault, no_fault
from flink_agents.options import OperatorOptions

DEADLINE_S = 60.0

# Nothing on the TaskManager can import this module, so what a job takes from here travels in the job itself.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def request(number: int, *, key: str, tool: str, calls: int = 1, **arguments: Any) -> str:
    """Return a request record; call ``i`` asks with ``number`` and ``i`` beside the other arguments."""
    wanted = [
        {"id": f"c{i}", "function": {"name": tool, "arguments": {"number": number, "i": i, **arguments}}}
        for i in range(calls)
    ]
    return json.dumps({"id": f"r{number}", "key": key, "tool_calls": wanted})


def tools_in(folder: Path) -> list[Callable[..., Any]]:
    """Return tools that note each execution in ``folder``; nested, so that they travel to the TaskManager by value."""
    runs = str(folder / "runs.txt")
    stopped = str(folder / "stopped.txt")

    def note(file: str, text: str) -> None:
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(f"{text}\n")

    def block(number: int, i: int, ms: int = 0) -> int:
        """Wait on a thread."""
        time.sleep(ms / 1000)
        note(runs, f"{number}/{i}")
        return number * 10 + i

    async def wait(number: int, i: int, ms: int = 0) -> int:
        """Wait on the loop."""
        note(runs, f"{number}/{i}")
        try:
            await asyncio.sleep(ms / 1000)
        except asyncio.CancelledError:
            note(stopped, f"{number}/{i} {time.time()}")
            raise
        return number * 10 + i

    return [block, wait]


@dataclass(frozen=True)
class CrashOnce:
    """Fault that raises at the n-th passing of a point, once over all attempts: ``folder`` remembers that it did."""

    folder: str
    point: str
    nth: int = 1

    def __call__(self, point: str) -> None:
        """Count the passing in this process and crash at the armed one."""
        if point != self.point:
            return
        passed = Path(self.folder, "passed.txt")
        with passed.open("a", encoding="utf-8") as lines:
            lines.write("x")
        if passed.stat().st_size == self.nth:
            msg = f"planned crash at {point}"
            raise RuntimeError(msg)


@dataclass
class OperatorJob:
    """One job of source, operator and two sinks below ``folder``."""

    cluster: EmbeddedCluster
    folder: Path
    options: OperatorOptions = field(default_factory=lambda: OperatorOptions(key_by="key"))
    parallelism: int = 1
    fault: Fault = no_fault
    polling: bool = False
    follow: bool = False

    def __post_init__(self) -> None:
        self.requests = self.folder / "requests"
        self.requests.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, records: Iterable[str]) -> None:
        """Move a file of records into the source's folder."""
        made = self.folder / name
        made.write_text("".join(f"{record}\n" for record in records), encoding="utf-8")
        made.rename(self.requests / name)

    def submit(self, tools: Sequence[Any] | None = None, **flink: str) -> str:
        """Submit the job and return its id."""

        def build(env: Any) -> None:
            if self.polling:
                env.get_config().set_global_job_parameters({"flink-agents.wakeup": "poll"})
            stream = read_jsonl(env, self.requests, follow=self.follow)
            streams = attach(stream, self.options, tools or tools_in(self.folder), self.fault)
            write_jsonl(streams.responses, self.folder / "out", roll_ms=500, name="responses")
            write_jsonl(streams.rejects, self.folder / "rejects", roll_ms=500, name="rejects")

        options = {
            "parallelism.default": str(self.parallelism),
            "execution.checkpointing.interval": "200 ms",
            "restart-strategy.type": "none",
            **{name.replace("__", "-").replace("_", "."): value for name, value in flink.items()},
        }
        return self.cluster.submit("operator", options, build)

    def finish(self, job: str) -> None:
        """Wait for the end of a job that must end well."""
        report = self.cluster.rest.wait(job, timeout_s=DEADLINE_S)
        assert report.state == "FINISHED", self.cluster.rest.failure(job)

    def responses(self) -> list[dict[str, Any]]:
        """Return the committed responses."""
        return _committed(self.folder / "out")

    def rejects(self) -> list[dict[str, Any]]:
        """Return the committed rejects."""
        return _committed(self.folder / "rejects")

    def runs(self) -> list[str]:
        """Return the executions that tools noted, as ``request/call``."""
        file = self.folder / "runs.txt"
        return file.read_text(encoding="utf-8").split() if file.exists() else []

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until the condition holds; for what the test can only see from outside the cluster."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.02)


def _committed(folder: Path) -> list[dict[str, Any]]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def operator_job(cluster: EmbeddedCluster, tmp_path: Path) -> Callable[..., OperatorJob]:
    """Return a function that makes a job in the test's folder; the same folder again goes on with its files."""

    def make(**options: Any) -> OperatorJob:
        return OperatorJob(cluster, tmp_path, **options)

    return make


@pytest.fixture
def request_of() -> Callable[..., str]:
    """Return :func:`request`."""
    return request


@pytest.fixture
def crash_once(tmp_path: Path) -> Callable[..., CrashOnce]:
    """Return a function that makes a fault of a point and a number of passings."""
    return lambda point, nth=1: CrashOnce(str(tmp_path), point, nth)
