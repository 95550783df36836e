"""The few Linux calls that Python has no name for, and what /proc tells of processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator

__all__ = [
    "MARKER",
    "become_subreaper",
    "children_of",
    "die_with_parent",
    "gain_no_privileges",
    "leave_network",
    "marked",
    "parent_of",
    "signal_child",
]

MARKER = "FLINK_AGENTS_EXECUTE"
"""Environment variable of everything that is started here: the name of the home that it belongs to."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Have orphans below this process become its children, whatever group or session they moved to."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent, which has a single thread, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def gain_no_privileges() -> None:
    """Make set-user-id programs run without it: what gained privileges could not be ended any more."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def leave_network() -> None:
    """Move this process to a network of its own that has no way out. Raises ``OSError`` where that is not allowed."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _checked(_libc.unshare(_CLONE_NEWNET))
        return
    _checked(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _prctl(option: int, value: int) -> None:
    _checked(_libc.prctl(option, value, 0, 0, 0))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def parent_of(pid: int) -> int | None:
    """Return the parent of a process, or None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, parentheses included.
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def children_of(pid: int) -> list[int]:
    """Return the children of a process; empty if it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
            return found
        # A kernel without that file: every process is asked for its parent.
        return [other for other in _processes() if parent_of(other) == pid]
    except OSError:
        return found
    return found


def signal_child(pid: int, parent: int, number: signal.Signals) -> None:
    """Signal ``pid`` if it still is the child of ``parent``, so that a number given away anew hits nobody else."""
    # Gone meanwhile, or not ours to signal: whoever waits for its end notices.
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if parent_of(pid) in (parent, os.getpid()):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def marked(home: str) -> list[int]:
    """Return the processes, this one excepted, whose environment says that they belong to ``home``."""
    wanted = f"{MARKER}={home}".encode()
    found = []
    for pid in _processes():
        if pid == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())
