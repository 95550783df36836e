"""Completed checkpoints and savepoints of a run, found on disk and looked over before Flink is asked to restore one."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flink_agents.cluster.runs import Run
from flink_agents.errors import CannotRestore

__all__ = ["Snapshot", "check", "newest", "snapshots"]

METADATA = "_metadata"

# Flink's savepoint metadata: magic number, format version, checkpoint id.
HEADER = struct.Struct(">IiQ")
MAGIC = 0x4960672D

# State files beside the metadata are named in it: a type tag, the length of the name, the name, the file's length.
BESIDE = re.compile(rb"\x06\x00\x24([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(.{8})", re.DOTALL)
CHECKPOINT = re.compile(r"chk-(\d+)")


@dataclass(frozen=True)
class Snapshot:
    """A completed checkpoint or savepoint. ``number`` goes on over all jobs of a run; None if it cannot be read."""

    folder: Path
    number: int | None
    savepoint: bool

    def __str__(self) -> str:
        return f"{'savepoint' if self.savepoint else 'checkpoint'} {self.folder}"


def snapshots(run: Run) -> Iterator[Snapshot]:
    """Yield what a run has kept. Its metadata is the last file that Flink writes; a folder without it is none."""
    for metadata in run.checkpoints.glob(f"*/chk-*/{METADATA}"):
        named = CHECKPOINT.fullmatch(metadata.parent.name)
        if named:
            yield Snapshot(metadata.parent, int(named[1]), savepoint=False)
    for metadata in run.savepoints.glob(f"*/{METADATA}"):
        yield Snapshot(metadata.parent, _number(metadata), savepoint=True)
    # A stop may have put its savepoint anywhere.
    noted = Path(run.record.checkpoint) / METADATA if run.record.checkpoint else None
    if noted and noted.is_file() and not noted.is_relative_to(run.folder):
        yield Snapshot(noted.parent, _number(noted), savepoint=True)


def newest(run: Run) -> Snapshot | None:
    """Return the newest completed checkpoint or savepoint of a run, or None if there is none.

    Never an older one instead of one that is gone or damaged: what was answered since would be answered again.

    Raises:
        CannotRestore: if there has been one, and it is missing or its age cannot be told.
    """
    found = list(snapshots(run))
    unreadable = [snapshot for snapshot in found if snapshot.number is None]
    if unreadable:
        raise CannotRestore(f"{unreadable[0]} cannot be read: its {METADATA} is damaged")
    record = run.record
    if record.how is not None and record.checkpoint is not None and not Path(record.checkpoint).is_dir():
        raise CannotRestore(f"run {run.run_id} ended with {record.checkpoint}, which is not there any more")
    if not found and (record.checkpoint is not None or record.totals.checkpoints):
        raise CannotRestore(
            f"run {run.run_id} has completed checkpoints, but none is left in {run.checkpoints} or {run.savepoints}"
        )
    return max(found, key=lambda snapshot: snapshot.number or 0, default=None)


def check(snapshot: Snapshot) -> None:
    """Look a snapshot over without Flink: its metadata, and that each state file has the length noted there.

    Raises:
        CannotRestore: naming the file that is missing or damaged.
    """
    metadata = snapshot.folder / METADATA
    try:
        content = metadata.read_bytes()
    except OSError as error:
        raise CannotRestore(f"{snapshot} cannot be read: {error.strerror or error}: {metadata}") from error
    if _number(metadata) is None:
        raise CannotRestore(f"{snapshot} cannot be read: {metadata} is damaged or was written by something else")
    for found in BESIDE.finditer(content):
        file = snapshot.folder / found[1].decode("ascii")
        if not file.is_file():
            raise CannotRestore(f"{snapshot} is incomplete: {file} is missing")
        expected, size = int.from_bytes(found[2], "big"), file.stat().st_size
        if size != expected:
            raise CannotRestore(f"{snapshot} is damaged: {file} has {size} bytes where {expected} were written")


def _number(metadata: Path) -> int | None:
    try:
        with metadata.open("rb") as file:
            magic, version, number = HEADER.unpack(file.read(HEADER.size))
    except (OSError, struct.error):
        return None
    return int(number) if magic == MAGIC and 0 < version < 100 else None
