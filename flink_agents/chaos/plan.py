"""Which TaskManager is killed when: drawn from a seed, so that a run can be repeated."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Moment", "Strike", "chosen", "strikes"]

DELAY_S = (0.2, 2.5)
"""How long a recovered job works before the next kill is due."""
AGAIN_S = (0.0, 0.8)
"""How long after a kill the one follows that does not wait for the recovery, if bodies run by then."""


class Moment(str, Enum):
    """When a kill comes.

    ``WORK``: at any time while calls run. ``CHECKPOINT``: while one is pending, after another has completed. ``AGAIN``:
    right after another kill, as soon as a body runs anywhere. ``OPEN``: while Flink restores state and opens the
    operator, wherever it hits; it counts only where a TaskManager that lived on still runs bodies of the attempt
    before. ``RESTORE``: at the first body that the restored attempt begins, so that of what it restored some calls are
    answered or run and others wait.
    """

    WORK = "work"
    CHECKPOINT = "checkpoint"
    AGAIN = "again"
    OPEN = "open"
    RESTORE = "restore"


BLOCK = (Moment.WORK, Moment.WORK, Moment.CHECKPOINT, Moment.AGAIN, Moment.OPEN, Moment.WORK, Moment.RESTORE)


@dataclass(frozen=True)
class Strike:
    """One planned kill. ``delay_s`` is waited first; ``pick``, from 0 to 1, chooses among the TaskManagers."""

    number: int
    moment: Moment
    delay_s: float
    pick: float


def strikes(seed: int) -> Iterator[Strike]:
    """Yield kills without end, the same ones for the same seed; each seven of them hold every moment."""
    drawn = random.Random(f"flink-agents chaos {seed}")
    number = 0
    while True:
        block = list(BLOCK)
        drawn.shuffle(block)
        for moment in block:
            number += 1
            # There is nothing yet that the first one could follow.
            at = Moment.WORK if number == 1 else moment
            bounds = AGAIN_S if at is Moment.AGAIN else DELAY_S
            yield Strike(number, at, round(drawn.uniform(*bounds), 3), drawn.random())


def chosen(strike: Strike, candidates: Sequence[int]) -> int:
    """Return the TaskManager that a strike hits, by its number; ``candidates`` is not empty."""
    ordered = sorted(candidates)
    return ordered[min(int(strike.pick * len(ordered)), len(ordered) - 1)]
