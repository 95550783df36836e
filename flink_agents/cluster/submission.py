"""A job's way to a cluster that runs already: which run it works on, what it brings along, and whether it began."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flink_agents.cluster.causes import root_cause
from flink_agents.cluster.gateway import Gateway, preload
from flink_agents.cluster.hints import hint
from flink_agents.cluster.journals import register_run
from flink_agents.cluster.jvm import flink_version
from flink_agents.cluster.live import refuse_vanished, settle
from flink_agents.cluster.rest import FlinkRest, JobReport
from flink_agents.cluster.resume import Wish, compare, refuse_changes, resumes, settings
from flink_agents.cluster.runs import Ending, Run, create_run, digest, last_run, run_of_state
from flink_agents.cluster.snapshots import Snapshot, check, newest
from flink_agents.config.build import PreparedJob
from flink_agents.errors import CannotRestore, ClusterFault
from flink_agents.job import FIXED_JOB_ID, build, flink_options, ship

__all__ = ["Submission", "check_cluster"]

BEGIN_S = 120.0
# A job that fails and has not begun after this time, restarts included, is not going to.
FAILING_S = 15.0
SLOTS_MS = 30_000
POLL_S = 0.1
# Raised by the operator when it opens, after it has waited for what may pass.
OURS = re.compile(
    r"flink_agents\.errors\.(?:ClusterFault|InvalidInput|Journal\w+|Run\w+|ProcessModeRefused|StateFormat)"
)

Note = Callable[[str], None]


def check_cluster(rest: FlinkRest, slots: int, note: Note) -> None:
    """Look a cluster over before anything is started for it.

    Raises:
        ClusterFault: if no JobManager answers there, or one of another Flink than the installed one.
    """
    overview = rest.overview()
    theirs, ours = str(overview.get("flink-version", "")), flink_version()
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        what = f"Flink {theirs}" if theirs else "no Flink"
        msg = f"versions differ: at {rest.address} is {what}, and this environment has Flink {ours}"
        raise ClusterFault(msg)
    free, total = overview["slots-available"], overview["slots-total"]
    if free < slots:
        note(
            f"the job needs {slots} slots and the cluster has {free} of {total} free: it waits for {slots - free} more"
        )


class Submission:
    """Submits one job once. Blocks; used by one thread.

    Args:
        prepared: the job, made by ``prepare_for_cluster``.
        rest: the cluster's REST interface.
        jobmanager: ``HOST:PORT`` of the same, for the run's record.
        note: takes lines for the user, none of which is an error.
        slots_ms: how long the job may wait for slots, in milliseconds.
    """

    def __init__(
        self, prepared: PreparedJob, rest: FlinkRest, jobmanager: str, note: Note, *, slots_ms: int = SLOTS_MS
    ) -> None:
        self._prepared = prepared
        self._rest = rest
        self._jobmanager = jobmanager
        self._note = note
        self._slots_s = slots_ms / 1000

    def choose(self, *, savepoint: Path | None, resume: bool) -> tuple[Run, Snapshot | None]:
        """Return the run to work on and what it goes on from. Hold the job's lock from here on.

        A plain submission draws a new run; a savepoint goes on with the run that it carries the record of.

        Raises:
            RunRefused: if the run's job is still live, or its configuration was another one.
            CannotRestore: if the snapshot is missing or damaged.
            OSError: if the folder of the runs cannot be used.
        """
        config = self._prepared.config
        root = config.flink.checkpoints.directory
        run: Run | None = None
        found: Snapshot | None = None
        if savepoint is not None:
            found = Snapshot(savepoint, None, savepoint=not savepoint.name.startswith("chk-"))
            check(found)
            run = run_of_state(root, config.name, str(savepoint))
            if run is None:
                self._note(f"nothing at {savepoint} names a run: the job goes on under a new run id")
            else:
                settle(run, self._note)
        elif resume:
            run = last_run(root / config.name)
            if run is not None:
                settle(run, self._note)
            found = newest(run) if run and run.record.how is not Ending.FINISHED else None
            resumes(config.name, run.record if run else None, found is not None, Wish.RESUME)
            if run is not None and found is None:
                refuse_vanished(run)
        if run is None:
            return create_run(root, config.name, digest(config.model_dump_json())), found
        changes = compare(run.record.settings, settings(config), savepoint=bool(found and found.savepoint))
        refuse_changes(run.run_id, changes.fatal)
        if changes.noted:
            self._note(f"changed since run {run.run_id} was last started: {', '.join(changes.noted)}")
        if found is not None and savepoint is None:
            check(found)
        return run, found

    def submit(self, run: Run, restore: Snapshot | None) -> str:
        """Submit the job and return its id once every subtask of it is open.

        A job that cannot begin is cancelled, and the run's record says again what it said before.

        Raises:
            ClusterFault: if Flink refuses the job, or it does not begin; the message says why and what to do.
            CannotRestore: if Flink cannot restore what the job was to go on from.
            InvalidInput: if the journal cannot be used, or what the job brings along.
        """
        config = self._prepared.config
        before = run.record
        register_run(
            self._prepared,
            run,
            goes_on=before.job_id is not None,
            is_ours=before.how is not None or before.jobmanager is None,
            note=self._note,
        )
        # Drawn here, so that the run's record names the job before the job can have done anything.
        job_id = secrets.token_hex(16)
        options = flink_options(config, run, restore.folder if restore else None)
        options[FIXED_JOB_ID] = job_id
        run.submitted(job_id, digest(config.model_dump_json()), settings(config), self._jobmanager)
        try:
            with Gateway(run.logs, options=config.flink.options) as gateway:
                preload()
                gateway.submit(
                    config.name, options, lambda env: self._build(env, run, gateway.scratch), self._rest.address
                )
                self._wait_begun(job_id, restore)
        except BaseException:
            self._cancel(job_id)
            run.put_back(before)
            raise
        return job_id

    def _build(self, env: Any, run: Run, scratch: Path) -> None:
        build(env, ship(env, self._prepared, scratch), run)

    def _wait_begun(self, job_id: str, restore: Snapshot | None) -> None:
        began = time.monotonic()
        failed: float | None = None
        while True:
            report = self._rest.job(job_id)
            if report.at_work:
                return
            trace = self._rest.failure_trace(job_id)
            waited = time.monotonic() - began
            if trace is not None:
                cause, advice = root_cause(trace), hint(trace)
                failed = failed or time.monotonic()
                failing = time.monotonic() - failed > FAILING_S
                # The job may have begun between two looks and failed at its work, which is not for this command.
                if report.ended or advice or OURS.search(trace) or cause.restoring or failing:
                    said = f"{cause.summary}\n{advice}" if advice else cause.text
                    if cause.restoring and restore is not None:
                        raise CannotRestore(f"{restore} cannot be restored. {said}")
                    msg = f"the job did not begin: {said}"
                    raise ClusterFault(msg)
            elif report.ended:
                msg = f"the job did not begin: it is {report.state}, and Flink reported no cause"
                raise ClusterFault(msg)
            elif waited > (self._slots_s if _waits_for_slots(report) else BEGIN_S):
                raise ClusterFault(self._why_not(report, waited))
            time.sleep(POLL_S)

    def _why_not(self, report: JobReport, waited: float) -> str:
        if not _waits_for_slots(report):
            return f"the job did not begin within {waited:.0f} s: its subtasks are {dict(report.tasks)}"
        overview = self._rest.overview()
        needed = self._prepared.config.flink.parallelism
        return (
            f"no free slot within {waited:.1f} s: the job needs {needed}, and of the cluster's "
            f"{overview['slots-total']} slots {overview['slots-available']} are free. It was cancelled. Start more "
            "TaskManagers (each has one slot), stop another job, or lower flink.parallelism."
        )

    def _cancel(self, job_id: str) -> None:
        try:
            self._rest.cancel(job_id)
        except ClusterFault as error:
            # It was never there, or cannot be reached: the error that led here is the one to show.
            if "does not answer" in str(error):
                self._note(f"job {job_id} could not be cancelled: {error}")


def _waits_for_slots(report: JobReport) -> bool:
    return not report.tasks or set(report.tasks) <= {"CREATED", "SCHEDULED"}
