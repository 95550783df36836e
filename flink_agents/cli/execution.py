"""One job on an embedded cluster, from the start of its JVM to its last state."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from flink_agents.cli.interrupts import Interrupts
from flink_agents.cli.output import JvmOutput
from flink_agents.cli.progress import Progress
from flink_agents.cli.stopping import Stop, stop
from flink_agents.cli.summary import Summary
from flink_agents.cluster.causes import Cause
from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.cluster.rest import JobReport
from flink_agents.cluster.resume import settings
from flink_agents.cluster.runs import Ending, Run, Totals, digest
from flink_agents.cluster.snapshots import Snapshot, newest
from flink_agents.cluster.statistics import StatisticsFolder
from flink_agents.config.build import PreparedJob
from flink_agents.config.schema import JsonlSink
from flink_agents.errors import CannotRestore, ClusterFault
from flink_agents.job import FIXED_JOB_ID, build, flink_options

__all__ = ["Execution", "Outcome"]

POLL_S = 0.1
SAMPLE_S = 0.5
# A cluster that answers nothing for this long although its JVM lives is given up.
SILENCE_S = 30.0

COUNTS = ("requests", "responses", "rejects")
LIVE = frozenset({*COUNTS, "in_flight"})


@dataclass(frozen=True)
class Outcome:
    """How a job ended. ``failure`` says in a sentence why it failed; ``cause`` is what Flink knows about it.

    ``uncertain`` are counts last seen that no completed checkpoint has made certain, so the summary is without them.
    ``stopped`` is how an orderly stop went, ``snapshot`` what the run can go on from, ``hidden`` the sink's folder
    where a file is not visible yet.
    """

    how: Ending
    summary: Summary
    started: bool = False
    uncertain: Mapping[str, int] = field(default_factory=dict)
    failure: str | None = None
    cause: Cause | None = None
    restarts: int = 0
    stopped: Stop | None = None
    snapshot: Path | None = None
    hidden: Path | None = None


class Execution:
    """Runs one job once, from ``restore`` if given. Used by the main thread, which gets Ctrl-C."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        prepared: PreparedJob,
        run: Run,
        restore: Snapshot | None,
        *,
        interrupts: Interrupts,
        output: JvmOutput,
        progress: Progress,
    ) -> None:
        self._cluster = cluster
        self._prepared = prepared
        self._run = run
        self._restore = restore
        self._interrupts = interrupts
        self._output = output
        self._progress = progress
        self._statistics = StatisticsFolder(run.statistics)
        self._job_id: str | None = None
        self._report: JobReport | None = None
        self._began = time.monotonic()
        self._restarts = 0
        self._checkpoints = 0
        self._noted = Totals()
        # What was certain when the job began: its metrics count from zero.
        self._base: Mapping[str, int] = {}
        self._live: Mapping[str, int] = {}

    def run(self) -> Outcome:
        """Start the cluster, submit the job, wait for its end and stop the cluster, whatever happens in between.

        The statistics are read at the end, so the summary counts what is certain: responses that a completed
        checkpoint has made visible.

        Raises:
            CannotRestore: if Flink cannot restore what the job was to go on from; nothing has happened then.
        """
        failure = stopped = None
        at_once = False
        try:
            self._base = self._statistics.totals()
            self._progress.show("starting Flink", {})
            # From here on Ctrl-C is to end what runs in order: a JVM half started would be left behind.
            self._interrupts.orderly = True
            self._cluster.start()
            if self._interrupts.asked:
                raise KeyboardInterrupt
            self._submit()
            how = self._watch()
            if how is None:
                stopped = self._stop()
                how = stopped.how
            return self._outcome(how, stopped)
        except ClusterFault as error:
            how, failure = Ending.FAILED, str(error)
        except KeyboardInterrupt:
            # While Flink starts there is nothing to end in order; later, it was asked a second time.
            how = Ending.STOPPED if self._job_id is None else Ending.CUT_OFF
            at_once = True
        finally:
            self._interrupts.ending()
            self._cluster.close(at_once=at_once)
        return self._ended(how, failure=failure)

    def _submit(self) -> None:
        config = self._prepared.config
        folder = self._restore.folder if self._restore else None
        options = flink_options(config, self._run, folder)
        # Drawn here, so that the run's record names the job before the job can have done anything.
        self._job_id = secrets.token_hex(16)
        options[FIXED_JOB_ID] = self._job_id
        self._run.submitted(self._job_id, digest(config.model_dump_json()), settings(config))
        try:
            self._cluster.submit(
                config.name, options, lambda env: build(env, self._prepared, self._run, marked_prints=True)
            )
        except ClusterFault as error:
            self._cluster.check_alive()
            if self._restore and "Could not parse value" not in str(error):
                raise CannotRestore(f"{self._restore} cannot be restored. {error}") from error
            raise
        self._began = time.monotonic()
        origin = f" goes on from {self._restore}" if self._restore else " started"
        self._progress.note(f"job '{config.name}'{origin}, run {self._run.run_id}, log {self._cluster.log_file}")

    def _watch(self) -> Ending | None:
        """Return how the job ended, once it has, or None when it is to be stopped."""
        sampled = 0.0
        heard = time.monotonic()
        while not (self._interrupts.asked or self._output.closed):
            try:
                report = self._look()
                if report.ended:
                    self._check_restored()
                    return {"FINISHED": Ending.FINISHED, "FAILED": Ending.FAILED}.get(report.state, Ending.STOPPED)
                if time.monotonic() - sampled >= SAMPLE_S:
                    self._sample(report)
                    sampled = time.monotonic()
                heard = time.monotonic()
            except ClusterFault:
                self._cluster.check_alive()
                if time.monotonic() - heard > SILENCE_S:
                    raise
            time.sleep(POLL_S)
        return None

    def _stop(self) -> Stop:
        self._progress.note("stopping with a savepoint; Ctrl-C again ends at once")
        try:
            stopped = stop(self._cluster.rest, self._job_id or "", self._run.savepoints)
            self._look()
        except ClusterFault:
            self._cluster.check_alive()
            raise
        return stopped

    def _look(self) -> JobReport:
        self._report = self._cluster.rest.job(self._job_id or "")
        return self._report

    def _sample(self, report: JobReport) -> None:
        rest = self._cluster.rest
        if report.at_its_end or rest.input_ended(report.job_id):
            rest.complete_last_checkpoint(report.job_id)
        restarts = rest.restarts(report.job_id)
        if restarts > self._restarts:
            self._check_restored()
            cause = rest.failure(report.job_id)
            self._progress.note(f"restart {restarts}: {cause.summary if cause else 'Flink reported no cause'}")
        self._restarts = restarts
        self._checkpoints = rest.completed_checkpoints(report.job_id)
        live = rest.counters(report.job_id, LIVE)
        certain = self._statistics.totals()
        # Metrics are ahead of the statistics by up to a checkpoint, and begin again at zero with each restart.
        self._live = {name: max(self._base[name] + live.get(name, 0), certain[name]) for name in COUNTS}
        self._progress.show(report.state.lower(), {**self._live, "calls in flight": live.get("in_flight", 0)})
        totals = self._totals()
        if replace(totals, wall_s=self._noted.wall_s) != self._noted:
            self._run.progress(totals)
            self._noted = totals

    def _check_restored(self) -> None:
        """Give up a job that cannot read what it was to go on from: each restart would read the same."""
        if self._restore is None or self._cluster.rest.completed_checkpoints(self._job_id or ""):
            return
        cause = self._cluster.rest.failure(self._job_id or "")
        if cause is not None and cause.restoring:
            raise CannotRestore(f"{self._restore} cannot be restored. {cause.summary} (log: {self._cluster.log_file})")

    def _outcome(self, how: Ending, stopped: Stop | None) -> Outcome:
        rest, job_id = self._cluster.rest, self._job_id or ""
        self._restarts = rest.restarts(job_id)
        self._checkpoints = rest.completed_checkpoints(job_id)
        cause = rest.failure(job_id) if how is Ending.FAILED else None
        # Only now: what the JVM is still about to write counts as well.
        self._interrupts.ending()
        self._cluster.close()
        outcome = self._ended(how, failure=cause.summary if cause else None)
        return replace(outcome, cause=cause, stopped=stopped, hidden=self._hidden() if stopped else None)

    def _ended(self, how: Ending, *, failure: str | None = None) -> Outcome:
        if self._job_id is not None:
            self._run.progress(self._totals())
        summary = Summary(self._statistics.totals(), self._run.totals)
        beyond = {name: seen - summary.counts[name] for name, seen in self._live.items()}
        self._statistics.fold(over=how is Ending.FINISHED)
        return Outcome(
            how=how,
            summary=summary,
            started=self._job_id is not None,
            # A job that finished has everything in its last checkpoint.
            uncertain={name: n for name, n in beyond.items() if n > 0} if how is not Ending.FINISHED else {},
            failure=failure,
            restarts=self._restarts,
            snapshot=self._newest() if how is not Ending.FINISHED else None,
        )

    def _newest(self) -> Path | None:
        try:
            found = newest(self._run)
        except CannotRestore as error:
            self._progress.note(str(error))
            return None
        return found.folder if found else None

    def _hidden(self) -> Path | None:
        """Return the folder of the responses if it holds a file that only the run's next job can make visible."""
        sink = self._prepared.config.sink
        if not isinstance(sink, JsonlSink) or not any(sink.path.glob(".part-*.inprogress.*")):
            return None
        return sink.path

    def _totals(self) -> Totals:
        report = self._report
        if report is not None and report.ended_ms is not None:
            wall_s = (report.ended_ms - report.started_ms) / 1000
        else:
            wall_s = time.monotonic() - self._began
        return Totals(self._restarts, self._checkpoints, wall_s)
