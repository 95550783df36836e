"""JSON lines into the part files of one flat folder, exactly once: a part gets its name when a checkpoint completed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["PART_SIZE", "write_jsonl", "write_jsonl_each_checkpoint"]

PART_SIZE = 128 * 1024 * 1024
"""Bytes after which a part is closed."""

NEVER_MS = 2**62
CHECK_MS = 1_000


def write_jsonl(stream: Any, folder: Path, *, roll_ms: int, name: str) -> None:
    """Write a stream of JSON strings to ``folder``; parts are named ``part-<id>-<number>.jsonl``.

    A part is closed at 128 MiB, at the age of ``roll_ms`` milliseconds, and at the end of the input, and visible once
    the next checkpoint completed; until then its name begins with a dot. After a failure an unfinished part is cut
    back to what the restored checkpoint knew of it.
    """
    from pyflink.datastream.connectors.file_system import RollingPolicy

    # No closing for idleness: age closes an idle part as well.
    policy = RollingPolicy.default_rolling_policy(
        part_size=PART_SIZE, rollover_interval=roll_ms, inactivity_interval=NEVER_MS
    )
    _write(stream, folder, policy, min(roll_ms, CHECK_MS), name)


def write_jsonl_each_checkpoint(stream: Any, folder: Path, *, name: str) -> None:
    """Like :func:`write_jsonl`, with a new part at each checkpoint: everything is visible once it is certain."""
    from pyflink.datastream.connectors.file_system import RollingPolicy

    _write(stream, folder, RollingPolicy.on_checkpoint_rolling_policy(), CHECK_MS, name)


def _write(stream: Any, folder: Path, policy: Any, check_ms: int, name: str) -> None:
    from pyflink.common import Encoder
    from pyflink.datastream.connectors.file_system import BucketAssigner, FileSink, OutputFileConfig

    files = OutputFileConfig.builder().with_part_prefix("part").with_part_suffix(".jsonl").build()
    sink = (
        FileSink.for_row_format(str(folder), Encoder.simple_string_encoder("UTF-8"))
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_bucket_check_interval(check_ms)
        .with_rolling_policy(policy)
        .with_output_file_config(files)
        .build()
    )
    stream.sink_to(sink).name(name).uid(name)
