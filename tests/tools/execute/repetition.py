"""One execution that is interrupted or cancelled at a random moment, and the look at what it left; many times over."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from flink_agents.errors import Interrupted
from flink_agents.scheduler.attempt import Attempt, CancellationToken
from flink_agents.tools.execute import ExecuteRequest, LocalProcess, PythonSession
from tests.tools.execute.conftest import running

AT_ONCE = 4
LATEST_S = {LocalProcess: 0.04, PythonSession: 0.15}
"""Within this time from its beginning an execution is asked to stop: mostly before it ends by itself, not always."""

# `sleep` stands for one with an argument of its own, by which it is found again.
SHELL = (
    "sleep",
    "true",
    "echo out; exit 3",
    "trap '' TERM INT; sleep & sleep; sleep",
    "setsid sleep & sleep",
    "(setsid sh -c 'sleep & exit' &); sleep",
    "env -i setsid /bin/sleep & exec sleep",
    "setsid sleep & echo ok",
    "sleep & kill -STOP $!; sleep",
)
PYTHON = (
    "import os; os.system('sleep')",
    "x = 1",
    "import os; os.system('setsid sleep &'); os.system('sleep')",
    "import signal; signal.signal(15, signal.SIG_IGN)\nwhile True: pass",
    "import os; os.system('setsid sleep &')",
)


class Repetitions:
    """Executions of one provider, several at once, each with a key of its own. ``ends`` counts how they ended."""

    def __init__(self, provider: LocalProcess | PythonSession, how: str, seed: int) -> None:
        self._provider = provider
        self._how = how
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self.ends: Counter[str] = Counter()

    def run(self, count: int) -> None:
        """Run so many; raises ``AssertionError`` for the first that leaves something behind or ends as it must not."""
        self._provider.open()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for _ in threads.map(self._once, range(count)):
                pass
        opened = self._provider._opened
        assert opened is not None
        assert (opened.permits.free, opened.permits.waiting) == (self._provider.options.permits, 0)

    def _once(self, _: int) -> None:
        with self._lock:
            after_s = self._random.uniform(0, LATEST_S[type(self._provider)])
            number = next(self._numbers)
            form = self._random.choice(PYTHON if isinstance(self._provider, PythonSession) else SHELL)
        tag = f"985.{uuid.uuid4().int % 10**12:012}"
        # Few keys for sessions, so that a call also finds one that another left open.
        key = str(number % (2 * AT_ONCE) if isinstance(self._provider, PythonSession) else number)
        request = ExecuteRequest(self._provider.runtimes[0], form.replace("sleep", f"sleep {tag}"), key)
        attempt, token = Attempt(), CancellationToken()
        attempt.enter(token)
        stop = threading.Timer(after_s, attempt.interrupt if self._how == "interrupt" else token.cancel)
        stop.start()
        try:
            result = self._provider.execute(request, token)
            end = "finished"
            assert not result.timed_out, form
        except Interrupted:
            end = "interrupted"
            assert token.cancelled
        stop.join()
        attempt.leave(token)
        assert not token._callbacks, form
        if end == "interrupted" or isinstance(self._provider, LocalProcess):
            assert running(tag) == [], f"{form} left processes after it had {end}"
        with self._lock:
            self.ends[end] += 1


def rounds(total: int, kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Share ``total`` among kinds, in order and as evenly as can be."""
    for place, kind in enumerate(kinds):
        yield kind, total // len(kinds) + (place < total % len(kinds))


def elapsed_s(began: float) -> float:
    """Return the seconds since ``began``."""
    return round(time.monotonic() - began, 1)
