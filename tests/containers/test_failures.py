"""The BFCL job on a cluster of containers of which one is killed, stands still, is cut off, or starts again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from flink_agents.chaos.execution import weigh

if TYPE_CHECKING:
    from tests.containers.conftest import BfclJob

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]


def broken(job: BfclJob) -> list[str]:
    """Let the job finish and return what does not hold."""
    checks = job.finish()
    assert next(check for check in checks if check.name == "each request is answered once").looked_at == 357
    return [f"{check.name}: {check.shown}" for check in checks if not check.holds]


def late_outcomes(job: BfclJob, tm: str, since: int) -> int:
    """Return how many outcomes a TaskManager came to record where another's stood already."""
    return sum(
        event.kind == "commit" and event.at > since and event.by != event.attempt for event in job.logs[tm].events
    )


def test_a_killed_taskmanager(job: BfclJob) -> None:
    job.submit()
    victim = job.busy()
    container = job.cluster.taskmanagers[victim].get_wrapped_container()
    at = time.monotonic_ns()
    container.kill()
    job.until(lambda: True, "the end of its log")
    running, recorded = weigh(job.events, list(job.logs).index(victim), at, 0)
    job.feed(len(job.left))
    container.start()
    assert broken(job) == []
    assert running > 0
    assert recorded > 0


def test_a_taskmanager_that_stands_still(job: BfclJob) -> None:
    job.submit()
    zombie = job.busy()
    container = job.cluster.taskmanagers[zombie].get_wrapped_container()
    container.pause()
    job.until(lambda: True, "the end of its log")
    cut_off = job.running(zombie)
    job.until(lambda: job.recorded_elsewhere(zombie, cut_off), "other outcomes of the calls that stand still")
    # Earlier, some of these could have been given to the zombie, which would begin them before it learns what happened.
    job.feed(len(job.left))
    since = time.monotonic_ns()
    container.unpause()
    job.until(lambda: late_outcomes(job, zombie, since), "what the zombie returns to reach the journal")
    assert broken(job) == []


def test_a_taskmanager_cut_off_and_connected_again(job: BfclJob) -> None:
    cluster = job.cluster
    job.submit()
    victim = job.busy()
    container = cluster.taskmanagers[victim].get_wrapped_container()
    network = container.client.networks.get(cluster.network.name)
    since = time.monotonic_ns()
    network.disconnect(container)
    job.until(lambda: True, "its log")
    cut_off = job.running(victim)
    job.until(lambda: job.recorded_elsewhere(victim, cut_off), "other outcomes of the calls that were cut off")
    job.feed(len(job.left))
    network.connect(container, aliases=[victim])
    job.until(lambda: cluster.slots() == (3, 1), "all three TaskManagers, and the job on two")
    job.until(lambda: late_outcomes(job, victim, since), "what was cut off to reach the journal")
    assert broken(job) == []


def test_a_jobmanager_started_again(job: BfclJob) -> None:
    cluster = job.cluster
    job.submit()
    job.busy()
    first = job.job_id
    cluster.jobmanager.get_wrapped_container().kill()
    job.until(lambda: True, "the logs at the JobManager's end")
    recorded = {event.call for event in job.events if event.kind == "commit"}
    cluster.restart_jobmanager()
    job.feed(len(job.left))
    job.submit("--resume")
    assert job.job_id != first
    assert broken(job) == []
    assert recorded
