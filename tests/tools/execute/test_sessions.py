"""Sessions: variables survive between the calls of a key, and only what was cancelled or timed out is closed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flink_agents.errors import InvalidInput
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.tools.execute import ExecuteResult, JshellSession, ProcessOptions, ProviderBroken, PythonSession
from tests.tools.execute.conftest import ask, begin, eventually, run, running, timed_out

Make = Callable[..., PythonSession]

GONE = "[the session has ended and its variables are gone; the next call begins a new one]\n"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[PythonSession] = []

    def make(sessions: int = 32, **options: Any) -> PythonSession:
        made.append(PythonSession(ProcessOptions(**{"folder": str(tmp_path), "grace_ms": 100, **options}), sessions))
        return made[-1]

    yield make
    for provider in made:
        provider.close()


@pytest.fixture
def python(make: Make) -> PythonSession:
    return make()


@pytest.fixture
def tag() -> str:
    return f"987.{uuid.uuid4().int % 10**12:012}"


def call(provider: PythonSession, code: str, key: str = '"k"', **more: Any) -> ExecuteResult:
    return run(provider, code, "python", key, **more)


def sessions_of(provider: PythonSession) -> Any:
    assert provider._opened is not None
    return provider._opened.beside


@pytest.mark.rule(68)
def test_variables_survive_between_the_calls_of_a_key(python: PythonSession) -> None:
    assert call(python, "x = [1]\ndef double(v): return 2 * v").exit_code == 0
    assert call(python, "x.append(double(21))\nx").stdout == "[1, 42]\n"
    assert call(python, "x", key='"other"').stderr.endswith("NameError: name 'x' is not defined\n")
    assert call(python, "x[1]").stdout == "42\n"


def test_what_a_call_shows(python: PythonSession) -> None:
    assert call(python, "1 + 1; None").stdout == ""
    assert call(python, "'é'").stdout == "'é'\n"
    failed = call(python, "print('before')\n1/0")
    assert (failed.exit_code, failed.stdout) == (1, "before\n")
    assert failed.stderr.startswith(
        'Traceback (most recent call last):\n  File "<call 3>", line 2, in <module>\n    1/0\n'
    )
    assert call(python, "def f(:").stderr.endswith("SyntaxError: invalid syntax\n")
    assert call(python, "import sys; sys.stdin.read()", stdin="inß").stdout == "'inß'\n"
    assert call(python, "sys.stdin.read()").stdout == "''\n"
    assert [call(python, f"sys.exit({code!r})").exit_code for code in (None, 3, "text")] == [0, 3, 1]
    assert call(python, "__name__, sys.argv, sys.path[0]").stdout == "('__main__', [''], '')\n"
    assert call(python, "sys.stdout.close()").exit_code in (0, 1)
    assert call(python, "x = 'y' * 1000\nx").stdout == f"{'y' * 1000!r}\n"


def test_the_working_folder_is_the_keys(python: PythonSession) -> None:
    assert call(python, "import os; os.getcwd() == os.environ['HOME']").stdout == "True\n"
    assert call(python, "open('mod.py', 'w').write('a = 5')\nimport mod; mod.a").stdout == "5\n"


def test_code_and_output_of_any_length(make: Make) -> None:
    python = make(output=1000)
    result = call(python, "x = 1\n" * 100_000 + "print('z' * 3_000_000)")
    assert (result.exit_code, result.truncated_bytes) == (0, 3_000_001 - 1000)


@pytest.mark.rule(68)
def test_a_time_out_closes_that_session_and_only_that(python: PythonSession, tag: str) -> None:
    call(python, "x = 1", key="1")
    call(python, "x = 2", key="2")
    slow = f"import os\nprint('begun')\nos.system('setsid sleep {tag} & sleep {tag}')"
    result = timed_out(python, slow, "python", "1")
    assert (result.stdout, result.stderr) == ("begun\n", GONE)
    assert running(tag) == []
    assert "NameError" in call(python, "x", key="1").stderr
    assert call(python, "x", key="2").stdout == "2\n"


@pytest.mark.rule(68)
def test_a_cancellation_closes_that_session_and_only_that(python: PythonSession, tag: str) -> None:
    call(python, "x = 1", key="1")
    call(python, "x = 2", key="2")
    code = f"import os, signal\nsignal.signal(15, signal.SIG_IGN)\nos.system('setsid sleep {tag} & sleep {tag}')"
    execution = begin(python, ask(code, "python", "1", time_limit_ms=60_000))
    eventually(lambda: len(running(f"sleep\0{tag}")) == 2)
    execution.cancel()
    assert execution.is_interrupted
    assert running(tag) == []
    assert "NameError" in call(python, "x", key="1").stderr
    assert call(python, "x", key="2").stdout == "2\n"


@pytest.mark.rule(68)
def test_a_kill_that_comes_after_the_call_leaves_the_session_open(python: PythonSession) -> None:
    token = CancellationToken()
    python.execute(ask("x = 1", "python"), token)
    assert not token._callbacks
    token.cancel()
    assert python._opened is not None
    session = next(iter(sessions_of(python)._idle.values()))
    # As the callback of a call that has just ended does.
    session.link.ask_kill(session.number)
    assert call(python, "x").stdout == "1\n"
    session.link.ask_kill(session.number - 1)
    assert call(python, "x").stdout == "1\n"


@pytest.mark.rule(68)
def test_calls_of_a_key_take_turns_and_other_keys_go_on(python: PythonSession, tag: str) -> None:
    slow = begin(python, ask(f"import os\nos.system('sleep {tag}')\nx = 1", "python", "1"))
    eventually(lambda: running(f"sleep\0{tag}"))
    next_one = begin(python, ask("x", "python", "1"))
    cancelled = begin(python, ask("y = 1", "python", "1"))
    assert python._opened is not None
    turns = sessions_of(python).turns
    eventually(lambda: turns._turns["1"][0].waiting == 2)
    assert call(python, "1", key="2").stdout == "1\n"
    cancelled.cancel()
    assert cancelled.is_interrupted
    for pid in running(f"sleep\0{tag}"):
        os.kill(pid, 15)
    slow.end()
    next_one.end()
    assert next_one.result is not None
    assert next_one.result.stdout == "1\n"
    assert "NameError" in call(python, "y", key="1").stderr
    assert len(turns) == 0


def test_a_session_that_ends_itself(python: PythonSession) -> None:
    result = call(python, "import os; os._exit(5)")
    assert (result.exit_code, result.stderr, result.timed_out) == (5, GONE, False)
    assert call(python, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").exit_code == -9
    assert call(python, "1").stdout == "1\n"


def test_a_copy_of_the_session_does_not_answer_for_it(python: PythonSession) -> None:
    call(python, "import os\nchild = os.fork()")
    assert call(python, "child > 0").stdout.endswith("True\n")
    assert call(python, "os.waitpid(child, 0)[1]").stdout.endswith("0\n")


def test_background_children_stay_for_the_next_call(python: PythonSession, tag: str) -> None:
    call(python, f"import subprocess\nchild = subprocess.Popen(['sleep', '{tag}'])")
    assert len(running(f"sleep\0{tag}")) == 1
    assert call(python, "child.poll() is None").stdout == "True\n"
    python.close()
    assert running(tag) == []


def test_idle_sessions_end_by_themselves(make: Make) -> None:
    python = make(idle_ms=300)
    pid = int(call(python, "import os; os.getpid()").stdout)
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert call(python, "'on'").stdout == "'on'\n"


def test_the_oldest_idle_session_makes_room(make: Make) -> None:
    python = make(sessions=2)
    pids = [int(call(python, "import os; os.getpid()", key=str(key)).stdout) for key in range(3)]
    eventually(lambda: not Path(f"/proc/{pids[0]}").exists())
    assert [int(call(python, "os.getpid()", key=str(key)).stdout) for key in (1, 2)] == pids[1:]
    assert "NameError" in call(python, "os", key="0").stderr


def test_a_session_whose_supervisor_is_killed_leaves_nothing(python: PythonSession, tag: str) -> None:
    with pytest.raises(ProviderBroken, match="was killed"):
        call(python, f"import os\nos.system('setsid sleep {tag} &')\nos.kill(os.getppid(), 9)\nwhile True: pass")
    assert running(tag) == []
    assert call(python, "1").stdout == "1\n"
    supervisor = int(call(python, "import os; os.getppid()").stdout)
    os.kill(supervisor, 9)
    eventually(lambda: not Path(f"/proc/{supervisor}").exists())
    assert call(python, "2").stdout == "2\n"


def test_limits(make: Make) -> None:
    python = make(cpu_ms=1000, memory=512 << 20, time_limit_ms=60_000)
    assert "MemoryError" in call(python, "x = bytearray(600 << 20)").stderr
    # For each call: two that need most of it are fine.
    work = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
    assert [call(python, work).exit_code for _ in range(2)] == [0, 0]
    assert call(python, "while True: pass").exit_code == -24


def test_permits_bound_sessions_at_work(make: Make, tag: str) -> None:
    python = make(permits=1)
    slow = begin(python, ask(f"import os\nos.system('sleep {tag}')", "python", "1"))
    eventually(lambda: running(f"sleep\0{tag}"))
    waiting = begin(python, ask("x = 1", "python", "2"))
    assert python._opened is not None
    permits = python._opened.permits
    eventually(lambda: permits.waiting == 1)
    waiting.cancel()
    slow.cancel()
    assert waiting.is_interrupted
    assert permits.free == 1
    assert "NameError" in call(python, "x", key="2").stderr


def test_a_program_that_does_not_start_is_told(python: PythonSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PythonSession, "program", lambda self, folder: ["/nowhere/python"])
    with pytest.raises(ProviderBroken, match="cannot start /nowhere/python"):
        call(python, "1")
    monkeypatch.setattr(PythonSession, "program", lambda self, folder: ["/bin/sh", "-c", "echo no >&2; exit 4"])
    result = call(python, "1")
    assert (result.exit_code, result.stderr) == (4, f"no\n{GONE}")


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JshellSession]:
    if shutil.which("jshell") is None:
        pytest.skip("no JDK is installed")
    provider = JshellSession(ProcessOptions(folder=str(tmp_path_factory.mktemp("java")), time_limit_ms=60_000))
    yield provider
    provider.close()


@pytest.mark.rule(68)
def test_jshell_keeps_variables_and_closes_what_timed_out(java: JshellSession) -> None:
    assert run(java, "int x = 20;\nint twice(int v) { return 2 * v; }", "java", "1").exit_code == 0
    assert run(java, 'x++; System.out.println("é"); twice(x)', "java", "1").stdout == "é\n42\n"
    assert run(java, "new Scanner(System.in).nextLine()", "java", "1", stdin="line\n").stdout == '"line"\n'
    thrown = run(java, "System.err.println(1); List.of().get(0)", "java", "1")
    assert (thrown.exit_code, thrown.stderr.splitlines()[:1]) == (1, ["1"])
    assert "ArrayIndexOutOfBoundsException" in thrown.stderr
    assert "cannot find symbol" in run(java, "unknown", "java", "1").stderr
    assert run(java, "int y = (", "java", "1").exit_code == 1
    assert run(java, "x", "java", "1").stdout == "21\n"
    result = timed_out(java, 'System.out.println("begun"); while (true);', "java", "1")
    assert (result.stdout, result.stderr) == ("begun\n", GONE)
    execution = begin(java, ask("int z = 1;", "java", "1"))
    execution.cancel()
    assert execution.is_interrupted or execution.result is not None
    assert "cannot find symbol" in run(java, "x", "java", "1").stderr
    assert run(java, "System.exit(7)", "java", "1").exit_code == 7


def test_jshell_without_a_jdk_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidInput, match="jshell needs a JDK"):
        JshellSession().open()


def test_sessions_below_none_are_refused() -> None:
    with pytest.raises(InvalidInput, match="must not be below 0"):
        PythonSession(sessions=-1)
