"""What every action of one subtask shares: workers and journal as it sees them, clocks, counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flink_agents.clock import Clock
from flink_agents.durable.journal.rows import CallKey
from flink_agents.durable.outcome import Outcome
from flink_agents.faults import Fault
from flink_agents.scheduler.admission import Admission
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.call import Completion, RunningCall
from flink_agents.scheduler.call_journal import CallJournal

__all__ = ["Counters", "Services"]


class Counters(Protocol):
    """Where the engine counts. Task thread only."""

    def inc(self, name: str, n: int = 1) -> None:
        """Add ``n`` (may be negative) to the counter."""

    def latency(self, name: str, ms: float) -> None:
        """Record one duration in milliseconds."""


@dataclass(frozen=True, slots=True)
class Services:
    """What every action of one subtask shares. Task thread only.

    ``sweep`` takes what workers have handed back for a key up to this moment; ``note_stray`` tells the workers that a
    body goes on although its call is over (False: it has just ended); ``recorded`` reads the journal at once, for what
    an action cannot wait for.
    """

    attempt: Attempt
    admission: Admission
    clock: Clock
    counters: Counters
    fault: Fault
    result_limit: int
    journal: CallJournal | None
    sweep: Callable[[str], list[Completion]]
    note_stray: Callable[[RunningCall], bool]
    recorded: Callable[[CallKey], Outcome | None]
