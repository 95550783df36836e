"""Jobs that go on from a savepoint, each life with tools of its own, and what they answered and ran."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.connectors.jsonl_sink import write_jsonl_each_checkpoint
from flink_agents.connectors.jsonl_source import read_jsonl
from flink_agents.datastream import attach
from flink_agents.options import OperatorOptions, ToolCallOptions
from tests.savepoints import make

DEADLINE_S = 90.0

# Nothing on the TaskManager can import this module, so what a job takes from here travels in the job itself.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Lives:
    """The lives of one job below ``folder``, one after the other: they share its input, output and log of bodies."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.job_id = ""
        self._requests = folder / "requests"
        self._requests.mkdir(parents=True, exist_ok=True)
        self._log = folder / "bodies.txt"
        self._log.touch()

    def add(self, name: str, records: Sequence[str]) -> None:
        """Move a file of records into the source's folder."""
        made = self.folder / name
        made.write_text("".join(f"{record}\n" for record in records), encoding="utf-8")
        made.rename(self._requests / name)

    def begin(
        self,
        tools: Sequence[Any],
        savepoint: Path | None = None,
        *,
        foreign: bool = False,
        parallelism: int = 1,
        tool_calls: ToolCallOptions | None = None,
        **flink: str,
    ) -> None:
        """Begin a life, from a savepoint or from nothing; ``foreign`` savepoints were made with another source."""
        options = {
            "parallelism.default": str(parallelism),
            "execution.checkpointing.interval": "150 ms",
            "execution.checkpointing.dir": f"file://{self.folder}/checkpoints",
            # Every subtask's state in a file of its own, however small.
            "execution.checkpointing.data-inline-threshold": "0 b",
            # What loops would loop, and be seen.
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "2",
            "restart-strategy.fixed-delay.delay": "10 ms",
            "execution.state-recovery.ignore-unclaimed-state": str(foreign).lower(),
            **{name.replace("__", "-").replace("_", "."): value for name, value in flink.items()},
        }
        if savepoint is not None:
            options["execution.state-recovery.path"] = f"file://{savepoint}"
        operator = OperatorOptions("key", tool_calls=tool_calls or ToolCallOptions())

        def build(env: Any) -> None:
            streams = attach(read_jsonl(env, self._requests, follow=True), operator, tools)
            write_jsonl_each_checkpoint(streams.responses, self.folder / "out", name="responses")
            write_jsonl_each_checkpoint(streams.rejects, self.folder / "rejects", name="rejects")

        self.job_id = self.cluster.submit("lives", options, build)

    def stop(self) -> Path:
        """Stop with a savepoint, which must have been the first to end this life, and move it elsewhere."""
        assert self.cluster.rest.restarts(self.job_id) == 0, self.cluster.rest.failure(self.job_id)
        location = self.cluster.rest.stop_with_savepoint(self.job_id, f"file://{self.folder}/savepoints")
        taken = Path(location.removeprefix("file:"))
        return taken.rename(self.folder / f"moved-{taken.name}")

    def cancel(self) -> None:
        """End this life without a savepoint."""
        self.cluster.rest.cancel(self.job_id)
        self.cluster.rest.wait(self.job_id, timeout_s=DEADLINE_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until the condition holds, as long as the job runs."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert not self.cluster.rest.job(self.job_id).ended, self.cluster.rest.failure(self.job_id)
            assert time.monotonic() < deadline, f"the condition did not come true; bodies: {self.bodies()}"
            time.sleep(0.02)

    def until_checkpoints(self, count: int) -> None:
        """Wait until ``count`` more checkpoints completed that began after this call."""
        completed = self.cluster.rest.completed_checkpoints
        wanted = completed(self.job_id) + count + 1
        self.until(lambda: completed(self.job_id) >= wanted)

    def until_answered(self, count: int) -> None:
        """Wait until ``count`` responses are committed, over all lives."""
        self.until(lambda: len(self.responses()) >= count)

    def responses(self) -> list[dict[str, Any]]:
        """Return the committed responses of all lives; each result without its running time."""
        lines = _lines(self.folder / "out")
        for response in lines:
            for result in response["results"]:
                del result["duration_ms"]
        return lines

    def results(self) -> dict[str, list[dict[str, Any]]]:
        """Return the results by request id; no request may be answered twice, and none rejected."""
        responses = self.responses()
        twice = [name for name, count in Counter(response["request_id"] for response in responses).items() if count > 1]
        assert twice == []
        assert _lines(self.folder / "rejects") == []
        return {response["request_id"]: response["results"] for response in responses}

    def bodies(self) -> list[str]:
        """Return what bodies noted when they began, over all lives."""
        return self._log.read_text(encoding="utf-8").splitlines()

    def noting(self) -> Callable[[str], None]:
        """Return a function for the tools of a life: it adds one line to ``bodies``."""
        log = str(self._log)

        def note(text: str) -> None:
            with open(log, "a", encoding="utf-8") as lines:
                lines.write(f"{text}\n")

        return note

    def failed(self) -> str:
        """Wait until the job failed and return the line that Flink shows as its cause."""
        self.cluster.rest.wait(self.job_id, timeout_s=DEADLINE_S, states=frozenset({"FAILED"}))
        cause = self.cluster.rest.failure(self.job_id)
        assert cause is not None
        return cause.summary

    def patch(self, savepoint: Path, old: bytes, new: bytes) -> None:
        """Replace bytes of a savepoint by as many others."""
        assert len(old) == len(new)
        (file,) = [path for path in savepoint.iterdir() if old in path.read_bytes()]
        file.write_bytes(file.read_bytes().replace(old, new))

    def finishing_tools(self) -> list[Any]:
        """Return the tools of the stored savepoint's job, but all of them return."""
        note = self.noting()

        async def hold(text: str) -> str:
            """Return at once."""
            note(f"hold {text}")
            return text

        async def linger(text: str) -> str:
            """Return at once."""
            note(f"linger {text}")
            return text

        return [*make.tools_noting(note)[:3], hold, linger]

    def stricter_tools(self) -> list[Any]:
        """Return the tools of the stored savepoint's job with a parameter more that two of them require."""
        note = self.noting()
        _, ledger, refuse, _, linger = self.finishing_tools()

        def recall(text: str, language: str) -> str:
            """Return what it was given."""
            note(f"recall {text}")
            return text

        async def hold(text: str, patience: int) -> str:
            """Return at once."""
            note(f"hold {text}")
            return text

        return [recall, ledger, refuse, hold, linger]

    def gated_tools(self, life: int) -> list[Any]:
        """Return ``quick`` and ``hold``: that one holds until the gate of its call is open, or for ever."""
        note, folder = self.noting(), self.folder

        def quick(call: str) -> str:
            """Answer at once."""
            note(f"{life} quick {call}")
            return f"value of {call}"

        async def hold(call: str, gate: int) -> str:
            """Hold on the loop."""
            note(f"{life} hold {call}")
            for _ in iter((folder / f"gate-{gate}").exists, True):
                await asyncio.sleep(0.02)
            return f"value of {call}"

        return [quick, hold]


def _lines(folder: Path) -> list[dict[str, Any]]:
    parts = sorted(folder.glob("part-*"))
    return [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def lives(cluster: EmbeddedCluster, tmp_path: Path) -> Lives:
    """Return the lives of a job in the test's folder."""
    return Lives(cluster, tmp_path)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Return a copy of the stored savepoint of format 1, in another folder than it was made in."""
    copy = tmp_path / "stored"
    shutil.copytree(Path(__file__).parent / "data" / "v1" / "savepoint", copy)
    return copy
