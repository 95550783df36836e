"""A journal's writer without a thread: operations are applied when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from flink_agents.durable.journal.operations import Operation
from flink_agents.durable.journal.protocol import Journal
from flink_agents.errors import JournalError, JournalLost

__all__ = ["StepWriter"]


class StepWriter:
    """Applies what was submitted in ``step``, in one transaction, and answers after it. On the test's thread.

    What was submitted and not applied is lost in a crash, as in a killed process.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.commits = 0
        self._waiting: deque[tuple[Operation, Callable[[Any], None] | None, Callable[[], None] | None]] = deque()

    def submit(
        self,
        operation: Operation,
        on_done: Callable[[Any], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Queue an operation."""
        self._waiting.append((operation, on_done, then))

    def step(self) -> bool:
        """Apply all that waits; return whether there was anything."""
        batch, self._waiting = list(self._waiting), deque()
        if not batch:
            return False
        try:
            answers: list[Any] = list(self.journal.apply([operation for operation, _, _ in batch]))
            self.commits += 1
        except JournalError as error:
            answers = [JournalLost(str(error))] * len(batch)
        for (_, on_done, _), answer in zip(batch, answers, strict=True):
            if on_done is not None:
                on_done(answer)
        for then in dict.fromkeys(then for _, _, then in batch if then is not None):
            then()
        return True

    def drop(self) -> None:
        """Lose what was not applied yet."""
        self._waiting.clear()
