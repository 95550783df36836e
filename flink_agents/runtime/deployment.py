"""What a job brings to a TaskManager: the folder of its modules, and the release that it was submitted by."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from flink_agents.errors import ClusterFault

__all__ = ["SHIPPED", "check_version", "installed_version", "module_folders"]

SHIPPED = "shipped:"
"""Begins an entry of ``module_path`` that is the name of a folder which Flink carries to the TaskManager."""

_DISTRIBUTION = "flink-agents-toolcall"


def installed_version() -> str:
    """Return the release that runs here; a source tree that was never installed has none and says so."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "0+uninstalled"


def check_version(client: str) -> None:
    """Return if the job was submitted by the release that runs here; ``client`` is empty where nothing is known.

    Raises:
        ClusterFault: naming both releases.
    """
    here = installed_version()
    if client and client != here:
        msg = (
            f"versions differ: the job was submitted by flink-agents-toolcall {client}, and this TaskManager "
            f"({sys.prefix}) has {here}. Install the same release in both, and start the TaskManagers again"
        )
        raise ClusterFault(msg)


def module_folders(module_path: Sequence[str]) -> tuple[str, ...]:
    """Return the folders that tools are imported from, with what was shipped where Flink has put it.

    Each attempt gets a copy of its own, which is gone some time after it; the newest is this attempt's.

    Raises:
        ClusterFault: if a folder was shipped and has not arrived.
    """
    return tuple(_arrived(entry.removeprefix(SHIPPED)) if entry.startswith(SHIPPED) else entry for entry in module_path)


def _arrived(name: str) -> str:
    there = [path for path in map(Path, sys.path) if path.name == name and path.is_dir()]
    if not there:
        msg = f"the job's modules have not arrived at this TaskManager: no {name} on its Python path"
        raise ClusterFault(msg)
    return str(max(there, key=lambda path: path.stat().st_mtime_ns))
