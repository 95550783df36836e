"""What is said about the errors of the first minutes; the traces are Flink's, shortened."""

from __future__ import annotations

import pytest

from flink_agents.cluster.hints import hint

PATH_IS_WRONG = "bin first on the PATH of every TaskManager"


@pytest.mark.parametrize(
    ("trace", "advice"),
    [
        (
            'java.io.IOException: Cannot run program "python": error=2\n\tat java.lang.ProcessBuilder.start(P.java:1)\n'
            "Caused by: java.io.IOException: error=2, No such file or directory\n",
            PATH_IS_WRONG,
        ),
        ("java.lang.RuntimeException: Failed to find libpython", PATH_IS_WRONG),
        (
            "java.lang.Error: java.lang.InterruptedException\n"
            "\tat pemja.core.PythonInterpreter$MainInterpreter.initialize(PythonInterpreter.java:406)\n"
            "\tat pemja.core.PythonInterpreter.initialize(PythonInterpreter.java:144)\n",
            "End that TaskManager and start it again",
        ),
        ("Caused by: pemja.core.PythonException: ModuleNotFoundError: No module named 'pemja'", PATH_IS_WRONG),
        ("ModuleNotFoundError: No module named '_struct'", PATH_IS_WRONG),
        ("ModuleNotFoundError: No module named 'flink_agents'", "flink-agents-toolcall is not installed"),
        ("ModuleNotFoundError: No module named 'boto3'", "has to be installed"),
        ("java.lang.NoSuchFieldException: loadedLibraryNames", "into lib/ of every TaskManager"),
        ("NoResourceAvailableException: Could not acquire the minimum required resources.", "Too few free slots"),
        ("AttributeError: Can't get attribute 'X' on <module 'flink_agents.options' from 'a'>", "another release"),
        ("org.apache.flink.runtime.checkpoint.CheckpointException: Checkpoint expired before completing.", "--drain"),
        ("ValueError: the user's own", None),
    ],
)
def test_advice(trace: str, advice: str | None) -> None:
    said = hint(trace)
    assert (said is None) if advice is None else (said is not None and advice in said)
