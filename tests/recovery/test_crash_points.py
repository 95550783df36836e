"""A crash at each named point, before and after, while checkpoints complete: what was recorded never runs again.

Every point crashes before and after, in both modes on both backends, every other one twice in a row: 88 jobs, several
of them side by side, because most of their time is tools that wait. With ``FLINK_AGENTS_FEW_CRASHES=1`` in the
environment modes and backends take turns instead (22 jobs), for quick feedback while working on something else.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.faults import FAULT_POINTS
from flink_agents.options import Mode, ToolCallOptions
from flink_agents.testing.crash_file import CrashFile

if TYPE_CHECKING:
    from tests.recovery.conftest import KeepRestored, RecoveryJob

pytest.importorskip("pyflink")

REQUESTS = 60
KEYS = 20
CALLS = (("wait", 200), ("block", 40), ("reckon", 0), ("wait", 400))
INTERVAL_S = 0.04
SIDE_BY_SIDE = 6
CHECKPOINTS = 5

NTH = {"open": 1, "drain": 1, "emitted": 2, "cleaned": 2}
"""At which passing a point crashes, counted once enough checkpoints have completed; 3 for the others."""

ON_WORKERS = ("body_ended", "outcome_queued")


@dataclass(frozen=True)
class Case:
    """One crash, or two in a row."""

    point: str
    mode: Mode
    backend: str
    twice: bool

    @property
    def name(self) -> str:
        """The point's own name."""
        return self.point.partition(":")[2]

    @property
    def crashes(self) -> tuple[str, ...]:
        """The planned crashes: one in ``open`` after a restore needs another one before it."""
        points = (self.point,) * (1 + self.twice)
        return ("after:recorded", *points) if self.name == "open" else points

    def __str__(self) -> str:
        return f"{self.point}-{self.mode.value}-{self.backend}{'-twice' if self.twice else ''}"


def cases() -> list[Case]:
    points = [f"{when}:{name}" for name in FAULT_POINTS for when in ("before", "after")]
    ways = list(product(Mode, ("hashmap", "rocksdb")))
    every = [
        Case(point, mode, backend, twice=(row + column) % 2 == 1)
        for row, point in enumerate(points)
        for column, (mode, backend) in enumerate(ways)
    ]
    if os.environ.get("FLINK_AGENTS_FEW_CRASHES", "") in ("", "0"):
        return every
    # Shifted by one every four rows, so that a point does not meet the same two ways only.
    return [every[row * 4 + (row + row // 4) % 4] for row in range(len(points))]


CASES = cases()


@pytest.fixture(scope="module")
def crashed(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    job_in: Callable[..., RecoveryJob],
    request_of: Callable[..., str],
    keep_restored: Callable[[CrashFile], KeepRestored],
) -> Iterator[Callable[[Case], RecoveryJob]]:
    """Return a function that waits for a case's job; all cases that were asked for run ahead of their tests."""

    def run(case: Case, folder: Path) -> RecoveryJob:
        plan = CrashFile(
            str(folder),
            case.crashes,
            nth=NTH.get(case.name, 3),
            after_checkpoints=CHECKPOINTS,
            between=2 if case.name in ON_WORKERS else 0,
            checkpoints=f"{folder}/checkpoints",
        )
        options = ToolCallOptions(mode=case.mode)
        job = job_in(folder, fault=keep_restored(plan), tool_calls=options, interval_s=INTERVAL_S)
        job.add("requests.jsonl", [request_of(n, f"k{n % KEYS}", *CALLS) for n in range(REQUESTS)])
        job.submit(restarts=len(case.crashes), state_backend_type=case.backend)
        job.finish()
        return job

    selected = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    wanted = [case for item in selected if (case := _case_of(item)) is not None]
    with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="crash-job") as pool:
        jobs: dict[Case, Future[RecoveryJob]] = {
            case: pool.submit(run, case, tmp_path_factory.mktemp("crash")) for case in wanted
        }
        yield lambda case: jobs[case].result()
        pool.shutdown(cancel_futures=True)


def _case_of(item: Any) -> Case | None:
    case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
    return case if isinstance(case, Case) else None


@pytest.mark.flink
@pytest.mark.rule(1, 2, 14, 29, 51)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_crash_loses_nothing_doubles_nothing_and_repeats_nothing_recorded(
    crashed: Callable[[Case], RecoveryJob], case: Case
) -> None:
    job = crashed(case)
    assert job.restarts == len(case.crashes)
    cause = job.cluster.rest.failure(job.job_id)
    assert cause is not None
    assert cause.summary.endswith(f"PlannedCrash: planned crash at {case.point}")
    responses = job.responses()
    assert Counter(response["request_id"] for response in responses) == Counter(f"r{n}" for n in range(REQUESTS))
    for response in responses:
        number = response["request_id"][1:]
        values = [result.get("value") for result in response["results"]]
        assert values == [f"value of {number}/{i}" for i in range(len(CALLS))]
    for key in range(KEYS):
        numbers = [int(response["request_id"][1:]) for response in responses if response["key"] == f"k{key}"]
        assert numbers == sorted(numbers)
    assert job.rejects() == []
    statistics = job.statistics()
    assert (statistics["response"], statistics["succeeded"]) == (REQUESTS, REQUESTS * len(CALLS))
    check_runs(job)
    replayed = {
        f"{response['request_id'][1:]}/{result['position']}"
        for response in responses
        for result in response["results"]
        if result["replayed"]
    }
    recorded = job.restores()[-1].recorded
    if case.backend == "rocksdb":
        # Its files still hold outcomes of requests that were answered before.
        assert recorded & replayed
    else:
        assert recorded <= replayed


def check_runs(job: RecoveryJob) -> None:
    """Assert what ran again: nothing that a restored checkpoint held, nothing more often than there were crashes."""
    runs, restores = job.runs(), job.restores()
    assert len({run.checkpoint for run in runs}) > CHECKPOINTS, "too few checkpoints completed during work"
    assert len(restores) >= job.restarts
    assert restores[0].checkpoint >= CHECKPOINTS
    for restore in restores:
        assert restore.recorded, "no call was under way in the checkpoint: it proves nothing"
        assert restore.answered, "no request was answered before the checkpoint: it proves nothing"
        again = {run.call for run in runs if run.at > restore.at}
        assert not again & restore.recorded
        assert not again & restore.answered
    times = Counter(run.call for run in runs)
    assert set(times) == {f"{n}/{i}" for n in range(REQUESTS) for i in range(len(CALLS))}
    assert max(times.values()) <= 1 + job.restarts
