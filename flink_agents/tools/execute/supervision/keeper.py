"""The keeper: one process for each open provider; forks its supervisors, and cleans up when the TaskManager is gone."""

from __future__ import annotations

import array
import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import time
from typing import Any

from flink_agents.tools.execute.supervision.linux import become_subreaper, children_of, marked, signal_child
from flink_agents.tools.execute.supervision.supervisor import supervise
from flink_agents.tools.execute.supervision.tree import KILL_S, Wakeup

__all__ = ["kill_marked", "main"]

_LOOK_S = 1.0
_END_S = 2 * KILL_S
_MESSAGE_BYTES = 64


def main() -> None:
    """Serve standard input, a socket: ``fork`` and ``settle PID`` bring a socket of their own, ``kill PID`` does not.

    Arguments: the process id of the TaskManager, the home's folder, and the descriptor that holds the home's lock.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    owner, home, lock = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    link = socket.socket(fileno=os.dup(0))
    os.set_inheritable(lock, False)
    keeper = _Keeper(link, owner, lock)
    link.send(b"ready")
    keeper.serve()
    keeper.end()
    kill_marked(os.path.basename(home))
    shutil.rmtree(home, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(f"{home}.lock")


def kill_marked(home: str) -> None:
    """Kill every process that belongs to a home, until none is left or the time is over."""
    until = time.monotonic() + KILL_S
    while (left := marked(home)) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


class _Keeper:
    """Knows its supervisors; any other child is what a killed supervisor left."""

    def __init__(self, link: socket.socket, owner: int, lock: int) -> None:
        become_subreaper()
        self._wakeup = Wakeup()
        self._link = link
        self._owner = owner
        self._lock = lock
        self._supervisors: set[int] = set()

    def serve(self) -> None:
        """Do what is asked until the TaskManager closes the link or is gone."""
        # A copy of the TaskManager that never became another program may hold the link open: its id is looked at too.
        while os.getppid() == self._owner:
            watched: list[Any] = [self._link, self._wakeup.fd]
            ready, _, _ = select.select(watched, [], [], _LOOK_S)
            self._wakeup.clear()
            self._reap()
            if self._link in ready and not self._serve_one():
                return

    def _serve_one(self) -> bool:
        try:
            data, fds = _receive(self._link)
        except OSError:
            return False
        if data == b"fork" and fds:
            self._fork(fds[0])
        elif data.startswith(b"kill "):
            pid = int(data[5:])
            if pid in self._supervisors:
                signal_child(pid, os.getpid(), signal.SIGKILL)
        elif data.startswith(b"settle "):
            # Its link ends a moment before it does, and only then are its children found here.
            pid, until = int(data[7:]), time.monotonic() + KILL_S
            while (self._reap() or pid in self._supervisors) and time.monotonic() < until:
                time.sleep(0.002)
        for fd in fds:
            os.close(fd)
        return bool(data)

    def _fork(self, fd: int) -> None:
        pid = os.fork()
        if pid > 0:
            self._supervisors.add(pid)
            return
        try:
            os.setsid()
            link = socket.socket(fileno=os.dup(fd))
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            for other in (fd, null, self._lock, self._link.detach()):
                os.close(other)
            supervise(link)
        finally:
            os._exit(0)

    def _reap(self) -> bool:
        """Wait for what has ended, kill what a supervisor left; return whether there was anything of that."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self._supervisors.discard(ended)
        strays = [pid for pid in children_of(os.getpid()) if pid not in self._supervisors]
        for pid in strays:
            signal_child(pid, os.getpid(), signal.SIGKILL)
        return bool(strays)

    def end(self) -> None:
        """Wait for the supervisors, whose links have ended; then kill what is left."""
        until = time.monotonic() + _END_S
        asked = False
        while time.monotonic() < until:
            self._reap()
            if not self._supervisors:
                return
            if not asked:
                # Their links may be held open by a copy of the TaskManager.
                asked = True
                for pid in self._supervisors:
                    signal_child(pid, os.getpid(), signal.SIGTERM)
            select.select([self._wakeup.fd], [], [], 0.05)
            self._wakeup.clear()
        for pid in self._supervisors:
            signal_child(pid, os.getpid(), signal.SIGKILL)
        self._supervisors.clear()
        self._reap()


def _receive(link: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    data, ancillary, _, _ = link.recvmsg(_MESSAGE_BYTES, socket.CMSG_LEN(4 * fds.itemsize))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, list(fds)
