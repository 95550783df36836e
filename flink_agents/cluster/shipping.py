"""What travels with a submitted job: its YAML, the Python modules and packages beside it, and its schema files."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from flink_agents.config.schema import JobConfig, SchemaToolsConfig
from flink_agents.errors import InvalidInput

__all__ = ["LARGEST", "pack"]

LARGEST = 64 * 1024 * 1024
"""Bytes that a job may bring along; more belongs on the TaskManagers."""

NAME = "flink_agents_job_"
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def pack(config: JobConfig, scratch: Path) -> Path:
    """Copy into a new folder below ``scratch`` what the job brings along, and return the folder.

    Its name comes from its content: the Python of a TaskManager then takes two jobs' modules of one name for the same
    only if all that came with them is. Modules beside the YAML are its ``*.py`` files and the folders with an
    ``__init__.py``, with all that is in those; schema files are shipped where they are below the YAML's folder (the
    operator carries every schema's content itself).

    Raises:
        InvalidInput: if it is more than 64 MiB, or something of it cannot be read.
    """
    draft = scratch / "shipped"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        for source in _shipped(config):
            target = draft / source.relative_to(config.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=NOT_SHIPPED, dirs_exist_ok=True)
            else:
                shutil.copyfile(source, target)
            _check_size(config, draft)
        folder = scratch / f"{NAME}{_digest(draft)}"
        shutil.rmtree(folder, ignore_errors=True)
        return draft.rename(folder)
    except (OSError, shutil.Error) as error:
        msg = f"what the job brings along cannot be read: {error}"
        raise InvalidInput(msg) from error


def _shipped(config: JobConfig) -> Iterator[Path]:
    folder = config.folder
    yield config.file
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if (entry.suffix == ".py" and entry.is_file()) or (entry / "__init__.py").is_file():
            yield entry
    for tool in config.tools:
        if isinstance(tool, SchemaToolsConfig) and tool.schema_path.is_relative_to(folder):
            yield tool.schema_path


def _files(folder: Path) -> Iterable[Path]:
    return sorted(Path(root) / name for root, _, names in os.walk(folder) for name in names)


def _check_size(config: JobConfig, folder: Path) -> None:
    size = sum(file.stat().st_size for file in _files(folder))
    if size > LARGEST:
        msg = (
            f"the Python modules in {config.folder} are more than {LARGEST >> 20} MiB: install them on the "
            "TaskManagers, or put the YAML into a folder of its own"
        )
        raise InvalidInput(msg)


def _digest(folder: Path) -> str:
    content = hashlib.sha256()
    for file in _files(folder):
        for part in (os.fsencode(file.relative_to(folder)), file.read_bytes()):
            content.update(len(part).to_bytes(8, "big") + part)
    return content.hexdigest()[:16]
