"""What Flink itself measured of a job: its checkpoints, and since when a task runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

__all__ = ["Checkpoint", "checkpoints", "running_since"]


@dataclass(frozen=True)
class Checkpoint:
    """One completed checkpoint: begun when (seconds since 1970), how long it took, how large its state is."""

    begun_s: float
    took_ms: float
    state_bytes: int


def checkpoints(address: str, job: str) -> list[Checkpoint]:
    """Return the completed checkpoints that Flink remembers, oldest first; savepoints are left out."""
    history = _get(address, f"/jobs/{job}/checkpoints")["history"]
    done = [entry for entry in history if entry["status"] == "COMPLETED" and not entry["is_savepoint"]]
    return [
        Checkpoint(entry["trigger_timestamp"] / 1000, entry["end_to_end_duration"], entry["state_size"])
        for entry in reversed(done)
    ]


def running_since(address: str, job: str, vertex: str) -> float:
    """Return when the first subtask of the vertex whose name contains ``vertex`` became RUNNING, in seconds since 1970.

    A task restores its state and opens its operators before that.
    """
    found = next(entry for entry in _get(address, f"/jobs/{job}")["vertices"] if vertex in entry["name"])
    subtask = _get(address, f"/jobs/{job}/vertices/{found['id']}/subtasks/0")
    before = subtask["status-duration"]
    return float(subtask["start-time"] + before["DEPLOYING"] + before["INITIALIZING"]) / 1000


def _get(address: str, path: str) -> Any:
    answer = httpx.get(address + path, timeout=10, trust_env=False)
    answer.raise_for_status()
    return answer.json()
