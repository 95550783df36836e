"""Global job parameters, by which a job tells its operators what its submission knew."""

from __future__ import annotations

from typing import Any

__all__ = ["RUN_FOLDER_PARAMETER", "RUN_ID_PARAMETER", "VERSION_PARAMETER", "job_parameter"]

RUN_ID_PARAMETER = "flink-agents.run-id"
"""Names the run, one life of the job's state."""

RUN_FOLDER_PARAMETER = "flink-agents.run-folder"
"""Global job parameter with the run's folder, by which a command that only knows the job finds it."""

VERSION_PARAMETER = "flink-agents.version"
"""Global job parameter with the release that the job was submitted by."""


def job_parameter(runtime_context: Any, name: str) -> str | None:
    """Return a global job parameter, or None. Task thread, in ``open``.

    PyFlink's own ``get_job_parameter`` finds none of them in thread mode under Flink 2.
    """
    found = runtime_context._runtime_context.getGlobalJobParameters().get(name)
    return None if found is None else str(found)
