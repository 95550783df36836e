"""The SQLite journal in trouble: each kind is told by its own error, and nothing failed counts as recorded."""

from __future__ import annotations

import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from flink_agents.durable.journal import sqlite
from flink_agents.durable.journal.operations import Answered, Finish, LookUp, Operation, PutRequest, Start
from flink_agents.durable.journal.rows import CallKey, RequestRow, RunRow, StartAnswer, StartStatus
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.journal.writer import JournalWriter
from flink_agents.durable.outcome import Succeeded
from flink_agents.errors import (
    JournalCorrupt,
    JournalError,
    JournalFormat,
    JournalFull,
    JournalLost,
    JournalRefused,
    JournalUnavailable,
)

CallOf = Callable[..., CallKey]
NOBODY = 65534
KIB = Succeeded('"' + "x" * 1024 + '"')


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@contextmanager
def opened(path: Path, busy_ms: int = 100) -> Iterator[SqliteJournal]:
    with closing(SqliteJournal(path, busy_ms=busy_ms)) as journal:
        journal.create_run(RunRow("run-1", "job", 1))
        yield journal


def finish(call: CallKey) -> Finish:
    return Finish(call, KIB, 1, "first", 1, 2)


def recorded(journal: SqliteJournal, call: CallKey) -> bool:
    (answer,) = journal.apply([LookUp(call)])
    return isinstance(answer, StartAnswer) and answer.status is StartStatus.TERMINAL


@pytest.mark.rule(24)
def test_every_commit_is_synced(path: Path) -> None:
    with opened(path) as journal:
        connection = journal._writer
        assert connection is not None
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalRefused, match="is a folder; `path` must name a file"), opened(tmp_path):
        pass


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalRefused, match=r"File exists|Not a directory"), opened(tmp_path / "file" / "journal.db"):
        pass


def test_something_else_is_not_touched(path: Path) -> None:
    path.write_bytes(b"some text that is no database" * 100)
    before = path.read_bytes()
    with pytest.raises(JournalCorrupt, match="is no SQLite database"), opened(path):
        pass
    assert path.read_bytes() == before


def test_the_database_of_something_else_is_not_touched(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE invoices (number INTEGER)")
    with pytest.raises(JournalCorrupt, match="database of something else"), opened(path):
        pass
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("invoices",)]


def test_a_damaged_file_is_said_to_be_so(path: Path, call_of: CallOf) -> None:
    with opened(path) as journal:
        journal.apply([finish(call_of(index)) for index in range(200)])
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 8192))
    with pytest.raises(JournalCorrupt, match=r"is damaged|tables are gone"), opened(path) as journal:
        journal.apply([finish(call_of(index)) for index in range(400)])


def test_a_newer_format_is_refused(path: Path) -> None:
    with opened(path) as journal:
        assert journal._writer is not None
        journal._writer.execute("INSERT INTO journal_format VALUES (2)")
    with (
        pytest.raises(JournalFormat, match=f"^the journal {path} has format 2, this release reads up to 1"),
        opened(path),
    ):
        pass


def test_a_file_removed_while_in_use_is_noticed_before_anything_is_said_to_be_recorded(
    path: Path, call_of: CallOf
) -> None:
    with opened(path) as journal:
        journal.apply([finish(call_of(0))])
        for file in path.parent.glob("journal.db*"):
            file.unlink()
        with pytest.raises(JournalCorrupt, match="was removed or replaced while in use"):
            journal.apply([finish(call_of(1))])


@contextmanager
def as_nobody() -> Iterator[None]:
    """Rights do not bind root: be somebody else for a moment."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own is for its user only."""
    folder = Path(tempfile.mkdtemp(prefix="journal-sqlite-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_read_only_journal_is_refused(open_folder: Path, call_of: CallOf, what: str) -> None:
    path = open_folder / "journal.db"
    with opened(path) as journal:
        journal.apply([finish(call_of(0))])
    path.chmod(0o444 if what == "file" else 0o666)
    open_folder.chmod(0o777 if what == "file" else 0o555)
    with as_nobody(), pytest.raises(JournalRefused, match=r"read-only|check the rights"), opened(path) as journal:
        journal.apply([finish(call_of(1))])
    open_folder.chmod(0o755)
    with opened(path) as journal:
        assert recorded(journal, call_of(0))
        assert not recorded(journal, call_of(1))


def test_a_folder_without_rights_is_refused(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    path = open_folder / "state" / "journal.db"
    with as_nobody(), pytest.raises(JournalRefused, match="Permission denied"), opened(path):
        pass


LOCKS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


def test_another_process_holds_the_lock_and_lets_go(path: Path, call_of: CallOf) -> None:
    with opened(path) as journal:
        with subprocess.Popen(
            [sys.executable, "-c", LOCKS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == "locked\n"
            with pytest.raises(JournalUnavailable, match="another process has it locked"):
                journal.apply([finish(call_of(0))])
            # Reading goes on meanwhile.
            assert journal.requests_from("run-1", '"k"', 1) == []
            assert list(journal.calls()) == []
            answers: list[object] = []
            writer = JournalWriter(journal)
            writer.submit(finish(call_of(0)), answers.append)
            assert not writer.wait(0.3)
            assert answers == []
            other.stdin.write("let go\n")
            other.stdin.flush()
            assert writer.wait(30)
        assert isinstance(answers[0], StartAnswer)
        assert recorded(journal, call_of(0))


def fill(journal: SqliteJournal, call_of: CallOf) -> tuple[int, JournalError]:
    """Record calls one by one until it fails; return how many succeeded."""
    for index in range(100_000):
        try:
            journal.apply([finish(call_of(index))])
        except JournalError as error:
            return index, error
    pytest.fail("the disk is never full")


@contextmanager
def tiny_disk(folder: Path) -> Iterator[None]:
    """A file system of one megabyte where the user may make one; else nothing, and the test bounds the file itself."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.rule(24)
def test_a_full_disk_loses_nothing_that_was_recorded(tmp_path: Path, call_of: CallOf) -> None:
    with tiny_disk(tmp_path):
        path = tmp_path / "journal.db"
        with opened(path) as journal:
            if not os.path.ismount(tmp_path):
                assert journal._writer is not None
                journal._writer.execute("PRAGMA max_page_count = 100")
            count, error = fill(journal, call_of)
            assert isinstance(error, JournalFull), error
            assert "no space is left" in str(error)
            assert count > 20
            writer = JournalWriter(journal)
            answers: list[object] = []
            writer.submit(finish(call_of(count)), answers.append)
            assert writer.wait(30)
            assert isinstance(answers[0], JournalLost)
        with opened(path) as journal:
            assert [recorded(journal, call_of(index)) for index in range(count + 1)] == [True] * count + [False]


def test_a_batch_that_fails_leaves_nothing(path: Path, call_of: CallOf) -> None:
    with opened(path) as journal:
        too_large = Finish(call_of(1), KIB, 1, "first", 2**70, 2)
        with pytest.raises(OverflowError):
            journal.apply([finish(call_of(0)), too_large, Start(call_of(2), "first", 1)])
        assert list(journal.calls()) == []
        journal.apply([finish(call_of(0))])
        assert recorded(journal, call_of(0))


def test_a_batch_that_fails_on_its_second_way_leaves_nothing(
    path: Path, call_of: CallOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as journal:
        journal.apply([finish(call_of(0))])
        request = PutRequest(RequestRow("run-1", '"k"', 1, "a", "d"))
        batch: list[Operation] = [request, finish(call_of(0)), finish(call_of(1))]
        with monkeypatch.context() as patch:
            # One outcome is known, so the batch is not done at once but operation by operation.
            patch.setattr(SqliteJournal, "_apply", raising)
            with pytest.raises(JournalUnavailable):
                journal.apply(batch)
        assert not recorded(journal, call_of(1))
        assert journal.requests_from("run-1", '"k"', 1) == []
        assert journal.apply(batch)[0] == request.request
        assert recorded(journal, call_of(1))


@pytest.mark.parametrize("seed", range(5))
def test_marks_among_new_rows_say_what_they_say_one_by_one(tmp_path: Path, call_of: CallOf, seed: int) -> None:
    dice, times, given, batches = random.Random(seed), count(1), [0] * 6, list[list[Operation]]()
    for _ in range(20):
        batch: list[Operation] = []
        for _ in range(dice.choice([1, 2, 40, 130])):
            key = dice.randrange(6)
            if given[key] and dice.random() < 0.4:
                mark = Answered("run-1", f'"{key}"', dice.randint(1, given[key]), next(times))
                batch.append(mark)
            else:
                given[key] += 1
                batch.append(PutRequest(RequestRow("run-1", f'"{key}"', given[key], "r", "d")))
        batches.append([*batch, finish(call_of(len(batches)))] if dice.random() < 0.5 else batch)
    tables = []
    for name in ("together", "one by one"):
        path = tmp_path / f"{name}.db"
        with opened(path) as journal:
            for batch in batches:
                parts = [batch] if name == "together" else [[operation] for operation in batch]
                assert [answer for part in parts for answer in journal.apply(part)] != []
        with closing(sqlite3.connect(path)) as database:
            rows = "SELECT key, intake, answered_ms FROM requests ORDER BY key, intake"
            tables.append(database.execute(rows).fetchall())
    assert tables[0] == tables[1]
    assert {answered is None for _, _, answered in tables[0]} == {True, False}


def test_new_rows_and_marks_are_few_statements(path: Path, call_of: CallOf, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as journal:
        monkeypatch.setattr(SqliteJournal, "_apply", raising)
        puts = [PutRequest(RequestRow("run-1", f'"{key}"', 1, "r", "d")) for key in range(60)]
        marks = [Answered("run-1", f'"{key}"', 1, 5) for key in range(60)]
        answers = journal.apply([*marks[:1], *puts, finish(call_of(0)), *marks])
        assert answers[0] is answers[-1] is None
        assert answers[1:61] == [put.request for put in puts]
        assert journal.prune(10, 5) == 60


def raising(*_: object) -> None:
    raise JournalUnavailable("not now")


def test_a_look_at_what_a_crash_left_changes_nothing(path: Path, tmp_path: Path) -> None:
    left = tmp_path / "left"
    left.mkdir()
    with opened(path):
        # As after a crash: the rows are in the log only, and its index may be gone.
        for name in (path.name, f"{path.name}-wal"):
            shutil.copy(path.parent / name, left)
    before = {entry.name: entry.read_bytes() for entry in left.iterdir()}
    with closing(SqliteJournal(left / path.name)) as journal:
        journal.check_file()
        assert {name: (left / name).read_bytes() for name in before} == before
        assert journal.find_run("run-1") is not None


def test_a_look_at_a_journal_of_a_newer_release(path: Path) -> None:
    with opened(path):
        pass
    with closing(sqlite3.connect(path)) as newer, newer:
        newer.execute("UPDATE journal_format SET version = 99")
    with pytest.raises(JournalFormat, match="99"):
        SqliteJournal(path).check_file()


def test_a_look_at_a_file_that_is_not_there_or_empty_makes_nothing(tmp_path: Path) -> None:
    SqliteJournal(tmp_path / "no folder" / "journal.db").check_file()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "journal.db").touch()
    SqliteJournal(tmp_path / "journal.db").check_file()
    assert [entry.stat().st_size for entry in tmp_path.iterdir()] == [0]


def test_a_look_at_a_database_without_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as left:
        left.execute("PRAGMA journal_mode = WAL")
    before = path.read_bytes()
    assert before
    SqliteJournal(path).check_file()
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir()} == {path.name: before}


def test_folders_above_it_are_made(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "yet" / "journal.db"
    with opened(path):
        assert path.stat().st_size > 0


def test_a_look_at_what_cannot_be_a_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalRefused, match="is a folder; `path` must name a file"):
        SqliteJournal(tmp_path).check_file()
    path = tmp_path / "journal.db"
    path.write_bytes(b"some text that is no database" * 100)
    with pytest.raises(JournalCorrupt) as raised:
        SqliteJournal(path).check_file()
    assert str(raised.value) == (
        f"the journal {path}: the file is no SQLite database; move it away, or choose another path "
        "(SQLite: file is not a database)"
    )
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["journal.db", "50% of it?mode=memory#1.db"])
def test_a_look_sees_what_is_in_the_log_only_and_makes_no_log(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with opened(path) as journal:
        assert journal._writer is not None
        journal._writer.execute("UPDATE journal_format SET version = 99")
        assert Path(f"{path}-wal").stat().st_size > 0
        with pytest.raises(JournalFormat, match="has format 99, this release reads up to 1"):
            SqliteJournal(path).check_file()
        journal._writer.execute("UPDATE journal_format SET version = 1")
        SqliteJournal(path).check_file()
    SqliteJournal(path).check_file()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_look_needs_no_right_to_write(open_folder: Path) -> None:
    path = open_folder / "journal.db"
    with opened(path):
        pass
    path.chmod(0o444)
    open_folder.chmod(0o555)
    with as_nobody():
        SqliteJournal(path).check_file()


@pytest.mark.rule(24)
def test_after_an_error_of_the_disk_everything_is_read_anew(path: Path, call_of: CallOf) -> None:
    with opened(path) as journal:
        journal.apply([finish(call_of(0))])
        connection = journal._writer
        bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
        # The log cannot grow: writing to it fails as on a broken disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{path}-wal").stat().st_size, bounds[1]))
        try:
            with pytest.raises(JournalError, match="disk I/O error") as raised:
                journal.apply([finish(call_of(index)) for index in range(1, 20)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
        assert type(raised.value) is JournalError
        assert [recorded(journal, call_of(index)) for index in (0, 1)] == [True, False]
        assert journal._writer is not connection
        journal.apply([finish(call_of(1))])
        assert recorded(journal, call_of(1))


def test_a_place_without_a_write_ahead_log_is_refused() -> None:
    # SQLite's name for a database that has no file.
    with pytest.raises(JournalRefused, match=r"does not allow a write-ahead log \(mode memory\)"):
        SqliteJournal(Path(":memory:")).find_run("run-1")


def test_another_process_that_makes_the_file_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        pauses: list[float] = []

        def let_go(pause_s: float) -> None:
            pauses.append(pause_s)
            if len(pauses) == 3:
                other.execute("ROLLBACK")

        monkeypatch.setattr(sqlite, "time", SimpleNamespace(monotonic=time.monotonic, sleep=let_go))
        with opened(path, busy_ms=30_000) as journal:
            assert journal.find_run("run-1") == RunRow("run-1", "job", 1)
        assert pauses == [sqlite.LOCKED_WAIT_S] * 3


@pytest.mark.parametrize("lock", ["IMMEDIATE", "EXCLUSIVE"])
def test_another_process_that_never_lets_go_of_a_new_file_is_told(path: Path, lock: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"BEGIN {lock}")
        with pytest.raises(JournalUnavailable, match="another process has it locked"), opened(path):
            pass
    with opened(path) as journal:
        assert journal.find_run("run-1") is not None


@pytest.mark.parametrize("create", [True, False])
def test_reading_an_empty_file_makes_no_tables(path: Path, create: bool) -> None:
    path.touch()
    with closing(SqliteJournal(path, create=create)) as journal:
        with pytest.raises(JournalError, match=f"the journal {path} is empty"):
            list(journal.calls())
        with pytest.raises(JournalError, match=f"the journal {path} is empty"):
            journal.requests_from("run-1", '"k"', 1)
    assert path.stat().st_size == 0


def test_a_journal_that_is_not_to_be_made_is_looked_for_on_this_machine(path: Path) -> None:
    with closing(SqliteJournal(path, create=False)) as journal:
        for use in (lambda: list(journal.calls()), lambda: journal.find_run("run-1")):
            with pytest.raises(JournalRefused) as raised:
                use()
            assert str(raised.value) == (
                f"there is no journal {path} on this machine. A SQLite journal is a file of one machine: "
                "a job on a cluster needs `journal: {type: postgresql, dsn: ...}`"
            )
    assert not path.exists()
