"""Kills TaskManagers of a cluster as planned, waits for the moments that the plan names, and brings them back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flink_agents.chaos.execution import ExecutionLogs, Kill, weigh
from flink_agents.chaos.plan import Moment, Strike, chosen, strikes
from flink_agents.chaos.remains import checkpoint_ns
from flink_agents.cluster.hints import PYTHON_IS_LOST
from flink_agents.cluster.standalone import StandaloneCluster
from flink_agents.errors import ClusterFault

__all__ = ["Striking"]

RECOVERY_S = 180.0
MOMENT_S = 8.0
RESTORE_S = 30.0
LOOK_S = 0.02
ASK_S = 0.1


class Striking:
    """Kills TaskManagers of one cluster with one job; for one thread.

    Args:
        cluster: a running one; its TaskManagers are numbered from 1.
        job_id: the job's id there.
        logs: the job's execution logs.
        checkpoints: the folder with its checkpoints.
        parallelism: how many subtasks the operator has.
        note: takes a line for the user where something else than a kill is done to the cluster.
    """

    def __init__(
        self,
        cluster: StandaloneCluster,
        job_id: str,
        logs: ExecutionLogs,
        checkpoints: Path,
        *,
        parallelism: int,
        note: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._job_id = job_id
        self._logs = logs
        self._checkpoints = checkpoints
        self._parallelism = parallelism
        self._note = note
        self._indexes = [each.index for each in cluster.status().taskmanagers]
        self._began = time.monotonic_ns()
        self._last = 0

    @property
    def is_idle(self) -> bool:
        """Whether no body runs on a process that lives."""
        self._logs.update()
        return not any(self._logs.running.get(self._cluster.pid(index)) for index in self._indexes)

    def strikes(self, seed: int) -> Iterator[Kill]:
        """Carry out one kill after the other and yield what each hit; the killed TaskManager is on its way back."""
        for strike in strikes(seed):
            yield self._carry_out(strike)

    def wait_recovered(self) -> None:
        """Return once every subtask of the operator has opened since the last kill and takes records.

        Raises:
            ClusterFault: if the job does not recover in time, or ended.
        """
        self._until(self._has_recovered, RECOVERY_S, ASK_S, "the job did not recover")

    def _carry_out(self, strike: Strike) -> Kill:
        return self._kill(strike, self._target(strike))

    def _target(self, strike: Strike) -> int:
        """Wait for the strike's moment and return the TaskManager that it hits."""
        if strike.moment is Moment.OPEN:
            self._wait_for(self._opens, RESTORE_S, ASK_S)
            return chosen(strike, self._worthwhile() or self._indexes)
        if strike.moment is Moment.RESTORE:
            self._wait_for(lambda: bool(self._restoring()), RESTORE_S, LOOK_S)
            return chosen(strike, self._restoring() or self._indexes)
        if strike.moment is Moment.AGAIN:
            time.sleep(strike.delay_s)
            self._wait_for(lambda: bool(self._worthwhile()), RESTORE_S, LOOK_S)
            return chosen(strike, self._worthwhile() or self._indexes)
        self.wait_recovered()
        if strike.moment is Moment.CHECKPOINT:
            # One that a kill left hanging has to expire first, and the next kill is to restore another checkpoint.
            self._wait_for(lambda: checkpoint_ns(self._checkpoints) > self._last, MOMENT_S, ASK_S)
        time.sleep(strike.delay_s)
        index = chosen(strike, self._hosts() or self._indexes)
        self._wait_for(lambda: index in self._worthwhile(), MOMENT_S, LOOK_S)
        if strike.moment is Moment.CHECKPOINT:
            self._wait_for(self._checkpoint_is_pending, MOMENT_S, LOOK_S / 10)
        return index

    def _kill(self, strike: Strike, index: int) -> Kill:
        pid = self._cluster.pid(index)
        at = time.monotonic_ns()
        self._cluster.kill_taskmanager(index)
        checkpoint = checkpoint_ns(self._checkpoints)
        self._last = time.monotonic_ns()
        self._logs.update()
        running, recorded = weigh(self._logs.events, pid, at, checkpoint)
        self._cluster.start_taskmanager(index, wait=False)
        at_s = (at - self._began) / 1e9
        return Kill(strike.number, strike.moment.value, index, pid, round(at_s, 2), running, recorded)

    def _hosts(self) -> list[int]:
        """Return the TaskManagers on which the present attempts run."""
        hosts = self._logs.opened_since(self._last)
        return [index for index in self._indexes if self._cluster.pid(index) in hosts]

    def _worthwhile(self) -> list[int]:
        """Return the TaskManagers on which bodies run, of any attempt, if an outcome is in no checkpoint yet."""
        self._logs.update()
        if self._logs.last_commit <= checkpoint_ns(self._checkpoints):
            return []
        return [index for index in self._indexes if self._logs.running.get(self._cluster.pid(index))]

    def _restoring(self) -> list[int]:
        """Return those of them on which an attempt that opened since the last kill has begun a body."""
        worthwhile = self._worthwhile()
        begun = self._logs.begun_since(self._last)
        return [index for index in worthwhile if self._cluster.pid(index) in begun]

    def _checkpoint_is_pending(self) -> bool:
        """Whether Flink has begun a checkpoint and not completed it: its folder is there, the metadata is not."""
        newest = max(self._checkpoints.glob("*/chk-*"), key=_number, default=None)
        return newest is not None and not (newest / "_metadata").exists()

    def _opens(self) -> bool:
        return "INITIALIZING" in self._cluster.rest.job(self._job_id).tasks

    def _has_recovered(self) -> bool:
        self._logs.update()
        if self._logs.opens_since(self._last) < self._parallelism:
            self._replace_if_lost()
            return False
        report = self._cluster.rest.job(self._job_id)
        if report.ended:
            msg = f"the job is {report.state}: {self._cluster.rest.failure_text(self._job_id)}"
            raise ClusterFault(msg)
        return report.at_work

    def _replace_if_lost(self) -> None:
        """Start a TaskManager anew whose Python will not start any more: no job recovers on it."""
        lost = self._cluster.rest.failed_on(self._job_id, PYTHON_IS_LOST)
        for each in self._cluster.status().taskmanagers if lost else ():
            if each.resource == lost and each.alive:
                self._note(f"TaskManager {each.index} is replaced: a kill interrupted the first start of its Python")
                self._cluster.kill_taskmanager(each.index)
                self._cluster.start_taskmanager(each.index, wait=False)

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float, pause_s: float) -> None:
        """Wait for a moment that need not come: the kill then takes place without it, and may not count."""
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            time.sleep(pause_s)

    def _until(self, condition: Callable[[], bool], timeout_s: float, pause_s: float, otherwise: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                msg = f"{otherwise} within {timeout_s:g} s: {self._cluster.rest.failure_text(self._job_id)}"
                raise ClusterFault(msg)
            time.sleep(pause_s)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("chk-"))
