"""One live run of a job at a time: a lock in the job's folder that goes with the processes that hold it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from flink_agents.errors import RunRefused

__all__ = ["LOCK_FILE", "JobLock"]

LOCK_FILE = "lock"
# A command that was killed takes its JVM with it, but not in the same instant.
ORPHAN_S = 20.0
ALIVE_S = 2.0
POLL_S = 0.05


class JobLock:
    """Held while a run of the job is live; a context manager.

    The descriptor is handed on to the JVM: after a ``kill -9`` of the command, the JVM may go on for a moment and
    complete one more checkpoint, which a resume must not miss. The kernel frees the lock when both are gone.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / LOCK_FILE
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """The open file that holds the lock, for a process that has to hold it too."""
        if self._descriptor is None:
            msg = f"{self._file} is not locked"
            raise ValueError(msg)
        return self._descriptor

    def __enter__(self) -> JobLock:
        """Take the lock; waits some seconds for processes that are about to end.

        Raises:
            RunRefused: if another run of the job is live; names its process.
            OSError: if the file cannot be made or locked.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self, descriptor: int) -> None:
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _noted(descriptor)
                alive = holder is None or _alive(holder)
                if time.monotonic() - began > (ALIVE_S if alive else ORPHAN_S):
                    raise RunRefused(self._refusal(holder, alive)) from None
                time.sleep(POLL_S)
            else:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                return

    def _refusal(self, holder: int | None, alive: bool) -> str:
        job = self._file.parent.name
        if alive:
            who = f"process {holder}" if holder is not None else "another process"
            return (
                f"job '{job}' is running already: {who} holds {self._file}; stop it first (kill -INT, or Ctrl-C there)"
            )
        return (
            f"the last run of job '{job}' was cut off, but something that it started is still alive and holds "
            f"{self._file}: end that first (fuser {self._file} names it)"
        )


def _noted(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
