"""Runs the command line: in this process, as its entry point does, or as a process of its own on a job's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flink_agents.cli.main import main
from flink_agents.cluster.statistics import StatisticsFolder

SCRIPT = Path(sys.executable).with_name("flink-agents")
WAIT_S = 90.0


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run ``flink-agents`` with the arguments given and return how it ended."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["flink-agents", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        captured = capsys.readouterr()
        return Ended(code if isinstance(code, int) else 0 if code is None else 1, captured.out, captured.err)

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a job that can run."""
    (tmp_path / "requests.jsonl").write_text("")
    (tmp_path / "loud_tools.py").write_text(
        "print('imported')\n\n\ndef add(a: int, b: int) -> int:\n    '''Add two numbers.'''\n    return a + b\n"
    )
    (tmp_path / "job.yaml").write_text(
        "name: commanded\nsource: {type: jsonl, path: requests.jsonl}\nkey_by: session\n"
        "tools:\n  - function: loud_tools:add\nsink: {type: print}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    # Each test imports its own folder's module.
    monkeypatch.delitem(sys.modules, "loud_tools", raising=False)
    return tmp_path


TOOLS = '''
"""Tools of the tests."""
import os
import sys
import time

if sys.argv[:1] == ["jcp"] and os.environ.get("BREAK_IMPORT"):
    # Only the Python inside the JVM is called that.
    raise RuntimeError("no database here")

RAN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ran")


def echo(text: str) -> str:
    """Say it again, and print it."""
    print("echo prints", text)
    return text


def nap(seconds: float) -> str:
    """Block a worker."""
    print("nap begins")
    time.sleep(seconds)
    return "slept"


def count(number: int, seconds: float) -> int:
    """Note that it ran, and block a worker."""
    with open(RAN, "a") as ran:
        ran.write(f"{number}\\n")
    time.sleep(seconds)
    return number


def collapse(reason: str) -> None:
    """Fail in a way that is not the call's to handle."""
    raise MemoryError(reason)
'''

JOB: dict[str, Any] = {
    "name": "trial",
    "source": {"type": "jsonl", "path": "requests.jsonl"},
    "key_by": "key",
    "tools": [{"function": f"run_tools:{name}"} for name in ("echo", "nap", "count", "collapse")],
    "sink": {"type": "jsonl", "path": "out"},
    "flink": {
        "checkpoints": {"interval": "200ms", "directory": "state"},
        "restart": {"initial": "50ms", "attempts": 2},
        "options": {"env.java.opts.all": "-XX:TieredStopAtLevel=1"},
    },
}


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=WAIT_S)


class Job:
    """A job's folder, and the command on it."""

    flink: dict[str, Any] = JOB["flink"]

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self.folder = folder
        self._running = running
        (folder / "run_tools.py").write_text(TOOLS, encoding="utf-8")

    @staticmethod
    def request(number: int, tool: str, /, **arguments: Any) -> str:
        """Return the line of a request of one call, with a key of its own."""
        call = {"id": "c", "function": {"name": tool, "arguments": arguments}}
        return json.dumps({"id": f"r{number}", "key": f"k{number}", "tool_calls": [call]})

    def write(self, *lines: str, **changes: Any) -> Job:
        (self.folder / "requests.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        # JSON is YAML.
        (self.folder / "job.yaml").write_text(json.dumps({**JOB, **changes}), encoding="utf-8")
        return self

    def follow(self, *lines: str, **changes: Any) -> Job:
        """Like ``write``, for a job that reads a folder until it is stopped."""
        (self.folder / "requests").mkdir(exist_ok=True)
        self.add("first", *lines)
        return self.write(source={"type": "jsonl", "path": "requests", "follow": True}, **changes)

    def add(self, name: str, *lines: str) -> None:
        """Move a file of requests into the folder that is followed."""
        made = self.folder / name
        made.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        made.rename(self.folder / "requests" / f"{name}.jsonl")

    def start(self, *options: str, **environ: str) -> subprocess.Popen[str]:
        """Start ``run`` on the job."""
        return self.command("run", str(self.folder / "job.yaml"), *options, **environ)

    def command(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        """Start the command line by its path, from a shell in which no environment is activated."""
        keep = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
        with (self.folder / "stderr").open("w") as errors:
            process = subprocess.Popen(
                [str(SCRIPT), *arguments],
                cwd="/",
                env={"PATH": "/usr/bin:/bin", **keep, **environ},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._running.callback(_end, process)
        return process

    def run(self, *options: str, **environ: str) -> tuple[int, list[str]]:
        process = self.start(*options, **environ)
        out, _ = process.communicate(timeout=WAIT_S)
        return process.returncode, out.splitlines()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(encoding="utf-8")

    @property
    def record(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.run_folder / "run.json").read_text(encoding="utf-8"))
        return content

    @property
    def run_folder(self) -> Path:
        """The folder of the only run."""
        (path,) = (self.folder / "state" / "trial").glob("*/run.json")
        return path.parent

    def ran(self) -> list[int]:
        """Return the numbers that ``count`` noted, one for each body that began."""
        file = self.folder / "ran"
        return [int(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    def responses(self) -> list[str]:
        """Return the request ids of the responses that are visible, sorted."""
        lines = [line for part in (self.folder / "out").glob("part-*") for line in part.read_text("utf-8").splitlines()]
        return sorted(json.loads(line)["request_id"] for line in lines)

    def counted(self) -> int:
        """Return how many responses the run's statistics are certain of."""
        return StatisticsFolder(self.run_folder / "statistics").totals()["responses"]

    def jvms(self) -> list[int]:
        """Return the processes whose command line names this folder, other than the command itself."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes()
            except (OSError, ValueError):
                continue
            if entry.name.isdigit() and b"PythonGatewayServer" in words and os.fsencode(self.folder) in words:
                found.append(int(entry.name))
        return found

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, self.stderr
            time.sleep(0.02)


@pytest.fixture
def another_job() -> Iterator[Callable[[Path], Job]]:
    """Return what makes a job in a folder; its processes end with the test."""
    with ExitStack() as running:
        yield lambda folder: Job(folder, running)


@pytest.fixture
def job(tmp_path: Path, another_job: Callable[[Path], Job]) -> Job:
    """Return a job in the test's folder; its processes end with the test."""
    return another_job(tmp_path)
