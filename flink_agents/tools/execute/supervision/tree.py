"""Every process that one execution started, however it got away from its parent; and its end."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flink_agents.tools.execute.supervision.linux import (
    become_subreaper,
    children_of,
    die_with_parent,
    gain_no_privileges,
    leave_network,
    signal_child,
)

__all__ = ["CannotStart", "Tree", "Wakeup"]

KILL_S = 10.0
_LOOK_S = 0.005
_FIRST_OWN_FD = 3
_RESET = (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGXFSZ)


class CannotStart(Exception):
    """Raised when a program could not be started; the message says at which step."""


class Wakeup:
    """A file descriptor that becomes readable when a child ends. One a process, on its only thread."""

    def __init__(self) -> None:
        self.fd, self._write_end = os.pipe()
        for end in (self.fd, self._write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def clear(self) -> None:
        """Take note: nothing is readable until the next child ends."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 512):
                pass


class Tree:
    """What runs below this process. ``status`` is the main program's exit code once it ended, negative for a signal.

    This process becomes the parent of every orphan below it: one that forked twice, left its group or its session is
    still found, and no process is forgotten before it was waited for.
    """

    def __init__(self, wakeup: Wakeup) -> None:
        become_subreaper()
        self._wakeup = wakeup
        self.main = 0
        self.status: int | None = None

    def start(
        self, argv: Sequence[str], cwd: str, env: Mapping[str, str], fds: Sequence[int], limits: Mapping[str, Any]
    ) -> None:
        """Start the main program with ``fds`` as its descriptors 0, 1, 2 and so on.

        Raises:
            CannotStart: nothing runs then.
        """
        told, tells = os.pipe()
        supervisor = os.getpid()
        self.main = os.fork()
        if self.main == 0:
            _become(argv, cwd, env, fds, limits, tells, supervisor)
        os.close(tells)
        with open(told, "rb") as file:
            failure = file.read()
        if failure:
            os.waitpid(self.main, 0)
            raise CannotStart(failure.decode(errors="replace"))

    def reap(self) -> bool:
        """Wait for whatever has ended; return whether anything is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.main and self.status is None:
                self.status = os.waitstatus_to_exitcode(status)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every process of the tree, parents first."""
        waiting = [(os.getpid(), pid) for pid in children_of(os.getpid())]
        while waiting:
            parent, pid = waiting.pop(0)
            # Looked up before the signal: what a killed process leaves behind is found as this process's own child.
            waiting += [(pid, child) for child in children_of(pid)]
            signal_child(pid, parent, number)

    def kill(self) -> bool:
        """Kill every process of the tree and wait for all of them; return whether none is left."""
        until = time.monotonic() + KILL_S
        while self.reap():
            if time.monotonic() > until:
                return False
            self.send(signal.SIGKILL)
            select.select([self._wakeup.fd], [], [], _LOOK_S)
            self._wakeup.clear()
        return True

    def allow_cpu(self, seconds: int) -> None:
        """Give the main program so many further seconds of processor time."""
        with contextlib.suppress(OSError), open(f"/proc/{self.main}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            _, hard = resource.prlimit(self.main, resource.RLIMIT_CPU)
            resource.prlimit(self.main, resource.RLIMIT_CPU, (int(used) + 1 + seconds, hard))


def _become(
    argv: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    fds: Sequence[int],
    limits: Mapping[str, Any],
    tells: int,
    supervisor: int,
) -> None:
    """Turn this forked process into the program; never returns."""
    step = "start"
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        die_with_parent()
        if os.getppid() != supervisor:
            os._exit(1)
        step = "leave the network"
        if not limits.get("network", True):
            leave_network()
        gain_no_privileges()
        step = "enter the working folder"
        os.chdir(cwd)
        step = "set the limits"
        _limit(limits)
        step = f"start {argv[0]}"
        tells = _arrange(fds, tells)
        for number in _RESET:
            signal.signal(number, signal.SIG_DFL)
        os.execve(argv[0], list(argv), dict(env))
    except BaseException as error:  # nothing may go on in a copy of the supervisor
        os.write(tells, f"cannot {step}: {getattr(error, 'strerror', None) or error}".encode())
    finally:
        os._exit(127)


def _arrange(fds: Sequence[int], tells: int) -> int:
    """Put ``fds`` to 0, 1, 2 and so on, and close all others but ``tells``; return its new number."""
    above = 64
    moved = [os.dup2(fd, above + place, inheritable=False) for place, fd in enumerate(fds)]
    told = os.dup2(tells, above + len(fds), inheritable=False)
    for place, fd in enumerate(moved):
        os.dup2(fd, place, inheritable=True)
    os.closerange(max(len(fds), _FIRST_OWN_FD), told)
    os.closerange(told + 1, 1024)
    return told


def _limit(limits: Mapping[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Private writable memory rather than address space: runtimes such as node reserve far more than they use.
    kinds = {"cpu_s": resource.RLIMIT_CPU, "memory": resource.RLIMIT_DATA, "file_size": resource.RLIMIT_FSIZE}
    for name, kind in kinds.items():
        value = limits.get(name)
        if value is not None:
            _, hard = resource.getrlimit(kind)
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            # Past the soft processor limit a program gets a signal that it may catch, past the hard one it is killed.
            resource.setrlimit(kind, (most, most + 1 if name == "cpu_s" and hard == resource.RLIM_INFINITY else most))
