"""What lives as long as the process and serves every operator in it: the workers, and the interpreter's settings."""

from __future__ import annotations

import gc
import logging
import math
import os
import sys
import threading

from flink_agents.faults import Fault, no_fault
from flink_agents.options import WorkerOptions
from flink_agents.scheduler.workers import Workers

__all__ = ["SWITCH_INTERVAL_VARIABLE", "process_workers", "tune_interpreter"]

_log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""With Python's 5 ms, one tool that computes delays every wake-up of the process by a hundred times as much."""

SWITCH_INTERVAL_VARIABLE = "FLINK_AGENTS_SWITCH_INTERVAL_S"
"""Environment of the TaskManager: another switch interval in seconds, or ``0`` to leave the interpreter's own."""

_workers: dict[tuple[WorkerOptions, Fault], Workers] = {}
_lock = threading.Lock()
_tuned = False
_COLLECT_AFTER = 10_000


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
    """Have threads hand the interpreter over more often, and the collector look at new objects only.

    Once a process; holds for every job in it. What is alive when the first operator opens (PyFlink and what it imports,
    hundreds of thousands of objects) stays: to look through it again and again would cost a tenth of the task thread.
    """
    global _tuned
    with _lock:
        if _tuned:
            return
        _tuned = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])
    interval_s = _switch_interval_s(os.environ.get(SWITCH_INTERVAL_VARIABLE))
    if interval_s > 0:
        sys.setswitchinterval(interval_s)


def _switch_interval_s(asked: str | None) -> float:
    if asked is None:
        return SWITCH_INTERVAL_S
    try:
        interval_s = float(asked)
        if math.isfinite(interval_s):
            return interval_s
    except ValueError:
        pass
    _log.warning("%s is %r, which is no number of seconds: it is not used", SWITCH_INTERVAL_VARIABLE, asked)
    return SWITCH_INTERVAL_S
