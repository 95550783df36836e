"""What a job YAML has to say before it goes to a cluster: paths that mean the same there, and a journal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from flink_agents.config.build import PreparedJob, prepare_loaded
from flink_agents.config.document import YamlPath, shown_path
from flink_agents.config.loader import Loaded, read

__all__ = ["prepare_for_cluster"]

# Of the sections with a path on the cluster, the ones that need not be written: a path left out is then told.
PATHS: tuple[YamlPath, ...] = (("source", "path"), ("sink", "path"), ("rejects", "path"), ("journal", "path"))


def prepare_for_cluster(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> PreparedJob:
    """Load the YAML at ``path`` like ``prepare``, for a job that runs on other machines.

    The files and folders of the job are the cluster's and are not looked at; a relative path of one is refused, because
    it would start at this machine's folder of the YAML. There is no default for ``journal``: its file would be the
    cluster's too. Imports the tool modules, which travel with the job.

    Raises:
        ConfigErrors: with every error, in the order of the file.
    """
    loaded = read(path, overrides, environ)
    if loaded.data is not None:
        _check_paths(loaded)
        _check_journal(loaded)
    return prepare_loaded(loaded)


def _check_paths(loaded: Loaded) -> None:
    for path in PATHS:
        section = loaded.data.get(path[0])
        written = section.get(path[1]) if isinstance(section, dict) else None
        if isinstance(written, str) and _starts_here(written):
            problem = "is a path of the cluster, where nothing is known of this YAML's folder"
            loaded.document.report(path, problem, "an absolute path, such as /data/name")


def _check_journal(loaded: Loaded) -> None:
    journal: Any = loaded.data.get("journal")
    if journal is None:
        expected = "`journal: none`, postgresql, or sqlite with an absolute path"
        loaded.document.report(("journal",), "has to be given for a job that is submitted", expected)
    elif journal in ("sqlite", {"type": "sqlite"}):
        told = f"the default of {shown_path(('journal', 'path'))} is a path in this YAML's folder"
        loaded.document.report(("journal",), told, "an absolute path of the machine that the TaskManagers are on")


def _starts_here(written: str) -> bool:
    # The home folder that ~ stands for is this user's on this machine.
    return not written.startswith(("/", "file:"))
