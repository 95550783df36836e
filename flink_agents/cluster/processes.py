"""A process that was started earlier, perhaps by another command: found again by its id and its start."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["StartedProcess"]

PROC = Path("/proc")
POLL_S = 0.02


@dataclass(frozen=True)
class StartedProcess:
    """One process, for good: ids are given away again, an id together with its start is not. Any thread."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> StartedProcess | None:
        """Return the process that has this id now, or None if there is none or it has ended."""
        started = _started(pid)
        return None if started is None else cls(pid, started)

    @property
    def alive(self) -> bool:
        """True until it has ended, also while it is stopped by a signal."""
        return _started(self.pid) == self.started

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this process, and to no later one that has its id; return whether it was alive."""
        if hasattr(os, "pidfd_open"):
            try:
                descriptor = os.pidfd_open(self.pid)
            except OSError:
                return False
            try:
                # From here on the descriptor stands for the process that is looked at, whatever becomes of its id.
                if not self.alive:
                    return False
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                return False
            finally:
                os.close(descriptor)
            return True
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait(self, timeout_s: float) -> bool:
        """Return whether it ended within ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def end(self, patience_s: float) -> None:
        """Ask it to end, and kill it after ``patience_s`` seconds; returns once it has ended."""
        self.signal(signal.SIGTERM)
        # One that stands still hears nothing else before it goes on.
        self.signal(signal.SIGCONT)
        if not self.wait(patience_s):
            self.signal(signal.SIGKILL)
            self.wait(patience_s)


def _started(pid: int) -> str | None:
    """Return when a process started, in a form that only serves to be compared; None if it has ended."""
    if PROC.joinpath("self", "stat").exists():
        try:
            # The name in brackets may hold anything; what counts is found by its place after it.
            text = PROC.joinpath(str(pid), "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        except OSError:
            return None
        fields = text.split()
        state, threads, start = fields[0], int(fields[17]), fields[19]
        # The first thread may be a zombie while others are still on their way out.
        return None if state in {"Z", "X"} and threads <= 1 else f"{_boot()}:{start}"
    asked = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, start = asked.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else start.strip()


def _boot() -> str:
    # Starts are counted from the boot of the machine, so those of two boots may be equal.
    try:
        return PROC.joinpath("sys", "kernel", "random", "boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return ""
