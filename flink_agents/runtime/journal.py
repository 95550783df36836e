"""The journal as one attempt of the operator uses it: opened behind all earlier work, with a lease on the run."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from flink_agents.clock import Clock, now_ms
from flink_agents.durable.journal.opening import JournalSpec, journal_writer
from flink_agents.durable.journal.operations import RenewLease
from flink_agents.durable.journal.writer import GIVE_UP_S, JournalWriter, WriterStatistics
from flink_agents.errors import FrameworkFault, InvalidInput, JournalUnavailable, RunInUse, RunUnknown
from flink_agents.runtime.job_parameters import RUN_ID_PARAMETER
from flink_agents.runtime.subtask import JournalPort
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.run import Counters

__all__ = ["LEASE_MS", "TaskJournal", "open_journal_of"]

_log = logging.getLogger(__name__)

LEASE_MS = 15_000
RENEW_S = 4.0
OPEN_S = GIVE_UP_S
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
REPORT_S = 1.0

T = TypeVar("T")


class TaskJournal:
    """An open journal of one attempt. Task thread only; the lease is renewed until the attempt is interrupted."""

    def __init__(self, writer: JournalWriter, port: JournalPort) -> None:
        self.port = port
        self._writer = writer
        self._report_s = 0.0

    def report(self, counters: Counters) -> None:
        """Count what the process's writer did since any subtask last reported it; does that once a second."""
        now = time.monotonic()
        if now < self._report_s:
            return
        self._report_s = now + REPORT_S
        done = self._writer.statistics()
        with _reporting:
            before = _reported.get(self._writer, WriterStatistics(0, 0, 0, 0, 0, 0))
            _reported[self._writer] = done
        for name in ("operations", "commits", "retries", "lost", "pruned"):
            n = getattr(done, name) - getattr(before, name)
            if n:
                counters.inc(f"journal_{name}", n)


_reported: dict[JournalWriter, WriterStatistics] = {}
_reporting = threading.Lock()


def open_journal_of(
    spec: JournalSpec,
    run_id: str,
    attempt: Attempt,
    *,
    subtask: int,
    parallelism: int,
    owner: str,
    clock: Clock = now_ms,
) -> TaskJournal:
    """Register ``attempt`` with the journal and take the run's lease for ``owner``, the Flink job.

    Task thread, in ``open``.
    What earlier attempts of this process handed to the writer is applied before anything is read. A journal that is
    down, or a lease that a dead job left behind, is waited for, so that a restart strategy need not be patient.

    Raises:
        InvalidInput: if the job has no run id, or the journal's driver or DSN is missing on this machine.
        JournalError: if the journal cannot be used, does not know the run, or another live job works on it.
    """
    if not run_id:
        msg = f"a journal needs a run id: set the job parameter {RUN_ID_PARAMETER}, or pass run_id to tool_calls"
        raise InvalidInput(msg)
    writer = journal_writer(spec)
    journal = writer.journal
    if not writer.wait(OPEN_S + LONGEST_PAUSE_S):
        msg = f"the journal {journal.place} has not taken what earlier attempts left within {OPEN_S:g} s"
        raise JournalUnavailable(msg)
    first = _patiently(lambda: journal.open_attempt(run_id, attempt.id, subtask, parallelism))
    _patiently(lambda: journal.acquire_lease(run_id, owner, LEASE_MS, clock()))
    _leases().keep(attempt, writer, partial(RenewLease, run_id, owner, LEASE_MS), clock)
    return TaskJournal(writer, JournalPort(writer, first, partial(journal.requests_from, run_id), journal.outcome_of))


def _patiently(step: Callable[[], T]) -> T:
    deadline = time.monotonic() + OPEN_S
    pause_s = FIRST_PAUSE_S
    waiting = threading.Event()
    while True:
        try:
            return step()
        except (JournalUnavailable, RunInUse) as error:
            if time.monotonic() + pause_s > deadline:
                raise
            _log.warning("the attempt waits for its journal: %s", error)
        waiting.wait(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class _Leases:
    """Renews leases through the writers, on one thread that never ends; holds no attempt."""

    def __init__(self) -> None:
        self._kept: list[Callable[[], bool]] = []
        self._lock = threading.Lock()
        self._pause = threading.Event()
        threading.Thread(target=self._run, name="flink-agents-lease", daemon=True).start()

    def keep(self, attempt: Attempt, writer: JournalWriter, renewal: Callable[[int], RenewLease], clock: Clock) -> None:
        """Renew until the attempt is over; one that lost its lease fails its task. Any thread."""
        known = weakref.ref(attempt)

        def renew() -> bool:
            alive = known()
            if alive is None or alive.interrupted:
                return False
            writer.submit(renewal(clock()), partial(_renewed, known))
            return True

        with self._lock:
            self._kept.append(renew)

    def _run(self) -> None:
        while True:
            self._pause.wait(RENEW_S)
            with self._lock:
                kept = list(self._kept)
            over = [renew for renew in kept if not renew()]
            with self._lock:
                self._kept = [renew for renew in self._kept if renew not in over]


def _renewed(known: weakref.ref[Attempt], answer: Any) -> None:
    """Take the answer to a renewal, on the writer's thread.

    A journal that is lost is the calls' own trouble, and an attempt that ended meanwhile needs no lease.
    """
    attempt = known()
    if attempt is not None and not attempt.interrupted and isinstance(answer, (RunInUse, RunUnknown)):
        attempt.fail(FrameworkFault(f"another job has taken this one's run: {answer}"))


_kept_leases: list[_Leases] = []


def _leases() -> _Leases:
    with _reporting:
        if not _kept_leases:
            _kept_leases.append(_Leases())
        return _kept_leases[0]
