"""Processes that write and are killed, and processes that write the same calls at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from flink_agents.durable.journal.operations import LookUp
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import CallFilter, StartAnswer
from flink_agents.durable.outcome import Succeeded

PROGRAM = Path(__file__).with_name("writing_process.py")


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def begin(*processes: subprocess.Popen[str]) -> None:
    """Let processes that write begin, all at the same time."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def printed(output: IO[str] | None) -> dict[int, str]:
    assert output is not None
    lines = [line.split(" ", 1) for line in output if line.endswith("\n")]
    return {int(index): text.strip() for index, text in lines}


@pytest.mark.rule(24, 48)
def test_killed_at_any_statement_a_process_leaves_a_consistent_file(tmp_path: Path) -> None:
    with start("die", str(tmp_path)) as process:
        output, _ = process.communicate(timeout=110)
    *wrong, last = output.splitlines()
    assert wrong == []
    assert int(last.split()[2]) > 30


def where(open_another: Callable[[], Journal]) -> str:
    journal = open_another()
    dsn = getattr(journal, "_address", None)
    return journal.place if dsn is None else str(dsn.dsn)


@pytest.mark.rule(24, 48)
def test_what_was_said_to_be_recorded_survives_the_kill(journal: Journal, open_another: Callable[[], Journal]) -> None:
    place = where(open_another)
    for kill in range(3):
        with start("write", place, f"attempt {kill}", str(kill * 100_000), "100000") as process:
            begin(process)
            assert process.stdout is not None
            # What this reads ahead of the kill is bounded by the pipe, so the process is in the midst of its work.
            seen = [process.stdout.readline() for _ in range(40 + 60 * kill)]
            process.kill()
            said = {int(line.split()[0]) for line in seen} | set(printed(process.stdout))
        assert len(said) >= 40
        found = {row.call.index: row.outcome for row in open_another().calls() if row.outcome is not None}
        assert said <= set(found)
        assert all(found[index] == Succeeded(f'"attempt {kill}"') for index in said)


@pytest.mark.rule(33, 54)
def test_two_processes_end_the_same_calls_and_both_get_the_first_outcome(
    journal: Journal, open_another: Callable[[], Journal]
) -> None:
    place = where(open_another)
    with start("write", place, "one", "0", "300") as one, start("write", place, "two", "0", "300") as two:
        begin(one, two)
        answers = printed(one.stdout), printed(two.stdout)
    assert (one.returncode, two.returncode) == (0, 0)
    assert set(answers[0]) == set(range(300))
    assert answers[0] == answers[1]
    rows = list(journal.calls(CallFilter()))
    assert {row.call.index: row.outcome for row in rows} == {n: Succeeded(text) for n, text in answers[0].items()}
    (answer,) = journal.apply([LookUp(rows[7].call)])
    assert isinstance(answer, StartAnswer)
    assert answer.outcome == Succeeded(answers[0][rows[7].call.index])
