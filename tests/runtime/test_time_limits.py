"""Time-outs, retries and batch deadlines on an embedded cluster: at the end of input, both wake-ups, after a crash."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.options import OperatorOptions, ToolCallOptions

if TYPE_CHECKING:
    from tests.runtime.conftest import CrashOnce, OperatorJob

    MakeJob = Callable[..., OperatorJob]
    MakeRequest = Callable[..., str]
    MakeCrash = Callable[..., CrashOnce]

pytest.importorskip("pyflink")

BOTH_WAYS = pytest.mark.parametrize("polling", [False, True], ids=["mailbox", "polling"])


def tools_in(folder: Path) -> list[Any]:
    """Return tools with limits; nested, so that they travel to the TaskManager by value."""
    from flink_agents.tools.registry import FunctionDeclaration

    runs = str(folder / "runs.txt")

    def note(text: str) -> int:
        with open(runs, "a", encoding="utf-8") as lines:
            lines.write(f"{text}\n")
        with open(runs, encoding="utf-8") as lines:
            return lines.read().split().count(text)

    def flaky(number: int, i: int) -> int:
        """Fail twice."""
        if note(f"{number}/{i}") < 3:
            raise ConnectionError("not yet")
        return number * 10 + i

    def stuck(number: int, i: int) -> int:
        """Take longer than there is time."""
        note(f"{number}/{i}")
        time.sleep(3)
        return -1

    async def stuck_async(number: int, i: int) -> int:
        """Take longer than there is time."""
        note(f"{number}/{i}")
        await asyncio.sleep(60)
        return -1

    retry = {"attempts": 5, "initial": "300ms", "jitter": 0}
    return [
        FunctionDeclaration(flaky, retry=retry),
        FunctionDeclaration(stuck, timeout="200ms"),
        FunctionDeclaration(stuck_async, timeout="200ms"),
        FunctionDeclaration(stuck_async, name="unbounded"),
    ]


@pytest.mark.flink
@pytest.mark.rule(39, 45, 47, 51)
@BOTH_WAYS
def test_case_30_the_end_of_input_waits_for_retries_and_time_outs(
    operator_job: MakeJob, request_of: MakeRequest, polling: bool
) -> None:
    job = operator_job(polling=polling, parallelism=2)
    tools = ("flaky", "stuck", "stuck_async")
    # Every body ends, or has its time-out, long after the source has ended.
    job.add("a.jsonl", [request_of(n, key=f"k{n % 4}", tool=tools[n % 3], calls=2) for n in range(12)])
    job.finish(job.submit(tools_in(job.folder)))
    responses = {response["request_id"]: response["results"] for response in job.responses()}
    assert len(responses) == len(job.responses()) == 12
    for n in range(12):
        results = responses[f"r{n}"]
        if n % 3 == 0:
            assert [result["value"] for result in results] == [n * 10, n * 10 + 1]
            assert [result["attempts"] for result in results] == [3, 3]
        else:
            assert [result["error"]["kind"] for result in results] == ["timeout"] * 2
    assert set(Counter(job.runs()).values()) == {1, 3}


@pytest.mark.flink
@pytest.mark.rule(37, 51)
@BOTH_WAYS
def test_a_batch_deadline_at_the_end_of_input_and_after_a_crash(
    operator_job: MakeJob, request_of: MakeRequest, crash_once: MakeCrash, polling: bool
) -> None:
    options = OperatorOptions("key", tool_calls=ToolCallOptions(timeout_ms=1_000, max_in_flight=2))
    job = operator_job(options=options, polling=polling, fault=crash_once("before:expired"))
    job.add("a.jsonl", [request_of(1, key="k", tool="unbounded", calls=5)])
    restart = {"restart__strategy_type": "fixed-delay", "restart__strategy_fixed__delay_attempts": "1"}
    job.finish(job.submit(tools_in(job.folder), **restart, restart__strategy_fixed__delay_delay="10 ms"))
    (response,) = job.responses()
    kinds = [result["error"]["kind"] for result in response["results"]]
    assert kinds == ["timeout", "timeout", "not_started", "not_started", "not_started"]
