"""What the providers that start processes may be told; plain values that travel with the job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flink_agents.errors import InvalidInput

__all__ = ["DEFAULT_ENVIRONMENT", "ProcessOptions"]

DEFAULT_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


@dataclass(frozen=True)
class ProcessOptions:
    """Bounds of executions; ``*_ms`` in milliseconds, sizes in bytes.

    Args:
        time_limit_ms: of an execution for which the model asks for none.
        max_time_limit_ms: what a model may ask for at most; more is clamped.
        grace_ms: between the request to terminate at the time limit and the kill.
        output: how much of each of the two outputs is kept.
        permits: executions at once in one subtask; others wait.
        environment: names of this process's environment variables that the code sees; all others are hidden.
        cpu_ms: processor time of each process, rounded up to seconds; of each call in a session.
        memory: private writable memory of each process.
        file_size: of each file that is written.
        network: whether the code has the network.
        folder: where working folders are made; the system's folder for temporary files if None.
        idle_ms: after which the working folder of a key is removed and a session is closed.
    """

    time_limit_ms: int = 10_000
    max_time_limit_ms: int = 60_000
    grace_ms: int = 500
    output: int = 64 * 1024
    permits: int = 8
    environment: tuple[str, ...] = DEFAULT_ENVIRONMENT
    cpu_ms: int | None = None
    memory: int | None = None
    file_size: int | None = None
    network: bool = True
    folder: str | None = None
    idle_ms: int = 600_000

    def __post_init__(self) -> None:
        for name in ("time_limit_ms", "max_time_limit_ms", "output", "permits", "idle_ms"):
            if getattr(self, name) < 1:
                msg = f"execute: {name} must be at least 1, not {getattr(self, name)!r}"
                raise InvalidInput(msg)
        if self.time_limit_ms > self.max_time_limit_ms:
            msg = f"execute: {self.time_limit_ms} ms is above the largest time limit, {self.max_time_limit_ms} ms"
            raise InvalidInput(msg)

    def clamped_ms(self, asked: int | None) -> int:
        """Return the time limit of an execution for which a model asked for ``asked``."""
        return self.time_limit_ms if asked is None else max(1, min(asked, self.max_time_limit_ms))

    def visible_environment(self, home: str, folder: str, marker: str) -> dict[str, str]:
        """Return what the executed code finds in its environment; ``folder`` is its working folder."""
        visible = {name: os.environ[name] for name in self.environment if name in os.environ}
        return {**visible, "HOME": folder, "TMPDIR": folder, marker: home}

    def process_limits(self) -> Mapping[str, Any]:
        """Return the limits as a supervisor takes them, except processor time."""
        return {"memory": self.memory, "file_size": self.file_size, "network": self.network}

    @property
    def cpu_s(self) -> int | None:
        """Processor time in whole seconds."""
        return None if self.cpu_ms is None else max(1, -(-self.cpu_ms // 1000))
