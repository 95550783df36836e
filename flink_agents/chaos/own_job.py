"""A user's job as chaos runs it: the same tools and options, and none of the user's folders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from flink_agents.config.build import PreparedJob, journal_spec
from flink_agents.config.schema import JsonlSink, JsonlSource, Restart, SqliteJournal
from flink_agents.config.tools import Declared
from flink_agents.errors import InvalidInput
from flink_agents.job import EXPIRES, TOLERABLE
from flink_agents.options import Execution
from flink_agents.tools.registry import build_registry

__all__ = ["WorkFolder", "own_job"]

LONGEST_INTERVAL_MS = 1_000
ROLL_MS = 1_000
CHECKPOINT_TIMEOUT = "5 s"


@dataclass(frozen=True)
class WorkFolder:
    """Where everything of a chaos run is."""

    folder: Path

    @property
    def cluster(self) -> Path:
        """Configuration and logs of the cluster."""
        return self.folder / "cluster"

    @property
    def source(self) -> Path:
        """Files of requests, moved in one by one."""
        return self.folder / "requests"

    @property
    def sink(self) -> Path:
        """Committed responses."""
        return self.folder / "out"

    @property
    def rejects(self) -> Path:
        """Committed rejects."""
        return self.folder / "rejects"

    @property
    def journal(self) -> Path:
        """The journal, if it is SQLite's."""
        return self.folder / "journal.db"

    @property
    def runs(self) -> Path:
        """The job's runs, with its checkpoints."""
        return self.folder / "state"

    @property
    def executions(self) -> Path:
        """One execution log for each TaskManager process."""
        return self.folder / "executions"


def own_job(prepared: PreparedJob, work: WorkFolder) -> PreparedJob:
    """Return the job with source, sinks, journal and checkpoints in ``work``, and a restart policy that never gives up.

    A PostgreSQL journal stays the user's: its rows are told apart by the run. Tools that would run on the task thread
    run on a worker, because they are stretched there.

    Raises:
        InvalidInput: if the job has no journal, without which a kill may run recorded calls again; or has an agent,
            whose output nobody but its author can check.
    """
    config = prepared.config
    if config.agent is not None:
        msg = (
            f"{config.place('agent')}: agent: chaos checks the responses of tool calls, and what an agent sends out is "
            "its own affair: crash it in a test with flink_agents.testing.Harness(agent=...), or leave `agent` out "
            "here to check the tools alone"
        )
        raise InvalidInput(msg)
    if prepared.journal is None:
        msg = (
            f"{config.place('journal')}: journal: chaos proves what a journal promises, and this job has none. "
            "Try it with `--set journal=sqlite`"
        )
        raise InvalidInput(msg)
    journal = config.journal
    if isinstance(journal, SqliteJournal):
        journal = journal.model_copy(update={"path": work.journal})
    flink = config.flink
    checkpoints = flink.checkpoints.model_copy(
        update={"interval": min(flink.checkpoints.interval, LONGEST_INTERVAL_MS), "directory": work.runs}
    )
    update = {
        "source": JsonlSource.model_construct(type="jsonl", path=work.source, follow=True),
        "sink": JsonlSink.model_construct(type="jsonl", path=work.sink, roll=ROLL_MS),
        "rejects": JsonlSink.model_construct(type="jsonl", path=work.rejects, roll=ROLL_MS),
        "journal": journal,
        "flink": flink.model_copy(
            update={
                "checkpoints": checkpoints,
                "restart": Restart.model_construct(
                    type="exponential-delay", initial=100, max=1_000, attempts=1_000_000
                ),
                # The last savepoint is looked through for what should not be there.
                "options": {
                    **flink.options,
                    "execution.checkpointing.snapshot-compression": "false",
                    # See job.py: a checkpoint that a kill left hanging must not hold up the run for minutes.
                    EXPIRES: CHECKPOINT_TIMEOUT,
                    TOLERABLE: "1000000",
                },
            }
        ),
    }
    own = config.model_copy(update=update)
    return replace(
        prepared,
        config=own,
        journal=journal_spec(own.journal),
        tools=tuple(_on_a_worker(tool, config.folder) for tool in prepared.tools),
    )


def _on_a_worker(tool: Declared, folder: Path) -> Declared:
    specs = build_registry([tool], [folder]).specs()
    return replace(tool, execution=Execution.THREAD) if any(s.execution is Execution.INLINE for s in specs) else tool
