"""The session providers: one child process for each key, whose variables survive from call to call."""

from __future__ import annotations

import os
import shutil
import threading
import time
from abc import abstractmethod
from collections import OrderedDict
from pathlib import Path
from typing import Any, cast

from flink_agents.errors import InvalidInput
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.tools.execute.keeper import Link, ProviderBroken, find_python
from flink_agents.tools.execute.options import ProcessOptions
from flink_agents.tools.execute.outputs import result_of
from flink_agents.tools.execute.protocol import ExecuteRequest, ExecuteResult
from flink_agents.tools.execute.supervised import Opened, SupervisedProvider
from flink_agents.tools.execute.supervision.frames import Frame
from flink_agents.tools.execute.supervision.supervisor import READY_S
from flink_agents.tools.execute.waiting import Turns

__all__ = ["JshellSession", "PythonSession", "SessionProvider"]

_DRIVERS = Path(__file__).resolve().parent / "drivers"
_ENDED = "[the session has ended and its variables are gone; the next call begins a new one]"


class _Session:
    """One session: its supervisor's link, the number of its last call, and when that ended."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.number = 0
        self.used_s = time.monotonic()


class _Sessions:
    """The idle sessions of an open provider, by key, the one used last at the end. Any thread."""

    def __init__(self, kept: int, idle_s: float) -> None:
        self.turns = Turns()
        self._kept = kept
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: OrderedDict[str, _Session] = OrderedDict()
        self._closed = False

    def take(self, key: str) -> _Session | None:
        """Take the session of a key, for the time of a call."""
        with self._lock:
            return self._idle.pop(key, None)

    def give_back(self, key: str, session: _Session) -> None:
        """Keep the session of a key; close those that were idle for too long, and the oldest if there are too many."""
        session.used_s = now = time.monotonic()
        closing = []
        with self._lock:
            self._idle[key] = session
            while self._idle:
                oldest = next(iter(self._idle))
                is_kept = len(self._idle) <= self._kept and self._idle[oldest].used_s + self._idle_s > now
                if is_kept and not self._closed:
                    break
                closing.append(self._idle.pop(oldest))
        for old in closing:
            old.link.close()

    def close(self) -> None:
        """Close the idle sessions, and the others when their calls end."""
        with self._lock:
            self._closed = True
            closing, self._idle = list(self._idle.values()), OrderedDict()
        for session in closing:
            session.link.close()


class SessionProvider(SupervisedProvider):
    """Runs the calls of one key in one process, one after the other.

    Calls of a key that a request makes in parallel take turns in no certain order.

    Args:
        options: the bounds of executions; ``cpu_ms`` holds for each call, ``memory`` for the session.
        sessions: how many idle sessions are kept; beyond that the one that was not used for longest is closed.
    """

    def __init__(self, options: ProcessOptions | None = None, sessions: int = 32) -> None:
        super().__init__(options)
        if sessions < 0:
            msg = f"execute: sessions must not be below 0, and is {sessions}"
            raise InvalidInput(msg)
        self.sessions = sessions

    @abstractmethod
    def program(self, folder: Path) -> list[str]:
        """Return the command line of a session whose working folder is ``folder``."""

    def session_limits(self) -> dict[str, Any]:
        """Return the limits of a session as a supervisor takes them."""
        return {**self.options.process_limits(), "call_cpu_s": self.options.cpu_s}

    def execute(self, request: ExecuteRequest, token: CancellationToken) -> ExecuteResult:
        """Run the code in the session of its key, on the thread of the call.

        At the time limit, and at once when the token is set, this session is killed with all that it started, and no
        other. After a crash before the outcome was recorded the code runs again, in a new session.

        Raises:
            Interrupted: the token was set.
            ProviderBroken: the supervisor failed, or the session's program cannot be started.
        """
        with self.begun(token) as opened:
            sessions = self._sessions_of(opened)
            with sessions.turns.held(request.key, token), opened.permits.held(token):
                folder = opened.folders.enter(request.key)
                try:
                    return self._in_session(opened, sessions, request, folder, token)
                finally:
                    opened.folders.leave(folder)

    def _sessions_of(self, opened: Opened) -> _Sessions:
        with self._lock:
            if opened.beside is None:
                opened.beside = _Sessions(self.sessions, self.options.idle_ms / 1000)
            found: Any = opened.beside
            return cast("_Sessions", found)

    def _in_session(
        self, opened: Opened, sessions: _Sessions, request: ExecuteRequest, folder: Path, token: CancellationToken
    ) -> ExecuteResult:
        session = sessions.take(request.key)
        frame = None if session is None else self._call(session, request, token)
        if session is None or frame is None:
            # There was none, or its time was up before it took the call.
            session = self._start(opened, folder)
            frame = self._call(session, request, token)
        if frame is None or "killed" in frame.header:
            session.link.close()
            raise ProviderBroken("the supervisor of the session was killed")
        if frame.header["ended"]:
            session.link.close()
            return result_of(frame, _ENDED)
        sessions.give_back(request.key, session)
        return result_of(frame)

    def _start(self, opened: Opened, folder: Path) -> _Session:
        link = opened.keeper.begin()
        ask = {
            "kind": "session",
            "argv": self.program(folder),
            "cwd": str(folder),
            "env": self.environment(opened, folder),
            "grace_ms": self.options.grace_ms,
            "idle_ms": self.options.idle_ms,
            "output": self.options.output,
            "limits": self.session_limits(),
        }
        link.send(ask)
        return _Session(link)

    def _call(self, session: _Session, request: ExecuteRequest, token: CancellationToken) -> Frame | None:
        """Return how the call ended; None when the session was gone before it took it, or its supervisor died."""
        session.number = number = session.number + 1
        limit_ms = self.options.clamped_ms(request.time_limit_ms)
        stdin = [] if request.stdin is None else [request.stdin.encode("utf-8", "surrogatepass")]
        code = request.code.encode("utf-8", "surrogatepass")
        link = session.link
        link.send({"number": number, "time_limit_ms": limit_ms}, code, *stdin)
        withdraw = token.on_cancel(lambda: link.ask_kill(number))
        try:
            begun = link.answer(token, READY_S)
            if begun is None or "begun" not in begun.header:
                frame = begun
            else:
                frame = link.answer(token, (limit_ms + self.options.grace_ms) / 1000)
                if frame is None:
                    link.abandon()
                    frame = Frame({"killed": True}, [])
            if frame is None:
                link.abandon()
            return frame
        except BaseException:
            link.close()
            raise
        finally:
            withdraw()


class PythonSession(SessionProvider):
    """Runs Python code in sessions, with the packages of the job's own environment.

    The value of an expression at the end of the code is shown, as in an interactive session.
    """

    @property
    def runtimes(self) -> tuple[str, ...]:
        """``python``."""
        return ("python",)

    def program(self, folder: Path) -> list[str]:
        """Return this environment's interpreter with the session's program."""
        return [find_python(), "-u", str(_DRIVERS / "python_session.py")]


class JshellSession(SessionProvider):
    """Runs Java code in sessions of the JDK's jshell, which takes seconds to start.

    The value of an expression at the end of the code is shown. ``memory`` is the Java heap.
    """

    @property
    def runtimes(self) -> tuple[str, ...]:
        """``java``."""
        return ("java",)

    def check_runtimes(self) -> None:
        """Raise ``InvalidInput`` where there is no JDK: a Java runtime alone has no jshell."""
        _find_jdk()

    def session_limits(self) -> dict[str, Any]:
        """Return the limits without memory: the machine has its own bound for that."""
        return {**super().session_limits(), "memory": None}

    def program(self, folder: Path) -> list[str]:
        """Return the JDK's ``java`` with the session's program."""
        heap_mib = max(16, (self.options.memory or 256 << 20) >> 20)
        flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Xmx{heap_mib}m"]
        flags += [f"-Djava.io.tmpdir={folder}", f"-Duser.home={folder}", "-Djava.awt.headless=true"]
        return [str(_find_jdk() / "bin" / "java"), *flags, str(_DRIVERS / "JshellSession.java")]


def _find_jdk() -> Path:
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("jshell")
    candidates = [Path(home)] if home else []
    if on_path is not None:
        candidates.append(Path(on_path).resolve().parent.parent)
    for candidate in candidates:
        if os.access(candidate / "bin" / "jshell", os.X_OK) and os.access(candidate / "bin" / "java", os.X_OK):
            return candidate
    raise InvalidInput("execute: jshell needs a JDK (11 or later): set JAVA_HOME to one, or put jshell on the PATH")
