"""The files and folders that a job names: there, readable, writable, and not in each other's way."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flink_agents.config.document import YamlPath, shown_path
from flink_agents.config.fields import FOLDER
from flink_agents.config.loader import Loaded
from flink_agents.config.problems import nearest
from flink_agents.config.schema import Flink, JobConfig, Journal, JsonlSink, JsonlSource, Sink, SqliteJournal
from flink_agents.durable.journal.sqlite import SqliteJournal as JournalFile
from flink_agents.errors import JournalError

__all__ = ["check_places"]


def check_places(loaded: Loaded) -> None:
    """Add an error for every file or folder that the job cannot use, also when other parts of the YAML are wrong.

    Leaves nothing behind: the folder it makes, to see whether one can be made, is gone when it returns.
    """
    source = _section(loaded, "source", JsonlSource)
    outputs = dict(_outputs(loaded))
    for path, folder in outputs.items():
        _check_output(loaded, path, folder)
    kept = dict(_journal(loaded))
    for path, file in kept.items():
        if file.is_dir():
            loaded.document.report(path, f"{file} is a folder", "a file, or a path where one can be made")
        elif not _check_output(loaded, path, file.parent):
            _check_journal_file(loaded, path, file)
    if isinstance(source, JsonlSource):
        _check_source(loaded, source)
        for path, folder in {**outputs, **kept}.items():
            # The source reads its folder to the bottom, so the job would be fed what it writes.
            if _holds(source.path, folder) and source.path.is_dir():
                loaded.document.report(path, "is inside the source's folder, where every file is read as requests")
    for (first, one), (second, other) in combinations(outputs.items(), 2):
        if _holds(one, other) or _holds(other, one):
            problem = f"shares a folder with `{shown_path(first)}`"
            loaded.document.report(second, problem, "folders that do not hold one another")


def _outputs(loaded: Loaded) -> Iterator[tuple[YamlPath, Path]]:
    for name in ("sink", "rejects"):
        sink = _section(loaded, name, Sink)
        if isinstance(sink, JsonlSink):
            yield (name, "path"), sink.path
    flink = _section(loaded, "flink", Flink)
    if isinstance(flink, Flink):
        yield ("flink", "checkpoints", "directory"), flink.checkpoints.directory


def _journal(loaded: Loaded) -> Iterator[tuple[YamlPath, Path]]:
    data = loaded.data.get("journal", JobConfig.model_fields["journal"].default)
    journal = _section(loaded, "journal", Journal, {"type": data} if isinstance(data, str) else data)
    if isinstance(journal, SqliteJournal):
        yield ("journal", "path"), journal.path


def _section(loaded: Loaded, name: str, annotation: Any, data: Any = None) -> Any:
    """Return the validated section, or None if it has errors of its own, which are reported elsewhere."""
    if data is None:
        data = loaded.data.get(name, JobConfig.model_fields[name].default)
    try:
        return TypeAdapter(annotation).validate_python(data, context={FOLDER: loaded.document.file.parent})
    except ValidationError:
        return None


def _check_source(loaded: Loaded, source: JsonlSource) -> None:
    path: YamlPath = ("source", "path")
    report = loaded.document.report
    try:
        mode = source.path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        folder = source.path.parent
        siblings = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        report(path, f"there is no {source.path}", "a JSONL file or a folder", nearest(source.path.name, siblings))
        return
    except OSError as error:
        report(path, f"{source.path} cannot be read ({error.strerror})")
        return
    is_folder = stat.S_ISDIR(mode)
    if not is_folder and not stat.S_ISREG(mode):
        report(path, f"{source.path} is neither a file nor a folder", "a JSONL file or a folder")
    elif not os.access(source.path, os.R_OK | (os.X_OK if is_folder else 0)):
        report(path, f"{source.path} may not be read by this user")
    elif source.follow and not is_folder:
        report(("source", "follow"), f"{source.path} is a file", "a folder to watch, or `follow: false`")


def _check_journal_file(loaded: Loaded, path: YamlPath, file: Path) -> None:
    try:
        if file.exists() and not file.is_file():
            loaded.document.report(path, f"{file} is no regular file", "a file, or a path where one can be made")
        elif file.exists() and not os.access(file, os.R_OK | os.W_OK):
            loaded.document.report(path, f"{file} may not be read and written by this user")
        else:
            JournalFile(file).check_file()
    except OSError as error:
        loaded.document.report(path, f"{file} cannot be looked at ({error.strerror})")
    except JournalError as error:
        loaded.document.report(path, str(error))


def _check_output(loaded: Loaded, path: YamlPath, folder: Path) -> bool:
    """Report why nothing can be written to the folder; return whether something was reported."""
    known = len(loaded.document.errors)
    there = folder
    try:
        while not there.exists() and there != there.parent:
            there = there.parent
    except OSError as error:
        loaded.document.report(path, f"{folder} cannot be looked at ({error.strerror})")
        return True
    if not there.is_dir():
        loaded.document.report(path, f"{there} is a file", "a folder")
    elif not os.access(there, os.W_OK | os.X_OK):
        loaded.document.report(path, f"{there} may not be written by this user")
    else:
        try:
            # What may be written by its mode may still take nothing: /proc, or anything of root's.
            os.rmdir(tempfile.mkdtemp(prefix=".probe-", dir=there))
        except OSError as error:
            loaded.document.report(path, f"nothing can be made in {there} ({error.strerror})", "a folder to write to")
    return len(loaded.document.errors) > known


def _holds(folder: Path, inner: Path) -> bool:
    outer = os.path.realpath(folder)
    return os.path.commonpath([outer, os.path.realpath(inner)]) == outer
