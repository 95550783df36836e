"""A running job with a journal: what finished between checkpoints stands, what was cut off is told apart from it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flink_agents.durable.journal.opening import JournalSpec, JournalType, open_journal
from flink_agents.durable.journal.rows import CallFilter, CallRow
from flink_agents.durable.outcome import Succeeded
from flink_agents.options import ToolCallOptions
from flink_agents.testing.crash_file import CrashFile
from flink_agents.tools.registry import FunctionDeclaration

if TYPE_CHECKING:
    from tests.recovery.conftest import RecoveryJob

    MakeJob = Callable[..., RecoveryJob]
    MakeRequest = Callable[..., str]

pytest.importorskip("pyflink")

REQUESTS, KEYS = 40, 8
CALLS = (("wait", 40), ("block", 20), ("reckon", 0))
NO_CHECKPOINT: dict[str, Any] = {"execution_checkpointing_interval": "10 min"}


@pytest.fixture
def spec(tmp_path: Path) -> JournalSpec:
    return JournalSpec(JournalType.SQLITE, path=str(tmp_path / "state" / "journal.db"))


def rows_of(spec: JournalSpec) -> list[CallRow]:
    with closing(open_journal(spec, create=False)) as journal:
        return list(journal.calls(CallFilter()))


def name_of(row: CallRow) -> str:
    assert isinstance(row.outcome, Succeeded)
    return str(json.loads(row.outcome.text)).removeprefix("value of ")


@pytest.mark.flink
@pytest.mark.rule(1, 15, 48, 49)
@pytest.mark.parametrize("interval", ["10 min", "300 ms"], ids=["no checkpoint", "some checkpoints"])
def test_what_the_journal_holds_never_runs_again(
    recovery_job: MakeJob, request_of: MakeRequest, spec: JournalSpec, tmp_path: Path, interval: str
) -> None:
    crashes = ("after:recorded", "before:emitted")
    plan = CrashFile(str(tmp_path), crashes, nth=35)
    job = recovery_job(fault=plan, journal=spec)
    job.add("a.jsonl", [request_of(n, f"k{n % KEYS}", *CALLS) for n in range(REQUESTS)])
    job.submit(restarts=len(crashes), execution_checkpointing_interval=interval)
    job.finish()
    assert job.restarts == len(crashes)
    responses = job.responses()
    assert Counter(response["request_id"] for response in responses) == Counter(f"r{n}" for n in range(REQUESTS))
    rows = rows_of(spec)
    assert len(rows) == REQUESTS * len(CALLS)
    assert len({row.attempt_id for row in rows}) > 1, "one attempt recorded everything: it proves nothing"
    recorded_ms = {name_of(row): row.ended_ms for row in rows}
    # A row's time is that of the body's end, before its commit: no body may begin later.
    late = [run for run in job.runs() if run.at * 1000 > recorded_ms[run.call] + 1]
    assert late == []
    times = Counter(run.call for run in job.runs())
    again = [call for call, n in times.items() if n > 1]
    # What ran twice was under way in a crash: at most what can be in flight at once.
    assert len(again) <= len(crashes) * KEYS * len(CALLS)
    if interval == "10 min":
        replayed = [result for response in responses for result in response["results"] if result["replayed"]]
        assert len(replayed) >= 30


@pytest.mark.flink
@pytest.mark.rule(15, 16, 49)
def test_only_what_had_begun_is_in_doubt(
    recovery_job: MakeJob, request_of: MakeRequest, spec: JournalSpec, tmp_path: Path
) -> None:
    held, asked = str(tmp_path / "held.txt"), str(tmp_path / "asked.txt")
    crashed = str(tmp_path / "crashed-0")

    def note(file: str, call: str) -> bool:
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(call + "\n")
        return Path(crashed).exists()

    async def pay(call: str, ms: int = 0) -> str:
        """Hold on, until the crash."""
        if not note(held, call):
            await asyncio.sleep(60)
        return f"value of {call}"

    async def find(call: str) -> str:
        note(asked, call)
        await asyncio.sleep(0)
        return f"found {call}"

    def go_on(call: str, ms: int = 0) -> str:
        """Wait until the held ones have begun, and bring about the crash by being recorded."""
        while not (Path(held).exists() and len(Path(held).read_text(encoding="utf-8").splitlines()) >= 4):
            pass_time()
        return f"value of {call}"

    tools = [
        FunctionDeclaration(pay, "pay_once", on_interrupt="fail"),
        FunctionDeclaration(pay, "pay_found", on_interrupt="reconcile", reconcile=find),
        go_on,
    ]
    plan = CrashFile(str(tmp_path), ("after:recorded",))
    job = recovery_job(fault=plan, journal=spec, tool_calls=ToolCallOptions(max_in_flight=2))
    # Two of each batch begin, the others of it wait for the window.
    records = [request_of(0, "a", *[("pay_once", 0)] * 20), request_of(1, "b", *[("pay_found", 0)] * 20)]
    job.add("a.jsonl", [*records, request_of(2, "c", ("go_on", 0))])
    job.submit(restarts=1, tools=tools, **NO_CHECKPOINT)
    job.finish()
    assert job.restarts == 1
    by_id = {response["request_id"]: response["results"] for response in job.responses()}
    once = [result.get("error", {}).get("kind") for result in by_id["r0"]]
    assert once == ["in_doubt", "in_doubt", *[None] * 18]
    found = [result["value"] for result in by_id["r1"]]
    assert found == ["found 1/0", "found 1/1", *[f"value of 1/{i}" for i in range(2, 20)]]
    assert sorted(Path(asked).read_text(encoding="utf-8").split()) == ["1/0", "1/1"]
    begun = Counter(Path(held).read_text(encoding="utf-8").split())
    assert begun == Counter(f"{n}/{i}" for n in (0, 1) for i in range(20))
    assert [row.status.value for row in rows_of(spec)].count("started") == 0


def pass_time() -> None:
    """Let other threads run: a tool that polls a file has nothing to wait on."""
    import time

    time.sleep(0.01)


@pytest.mark.flink
@pytest.mark.rule(26, 49)
def test_requests_of_one_key_keep_their_outcomes_in_whatever_order_files_are_read_again(
    recovery_job: MakeJob, request_of: MakeRequest, spec: JournalSpec
) -> None:
    files = {
        "a.jsonl": [request_of(n, "k", ("wait", 0), ("reckon", 0)) for n in range(5)],
        "b.jsonl": [request_of(n, "k", ("wait", 0), ("reckon", 0)) for n in range(5, 10)],
    }
    first = recovery_job(journal=spec, follow=True)
    first.submit(**NO_CHECKPOINT)
    for count, (name, records) in enumerate(files.items(), start=1):
        first.add(name, records)
        first.until(lambda count=count: len(rows_of(spec)) == 10 * count)  # type: ignore[misc]
    first.cluster.rest.cancel(first.job_id)
    first.cluster.rest.wait(first.job_id, timeout_s=30, states=frozenset({"CANCELED"}))
    with closing(open_journal(spec)) as journal:
        # As a client does that knows the job is over.
        journal.release_lease("run-1", f"Flink job {first.job_id}")
    for name in files:
        (first.requests / name).unlink()
    second = recovery_job(journal=spec, follow=True)
    second.submit(**NO_CHECKPOINT)
    for name in reversed(files):
        second.add(name, files[name])
        # One file is taken in before the other is there.
        second.until(lambda name=name: taken_in(second, files, name))  # type: ignore[misc]
    second.cluster.rest.stop_with_savepoint(second.job_id, f"file://{second.folder}/savepoints", drain=True)
    responses = second.responses()
    assert [response["request_id"] for response in responses] == [f"r{n}" for n in [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]]
    for response in responses:
        number = response["request_id"][1:]
        assert [result["value"] for result in response["results"]] == [f"value of {number}/{i}" for i in range(2)]
        assert all(result["replayed"] for result in response["results"])
    assert set(Counter(run.call for run in second.runs()).values()) == {1}
    assert len(rows_of(spec)) == 20


def taken_in(job: RecoveryJob, files: dict[str, list[str]], name: str) -> bool:
    """Whether the operator has answered every request of the file, by its live counters."""
    counted = job.cluster.rest.counters(job.job_id, frozenset({"responses"}))
    wanted = 5 if name == "b.jsonl" else 10
    return counted.get("responses", 0) >= wanted


@pytest.mark.flink
def test_a_journal_that_does_not_know_the_run_fails_the_job_with_the_fix(
    recovery_job: MakeJob, request_of: MakeRequest, spec: JournalSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = recovery_job(journal=spec)
    job.add("a.jsonl", [request_of(0, "k", ("wait", 0))])
    # The client wrote the run elsewhere, as on another machine.
    elsewhere: Iterator[Any] = iter([JournalSpec(JournalType.SQLITE, path=str(job.folder / "elsewhere.db"))])
    monkeypatch.setitem(job.submit.__func__.__globals__, "open_journal", lambda _: open_journal(next(elsewhere)))  # type: ignore[attr-defined]
    job.submit(**NO_CHECKPOINT)
    job.cluster.rest.wait(job.job_id, timeout_s=60, states=frozenset({"FAILED"}))
    cause = job.cluster.rest.failure(job.job_id)
    assert cause is not None
    assert "there is no journal" in cause.summary
    assert "needs `journal: {type: postgresql" in cause.text
