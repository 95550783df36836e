"""A run's row in its journal: written by the client before the job is submitted, looked for before a run goes on."""

from __future__ import annotations

import json
from contextlib import closing

from flink_agents.clock import now_ms
from flink_agents.cluster.runs import Run
from flink_agents.config.build import PreparedJob
from flink_agents.durable.journal.opening import open_journal
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import RunRow
from flink_agents.errors import InvalidInput, JournalError, RunRefused

__all__ = ["register_run"]


def register_run(prepared: PreparedJob, run: Run, *, goes_on: bool, is_ours: bool) -> None:
    """Make sure that the journal, if there is one, knows the run. Blocks; before the job is submitted.

    Args:
        prepared: the job, with its journal.
        run: the run that is about to be worked on.
        goes_on: whether it has been worked on before; its row must then be there.
        is_ours: whether this process knows that the last job on it is over, so that its lease need not be waited for.

    Raises:
        InvalidInput: if the journal cannot be reached or used; names the place in the YAML.
        RunRefused: if the run goes on, had a journal, and this is another one.
    """
    if prepared.journal is None:
        return
    had_journal = goes_on and run.record.settings.get("journal.type") not in (None, json.dumps("none"))
    try:
        with closing(open_journal(prepared.journal, create=not had_journal)) as journal:
            _register(journal, run, had_journal, f"Flink job {run.record.job_id}" if goes_on and is_ours else None)
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
