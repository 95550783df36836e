"""What a chaos run leaves behind, read once it is over: outputs, journal, the last savepoint, processes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from flink_agents import codec
from flink_agents.durable.journal.opening import JournalSpec, open_journal
from flink_agents.durable.journal.rows import CallFilter, CallRow

__all__ = ["checkpoint_ns", "committed", "journal_rows", "live_entries", "orphans", "parsed"]

PROC = Path("/proc")

# A stored request, and a slot: what the state holds of a call that is not answered.
LIVE = re.compile(rb'\{"v":1,"r":|"s":"(?:reserved|started|succeeded|failed)"')


def committed(folder: Path) -> list[str]:
    """Return the lines of a sink's committed parts."""
    return [line for part in sorted(folder.glob("part-*.jsonl")) for line in _lines(part)]


def parsed(lines: list[str]) -> list[dict[str, Any]]:
    """Return the objects of JSON lines, with integers as they are."""
    return [codec.loads(line) for line in lines]


def journal_rows(spec: JournalSpec, run_id: str) -> list[CallRow]:
    """Return the journal's calls of a run."""
    with closing(open_journal(spec, create=False)) as journal:
        return list(journal.calls(CallFilter(run_id=run_id)))


def live_entries(savepoint: Path) -> int:
    """Return how many requests and slots a savepoint or checkpoint holds, by its bytes."""
    return sum(len(LIVE.findall(file.read_bytes())) for file in savepoint.rglob("*") if file.is_file())


def checkpoint_ns(checkpoints: Path) -> int:
    """Return when the newest completed checkpoint was, in nanoseconds of the monotonic clock; 0 before the first.

    Flink writes the metadata last, after all subtasks have acknowledged, so what was recorded later is in none.
    """
    offset = time.monotonic_ns() - time.time_ns()
    newest = 0
    for metadata in checkpoints.glob("*/chk-*/_metadata"):
        try:
            newest = max(newest, metadata.stat().st_mtime_ns)
        except FileNotFoundError:
            continue
    return newest + offset if newest else 0


def orphans(cluster: Path) -> list[str]:
    """Return the processes whose environment names a cluster's folder: those of its JVMs, and what came of them."""
    needle = os.fsencode(cluster)
    return [
        f"process {process.name}: {_command(process)}"
        for process in PROC.glob("[0-9]*")
        if int(process.name) != os.getpid() and needle in _content(process / "environ")
    ]


def _lines(part: Path) -> Iterator[str]:
    with part.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield line.rstrip("\n")


def _command(process: Path) -> str:
    return _content(process / "cmdline").replace(b"\0", b" ").decode("utf-8", "replace")[:120]


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        # It has ended, or is another user's.
        return b""
