"""JSON lines on the standard output of whatever runs the job; for trying things out."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["printed_record", "write_print"]

# Marks our lines among whatever else a JVM prints, tools' own print() included, and cannot be typed by accident.
MARK = "\x1eflink-agents"
PRINTED = re.compile(re.escape(MARK) + r"(?::\d+)?> ")


def write_print(stream: Any, *, name: str, marked: bool) -> None:
    """Print a stream of JSON strings, at least once: after a restore a line may come again.

    With ``marked`` a command that reads the JVM's output can tell these lines from others by
    :func:`printed_record`; without, each line begins with Flink's ``name>``.
    """
    stream.print(MARK if marked else name).name(name).uid(name)


def printed_record(line: str) -> tuple[str, str | None]:
    """Split a line of the JVM's output into what others printed and the record after it, None if there is none."""
    found = PRINTED.search(line)
    return (line, None) if found is None else (line[: found.start()], line[found.end() :])
