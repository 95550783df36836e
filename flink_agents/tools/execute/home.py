"""The temporary folder of one open provider, and the sweep of what a killed process left of its own.

A home is ``<id>`` beside a file ``<id>.lock`` that its owner and the owner's keeper hold locked: once nobody does, both
are dead, whatever their process ids are used for since, and also seen from another container that shares the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import time
import uuid
from collections import OrderedDict
from pathlib import Path

from flink_agents.errors import InvalidInput
from flink_agents.tools.execute.supervision.keeper import kill_marked

__all__ = ["Home", "KeyFolders", "homes_folder", "sweep"]


def homes_folder(folder: str | None = None) -> Path:
    """Return the folder that this user's homes are in, made if missing, readable for nobody else.

    Raises:
        InvalidInput: if it cannot be made, or belongs to somebody else.
    """
    base = Path(folder or tempfile.gettempdir())
    path = base / f"flink-agents-execute-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        msg = f"execute: working folders cannot be made in {base}: {error.strerror}"
        raise InvalidInput(msg) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        msg = f"execute: {path} belongs to somebody else; give another folder"
        raise InvalidInput(msg)
    return path


def sweep(folder: Path) -> list[str]:
    """End and remove what dead owners left in ``folder``; return the names of their homes. Any thread."""
    swept = []
    for lock_file in sorted(folder.glob("*.lock")):
        try:
            lock = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            home = lock_file.with_suffix("")
            kill_marked(home.name)
            shutil.rmtree(home, ignore_errors=True)
            lock_file.unlink(missing_ok=True)
            swept.append(home.name)
        except BlockingIOError:
            continue  # its owner lives
        finally:
            os.close(lock)
    return swept


class Home:
    """A folder of this process's own, held by a lock until it is removed or the process is gone."""

    def __init__(self, folder: Path) -> None:
        self.name = uuid.uuid4().hex
        self.path = folder / self.name
        self.lock = _locked(folder / f"{self.name}.lock")
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove the folder, then give up the lock; twice is fine."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def _locked(path: Path) -> int:
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A sweep may have taken the new file for a dead owner's before it was locked here.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        os.close(lock)


class KeyFolders:
    """A working folder for each key, made at its first use and removed when it was idle for ``idle_s``. Any thread."""

    def __init__(self, home: Path, idle_s: float) -> None:
        self._home = home
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._used: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def enter(self, key: str) -> Path:
        """Return the folder of a key, which stays until ``leave``."""
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        path = self._home / name
        with self._lock:
            users, _ = self._used.pop(name, (0, 0.0))
            self._used[name] = (users + 1, time.monotonic())
            # Also where it was known: the code may have removed it.
            path.mkdir(mode=0o700, exist_ok=True)
        return path

    def leave(self, path: Path) -> None:
        """Note the end of a use, and remove the folders that were idle for too long."""
        now = time.monotonic()
        with self._lock:
            users, _ = self._used.pop(path.name, (1, 0.0))
            self._used[path.name] = (users - 1, now)
            idle = []
            for name, (count, last) in self._used.items():
                if last + self._idle_s > now:
                    break
                if count == 0:
                    idle.append(name)
            for name in idle:
                del self._used[name]
                # Renamed under the lock, removed outside: the next use of the key makes a new one at once.
                with contextlib.suppress(OSError):
                    (self._home / name).rename(self._home / f"{name}.idle-{uuid.uuid4().hex}")
        for name in idle:
            for gone in self._home.glob(f"{name}.idle-*"):
                shutil.rmtree(gone, ignore_errors=True)
