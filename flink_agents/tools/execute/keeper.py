"""The TaskManager's side of supervision: starts the keeper, talks to a supervisor for each execution or session."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from flink_agents.errors import InvalidInput
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.tools.execute.home import Home, homes_folder, sweep
from flink_agents.tools.execute.supervision.frames import Frame, FrameReader, send_frame
from flink_agents.tools.execute.supervision.keeper import kill_marked
from flink_agents.tools.execute.supervision.linux import MARKER
from flink_agents.tools.execute.supervision.tree import KILL_S

__all__ = ["Keeper", "Link", "ProviderBroken", "find_python"]

_log = logging.getLogger(__name__)

_START_S = 30.0
_SLACK_S = 30.0
_LOOK_S = 0.5
_KILL_WAIT_S = 1.0
_CLOSE_S = 2.0

# The packages above the keeper are stood in for: importing them would load all of this one's dependencies.
_BOOT = """
import sys, types
names, folders = sys.argv[4].split(), sys.argv[5:]
for name, folder in zip(names, folders):
    module = types.ModuleType(name)
    module.__path__ = [folder]
    sys.modules[name] = module
from flink_agents.tools.execute.supervision.keeper import main
main()
"""
_FOLDER = Path(__file__).resolve().parent
_STOOD_IN = {
    "flink_agents": _FOLDER.parent.parent,
    "flink_agents.tools": _FOLDER.parent,
    "flink_agents.tools.execute": _FOLDER,
}


class ProviderBroken(Exception):
    """Raised when the machinery around an execution failed; not for what the executed code does."""


def find_python() -> str:
    """Return this environment's interpreter, also inside Flink, where the running program is the JVM.

    Raises:
        InvalidInput: if there is none.
    """
    running = sys.executable or ""
    candidates = [running] if Path(running).name.startswith("python") else []
    candidates += [str(Path(sys.prefix) / "bin" / "python3"), shutil.which("python3") or ""]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise InvalidInput("execute: there is no python3 in the environment or on the PATH of this process")


class Link:
    """One supervisor, as its execution sees it. ``ask_kill`` from any thread, the rest on one at a time."""

    def __init__(self, keeper: Keeper, link: socket.socket) -> None:
        self._keeper = keeper
        # Bounds a request that its supervisor does not read.
        link.settimeout(_SLACK_S)
        self._socket = link
        self._frames = FrameReader(link)
        self._lock = threading.Lock()
        self._closed = False
        self._pid = 0

    def send(self, header: dict[str, Any], *blobs: bytes) -> None:
        """Tell the supervisor something. One that is gone hears nothing: its silence is noticed when it answers."""
        with self._lock, contextlib.suppress(OSError):
            if not self._closed:
                send_frame(self._socket, header, *blobs)

    def ask_kill(self, number: int) -> None:
        """Ask for the end of call ``number``; nothing happens if it is over. Called by whoever sets a token: quick."""
        if not self._lock.acquire(timeout=_KILL_WAIT_S):
            # A supervisor that does not even read its request.
            self._keeper.kill(self._pid)
            return
        try:
            if not self._closed:
                with contextlib.suppress(OSError):
                    send_frame(self._socket, {"kill": number})
        finally:
            self._lock.release()

    def answer(self, token: CancellationToken, limit_s: float) -> Frame | None:
        """Return the supervisor's next answer; None when it is gone without one.

        Raises:
            ProviderBroken: it did not answer within ``limit_s`` and some slack, or said that it failed; nothing of it
                is left.
        """
        until = time.monotonic() + limit_s + _SLACK_S
        asked = False
        while True:
            self._frames.pull()
            frame = self._frames.next()
            if frame is not None and "pid" in frame.header:
                self._pid = frame.header["pid"]
                continue
            if frame is not None or self._frames.ended:
                break
            if token.cancelled and not asked:
                asked, until = True, min(until, time.monotonic() + KILL_S + _SLACK_S)
            if time.monotonic() > until:
                self._keeper.kill(self._pid)
                self.abandon()
                raise ProviderBroken("the supervisor of the execution did not answer")
            _wait_readable(self._socket, _LOOK_S)
        if frame is not None and "failure" in frame.header:
            self.abandon()
            raise ProviderBroken(frame.header["failure"])
        return frame

    def abandon(self) -> None:
        """Close the link, and wait until nothing is left of a supervisor that is gone or going."""
        self.close()
        self._keeper.settle(self._pid)

    def close(self) -> None:
        """Close the link; the supervisor then ends what runs, and itself."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._socket.close()


class Keeper:
    """One keeper process with its home, started when it is opened and again if it was killed. Any thread."""

    def __init__(self, folder: str | None = None) -> None:
        self._homes = homes_folder(folder)
        for name in sweep(self._homes):
            _log.warning("swept %s, which a process that is gone had left", self._homes / name)
        self.home = Home(self._homes)
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self.python = find_python()
        try:
            with self._lock:
                self._start()
        except BaseException:
            self.home.remove()
            raise

    def begin(self) -> Link:
        """Have a supervisor forked.

        Raises:
            ProviderBroken: the keeper is closed, or cannot be started any more.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._send(b"fork", theirs)
            except BaseException:
                ours.close()
                raise
        return Link(self, ours)

    def kill(self, pid: int) -> None:
        """Kill a supervisor; what it leaves goes with it."""
        with contextlib.suppress(ProviderBroken):
            self._send(b"kill %d" % pid)

    def settle(self, pid: int) -> None:
        """Wait until nothing is left of a supervisor that is gone, for a bounded time."""
        ours, theirs = socket.socketpair()
        with ours, theirs, contextlib.suppress(ProviderBroken):
            self._send(b"settle %d" % pid, theirs)
            theirs.close()
            _wait_readable(ours, KILL_S)

    def close(self) -> None:
        """End everything that runs here and remove the home; twice is fine. Waits for it, but not for long.

        What takes longer the keeper does alone: it ends once the link is closed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            process, self._process = self._process, None
            if self._socket is not None:
                self._socket.close()
        if process is not None:
            try:
                process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                threading.Thread(target=process.wait, name="flink-agents-execute-close", daemon=True).start()
        self.home.remove()

    def _send(self, message: bytes, carried: socket.socket | None = None) -> None:
        fds = [] if carried is None else [carried.fileno()]
        with self._lock:
            for _ in range(2):
                if self._closed:
                    raise ProviderBroken("the provider is closed")
                try:
                    socket.send_fds(_open(self._socket), [message], fds)
                    return
                except OSError:
                    # It was killed. What it had started goes first, or the new one would not know of it.
                    _log.warning("the keeper of %s is gone: a new one is started", self.home.path)
                    self._end_process()
                    self._start()
        raise ProviderBroken("the keeper of the executions cannot be reached")

    def _start(self) -> None:
        self.home.path.mkdir(mode=0o700, exist_ok=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        names = " ".join(_STOOD_IN)
        argv = [self.python, "-I", "-S", "-c", _BOOT, str(os.getpid()), str(self.home.path), str(self.home.lock), names]
        with theirs:
            self._process = subprocess.Popen(
                [*argv, *map(str, _STOOD_IN.values())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={MARKER: self.home.name},
                pass_fds=[self.home.lock],
                start_new_session=True,
            )
        self._socket = ours
        ours.settimeout(_START_S)
        try:
            ready = ours.recv(16)
        except OSError:
            ready = b""
        if ready != b"ready":
            self._end_process()
            raise ProviderBroken(f"the keeper of the executions does not start with {self.python}")

    def _end_process(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            try:
                self._process.wait(2 * KILL_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        kill_marked(self.home.name)


def _open(link: socket.socket | None) -> socket.socket:
    if link is None:
        raise BrokenPipeError
    return link


def _wait_readable(link: socket.socket, seconds: float) -> None:
    # Not select: a TaskManager may have more open files than that can name.
    poll = select.poll()
    poll.register(link, select.POLLIN)
    poll.poll(max(0.0, seconds) * 1000)
