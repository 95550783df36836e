"""A run's row in its journal: written by the client before the job is submitted, looked for before a run goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing

from flink_agents.clock import now_ms
from flink_agents.cluster.runs import Run
from flink_agents.config.build import PreparedJob
from flink_agents.durable.journal.opening import open_journal
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import RunRow
from flink_agents.errors import InvalidInput, JournalError, RunRefused

__all__ = ["register_run"]

LEASE_S = 20.0
"""Longer than a lease runs that nobody renews any more."""
LOOK_S = 0.25

Note = Callable[[str], None]


def register_run(
    prepared: PreparedJob, run: Run, *, goes_on: bool, is_ours: bool, note: Note = lambda text: None
) -> None:
    """Make sure that the journal, if there is one, knows the run, and that no live job works on it.

    Blocks, while the lease of a job that may be dead runs out for up to 20 seconds; before the job is submitted.

    Args:
        prepared: the job, with its journal.
        run: the run that is about to be worked on.
        goes_on: whether it has been worked on before; its row must then be there.
        is_ours: whether this process knows that the last job on it is over, so that its lease need not be waited for.
        note: takes a line for the user where there is something to wait for.

    Raises:
        InvalidInput: if the journal cannot be reached or used; names the place in the YAML.
        RunRefused: if the run goes on, had a journal, and this is another one; or another job works on it.
    """
    if prepared.journal is None:
        return
    had_journal = goes_on and run.record.settings.get("journal.type") not in (None, json.dumps("none"))
    try:
        with closing(open_journal(prepared.journal, create=not had_journal)) as journal:
            _register(journal, run, had_journal, f"Flink job {run.record.job_id}" if goes_on and is_ours else None)
            _refuse_live(journal, run, note)
    except (JournalError, InvalidInput) as error:
        if isinstance(error, RunRefused):
            raise
        msg = f"{prepared.config.place('journal')}: journal: {error}"
        raise InvalidInput(msg) from error


def _register(journal: Journal, run: Run, had_journal: bool, over: str | None) -> None:
    if had_journal and journal.find_run(run.run_id) is None:
        msg = (
            f"the journal {journal.place} does not know run {run.run_id}, so calls that finished after its last "
            "checkpoint would run again: put the run's own journal back, set `journal: none` to accept that, or begin "
            "anew by --fresh"
        )
        raise RunRefused(msg)
    journal.create_run(RunRow(run.run_id, run.record.job, now_ms()))
    if over is not None:
        journal.release_lease(run.run_id, over)


def _refuse_live(journal: Journal, run: Run, note: Note) -> None:
    """Wait until nobody holds the run's lease, or somebody is seen to renew it: that job is alive."""
    lease = first = journal.find_lease(run.run_id)
    if first is not None and first.until_ms > now_ms():
        note(f"the last job on run {run.run_id} may be alive: waiting for the end of its lease, or a sign of life")
    deadline = time.monotonic() + LEASE_S
    while lease is not None and lease.until_ms > now_ms():
        if lease != first or time.monotonic() > deadline:
            msg = (
                f"run {run.run_id} is live: {lease.owner} works on it, says its lease in the journal {journal.place}. "
                "Two jobs on one run would answer requests twice: stop that one first"
            )
            raise RunRefused(msg)
        time.sleep(LOOK_S)
        lease = journal.find_lease(run.run_id)
