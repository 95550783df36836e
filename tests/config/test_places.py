"""The files and folders of a job, looked at before it starts."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from flink_agents.config.build import prepare
from flink_agents.config.problems import ConfigErrors
from flink_agents.durable.journal.rows import RunRow
from flink_agents.durable.journal.sqlite import SqliteJournal

Write = Callable[..., str]


def errors_of(path: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigErrors) as error:
        prepare(path, overrides)
    return [str(problem) for problem in error.value.errors]


def test_nothing_is_made_by_looking(job: Write, folder: Path) -> None:
    prepare(job(), ["sink={type: jsonl, path: deep/er/out}"])
    assert sorted(entry.name for entry in folder.iterdir() if entry.name != "__pycache__") == [
        "good_tools.py",
        "job.yaml",
        "requests.jsonl",
    ]


def test_the_source_is_not_there(job: Write, folder: Path) -> None:
    assert errors_of(job(), "source.path=request.jsonl") == [
        f"--set source.path: there is no {folder}/request.jsonl; expected a JSONL file or a folder; "
        "did you mean 'requests.jsonl'?"
    ]
    assert errors_of(job(), "source.path=requests.jsonl/x") == [
        f"--set source.path: there is no {folder}/requests.jsonl/x; expected a JSONL file or a folder"
    ]


def test_the_source_is_something_else(job: Write, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert errors_of(job(), "source.path=pipe") == [
        f"--set source.path: {folder}/pipe is neither a file nor a folder; expected a JSONL file or a folder"
    ]


def test_only_a_folder_can_be_followed(job: Write, folder: Path) -> None:
    assert errors_of(job(), "source.follow=true") == [
        f"--set source.follow: {folder}/requests.jsonl is a file; expected a folder to watch, or `follow: false`"
    ]
    (folder / "in").mkdir()
    prepare(job(), ["source.follow=true", "source.path=in"])


@pytest.mark.parametrize("field", ["sink.path", "rejects.path", "flink.checkpoints.directory"])
@pytest.mark.parametrize("path", ["requests.jsonl", "requests.jsonl/deep/er"])
def test_an_output_under_a_file(job: Write, folder: Path, field: str, path: str) -> None:
    sink = "sink={type: jsonl, path: out}"
    assert errors_of(job(), sink, f"{field}={path}") == [
        f"--set {field}: {folder}/requests.jsonl is a file; expected a folder"
    ]


def test_outputs_share_no_folder(job: Write) -> None:
    sink = "sink={type: jsonl, path: out}"
    found = errors_of(job(), sink, "rejects.path=out/rejects", "flink.checkpoints.directory=out")
    assert found == [
        "--set flink.checkpoints.directory: shares a folder with `sink.path`; "
        "expected folders that do not hold one another",
        "--set flink.checkpoints.directory: shares a folder with `rejects.path`; "
        "expected folders that do not hold one another",
        "--set rejects.path: shares a folder with `sink.path`; expected folders that do not hold one another",
    ]


def test_an_output_inside_the_source(job: Write, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "link").symlink_to("in")
    sink = "sink={type: jsonl, path: link/out}"
    assert errors_of(job(), "source.path=in", sink) == [
        "--set sink: sink.path: is inside the source's folder, where every file is read as requests"
    ]


def test_a_default_is_looked_at_too(job: Write, folder: Path) -> None:
    (folder / "rejects").write_text("")
    assert errors_of(job()) == [f"job.yaml:1:1: rejects.path: {folder}/rejects is a file; expected a folder"]


def test_folders_are_looked_at_although_other_parts_are_wrong(job: Write, folder: Path) -> None:
    found = errors_of(job(), "source.path=nowhere", "sink={type: jsonl, path: requests.jsonl}", "workers.threads=0")
    assert [error.split(": ")[:2] for error in found] == [
        ["--set sink", "sink.path"],
        ["--set source.path", f"there is no {folder}/nowhere; expected a JSONL file or a folder"],
        ["--set workers.threads", found[2].split(": ")[1]],
    ]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder here that takes nothing even from root")
@pytest.mark.parametrize("path", ["/proc", "/proc/deep/er"])
@pytest.mark.parametrize("field", ["sink.path", "rejects.path", "flink.checkpoints.directory"])
def test_an_output_where_not_even_root_can_write(job: Write, field: str, path: str) -> None:
    (found,) = errors_of(job(), "sink={type: jsonl, path: out}", f"{field}={path}")
    assert found.startswith(f"--set {field}: ")
    assert "/proc" in found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder here that takes nothing even from root")
def test_the_place_of_an_output_that_cannot_be_made(job: Write) -> None:
    (found,) = errors_of(job(Path(job()).read_text().replace("{type: print}", "{type: jsonl, path: /proc/x}")))
    assert found.startswith("job.yaml:6:27: sink.path: ")


def test_an_existing_output_is_left_as_it_was(job: Write, folder: Path) -> None:
    (folder / "out").mkdir()
    prepare(job(), ["sink={type: jsonl, path: out}"])
    assert list((folder / "out").iterdir()) == []


@pytest.fixture
def journal(folder: Path) -> Path:
    """Make the journal's folder; return the file that the job has by default, which is not there."""
    (folder / "state").mkdir()
    return folder / "state" / "journal.db"


def test_a_text_file_is_no_journal(job: Write, journal: Path) -> None:
    journal.write_text("no database at all, but long enough to be looked at" * 20)
    (found,) = errors_of(job())
    assert found.startswith(f"job.yaml:1:1: journal.path: the journal {journal}: the file is no SQLite database")
    (found,) = errors_of(job(), f"journal={{type: sqlite, path: {journal}}}")
    assert found.startswith("--set journal: journal.path: ")


def test_a_folder_is_no_journal(job: Write, journal: Path) -> None:
    journal.mkdir()
    (found,) = errors_of(job())
    assert f"journal.path: {journal} is a folder" in found


def test_a_pipe_is_no_journal(job: Write, journal: Path) -> None:
    os.mkfifo(journal)
    (found,) = errors_of(job())
    assert f"journal.path: {journal} is no regular file" in found


def test_a_database_of_something_else_is_no_journal(job: Write, journal: Path) -> None:
    with closing(sqlite3.connect(journal)) as other:
        other.execute("CREATE TABLE theirs (a)")
    (found,) = errors_of(job())
    assert "is a database of something else (table theirs)" in found


@pytest.mark.parametrize("in_use", [False, True])
def test_a_journal_is_left_as_it_is(job: Write, journal: Path, in_use: bool) -> None:
    with closing(SqliteJournal(journal)) as ours:
        ours.create_run(RunRow("run-1", "good", 1))
        if not in_use:
            ours.close()
        before = {entry.name: entry.read_bytes() for entry in journal.parent.iterdir() if entry.suffix != ".db-shm"}
        prepare(job())
        after = {entry.name: entry.read_bytes() for entry in journal.parent.iterdir() if entry.suffix != ".db-shm"}
    assert after == before


def test_an_empty_file_becomes_a_journal(job: Write, journal: Path) -> None:
    journal.touch()
    prepare(job())
    assert journal.stat().st_size == 0
    with closing(sqlite3.connect(journal)) as cut_off:
        # As far as a process came that ended while it made the journal.
        cut_off.execute("PRAGMA journal_mode = WAL")
    assert journal.stat().st_size > 0
    prepare(job())


def test_a_database_server_is_not_asked(job: Write) -> None:
    prepare(job(), ["journal={type: postgresql, dsn: 'postgresql://nobody@127.0.0.1:1/none'}"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_permissions(job: Write, folder: Path) -> None:
    (folder / "requests.jsonl").chmod(0)
    (folder / "locked").mkdir(mode=0o500)
    assert errors_of(job(), "rejects.path=locked/rejects") == [
        f"--set rejects.path: {folder}/locked may not be written by this user",
        f"job.yaml:2:29: source.path: {folder}/requests.jsonl may not be read by this user",
    ]
