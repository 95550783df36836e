"""What lives as long as the process and serves every operator in it: the workers, and the interpreter's settings."""

from __future__ import annotations

import sys
import threading

from flink_agents.faults import Fault, no_fault
from flink_agents.options import WorkerOptions
from flink_agents.scheduler.workers import Workers

__all__ = ["process_workers", "tune_interpreter"]

SWITCH_INTERVAL_S = 0.0001
"""With Python's 5 ms, one tool that computes delays every wake-up of the process by a hundred times as much.

Flink's source thread runs Python too, for each record's key: while the task thread computes, it gets the interpreter
once an interval, so the interval also bounds the rate of records.
"""

_workers: dict[tuple[WorkerOptions, Fault], Workers] = {}
_lock = threading.Lock()


def process_workers(options: WorkerOptions, fault: Fault = no_fault) -> Workers:
    """Return the workers of this process for these options, started at the first call. Any thread.

    Every subtask and every attempt with equal options shares them: their threads never end, so an attempt that brought
    its own would leave them behind.
    """
    with _lock:
        workers = _workers.get((options, fault))
        if workers is None:
            workers = _workers[options, fault] = Workers(options, fault)
        return workers


def tune_interpreter() -> None:
    """Have threads hand the interpreter over more often. Idempotent; holds for every job of the process."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
