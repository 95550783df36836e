"""The errors of a cluster's first minutes: what to do about each, which Flink's own text does not say."""

from __future__ import annotations

import re

__all__ = ["PYTHON_IS_LOST", "hint"]

PYTHON_IS_LOST = re.compile(
    r"java\.lang\.Error: java\.lang\.InterruptedException\s+"
    r"at pemja\.core\.PythonInterpreter\$MainInterpreter\.initialize"
)
"""A task was cancelled while the first Python of its TaskManager started: pemja keeps the interruption as an error for
every later start in that process."""

HINTS = (
    (
        PYTHON_IS_LOST,
        "The Python of that TaskManager was interrupted while it first started and cannot start there any more, for "
        "any job. End that TaskManager and start it again.",
    ),
    (
        r"Failed to find libpython|Cannot run program \"[^\"]*python[^\"]*\""
        r"|No module named '(?:pemja|_struct|encodings)'",
        "Thread mode needs the virtual environment's bin first on the PATH of every TaskManager when it starts. "
        "python.executable alone does not select the interpreter inside Flink. `flink-agents cluster start` does it; "
        "on a cluster of your own, export PATH=/path/of/venv/bin:$PATH before bin/taskmanager.sh.",
    ),
    (
        r"No module named '(?:flink_agents|pydantic|orjson|docstring_parser|jsonschema_rs)'",
        "flink-agents-toolcall is not installed in the Python of the TaskManagers: install the client's release there "
        "and start them again.",
    ),
    (
        r"loadedLibraryNames",
        "Every job after the first fails on a TaskManager that takes flink-python from the job's jars. Put "
        "opt/flink-python-*.jar into lib/ of every TaskManager and start them again, as `flink-agents cluster` does.",
    ),
    (
        r"Checkpoint expired before completing",
        "A stop that drains waits for all calls within the time of one checkpoint: stop without --drain, or give it "
        "more by `execution.checkpointing.timeout` in flink.options.",
    ),
    (
        r"NoResourceAvailableException|Could not acquire the minimum required resources",
        "Too few free slots: stop another job, start more TaskManagers, or lower flink.parallelism.",
    ),
    (
        r"Can't get attribute .* on <module 'flink_agents|has no attribute .*flink_agents",
        "The TaskManagers have another release of flink-agents-toolcall than this client: install the same in both.",
    ),
    (
        r"No module named '([^']+)'|there is no module '([^']+)'",
        "Modules beside the YAML travel with the job. Any other has to be installed in the Python of the TaskManagers.",
    ),
)


def hint(stack_trace: str) -> str | None:
    """Return what to do about a failure with this stack trace of Flink's, or None if nothing is known about it."""
    return next((advice for pattern, advice in HINTS if re.search(pattern, stack_trace)), None)
