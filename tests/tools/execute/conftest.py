"""Providers that are closed after each test, and a look at what runs on this machine."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flink_agents.errors import Interrupted
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.tools.execute import ExecuteProvider, ExecuteRequest, ExecuteResult, LocalProcess, ProcessOptions

WAIT_S = 30.0


def running(text: str) -> list[int]:
    """Return the processes, this one excepted, whose command line holds ``text``; zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def eventually(condition: Callable[[], Any]) -> Any:
    """Wait until the condition holds; nothing tells when another process has come so far."""
    until = time.monotonic() + WAIT_S
    while not (result := condition()):
        assert time.monotonic() < until, "it did not come to this"
        time.sleep(0.002)
    return result


class Execution:
    """An execution on a thread of its own, with its token."""

    def __init__(self, provider: ExecuteProvider, request: ExecuteRequest, token: CancellationToken) -> None:
        self.token = token
        self.result: ExecuteResult | None = None
        self.error: BaseException | None = None
        self._provider = provider
        self._request = request
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._provider.execute(self._request, self.token)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def cancel(self) -> None:
        self.token.cancel()
        self.end()

    @property
    def is_interrupted(self) -> bool:
        return isinstance(self.error, Interrupted)


def ask(code: str, runtime: str = "shell", key: str = '"k"', **more: Any) -> ExecuteRequest:
    return ExecuteRequest(runtime, code, key, **more)


def run(provider: ExecuteProvider, code: str, runtime: str = "shell", key: str = '"k"', **more: Any) -> ExecuteResult:
    return provider.execute(ask(code, runtime, key, **more), CancellationToken())


def timed_out(provider: ExecuteProvider, code: str, runtime: str = "shell", key: str = '"k"') -> ExecuteResult:
    """Return the result of code that reached its time limit after it had written; a busy machine gets more time."""
    for limit_ms in (300, 1000, 4000, 20_000):
        result = run(provider, code, runtime, key, time_limit_ms=limit_ms)
        assert result.timed_out
        if result.stdout:
            break
    return result


def begin(provider: ExecuteProvider, request: ExecuteRequest, token: CancellationToken | None = None) -> Execution:
    return Execution(provider, request, token or CancellationToken())


@pytest.fixture
def make_process(tmp_path: Path) -> Iterator[Callable[..., LocalProcess]]:
    """Makes local process providers with options, in a folder of the test's own."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> LocalProcess:
            runtimes = options.pop("runtimes", None)
            provider = LocalProcess(runtimes, ProcessOptions(**{"folder": str(tmp_path), "grace_ms": 100, **options}))
            stack.callback(provider.close)
            return provider

        yield make


@pytest.fixture
def process(make_process: Callable[..., LocalProcess]) -> LocalProcess:
    return make_process()
