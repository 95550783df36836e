"""One job on an embedded cluster, from the start of its JVM to its last state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flink_agents.cli.output import JvmOutput
from flink_agents.cli.progress import Progress
from flink_agents.cli.summary import Summary
from flink_agents.cluster.causes import Cause
from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.cluster.rest import JobReport
from flink_agents.cluster.runs import Ending, Run
from flink_agents.cluster.statistics import StatisticsFolder
from flink_agents.config.build import PreparedJob
from flink_agents.errors import ClusterFault
from flink_agents.job import build, flink_options

__all__ = ["Execution", "Outcome"]

POLL_S = 0.1
SAMPLE_S = 0.5
# A cluster that answers nothing for this long although its JVM lives is given up.
SILENCE_S = 30.0
CANCEL_S = 15.0

COUNTS = ("requests", "responses", "rejects")
LIVE = frozenset({*COUNTS, "in_flight"})


@dataclass(frozen=True)
class Outcome:
    """How a job ended. ``failure`` says in a sentence why it failed; ``cause`` is what Flink knows about it.

    ``uncertain`` are counts last seen that no completed checkpoint has made certain, so the summary is without them.
    """

    how: Ending
    summary: Summary
    started: bool = False
    uncertain: Mapping[str, int] = field(default_factory=dict)
    failure: str | None = None
    cause: Cause | None = None
    checkpoint: str | None = None


class Execution:
    """Runs one job once. Used by the main thread, which gets Ctrl-C."""

    def __init__(
        self, cluster: EmbeddedCluster, prepared: PreparedJob, run: Run, output: JvmOutput, progress: Progress
    ) -> None:
        self._cluster = cluster
        self._prepared = prepared
        self._run = run
        self._output = output
        self._progress = progress
        self._statistics = StatisticsFolder(run.statistics)
        self._job_id: str | None = None
        self._report: JobReport | None = None
        self._began = time.monotonic()
        self._restarts = 0
        self._checkpoints = 0
        self._live: Mapping[str, int] = {}

    def run(self) -> Outcome:
        """Start the cluster, submit the job, wait for its end and stop the cluster, whatever happens in between.

        The statistics are read at the end, so the summary counts what is certain: responses that a completed
        checkpoint has made visible.
        """
        how, failure = Ending.FAILED, None
        try:
            try:
                self._submit()
                how = self._watch()
            except KeyboardInterrupt:
                how = Ending.STOPPED
                self._stop()
            return self._outcome(how)
        except ClusterFault as error:
            failure = str(error)
        except KeyboardInterrupt:
            # Asked a second time: no waiting for the job to end in order.
            how = Ending.STOPPED
        finally:
            self._cluster.close()
        return self._ended(how, failure=failure)

    def _submit(self) -> None:
        config = self._prepared.config
        self._progress.show("starting Flink", {})
        self._cluster.start()
        self._job_id = self._cluster.submit(
            config.name,
            flink_options(config, self._run),
            lambda env: build(env, self._prepared, self._run, marked_prints=True),
        )
        self._began = time.monotonic()
        self._run.submitted(self._job_id)
        self._progress.note(f"job '{config.name}' started, run {self._run.run_id}, log {self._cluster.log_file}")

    def _watch(self) -> Ending:
        """Return how the job ended, once it has."""
        sampled = 0.0
        heard = time.monotonic()
        while True:
            try:
                report = self._look()
                if report.ended:
                    return {"FINISHED": Ending.FINISHED, "FAILED": Ending.FAILED}.get(report.state, Ending.STOPPED)
                if time.monotonic() - sampled >= SAMPLE_S:
                    self._sample(report)
                    sampled = time.monotonic()
                heard = time.monotonic()
            except ClusterFault:
                self._cluster.check_alive()
                if time.monotonic() - heard > SILENCE_S:
                    raise
            if self._output.closed:
                raise KeyboardInterrupt
            time.sleep(POLL_S)

    def _stop(self) -> None:
        if self._job_id is None:
            return
        self._progress.note("stopping the job")
        self._cluster.rest.cancel(self._job_id)
        deadline = time.monotonic() + CANCEL_S
        # A tool that holds the task thread can hold up the end for ever.
        while not self._look().ended and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _look(self) -> JobReport:
        self._report = self._cluster.rest.job(self._job_id or "")
        return self._report

    def _sample(self, report: JobReport) -> None:
        rest = self._cluster.rest
        restarts = rest.restarts(report.job_id)
        if restarts > self._restarts:
            cause = rest.failure(report.job_id)
            self._progress.note(f"restart {restarts}: {cause.summary if cause else 'Flink reported no cause'}")
        self._restarts = restarts
        self._checkpoints = rest.completed_checkpoints(report.job_id)
        live = rest.counters(report.job_id, LIVE)
        certain = self._statistics.totals()
        # Metrics are ahead of the statistics by up to a checkpoint, and begin again at zero with each restart.
        self._live = {name: max(live.get(name, 0), certain[name]) for name in COUNTS}
        self._progress.show(report.state.lower(), {**self._live, "calls in flight": live.get("in_flight", 0)})

    def _outcome(self, how: Ending) -> Outcome:
        if self._job_id is None:
            return self._ended(how)
        rest = self._cluster.rest
        self._restarts = rest.restarts(self._job_id)
        self._checkpoints = rest.completed_checkpoints(self._job_id)
        cause = rest.failure(self._job_id) if how is Ending.FAILED else None
        outcome = self._ended(how, failure=cause.summary if cause else None)
        return replace(outcome, cause=cause, checkpoint=rest.latest_checkpoint(self._job_id))

    def _ended(self, how: Ending, *, failure: str | None = None) -> Outcome:
        summary = self._summary()
        beyond = {name: seen - summary.counts[name] for name, seen in self._live.items()}
        return Outcome(
            how=how,
            summary=summary,
            started=self._job_id is not None,
            # A job that finished has everything in its last checkpoint.
            uncertain={name: n for name, n in beyond.items() if n > 0} if how is not Ending.FINISHED else {},
            failure=failure,
        )

    def _summary(self) -> Summary:
        report = self._report
        if report is not None and report.ended_ms is not None:
            wall_s = (report.ended_ms - report.started_ms) / 1000
        else:
            wall_s = time.monotonic() - self._began
        return Summary(self._statistics.totals(), self._restarts, self._checkpoints, wall_s)
