"""The one thread per process that commits to a journal: what waits goes into one transaction, answers come after it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from flink_agents.clock import Clock, now_ms
from flink_agents.durable.journal.operations import Answered, Finish, Operation, Result
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.outcome import Succeeded
from flink_agents.errors import JournalError, JournalLost, JournalUnavailable

__all__ = ["GIVE_UP_S", "JournalWriter", "OnDone", "WriterStatistics"]

_log = logging.getLogger(__name__)

GIVE_UP_S = 30.0
BATCH_OPERATIONS = 1000
BATCH_BYTES = 8 * 1024 * 1024
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
BUSY_OPERATIONS = 250
BUSY_WINDOW_S = 0.1
GATHER_S = 0.008
LAZY_S = 1.0
LAZY_OPERATIONS = 32
PRUNE_EVERY_S = 60.0
PRUNE_CHUNK = 500
PRUNE_PAUSE_S = 0.05

OnDone: TypeAlias = "Callable[[Result | JournalLost], None]"


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """What a writer did so far: ``queued`` operations wait at this moment, ``lost`` were reported as such."""

    queued: int
    operations: int
    commits: int
    retries: int
    lost: int
    pruned: int

    @property
    def mean_batch(self) -> float:
        """Operations in one commit, on average."""
        return self.operations / self.commits if self.commits else 0.0


class _Waiting(NamedTuple):
    """One submitted operation; without one it only waits for all before it."""

    operation: Operation | None
    on_done: OnDone | None
    then: Callable[[], None] | None = None


class JournalWriter:
    """Applies operations in the order of their submission, in as few commits as there are moments to wait for one.

    Its thread is a daemon that never ends and survives everything, so one writer serves all attempts of the process.
    While the journal is unavailable the same batch is tried again, with a growing pause, for ``give_up_s`` seconds.
    That is safe because every operation may be repeated (see ``operations``): whether the lost commit took place or
    not, the rows afterwards are the same, and nothing later was written in between, since this thread writes in order.
    After that, or at once where trying again cannot help, everything that waits is told ``JournalLost``; later
    submissions are tried afresh. Never says that something is recorded before its commit returned.

    ``retention_ms`` is how long rows stay after their request was answered; None never prunes.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        retention_ms: int | None = None,
        give_up_s: float = GIVE_UP_S,
        clock: Clock = now_ms,
        prune_every_s: float = PRUNE_EVERY_S,
    ) -> None:
        self.journal = journal
        self._retention_ms = retention_ms
        self._give_up_s = give_up_s
        self._clock = clock
        self._prune_every_s = prune_every_s
        self._queue: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        # The rest is the writer thread's own; statistics are read from anywhere.
        self._lazy: deque[Answered] = deque()
        self._lazy_since = 0.0
        self._next_prune = time.monotonic() + prune_every_s
        self._in_hand = 0
        self._committed_s = self._window_s = 0.0
        self._in_window = self._in_last_window = 0
        self._operations = self._commits = self._retries = self._lost = self._pruned = 0
        self._pause = threading.Event()
        threading.Thread(target=self._run, name="flink-agents-journal", daemon=True).start()

    def submit(
        self, operation: Operation, on_done: OnDone | None = None, then: Callable[[], None] | None = None
    ) -> None:
        """Have the operation applied; any thread, returns at once.

        ``on_done`` is called on the writer thread, after the commit, with the operation's answer, or with the
        ``JournalLost`` that the task must fail with. It must be quick, since all other answers wait for it; what it
        raises is logged. ``then`` is called once when all operations of a commit have their answers, however many of
        them name it: what was put aside meanwhile can be handed over together. ``Answered`` without ``on_done`` waits
        for others like it, for a second at most, and may be dropped if the journal is lost.
        """
        self._queue.put(_Waiting(operation, on_done, then))

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that was submitted before is applied or lost; return False if that takes longer.

        For ``open``: what an earlier attempt in this process handed over must be there before a new one reads. Not on
        the writer thread.
        """
        done = threading.Event()
        self._queue.put(_Waiting(None, lambda _: done.set()))
        return done.wait(timeout_s)

    def statistics(self) -> WriterStatistics:
        """Return what the writer did so far. Any thread."""
        queued = self._queue.qsize() + self._in_hand
        return WriterStatistics(queued, self._operations, self._commits, self._retries, self._lost, self._pruned)

    def _run(self) -> None:
        while True:
            try:
                batch = self._next_batch()
                if batch:
                    self._commit(batch)
                # An answer may hold a whole attempt: it must not live until the next batch.
                del batch
                self._prune_if_due()
            except BaseException:  # the thread must outlive whatever this is: every later operation depends on it
                _log.exception("the journal's writer goes on after an error of its own")

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        due = self._next_due()
        while len(batch) < BATCH_OPERATIONS and size < BATCH_BYTES:
            if not batch and self._lazy and time.monotonic() >= due:
                break
            try:
                # Only the first one is waited for: whatever came in during the last commit is the next batch.
                wait_s = 0 if batch else max(0.0, due - time.monotonic())
                waiting = self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait()
            except queue.Empty:
                break
            if isinstance(waiting.operation, Answered) and waiting.on_done is None:
                if not self._lazy:
                    self._lazy_since = time.monotonic()
                self._lazy.append(waiting.operation)
                due = self._next_due()
                continue
            if not batch:
                self._gather()
            size += _size(waiting.operation)
            batch.append(waiting)
        return self._with_lazy(batch)

    def _gather(self) -> None:
        """Let more come in before a batch is closed, where many do: a commit costs far more than one more row in it.

        A call then waits up to ``GATHER_S`` longer. Where operations are few, none waits for another.
        """
        left_s = self._committed_s + GATHER_S - time.monotonic()
        if left_s > 0 and max(self._in_last_window, self._in_window) >= BUSY_OPERATIONS:
            self._pause.wait(left_s)

    def _count(self, operations: int) -> None:
        """Note a commit, and how many operations there are in a window of time."""
        self._operations += operations
        self._commits += 1
        self._committed_s = now = time.monotonic()
        since_s = now - self._window_s
        if since_s >= BUSY_WINDOW_S:
            self._in_last_window = self._in_window if since_s < 2 * BUSY_WINDOW_S else 0
            self._in_window, self._window_s = 0, now
        self._in_window += operations

    def _next_due(self) -> float:
        due = self._next_prune if self._retention_ms is not None else time.monotonic() + self._prune_every_s
        return min(due, self._lazy_since + LAZY_S) if self._lazy else due

    def _with_lazy(self, batch: list[_Waiting]) -> list[_Waiting]:
        """Add the marks that nobody waits for, some at a time: one in each batch would make every other call wait."""
        if len(self._lazy) >= LAZY_OPERATIONS or (self._lazy and time.monotonic() >= self._lazy_since + LAZY_S):
            while self._lazy and len(batch) < BATCH_OPERATIONS:
                batch.append(_Waiting(self._lazy.popleft(), None))
        return batch

    def _commit(self, batch: list[_Waiting]) -> None:
        self._in_hand = len(batch)
        operations = [waiting.operation for waiting in batch if waiting.operation is not None]
        try:
            results = self._applied(operations)
        except BaseException as error:
            # A plain JournalError is nothing that is known to be wrong with the journal: it may be one operation.
            if isinstance(error, JournalError) and type(error) is not JournalError:
                self._give_up(batch, error)
            else:
                self._apply_one_by_one(batch, error)
            return
        answers = iter(results)
        for waiting in batch:
            self._tell(waiting, None if waiting.operation is None else next(answers))
        self._go_on(batch)

    def _applied(self, operations: Sequence[Operation]) -> list[Result]:
        """Apply the batch, again and again while the journal is unavailable.

        Raises:
            JournalError: if it cannot be, or not within the time.
        """
        if not operations:
            return []
        deadline = time.monotonic() + self._give_up_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                results = self.journal.apply(operations)
            except JournalUnavailable as error:
                if time.monotonic() + pause_s > deadline:
                    raise
                self._retries += 1
                _log.warning("%d operations wait for the journal: %s", len(operations), error)
                self._pause.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self._count(len(operations))
                return results

    def _apply_one_by_one(self, batch: list[_Waiting], error: BaseException) -> None:
        """Find the operation that breaks the batch, so that the others do not go down with it."""
        if len(batch) == 1:
            self._lose(batch, error)
            return
        for waiting in batch:
            self._commit([waiting])

    def _give_up(self, batch: list[_Waiting], error: JournalError) -> None:
        """Tell all that waits: what came in during the tries would only wait as long once more."""
        _log.error("the journal is lost to %d operations: %s", len(batch) + self._queue.qsize(), error)
        # Nobody else takes from the queue.
        self._lose([*batch, *(self._queue.get_nowait() for _ in range(self._queue.qsize()))], error)
        self._lazy.clear()

    def _lose(self, batch: Sequence[_Waiting], error: BaseException) -> None:
        for waiting in batch:
            if waiting.operation is not None:
                self._lost += 1
            lost = JournalLost(f"not known to be recorded: {error}")
            lost.__cause__ = error
            self._tell(waiting, lost)
        self._go_on(batch)

    def _tell(self, waiting: _Waiting, result: Result | JournalLost) -> None:
        self._in_hand = max(0, self._in_hand - 1)
        if waiting.on_done is None:
            return
        try:
            waiting.on_done(result)
        except BaseException:  # its own trouble, not that of the other operations of the batch
            _log.exception("what waited for the journal failed on the answer to %s", type(waiting.operation).__name__)

    @staticmethod
    def _go_on(batch: Sequence[_Waiting]) -> None:
        for then in dict.fromkeys(waiting.then for waiting in batch if waiting.then is not None):
            try:
                then()
            except BaseException:  # its own trouble, as above
                _log.exception("what waited for the journal failed after its answers")

    def _prune_if_due(self) -> None:
        if self._retention_ms is None or time.monotonic() < self._next_prune:
            return
        # Set first: whatever goes wrong, it is not tried again at once.
        self._next_prune = time.monotonic() + self._prune_every_s
        try:
            pruned = self.journal.prune(self._clock(), self._retention_ms, PRUNE_CHUNK)
        except JournalError as error:
            _log.warning("old rows stay in the journal for now: %s", error)
            return
        self._pruned += pruned
        if pruned == PRUNE_CHUNK:
            # More may be left, but what waits by then is not kept waiting by all of it.
            self._next_prune = time.monotonic() + PRUNE_PAUSE_S


def _size(operation: Operation | None) -> int:
    if isinstance(operation, Finish) and isinstance(operation.outcome, Succeeded):
        return len(operation.outcome.text)
    return 0
