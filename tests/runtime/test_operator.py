"""The operator on an embedded cluster: wake-up both ways, crashes, savepoints, drain, cancel, and visible causes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.connectors.jsonl_sink import write_jsonl
from flink_agents.errors import ProcessModeRefused
from flink_agents.options import Limits, OperatorOptions

if TYPE_CHECKING:
    from tests.runtime.conftest import CrashOnce, OperatorJob

    MakeJob = Callable[..., OperatorJob]
    MakeRequest = Callable[..., str]
    MakeCrash = Callable[..., CrashOnce]

pytest.importorskip("pyflink")

BOTH_WAYS = pytest.mark.parametrize("polling", [False, True], ids=["mailbox", "polling"])
BACKENDS = pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
RESTARTS = {
    "restart__strategy_type": "fixed-delay",
    "restart__strategy_fixed__delay_attempts": "3",
    "restart__strategy_fixed__delay_delay": "50 ms",
}


def checked(job: OperatorJob, count: int, calls: int) -> list[dict[str, Any]]:
    """Assert that each of ``count`` requests has one response with the right values in order; return the results."""
    responses = job.responses()
    assert Counter(response["request_id"] for response in responses) == Counter(f"r{n}" for n in range(count))
    for response in responses:
        number = int(response["request_id"][1:])
        assert [result.get("value") for result in response["results"]] == [number * 10 + i for i in range(calls)]
    return [result for response in responses for result in response["results"]]


@pytest.mark.flink
@pytest.mark.rule(1, 2, 5, 51)
@BOTH_WAYS
def test_every_request_is_answered_at_the_end_of_input(
    operator_job: MakeJob, request_of: MakeRequest, polling: bool
) -> None:
    job = operator_job(polling=polling, parallelism=2)
    tools = ("block", "wait")
    records = [request_of(n, key=f"k{n % 7}", tool=tools[n % 2], calls=3, ms=n % 40) for n in range(120)]
    job.add("a.jsonl", [*records, "junk", '{"key": null}', '{"key": "k"}'])
    job.finish(job.submit())
    checked(job, 120, 3)
    assert len(job.rejects()) == 3
    assert len(job.runs()) == 360


@pytest.mark.flink
@pytest.mark.rule(1, 51)
@BACKENDS
@pytest.mark.parametrize("point", ["before:timer", "after:recorded", "after:emitted", "before:drain", "after:open"])
def test_a_crash_is_recovered_from(
    operator_job: MakeJob, request_of: MakeRequest, crash_once: MakeCrash, point: str, backend: str
) -> None:
    # The crash comes late enough for checkpoints to complete during work: intake is slowed to what is answered.
    late = {"after:recorded": 150, "after:emitted": 50}
    limits = Limits(live_requests=10, intake_wait_ms=50)
    job = operator_job(options=OperatorOptions("key", limits=limits), fault=crash_once(point, late.get(point, 1)))
    job.add("a.jsonl", [request_of(n, key=f"k{n % 50}", tool="wait", calls=3, ms=100) for n in range(100)])
    submitted = job.submit(state_backend_type=backend, **RESTARTS)
    job.finish(submitted)
    results = checked(job, 100, 3)
    assert job.cluster.rest.restarts(submitted) == 1
    assert len(job.runs()) >= len(results)
    assert all(result["attempts"] >= 1 for result in results)


@pytest.mark.flink
@pytest.mark.rule(29, 50, 52)
def test_a_savepoint_with_calls_in_flight_goes_on_at_another_parallelism(
    operator_job: MakeJob, request_of: MakeRequest
) -> None:
    first = operator_job(follow=True)
    millis = [0] * 20 + [60_000] * 40
    first.add("a.jsonl", [request_of(n, key=f"k{n}", tool="wait", calls=2, ms=ms) for n, ms in enumerate(millis)])
    submitted = first.submit()
    first.until(lambda: len(first.runs()) == 120)
    savepoint = first.cluster.rest.stop_with_savepoint(submitted, f"file://{first.folder}/savepoints")
    first.until(lambda: (first.folder / "stopped.txt").exists())
    second = operator_job(follow=True, parallelism=2)
    # The calls that were cut off run again; this time they are quick.
    resumed = second.submit([quick(second.folder)], execution_state__recovery_path=savepoint)
    second.until(lambda: len(second.runs()) == 200)
    second.add("b.jsonl", [request_of(n, key=f"k{n}", tool="wait", calls=2) for n in range(60, 70)])
    second.until(lambda: len(second.runs()) == 220)
    second.cluster.rest.stop_with_savepoint(resumed, f"file://{second.folder}/savepoints", drain=True)
    checked(second, 70, 2)
    again = Counter(second.runs())
    assert {run for run, times in again.items() if times > 1} == {f"{n}/{i}" for n in range(20, 60) for i in range(2)}


def quick(folder: Any) -> Callable[..., Any]:
    """Return the tool ``wait`` of a later deployment, which does not wait."""
    runs = str(folder / "runs.txt")

    def note(text: str) -> None:
        with open(runs, "a", encoding="utf-8") as lines:
            lines.write(f"{text}\n")

    async def wait(number: int, i: int, ms: int = 0) -> int:
        """Answer at once."""
        note(f"{number}/{i}")
        return number * 10 + i

    return wait


@pytest.mark.flink
@pytest.mark.rule(51, 52)
def test_a_drain_finishes_what_is_in_flight(operator_job: MakeJob, request_of: MakeRequest) -> None:
    job = operator_job(follow=True)
    job.add("a.jsonl", [request_of(n, key=f"k{n}", tool="wait", calls=2, ms=1000) for n in range(20)])
    submitted = job.submit()
    job.until(lambda: len(job.runs()) == 40)
    job.cluster.rest.stop_with_savepoint(submitted, f"file://{job.folder}/savepoints", drain=True)
    checked(job, 20, 2)


@pytest.mark.flink
@pytest.mark.rule(27, 33)
@BOTH_WAYS
def test_a_cancel_reaches_running_bodies_within_a_second(
    operator_job: MakeJob, request_of: MakeRequest, polling: bool
) -> None:
    job = operator_job(follow=True, polling=polling)
    job.add("a.jsonl", [request_of(n, key=f"k{n}", tool="wait", ms=60_000) for n in range(5)])
    submitted = job.submit()
    job.until(lambda: len(job.runs()) == 5)
    job.cluster.rest.cancel(submitted)
    asked = time.time()
    stopped = job.folder / "stopped.txt"
    job.until(lambda: stopped.exists() and len(stopped.read_text(encoding="utf-8").splitlines()) == 5)
    assert all(float(line.split()[1]) - asked < 1.0 for line in stopped.read_text(encoding="utf-8").splitlines())
    job.cluster.rest.wait(submitted, timeout_s=30, states=frozenset({"CANCELED"}))
    assert job.responses() == []


@pytest.mark.flink
@BOTH_WAYS
@pytest.mark.parametrize("follow", [False, True], ids=["drain", "running"])
def test_what_fails_in_a_wake_up_is_the_cause_that_flink_shows(
    operator_job: MakeJob, request_of: MakeRequest, crash_once: MakeCrash, polling: bool, follow: bool
) -> None:
    job = operator_job(fault=crash_once("before:timer"), polling=polling, follow=follow)
    job.add("a.jsonl", [request_of(1, key="k", tool="wait", ms=50)])
    submitted = job.submit()
    job.cluster.rest.wait(submitted, timeout_s=60, states=frozenset({"FAILED"}))
    cause = job.cluster.rest.failure(submitted)
    assert cause is not None
    assert cause.python
    assert cause.summary == "RuntimeError: planned crash at before:timer"


@pytest.mark.flink
def test_what_fails_in_java_during_a_wake_up_is_the_cause_that_flink_shows(
    operator_job: MakeJob, request_of: MakeRequest
) -> None:
    job = operator_job(follow=True)
    (job.folder / "out").write_text("a file where the sink wants a folder", encoding="utf-8")
    job.add("a.jsonl", [request_of(1, key="k", tool="wait", ms=50)])
    submitted = job.submit()
    job.cluster.rest.wait(submitted, timeout_s=60, states=frozenset({"FAILED"}))
    cause = job.cluster.rest.failure(submitted)
    assert cause is not None
    assert str(job.folder / "out") in cause.text


@pytest.mark.flink
@BOTH_WAYS
def test_intake_slows_while_too_much_is_unanswered(
    operator_job: MakeJob, request_of: MakeRequest, polling: bool
) -> None:
    limits = Limits(live_requests=4, intake_wait_ms=10_000)
    job = operator_job(options=OperatorOptions("key", limits=limits), polling=polling)
    file = str(job.folder / "level.txt")

    def measure(number: int, i: int) -> int:
        """Note how many bodies run."""
        with open(file, "a", encoding="utf-8") as lines:
            lines.write("+\n")
        time.sleep(0.03)
        with open(file, "a", encoding="utf-8") as lines:
            lines.write("-\n")
        return number * 10 + i

    job.add("a.jsonl", [request_of(n, key=f"k{n}", tool="measure") for n in range(60)])
    job.finish(job.submit([measure]))
    checked(job, 60, 1)
    level = highest = 0
    for line in (job.folder / "level.txt").read_text(encoding="utf-8").split():
        level += 1 if line == "+" else -1
        highest = max(highest, level)
    # The record that goes over the limit is stored first and then waits.
    assert highest <= 5


@pytest.mark.flink
def test_counters_are_flink_metrics(operator_job: MakeJob, request_of: MakeRequest) -> None:
    job = operator_job(follow=True)
    job.add("a.jsonl", [*(request_of(n, key=f"k{n}", tool="wait", calls=2) for n in range(10)), "junk"])
    submitted = job.submit()
    names = frozenset({"requests", "responses", "rejects"})
    wanted = {"requests": 10, "responses": 10, "rejects": 1}
    job.until(lambda: job.cluster.rest.counters(submitted, names) == wanted)
    job.cluster.rest.cancel(submitted)


@pytest.mark.flink
@pytest.mark.rule(1, 5)
def test_a_stream_of_dicts_is_answered_like_one_of_strings(operator_job: MakeJob, request_of: MakeRequest) -> None:
    from flink_agents.datastream import tool_calls

    job = operator_job()
    records = [json.loads(request_of(n, key=f"k{n}", tool="wait", calls=2)) for n in range(10)]

    def build(env: Any) -> None:
        streams = tool_calls(env.from_collection([*records, {"no": "key"}]), key_by="key", tools=[quick(job.folder)])
        write_jsonl(streams.responses, job.folder / "out", roll_ms=500, name="responses")
        write_jsonl(streams.rejects, job.folder / "rejects", roll_ms=500, name="rejects")

    job.finish(job.cluster.submit("dicts", {"restart-strategy.type": "none"}, build))
    checked(job, 10, 2)
    assert [reject["field"] for reject in job.rejects()] == ["key"]


def test_process_mode_is_refused_with_the_reason(cluster_free_operator: Any) -> None:
    class ProcessModeContext:
        """What PyFlink hands over in process mode has no Java context behind it."""

    with pytest.raises(ProcessModeRefused, match=r"thread mode.*loses timers.*python\.execution-mode"):
        cluster_free_operator.open(ProcessModeContext())


@pytest.fixture
def cluster_free_operator() -> Any:
    from flink_agents.runtime.operator import ToolCallOperator

    return ToolCallOperator(OperatorOptions("key"), [])
