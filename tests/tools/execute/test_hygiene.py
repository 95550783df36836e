"""What a killed process leaves behind: nothing, at once where its keeper lives, else at the next open."""

from __future__ import annotations

import ast
import fcntl
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flink_agents.errors import InvalidInput
from flink_agents.tools.execute import LocalProcess, ProcessOptions
from flink_agents.tools.execute.home import Home, homes_folder, sweep
from flink_agents.tools.execute.supervision.linux import MARKER
from tests.tools.execute.conftest import eventually, running

# Stands for a TaskManager: runs one execution, and says when that has begun.
VICTIM = """
import os, sys, threading
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.tools.execute import ExecuteRequest, LocalProcess, ProcessOptions, PythonSession

folder, tag, kind = sys.argv[1:4]
options = ProcessOptions(folder=folder, time_limit_ms=60_000)
if kind == "session":
    code = f"import subprocess\\nsubprocess.Popen('setsid sleep {tag} & sleep {tag}', shell=True)"
    provider, runtime = PythonSession(options), "python"
else:
    code = f"(setsid sh -c 'sleep {tag} &' &); trap '' TERM; sleep {tag}"
    provider, runtime = LocalProcess(["shell"], options), "shell"
provider.open()
if kind == "forked" and os.fork() == 0:
    threading.Event().wait(60)
    os._exit(0)
print(provider._opened.keeper._process.pid, flush=True)
if kind != "idle":
    provider.execute(ExecuteRequest(runtime, code, "1"), CancellationToken())
threading.Event().wait()
"""


class Victim:
    def __init__(self, folder: Path, kind: str) -> None:
        self.tag = f"986.{uuid.uuid4().int % 10**12:012}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(folder), self.tag, kind], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.keeper = int(self.process.stdout.readline())
        if kind != "idle":
            eventually(lambda: len(running(f"sleep\0{self.tag}")) >= 2)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Callable[[str], Victim]]:
    made: list[Victim] = []

    def start(kind: str) -> Victim:
        made.append(Victim(tmp_path, kind))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        for pid in running(one.tag):
            os.kill(pid, signal.SIGKILL)


def left_in(folder: Path) -> list[Path]:
    return list(homes_folder(str(folder)).iterdir())


@pytest.mark.parametrize("kind", ["process", "session", "idle"])
def test_kill_9_leaves_no_child_no_grandchild_and_no_folder(
    victim: Callable[[str], Victim], tmp_path: Path, kind: str
) -> None:
    killed = victim(kind)
    assert left_in(tmp_path)
    killed.kill()
    eventually(lambda: not running(killed.tag))
    eventually(lambda: not Path(f"/proc/{killed.keeper}").exists())
    assert left_in(tmp_path) == []


def test_a_copy_of_the_killed_process_that_holds_its_links_does_not_matter(
    victim: Callable[[str], Victim], tmp_path: Path
) -> None:
    killed = victim("forked")
    killed.kill()
    eventually(lambda: not running(f"sleep\0{killed.tag}"))
    eventually(lambda: not Path(f"/proc/{killed.keeper}").exists())
    # The copy still holds the lock, but what it was for is gone.
    assert [path for path in left_in(tmp_path) if path.is_dir()] == []


def test_the_next_open_sweeps_what_is_left_without_a_keeper(victim: Callable[[str], Victim], tmp_path: Path) -> None:
    killed = victim("process")
    supervisor = int(Path(f"/proc/{killed.keeper}/task/{killed.keeper}/children").read_text().split()[0])
    os.kill(killed.keeper, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    killed.kill()
    os.kill(killed.keeper, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{killed.keeper}").exists())
    assert len(running(f"sleep\0{killed.tag}")) >= 1
    assert left_in(tmp_path)
    provider = LocalProcess(["shell"], ProcessOptions(folder=str(tmp_path)))
    provider.open()
    assert running(killed.tag) == []
    assert {path.stem for path in left_in(tmp_path)} == {provider._opened.keeper.home.name}  # type: ignore[union-attr]
    provider.close()
    assert left_in(tmp_path) == []


def test_the_sweep_spares_the_living(tmp_path: Path) -> None:
    folder = homes_folder(str(tmp_path))
    living = Home(folder)
    child = subprocess.Popen(["sleep", "600"], env={MARKER: living.name})
    try:
        assert sweep(folder) == []
        assert child.poll() is None
        fcntl.flock(living.lock, fcntl.LOCK_UN)
        assert sweep(folder) == [living.name]
        assert child.wait(30) == -signal.SIGKILL
        assert list(folder.iterdir()) == []
    finally:
        child.kill()
        child.wait()
        living.remove()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"flink-agents-execute-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(InvalidInput, match="belongs to somebody else"):
        homes_folder(str(tmp_path))
    with pytest.raises(InvalidInput, match="cannot be made in"):
        homes_folder(str(tmp_path / "missing"))


def test_supervision_needs_the_standard_library_only() -> None:
    package = Path(__file__).resolve().parents[3] / "flink_agents" / "tools" / "execute"
    own = "flink_agents.tools.execute.supervision"
    for path in [*(package / "supervision").glob("*.py"), package / "drivers" / "python_session.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.startswith(own) or name.partition(".")[0] in sys.stdlib_module_names, f"{path}: {name}"
