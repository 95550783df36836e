"""The local process provider: each execution is a process of its own, in the working folder of its key."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from flink_agents.errors import InvalidInput
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.tools.execute.keeper import ProviderBroken, find_python
from flink_agents.tools.execute.options import ProcessOptions
from flink_agents.tools.execute.outputs import result_of
from flink_agents.tools.execute.protocol import ExecuteRequest, ExecuteResult
from flink_agents.tools.execute.supervised import Opened, SupervisedProvider, find_program

__all__ = ["RUNTIMES", "LocalProcess"]

RUNTIMES = ("shell", "python", "node")
_SUFFIXES = {"shell": "sh", "python": "py", "node": "js"}
_ONLY_CALL = 1


class LocalProcess(SupervisedProvider):
    """Runs shell, Python and Node.js code in processes of this machine.

    This is hygiene, not a sandbox: the code runs as the user of the TaskManager and can read what that user can.

    Args:
        runtimes: some of ``shell``, ``python`` and ``node``, in the order in which a model is told of them; those that
            are present on the machine if None.
        options: the bounds of executions.

    Raises:
        InvalidInput: for another runtime.
    """

    def __init__(self, runtimes: Sequence[str] | None = None, options: ProcessOptions | None = None) -> None:
        super().__init__(options)
        for runtime in runtimes or ():
            if runtime not in RUNTIMES:
                msg = f"execute: there is no runtime {runtime!r} of local processes: {', '.join(RUNTIMES)}"
                raise InvalidInput(msg)
        self._runtimes = None if runtimes is None else tuple(dict.fromkeys(runtimes))

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The runtimes that were given, else those whose program is on this machine."""
        if self._runtimes is None:
            return tuple(runtime for runtime in RUNTIMES if _is_present(runtime))
        return self._runtimes

    def check_runtimes(self) -> None:
        """Raise ``InvalidInput`` for a runtime whose program is not on this machine."""
        for runtime in self.runtimes:
            _command(runtime)

    def execute(self, request: ExecuteRequest, token: CancellationToken) -> ExecuteResult:
        """Run the code in a process of its own, on the thread of the call.

        At the time limit the whole process tree is terminated, then killed; it is killed at once when the token is set,
        and in any case before this returns. After a crash before the outcome was recorded it runs again.

        Raises:
            Interrupted: the token was set; nothing of the execution is left.
            ProviderBroken: the supervisor failed.
        """
        with self.begun(token) as opened, opened.permits.held(token):
            folder = opened.folders.enter(request.key)
            script = folder / f".call-{next(opened.numbers)}.{_SUFFIXES[request.runtime]}"
            try:
                script.write_bytes(request.code.encode("utf-8", "surrogatepass"))
                return self._run(opened, request, folder, script, token)
            finally:
                with contextlib.suppress(OSError):
                    script.unlink()
                opened.folders.leave(folder)

    def _run(
        self, opened: Opened, request: ExecuteRequest, folder: Path, script: Path, token: CancellationToken
    ) -> ExecuteResult:
        limit_ms = self.options.clamped_ms(request.time_limit_ms)
        ask = {
            "kind": "run",
            "argv": [*_command(request.runtime), str(script)],
            "cwd": str(folder),
            "env": self.environment(opened, folder),
            "time_limit_ms": limit_ms,
            "grace_ms": self.options.grace_ms,
            "output": self.options.output,
            "limits": {**self.options.process_limits(), "cpu_s": self.options.cpu_s},
        }
        link = opened.keeper.begin()
        stdin = [] if request.stdin is None else [request.stdin.encode("utf-8", "surrogatepass")]
        link.send(ask, *stdin)
        withdraw = token.on_cancel(lambda: link.ask_kill(_ONLY_CALL))
        try:
            frame = link.answer(token, (limit_ms + self.options.grace_ms) / 1000)
            if frame is None:
                link.abandon()
        finally:
            withdraw()
            link.close()
        if frame is None or "killed" in frame.header:
            raise ProviderBroken("the supervisor of the execution was killed")
        return result_of(frame)


def _command(runtime: str) -> list[str]:
    if runtime == "python":
        # Unbuffered: what was printed before a time-out is part of the result.
        return [find_python(), "-u"]
    return [find_program(runtime, "bash", "sh") if runtime == "shell" else find_program(runtime, "node")]


def _is_present(runtime: str) -> bool:
    try:
        _command(runtime)
    except InvalidInput:
        return False
    return True
