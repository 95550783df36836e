"""``flink-agents calls``: rows of the journal by key, request and status, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.operations import Finish, MarkFatal, PutRequest, Start, StartAgain
from flink_agents.durable.journal.rows import CallKey, RequestRow, RunRow
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.outcome import Failed, Succeeded
from flink_agents.errors import InDoubt
from flink_agents.failures import capture

Command = Callable[..., Any]


def call_of(key: str, index: int, *, intake: int = 1, run: str = "run-1") -> CallKey:
    return CallKey.of(run, key, intake, Identity(index, "tool", "add", index, "ab" * 32))


@pytest.fixture
def journal(folder: Path) -> Path:
    """Write the journal that the job in the folder has by default; return its path."""
    path = folder / "state" / "journal.db"
    written = SqliteJournal(path)
    written.create_run(RunRow("run-1", "commanded", 1_000))
    written.create_run(RunRow("run-2", "another job", 1_000))
    for attempt in ("first", "second"):
        written.open_attempt("run-1", attempt, 0, 1)
    doubt = Failed(capture(InDoubt("it may have taken effect")))
    written.apply(
        [
            PutRequest(RequestRow("run-1", "1", 1, "r1", "d")),
            PutRequest(RequestRow("run-1", '"1"', 1, "r2", "d")),
            PutRequest(RequestRow("run-1", '"text"', 1, "r3", "d")),
            Finish(call_of("1", 0), Succeeded("5"), 1, "first", 1_000, 1_250),
            Start(call_of("1", 1), "first", 1_000),
            Finish(call_of("1", 1), doubt, 1, "second", 2_000, 2_000),
            Start(call_of('"1"', 0), "first", 1_000),
            StartAgain(call_of('"1"', 0), "second", 2, 2_000),
            Finish(call_of('"1"', 0), Succeeded(json.dumps("x" * 1000)), 2, "second", 2_000, 2_001),
            Start(call_of('"text"', 0), "first", 1_000),
            Start(call_of('"text"', 1), "first", 1_000),
            Finish(call_of('"text"', 1), Succeeded("6"), 1, "second", 2_000, 2_001),
            MarkFatal(call_of('"text"', 2), "first", 1_000),
            Finish(call_of("1", 0, run="run-2"), Succeeded("7"), 1, "first", 1, 2),
        ]
    )
    written.close()
    return path


def listed(command: Command, *options: str) -> list[dict[str, Any]]:
    done = command("calls", "job.yaml", "--json", *options)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_every_call_of_the_job_and_of_no_other(command: Command, journal: Path) -> None:
    entries = listed(command)
    assert [(entry["key"], entry["index"], entry["status"], entry["note"]) for entry in entries] == [
        ("1", 0, "succeeded", "ran again: an earlier body left no outcome"),
        ("text", 0, "started", None),
        ("text", 1, "succeeded", "cut off; its reconciler decided"),
        ("text", 2, "started", "brought the task down in 1 attempt"),
        (1, 0, "succeeded", None),
        (1, 1, "failed", "cut off and not run again (on_interrupt: fail)"),
    ]
    first = entries[4]
    assert (first["run_id"], first["request_id"], first["intake"], first["tool"]) == ("run-1", "r1", 1, "add")
    assert (first["value"], first["attempts"], first["ended"]) == ("5", 1, "1970-01-01T00:00:01.250+00:00")
    assert entries[5]["error"] == {"kind": "in_doubt", "type": "InDoubt", "message": "it may have taken effect"}
    assert len(entries[0]["value"]) < 250
    assert entries[1]["ended"] is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--key", "1"), [(1, 0), (1, 1)]),
        (("--key", '"1"'), [("1", 0)]),
        (("--key", "1.0"), [(1, 0), (1, 1)]),
        (("--key", "text"), [("text", 0), ("text", 1), ("text", 2)]),
        (("--key", '"text"', "--status", "started"), [("text", 0), ("text", 2)]),
        (("--key", "true"), []),
        (("--request", "r2"), [("1", 0)]),
        (("--status", "failed"), [(1, 1)]),
        (("--run", "run-1", "--status", "failed"), [(1, 1)]),
    ],
)
def test_what_is_asked_for(command: Command, journal: Path, options: tuple[str, ...], expected: list[Any]) -> None:
    assert [(entry["key"], entry["index"]) for entry in listed(command, *options)] == expected


@pytest.mark.parametrize("run", ["nope", "run-2"])
def test_a_run_that_the_job_has_not(command: Command, journal: Path, run: str) -> None:
    done = command("calls", "job.yaml", "--run", run)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"flink-agents: --run: the journal {journal} knows no run {run} of job commanded\n"


def test_for_people_a_line_each(command: Command, journal: Path) -> None:
    done = command("calls", "job.yaml")
    header, *lines = done.out.splitlines()
    assert header.split("\t")[:4] == ["run", "key", "request", "call"]
    assert len(lines) == 6
    assert "\tInDoubt: it may have taken effect\tcut off and not run again (on_interrupt: fail)" in lines[5]
    assert "x" * 1000 not in done.out


def test_a_journal_that_is_not_there(command: Command, folder: Path) -> None:
    done = command("calls", "job.yaml")
    assert (done.code, done.out) == (2, "")
    assert f"there is no journal {folder / 'state' / 'journal.db'} on this machine" in done.err
    assert "run the job first, by `flink-agents run job.yaml`" in done.err
    assert done.err.index("run the job first") < done.err.index("postgresql")
    assert not (folder / "state").exists()
    none = command("calls", "job.yaml", "--set", "journal=none")
    assert (none.code, none.err) == (2, "flink-agents: --set journal: the job has no journal\n")


def test_a_file_that_is_no_journal(command: Command, folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "state" / "journal.db").write_text("no database at all, but long enough to be looked at" * 20)
    done = command("calls", "job.yaml")
    assert done.code == 2
    assert "no SQLite database" in done.err


def test_a_journal_that_cannot_be_reached(command: Command, folder: Path) -> None:
    dsn = "postgresql://somebody:n0t-for-logs@127.0.0.1:1/none"
    done = command("calls", "job.yaml", "--set", f"journal={{type: postgresql, dsn: '{dsn}'}}")
    assert done.code == 2
    assert "cannot be reached" in done.err
    assert "n0t-for-logs" not in done.err


def test_a_variable_that_is_not_set(command: Command, folder: Path) -> None:
    done = command("calls", "job.yaml", "--set", "journal={type: postgresql, dsn: {env: NO_SUCH_DSN}}")
    assert done.code == 2
    assert "the environment variable NO_SUCH_DSN, which holds the journal's dsn, is not set" in done.err
