"""A bounded input ends while calls are pending: they finish in the drain, also after a crash inside it."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle  # type: ignore[import-untyped]
import pytest

from flink_agents.options import WorkerOptions
from flink_agents.testing.crash_file import CrashFile

if TYPE_CHECKING:
    from tests.recovery.conftest import RecoveryJob

pytest.importorskip("pyflink")
cloudpickle.register_pickle_by_value(sys.modules[__name__])

BOTH_WAYS = pytest.mark.parametrize("polling", [False, True], ids=["mailbox", "polling"])
REQUESTS = 24
KEYS = 8
CALLS = (("wait", 300), ("block", 60), ("wait", 150))
CRASHES = [
    (),
    ("after:recorded", "after:recorded"),
    ("before:cleaned", "before:cleaned"),
    ("before:timer", "before:timer"),
    # Once: bodies of the dead attempt end during the next one, and a crash on their way would harm nobody.
    ("after:body_ended",),
]


@dataclass(frozen=True)
class InDrain:
    """Fault that is inert until the drain was entered, and then does what ``inner`` does."""

    inner: CrashFile

    def __call__(self, point: str) -> None:
        """Note the drain; pass on what happens in it."""
        entered = Path(self.inner.folder, "draining")
        if point == "before:drain":
            entered.touch()
        elif point == "before:open":
            entered.unlink(missing_ok=True)
        elif entered.exists():
            self.inner(point)


def check(job: RecoveryJob) -> None:
    """Assert one right response for each request, committed by the final checkpoint, and nothing run needlessly."""
    responses = job.responses()
    assert Counter(response["request_id"] for response in responses) == Counter(f"r{n}" for n in range(REQUESTS))
    for response in responses:
        number = response["request_id"][1:]
        assert [result.get("value") for result in response["results"]] == [f"value of {number}/{i}" for i in range(3)]
    for key in range(KEYS):
        numbers = [int(response["request_id"][1:]) for response in responses if response["key"] == f"k{key}"]
        assert numbers == sorted(numbers)
    times = Counter(run.call for run in job.runs())
    assert set(times) == {f"{n}/{i}" for n in range(REQUESTS) for i in range(3)}
    assert max(times.values()) <= 1 + job.restarts


@pytest.mark.flink
@pytest.mark.rule(1, 2, 51)
@pytest.mark.parametrize(
    ("points", "polling"),
    # While the drain polls, no processing-time timer fires in it, so its fault point is not passed there.
    [(points, polling) for polling in (False, True) for points in CRASHES if not (polling and "timer" in str(points))],
    ids=lambda value: ("polling" if value else "mailbox") if isinstance(value, bool) else "+".join(value) or "no crash",
)
def test_case_30_the_input_ends_while_slow_calls_are_pending(
    recovery_job: Callable[..., RecoveryJob],
    request_of: Callable[..., str],
    tmp_path: Path,
    points: tuple[str, ...],
    polling: bool,
) -> None:
    fault = InDrain(CrashFile(str(tmp_path), points, nth=4))
    job = recovery_job(fault=fault, polling=polling, workers=WorkerOptions(threads=2, async_limit=8))
    job.add("requests.jsonl", [request_of(n, f"k{n % KEYS}", *CALLS) for n in range(REQUESTS)])
    job.submit(restarts=len(points))
    job.finish()
    assert job.restarts == len(points)
    check(job)


@pytest.mark.flink
@pytest.mark.rule(27)
@BOTH_WAYS
def test_a_cancel_reaches_tools_inside_the_drain(
    recovery_job: Callable[..., RecoveryJob], request_of: Callable[..., str], tmp_path: Path, polling: bool
) -> None:
    job = recovery_job(fault=InDrain(CrashFile(str(tmp_path), ())), polling=polling)
    job.add("requests.jsonl", [request_of(n, f"k{n}", ("wait", 60_000), ("wait", 60_000)) for n in range(3)])
    job.submit()
    held = {f"{n}/{i}" for n in range(3) for i in range(2)}
    job.until(lambda: {run.call for run in job.runs()} == held and (tmp_path / "draining").exists())
    asked = time.time()
    job.cluster.rest.cancel(job.job_id)
    job.until(lambda: set(job.stopped()) == held)
    assert max(job.stopped().values()) - asked < 1.0
    job.cluster.rest.wait(job.job_id, timeout_s=30, states=frozenset({"CANCELED"}))
    assert job.written() == ""
