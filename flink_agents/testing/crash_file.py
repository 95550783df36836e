"""Planned crashes for jobs on a real cluster: files remember which have happened, so that every attempt knows."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from flink_agents.testing.faults import PlannedCrash, check_point

__all__ = ["CrashFile", "completed_checkpoint"]

_passing = threading.Lock()


@dataclass(frozen=True)
class CrashFile:
    """Fault that crashes at each of ``points`` once, one after the other, however often the task starts again.

    Picklable, and equal where its fields are, so that every attempt of a job shares its workers. It is called on the
    task thread and on workers; a crash on either fails the task.

    Args:
        folder: where the files are; one folder for one job.
        points: such as ``("before:timer", "after:open")``; a crash waits for the one before it.
        nth: crash at the n-th passing of a point, counted from the moment it is the next one.
        after_checkpoints: do not count passings before this many checkpoints have completed.
        between: nor, after a crash, before this many more have. Bodies that a dead attempt left behind pass
            ``body_ended`` and ``outcome_queued`` too, and a crash there harms nobody: let them end first.
        checkpoints: the folder of the job's checkpoints, needed for both.

    Raises:
        ValueError: if there is no such point.
    """

    folder: str
    points: tuple[str, ...]
    nth: int = 1
    after_checkpoints: int = 0
    between: int = 0
    checkpoints: str = ""

    def __post_init__(self) -> None:
        for point in self.points:
            check_point(point)

    @property
    def crashes(self) -> int:
        """How many of the planned crashes have happened."""
        return len(list(Path(self.folder).glob("crashed-*")))

    def __call__(self, point: str) -> None:
        """Count the passing, and crash at the armed one."""
        if point not in self.points:
            return
        # Workers pass beside the task thread, and no two of them may be the n-th.
        with _passing:
            crash = self.crashes
            if crash == len(self.points) or self.points[crash] != point or not self._is_armed(crash):
                return
            if self._count(f"passed-{crash}") != self.nth:
                return
            with Path(self.folder, f"crashed-{crash}").open("x", encoding="utf-8") as crashed:
                crashed.write(str(completed_checkpoint(self.checkpoints)))
        msg = f"planned crash at {point}"
        raise PlannedCrash(msg)

    def _is_armed(self, crash: int) -> bool:
        needed = self.after_checkpoints
        if crash and self.between:
            needed = self.between + int(Path(self.folder, f"crashed-{crash - 1}").read_text(encoding="utf-8"))
        return needed <= completed_checkpoint(self.checkpoints)

    def _count(self, name: str) -> int:
        file = os.open(Path(self.folder, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, b"x")
            return os.lseek(file, 0, os.SEEK_CUR)
        finally:
            os.close(file)


def completed_checkpoint(checkpoints: str) -> int:
    """Return the number of the newest completed checkpoint below a folder, 0 before the first."""
    if not checkpoints:
        return 0
    # Flink writes the metadata last: a checkpoint without it is one in progress, or one that was given up.
    complete = Path(checkpoints).glob("*/chk-*/_metadata")
    return max((int(path.parent.name.removeprefix("chk-")) for path in complete), default=0)
