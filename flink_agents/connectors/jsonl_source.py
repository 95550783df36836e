"""Requests from JSON-lines files: one file, a folder, or a folder that is watched for files moved into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["FOLLOW_INTERVAL_MS", "read_jsonl"]

FOLLOW_INTERVAL_MS = 500
"""How often a followed folder is looked at, in milliseconds."""


def read_jsonl(env: Any, path: Path, *, follow: bool, name: str = "requests") -> Any:
    """Return a ``DataStream`` of the lines of ``path``, a file or a folder with all that is below it.

    Files whose name begins with a dot or an underscore are left out, ``.gz`` files are unpacked. Each file is read
    once, from its start: with ``follow`` a file has to be moved into the folder whole, lines appended to it later are
    never seen. After a restore each file goes on behind the last line of the checkpoint; the order between files may
    be another one.
    """
    from pyflink.common import Duration, WatermarkStrategy
    from pyflink.datastream.connectors.file_system import FileSource, StreamFormat

    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format("UTF-8"), str(path))
    if follow:
        builder = builder.monitor_continuously(Duration.of_millis(FOLLOW_INTERVAL_MS))
    return env.from_source(builder.build(), WatermarkStrategy.no_watermarks(), name).uid(name)
