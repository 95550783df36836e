"""Local processes: what the code sees, how it is bounded, and that its whole tree ends."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents.errors import Interrupted, InvalidInput
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.tools.execute import LocalProcess, ProcessOptions, ProviderBroken, keeper
from tests.tools.execute.conftest import ask, begin, eventually, run, running, timed_out

Make = Callable[..., LocalProcess]

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")

# Each leaves a `sleep` that the test recognises by its argument, in a way that a simple kill does not reach.
AWKWARD = {
    "plain": "{sleep}",
    "ignores the signal": "trap '' TERM; {sleep} & {sleep}; {sleep}",
    "another session": "setsid {sleep} & {sleep}",
    "forked twice": "(setsid sh -c '{sleep} & exit' &); {sleep}",
    "holds the pipe": "{sleep} & exec {sleep}",
    "without environment": "env -i setsid /bin/{sleep} & {sleep}",
    "stopped": "{sleep} & kill -STOP $!; {sleep}",
    "ignores all": 'exec "$PYTHON" -c "import os,signal; [signal.signal(s, signal.SIG_IGN) for s in (1,2,3,15)]; '
    "os.fork(); os.setsid() if os.getpid() != os.getpgrp() else 0; os.system('{sleep}')\"",
}


@pytest.fixture
def tag() -> str:
    """An argument of `sleep` that nothing else on the machine has."""
    return f"987.{uuid.uuid4().int % 10**12:012}"


@pytest.fixture
def awkward(monkeypatch: pytest.MonkeyPatch, make_process: Make) -> LocalProcess:
    monkeypatch.setenv("PYTHON", sys.executable)
    return make_process(environment=("PATH", "PYTHON"))


def test_each_runtime(process: LocalProcess) -> None:
    assert process.runtimes[:2] == ("shell", "python")
    for runtime, code in {"shell": "echo out; echo err >&2; exit 3", "python": PYTHON, "node": NODE}.items():
        if runtime in process.runtimes:
            result = run(process, code, runtime)
            assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n"), runtime
            assert (result.timed_out, result.truncated_bytes) == (False, 0)


PYTHON = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
NODE = "console.log('out'); console.error('err'); process.exit(3)"


@pytest.mark.rule(63)
def test_runtimes_in_the_order_of_their_declaration() -> None:
    assert LocalProcess(["python", "shell"]).runtimes == ("python", "shell")
    with pytest.raises(InvalidInput, match="no runtime 'ruby' of local processes: shell, python, node"):
        LocalProcess(["ruby"])


def test_a_runtime_that_is_not_there_is_refused_when_it_is_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    provider = LocalProcess(["node"], ProcessOptions(folder=str(tmp_path)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match="runtime 'node' needs node on the PATH"):
        provider.open()
    assert LocalProcess().runtimes == ("python",)


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch, process: LocalProcess) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InvalidInput, match="on Linux only, and this is darwin"):
        process.open()


def test_standard_input(process: LocalProcess) -> None:
    big = "é" * 200_000
    assert run(process, "wc -c", stdin=big).stdout.strip() == "400000"
    assert run(process, "cat", stdin="").stdout == ""
    assert run(process, "cat").stdout == ""


def test_code_of_any_length(process: LocalProcess) -> None:
    assert run(process, "x = 1\n" * 100_000 + "print('é')", "python").stdout == "é\n"


def test_each_key_has_a_folder(process: LocalProcess) -> None:
    run(process, "echo one > file", key="1")
    assert run(process, "ls -A; cat file", key="1").stdout == ".call-2.sh\nfile\none\n"
    assert run(process, "ls -A", key='"1"').stdout == ".call-3.sh\n"
    assert run(process, 'rm -rf "$HOME"', key="1").exit_code == 0
    assert run(process, "ls", key="1").exit_code == 0


def test_idle_folders_go(make_process: Make) -> None:
    process = make_process(idle_ms=1)
    folder = run(process, "pwd", key="a").stdout.strip()
    assert run(process, "true", key="b").exit_code == 0
    assert not os.path.exists(folder)
    assert run(process, "pwd", key="a").stdout.strip() == folder


def test_only_named_variables_are_visible(monkeypatch: pytest.MonkeyPatch, make_process: Make) -> None:
    monkeypatch.setenv("API_KEY", "s3cret")
    monkeypatch.setenv("SHOWN", "yes")
    process = make_process(environment=("PATH", "SHOWN", "MISSING"))
    seen = dict(line.split("=", 1) for line in run(process, "env").stdout.splitlines())
    assert set(seen) - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "SHOWN", "HOME", "TMPDIR", "FLINK_AGENTS_EXECUTE"}
    assert seen["HOME"] == seen["TMPDIR"] == seen["PWD"]
    found = run(process, "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c '^FLINK_AGENTS_EXECUTE='")
    supervisor = run(process, "tr '\\0' '\\n' < /proc/$PPID/environ").stdout
    assert int(found.stdout) >= 3
    assert "s3cret" not in supervisor


@pytest.mark.rule(66)
def test_the_time_limit_is_clamped(make_process: Make) -> None:
    process = make_process(time_limit_ms=50_000, max_time_limit_ms=200_000)
    assert process.options.clamped_ms(None) == 50_000
    assert process.options.clamped_ms(300_000) == 200_000
    assert process.options.clamped_ms(100) == 100
    short = make_process(time_limit_ms=100, max_time_limit_ms=200)
    result = run(short, "sleep 60", time_limit_ms=600_000)
    assert (result.timed_out, result.exit_code) == (True, -15)
    assert run(short, "sleep 60").timed_out


@pytest.mark.rule(66)
@pytest.mark.parametrize("how", list(AWKWARD))
def test_a_time_out_ends_the_whole_tree(awkward: LocalProcess, tag: str, how: str) -> None:
    result = timed_out(awkward, "echo begun; " + AWKWARD[how].format(sleep=f"sleep {tag}"))
    assert running(tag) == []
    assert result.stdout == "begun\n"


@pytest.mark.rule(66)
@pytest.mark.parametrize("how", list(AWKWARD))
def test_a_cancellation_ends_the_whole_tree(awkward: LocalProcess, tag: str, how: str) -> None:
    # A grace that a kill at once does not wait for.
    object.__setattr__(awkward.options, "grace_ms", 600_000)
    execution = begin(awkward, ask(AWKWARD[how].format(sleep=f"sleep {tag}"), time_limit_ms=60_000))
    eventually(lambda: running(f"sleep\0{tag}"))
    execution.cancel()
    assert running(tag) == []
    assert execution.is_interrupted
    assert execution.token.cancelled


@pytest.mark.rule(66)
def test_the_grace_lets_a_program_end_by_itself(make_process: Make) -> None:
    process = make_process(grace_ms=60_000)
    result = timed_out(process, "trap 'echo bye; exit 7' TERM; echo begun; while :; do sleep 0.05; done")
    assert (result.exit_code, result.stdout) == (7, "begun\nbye\n")


@pytest.mark.rule(66)
@pytest.mark.parametrize("background", ["sleep {tag} &", "setsid sleep {tag} &", "(setsid sh -c 'sleep {tag} &' &);"])
def test_a_background_child_of_a_success_is_no_time_out(process: LocalProcess, tag: str, background: str) -> None:
    result = run(process, f"{background.format(tag=tag)} echo ok", time_limit_ms=60_000)
    assert (result.exit_code, result.stdout, result.timed_out) == (0, "ok\n", False)
    assert running(tag) == []


@pytest.mark.rule(66)
def test_a_chain_of_short_lived_processes_ends(process: LocalProcess) -> None:
    comet = (
        "import os, time\nwhile True:\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n    time.sleep(0.002)\n"
    )
    result = run(process, comet, "python", time_limit_ms=60_000)
    assert (result.exit_code, result.timed_out) == (0, False)
    process.close()
    assert running(".call-1.py") == []


@pytest.mark.rule(66)
def test_a_program_that_kills_its_supervisor_leaves_nothing(process: LocalProcess, tag: str) -> None:
    begun = f"until grep -aq {tag} /proc/$!/cmdline; do :; done"
    with pytest.raises(ProviderBroken, match="was killed"):
        run(process, f"setsid sleep {tag} & {begun}; kill -9 $PPID; sleep {tag}")
    assert running(tag) == []
    assert run(process, "echo on").stdout == "on\n"


@pytest.mark.rule(64)
def test_a_supervisor_that_was_stopped_is_killed(
    process: LocalProcess, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "KILL_S", 0.2)
    monkeypatch.setattr(keeper, "_SLACK_S", 0.2)
    execution = begin(process, ask(f"kill -STOP $PPID; sleep {tag}", time_limit_ms=60_000))
    eventually(lambda: running(f"sleep\0{tag}"))
    execution.cancel()
    assert execution.is_interrupted
    eventually(lambda: not running(tag))


@pytest.mark.rule(66)
def test_the_keeper_that_was_killed_is_replaced(process: LocalProcess, tag: str) -> None:
    execution = begin(process, ask(f"setsid sleep {tag} & sleep {tag}", key="a"))
    eventually(lambda: len(running(f"sleep\0{tag}")) == 2)
    assert process._opened is not None
    keeper = process._opened.keeper._process
    assert keeper is not None
    keeper.kill()
    keeper.wait()
    assert run(process, "echo on", key="b").stdout == "on\n"
    execution.end()
    assert isinstance(execution.error, ProviderBroken)
    assert running(tag) == []


@pytest.mark.rule(67)
def test_a_cancellation_that_waits_for_a_permit_starts_nothing(make_process: Make, tag: str) -> None:
    process = make_process(permits=1)
    process.open()
    assert process._opened is not None
    permits = process._opened.permits
    first = begin(process, ask(f"sleep {tag}"))
    eventually(lambda: running(f"sleep\0{tag}"))
    second = begin(process, ask("touch started"))
    eventually(lambda: permits.waiting == 1)
    second.cancel()
    assert second.is_interrupted
    first.cancel()
    assert permits.free == 1
    assert run(process, "ls").stdout == ""


@pytest.mark.rule(67)
def test_a_shared_token_keeps_no_callback_and_may_be_set_later(process: LocalProcess, tag: str) -> None:
    token = CancellationToken()
    assert process.execute(ask("exit 1"), token).exit_code == 1
    with pytest.raises(ProviderBroken):
        process.execute(ask("kill -9 $PPID"), token)
    assert process.execute(ask("sleep 60", time_limit_ms=50), token).timed_out
    assert not token._callbacks
    running_on = begin(process, ask(f"sleep {tag}; echo on", time_limit_ms=60_000), CancellationToken())
    eventually(lambda: running(f"sleep\0{tag}"))
    token.cancel()
    assert len(running(f"sleep\0{tag}")) == 1
    running_on.cancel()
    with pytest.raises(Interrupted):
        process.execute(ask("touch started"), token)


@pytest.mark.rule(70)
def test_output_is_bounded(make_process: Make) -> None:
    process = make_process(output=1000)
    result = run(process, "printf head; head -c 3000000 /dev/zero | tr '\\0' x; printf tail; echo err >&2")
    assert result.truncated_bytes == 3_000_008 - 1000
    assert result.stdout.startswith("headxxx")
    assert result.stdout.endswith("xxxtail")
    assert f"\n[... {result.truncated_bytes} bytes left out ...]\n" in result.stdout
    assert len(result.stdout) < 1100
    assert result.stderr == "err\n"


@pytest.mark.rule(70)
def test_output_without_end_is_bounded_too(make_process: Make) -> None:
    result = timed_out(make_process(output=100), "head -c 1000 /dev/zero; yes")
    assert len(result.stdout) < 200
    assert result.truncated_bytes > 100


@pytest.mark.rule(70)
def test_bytes_are_escaped(process: LocalProcess) -> None:
    assert run(process, r"printf 'a\377\376z'").stdout == "a\\xff\\xfez"


def test_limits(make_process: Make) -> None:
    process = make_process(memory=256 << 20, file_size=1 << 16, cpu_ms=1000, time_limit_ms=60_000)
    memory = run(process, "x = bytearray(400 << 20)", "python")
    assert (memory.exit_code, memory.stderr.splitlines()[-1]) == (1, "MemoryError")
    assert run(process, "x = bytearray(10 << 20); print(len(x))", "python").stdout == "10485760\n"
    file = run(process, "open('big', 'wb').write(bytes(1 << 20))", "python")
    assert f"[Errno {errno.EFBIG}]" in file.stderr
    assert run(process, "while True: pass", "python").exit_code == -24
    assert run(process, "ulimit -c").stdout == "0\n"


@needs_node
def test_node_starts_within_a_memory_limit(make_process: Make) -> None:
    result = run(make_process(memory=1 << 30), "console.log(process.cwd() === process.env.HOME)", "node")
    assert (result.exit_code, result.stdout) == (0, "true\n")


LOOK = """
import socket
try:
    socket.create_connection(("127.0.0.1", PORT), 5)
    print("in")
except OSError as error:
    print("out")
"""


def test_without_network(make_process: Make) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        look = LOOK.replace("PORT", str(server.getsockname()[1]))
        assert run(make_process(), look, "python").stdout == "in\n"
        closed = make_process(network=False)
        try:
            closed.open()
        except InvalidInput as refused:
            pytest.skip(str(refused))
        assert run(closed, look, "python").stdout == "out\n"
        assert run(closed, "touch file; stat -c %u file").stdout == f"{os.getuid()}\n"


def test_without_network_where_the_system_forbids_it(make_process: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    process = make_process(network=False)

    def refuse(self: object, token: object, limit_s: float) -> None:
        raise ProviderBroken("Operation not permitted")

    monkeypatch.setattr("flink_agents.tools.execute.keeper.Link.answer", refuse)
    with pytest.raises(InvalidInput, match="network: false is not possible here: Operation not permitted"):
        process.open()
    assert list(Path(str(process.options.folder)).glob("*/*")) == []


def test_programs_gain_no_privileges(process: LocalProcess) -> None:
    assert "NoNewPrivs:\t1" in run(process, "cat /proc/self/status").stdout


def test_what_cannot_be_started_is_told(process: LocalProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flink_agents.tools.execute.process._command", lambda runtime: ["/nowhere/sh"])
    with pytest.raises(ProviderBroken, match="cannot start /nowhere/sh: No such file or directory"):
        run(process, "true")


def test_many_at_once(process: LocalProcess) -> None:
    executions = [begin(process, ask(f"echo {number}", key=str(number))) for number in range(40)]
    for number, execution in enumerate(executions):
        execution.end()
        assert execution.result is not None, execution.error
        assert execution.result.stdout == f"{number}\n"


def test_close_ends_what_runs_and_removes_all(process: LocalProcess, tag: str) -> None:
    execution = begin(process, ask(f"setsid sleep {tag} & sleep {tag}"))
    eventually(lambda: len(running(f"sleep\0{tag}")) == 2)
    process.close()
    execution.end()
    assert isinstance(execution.error, ProviderBroken)
    assert running(tag) == []
    assert list(Path(str(process.options.folder)).glob("*/*")) == []
    process.close()


def test_it_can_be_opened_again_and_travels_unopened(process: LocalProcess) -> None:
    process.open()
    process.open()
    again = pickle.loads(pickle.dumps(process))
    assert again._opened is None
    process.close()
    with pytest.raises(ProviderBroken, match="is closed"):
        run(process, "echo on")
    process.open()
    assert run(process, "echo on").stdout == "on\n"
    assert run(again, "echo too").stdout == "too\n"
    again.close()


def test_no_thread_is_left(process: LocalProcess) -> None:
    before = threading.active_count()
    run(process, "true")
    process.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("wrong", [{"time_limit_ms": 0}, {"output": 0}, {"permits": 0}, {"time_limit_ms": 70_000}])
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="execute: "):
        ProcessOptions(**wrong)
