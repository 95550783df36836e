"""One chaos run from its cluster to its evidence: submit, feed, kill, let it end, collect."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flink_agents.chaos.execution import ExecutionLogs, Kill
from flink_agents.chaos.expectations import Expectations, expectations
from flink_agents.chaos.feeder import Feeder
from flink_agents.chaos.observed import submit_observed
from flink_agents.chaos.own_job import WorkFolder, own_job
from flink_agents.chaos.remains import committed, journal_rows, live_entries, orphans, parsed
from flink_agents.chaos.striking import Striking
from flink_agents.chaos.verdict import Evidence, Verdict, judge
from flink_agents.cluster.journals import register_run
from flink_agents.cluster.runs import Run, create_run, digest
from flink_agents.cluster.standalone import StandaloneCluster
from flink_agents.cluster.statistics import StatisticsFolder
from flink_agents.config.build import PreparedJob
from flink_agents.errors import ClusterFault
from flink_agents.runtime.observation import Guarantee, Observation

__all__ = ["ChaosOutcome", "Settings", "conduct"]

STANDSTILL_S = 45.0
STOP_S = 120.0
POLL_S = 0.2

Note = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What is asked for. ``duration_s``: how long requests arrive; ``shortest_ms`` to ``longest_ms``: call times."""

    kills: int
    taskmanagers: int
    seed: int
    duration_s: float
    shortest_ms: int
    longest_ms: int
    broken: Guarantee | None = None

    @property
    def limit_s(self) -> float:
        """How long there may be kills: slow machines need longer for each than planned."""
        return 2 * self.duration_s + 60


@dataclass(frozen=True)
class ChaosOutcome:
    """A verdict, and what it is about."""

    verdict: Verdict
    run_id: str
    expected: Expectations
    bodies: int
    wall_s: float


def conduct(
    prepared: PreparedJob, records: Sequence[str], settings: Settings, work: WorkFolder, note: Note
) -> ChaosOutcome:
    """Run a job under SIGKILL in ``work`` and return the verdict. Blocks for minutes; the main thread's.

    Ends everything that it started, also when it is interrupted.

    Raises:
        InvalidInput: if the job has no journal, or the journal cannot be used.
        ClusterFault: if the cluster or the job does not come up, or the job fails for good.
        OSError: if the work folder cannot be used.
    """
    own = own_job(prepared, work)
    config = own.config
    for folder in (work.source, work.executions, work.runs):
        folder.mkdir(parents=True, exist_ok=True)
    expected = expectations(records, config.key_by, config.limits.record)
    run = create_run(work.runs, config.name, digest(config.model_dump_json()))
    register_run(own, run, goes_on=False, is_ours=True)
    logs = ExecutionLogs(work.executions)
    began = time.monotonic()
    with StandaloneCluster(work.cluster, taskmanagers=settings.taskmanagers, options=_cluster_options(own)) as cluster:
        job_id = submit_observed(own, run, cluster.address, _observation(settings, work))
        striking = Striking(cluster, job_id, logs, run.checkpoints, parallelism=config.flink.parallelism, note=note)
        striking.wait_recovered()
        note(f"the job is at work on {settings.taskmanagers} TaskManagers, run {run.run_id}")
        kills = _kill(striking, records, settings, work, note)
        _wait_answered(cluster, job_id, run, expected.total, note)
        savepoint = _stop(cluster, job_id, run, note)
    logs.update()
    evidence = Evidence(
        expected=expected,
        responses=parsed(committed(work.sink)),
        rejects=committed(work.rejects),
        events=logs.events,
        rows=[] if own.journal is None else journal_rows(own.journal, run.run_id),
        in_state=None if savepoint is None else live_entries(savepoint),
        orphans=orphans(work.cluster),
    )
    bodies = sum(event.kind == "begin" for event in logs.events)
    verdict = judge(evidence, kills, settings.kills)
    return ChaosOutcome(verdict, run.run_id, expected, bodies, time.monotonic() - began)


def _observation(settings: Settings, work: WorkFolder) -> Observation:
    return Observation(str(work.executions), settings.seed, settings.shortest_ms, settings.longest_ms, settings.broken)


def _cluster_options(own: PreparedJob) -> dict[str, str]:
    given = own.config.flink.options
    memory = {name: str(value) for name, value in given.items() if name.startswith("taskmanager.memory.")}
    # JVMs that are killed after seconds never get back what the second compiler costs.
    return {"env.java.opts.all": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", **memory}


def _kill(striking: Striking, records: Sequence[str], settings: Settings, work: WorkFolder, note: Note) -> list[Kill]:
    """Feed and kill until enough kills counted, the input is used up, or the time is."""
    feeder = Feeder(records, work.source, kills=settings.kills, per_kill_s=settings.duration_s / settings.kills)
    deadline = time.monotonic() + settings.limit_s
    feeder.start()
    kills: list[Kill] = []
    try:
        for kill in striking.strikes(settings.seed):
            kills.append(kill)
            feeder.proven = sum(each.counted for each in kills)
            note(_told(kill, feeder.proven, settings.kills))
            if feeder.proven >= settings.kills:
                break
            if time.monotonic() > deadline:
                note(f"the time for kills is up after {settings.limit_s:.0f} s")
                break
            if feeder.left == 0 and striking.is_idle:
                note("all requests have been worked off: there is nothing left that a kill could hit")
                break
    finally:
        feeder.finish()
    striking.wait_recovered()
    return kills


def _told(kill: Kill, counted: int, asked: int) -> str:
    counts = f"counts, {counted} of {asked}" if kill.counted else "does not count"
    return (
        f"kill {kill.number} ({kill.moment}) at {kill.at_s:.1f} s: TaskManager {kill.taskmanager}, "
        f"{kill.running} calls ran on it, {kill.recorded} outcomes were recorded since the last checkpoint: {counts}"
    )


def _wait_answered(cluster: StandaloneCluster, job_id: str, run: Run, total: int, note: Note) -> None:
    """Wait until everything came out, or nothing comes any more."""
    statistics = StatisticsFolder(run.statistics)
    seen, since = -1, time.monotonic()
    while True:
        counts = statistics.totals()
        out = counts["responses"] + counts["rejects"]
        if out >= total:
            return
        if out != seen:
            seen, since = out, time.monotonic()
        elif time.monotonic() - since > STANDSTILL_S:
            note(f"{total - out} of {total} records are not answered, and nothing came for {STANDSTILL_S:g} s")
            return
        report = cluster.rest.job(job_id)
        if report.ended:
            raise ClusterFault(f"the job is {report.state}: {cluster.rest.failure_text(job_id)}")
        time.sleep(POLL_S)


def _stop(cluster: StandaloneCluster, job_id: str, run: Run, note: Note) -> Path | None:
    """End the job with a savepoint, which also commits what the sinks hold; None if there is none to be had."""
    try:
        location = cluster.rest.stop_with_savepoint(job_id, f"file://{run.savepoints}", drain=True, timeout_s=STOP_S)
        cluster.rest.wait(job_id, timeout_s=STOP_S)
    except ClusterFault as error:
        note(f"the job did not stop: {error}")
        return None
    return Path(location.removeprefix("file:"))
