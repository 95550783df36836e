"""Programs that the crash tests start in processes of their own, to be killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.operations import Answered, Finish, Operation, PutRequest, Start, StartAgain
from flink_agents.durable.journal.postgresql import PostgresqlJournal
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import CallFilter, CallKey, RequestRow, RunRow, StartAnswer
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.journal.writer import JournalWriter
from flink_agents.durable.outcome import Succeeded

RUN = "run-1"


def call(index: int, key: str = '"k"') -> CallKey:
    return CallKey.of(RUN, key, 1, Identity(index, "tool", "refund", index, "ab" * 32))


def opened(where: str) -> Journal:
    return PostgresqlJournal(where) if "://" in where else SqliteJournal(Path(where))


def write(where: str, attempt_id: str, first: int, count: int) -> None:
    """Finish calls through a writer; print each call that is recorded, with the outcome that stands."""
    journal = opened(where)
    journal.create_run(RunRow(RUN, "job", 1))
    journal.open_attempt(RUN, attempt_id, 0, 1)
    writer = JournalWriter(journal)
    printing = threading.Lock()
    open_calls = threading.Semaphore(32)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()

    def done(index: int, answer: object) -> None:
        text = answer.outcome if isinstance(answer, StartAnswer) else answer
        with printing:
            sys.stdout.write(f"{index} {text.text if isinstance(text, Succeeded) else repr(text)}\n")
            sys.stdout.flush()
        open_calls.release()

    for index in range(first, first + count):
        open_calls.acquire()
        writer.submit(Start(call(index), attempt_id, 1))
        finish = Finish(call(index), Succeeded(f'"{attempt_id}"'), 1, attempt_id, 1, 2)
        writer.submit(finish, lambda answer, index=index: done(index, answer))  # type: ignore[misc]
    writer.wait(60)


def batches() -> list[list[Operation]]:
    """Return what one process does between its start and its kill."""
    return [
        [PutRequest(RequestRow(RUN, '"k"', 1, "a", "d")), Start(call(0), "first", 1), Start(call(1), "first", 1)],
        [Finish(call(0), Succeeded("0"), 1, "first", 1, 2), StartAgain(call(1), "first", 2, 3)],
        [Finish(call(1), Succeeded("1"), 2, "first", 3, 4), Answered(RUN, '"k"', 1, 5)],
    ]


def die_at(path: str, statement: int) -> None:
    """Create the journal and do the batches; die by SIGKILL before that statement. Leaves a mark for each commit."""
    seen = 0

    def count(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(count)
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]
    journal = SqliteJournal(Path(path))
    journal.create_run(RunRow(RUN, "job", 1))
    for number, batch in enumerate(batches()):
        journal.apply(batch)
        Path(f"{path}.committed").write_text(str(number + 1))


def check(path: str) -> str | None:
    """Return what is wrong with the file that a killed process left, or None."""
    mark = Path(f"{path}.committed")
    committed = int(mark.read_text()) if mark.exists() else 0
    journal = SqliteJournal(Path(path))
    journal.create_run(RunRow(RUN, "job", 1))
    assert journal._writer is not None
    intact = journal._writer.execute("PRAGMA integrity_check").fetchall()
    states = [[], ["started", "started"], ["succeeded", "started"], ["succeeded", "succeeded"]]
    found = [row.status.value for row in journal.calls(CallFilter(run_id=RUN))]
    # Killed between the commit and the mark, the next state is there already.
    allowed = states[committed : committed + 2]
    for batch in batches():
        journal.apply(batch)
    repeated = [row.status.value for row in journal.calls()]
    journal.close()
    good = intact == [("ok",)] and found in allowed and repeated == states[3]
    return None if good else f"{intact}, {committed} commits, {found}, after repeating {repeated}"


def die_everywhere(folder: str) -> None:
    """Kill one process at every statement of its work, and check what each leaves."""
    statement, killed = 1, True
    while killed:
        path = f"{folder}/{statement}.db"
        child = os.fork()
        if child == 0:
            die_at(path, statement)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        wrong = check(path) if killed or os.WEXITSTATUS(status) == 0 else "the writing process failed"
        if wrong:
            sys.stdout.write(f"statement {statement}: {wrong}\n")
        statement += 1
    sys.stdout.write(f"killed at {statement - 2} statements\n")


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        die_everywhere(sys.argv[2])
