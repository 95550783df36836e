"""Splits what the embedded JVM prints: records of a print sink to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys

from flink_agents.cli.progress import Progress
from flink_agents.connectors.print_sink import printed_record

__all__ = ["JvmOutput"]


class JvmOutput:
    """Takes the JVM's lines, on the thread that reads them; ``closed`` is true once stdout takes no more."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.closed = False

    def __call__(self, line: str) -> None:
        """Pass one line on. Never raises: a JVM whose output nobody reads stands still."""
        printed, record = printed_record(line)
        if record is None or printed:
            self._progress.note(printed)
        if record is not None:
            self.result(record)

    def result(self, text: str) -> None:
        """Write one line to stdout, at once, for whoever reads it as it comes."""
        if self.closed:
            return
        try:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        except OSError:
            # The reader has gone, as in `run ... | head`; what is still in the buffer has nowhere to go.
            self.closed = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
