"""Run ids and run folders: where one life of a job's state is kept, and what became of it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path

__all__ = ["Ending", "Run", "RunRecord", "create_run", "digest"]

FORMAT = 1


class Ending(str, Enum):
    """How a run ended. A run whose process was killed has none: it was cut off."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class RunRecord:
    """What ``run.json`` holds. Times are ISO 8601 in UTC; ``checkpoint`` is the newest checkpoint or savepoint."""

    run_id: str
    job: str
    job_id: str | None
    yaml_digest: str
    started: str
    ended: str | None = None
    how: Ending | None = None
    checkpoint: str | None = None
    format: int = FORMAT


class Run:
    """One run's folder: ``run.json``, ``checkpoints``, ``statistics`` and ``logs``. Used by one thread."""

    def __init__(self, folder: Path, record: RunRecord) -> None:
        self.folder = folder
        self.record = record

    @property
    def run_id(self) -> str:
        """The id that names this life of the job's state."""
        return self.record.run_id

    @property
    def checkpoints(self) -> Path:
        """Where Flink keeps this run's checkpoints."""
        return self.folder / "checkpoints"

    @property
    def statistics(self) -> Path:
        """Where the operator's statistics records are written."""
        return self.folder / "statistics"

    @property
    def logs(self) -> Path:
        """Where the logs of an embedded cluster are."""
        return self.folder / "logs"

    def submitted(self, job_id: str) -> None:
        """Note the Flink job that runs it."""
        self._write(replace(self.record, job_id=job_id))

    def ended(self, how: Ending, checkpoint: str | None) -> None:
        """Note how the run ended and where its state is."""
        self._write(replace(self.record, ended=_now(), how=how, checkpoint=checkpoint))

    def _write(self, record: RunRecord) -> None:
        self.record = record
        text = json.dumps(asdict(record), indent=2) + "\n"
        # A kill in between must leave the old content or the new one.
        draft = self.folder / "run.json.new"
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, self.folder / "run.json")


def create_run(root: Path, job: str, yaml_digest: str) -> Run:
    """Draw a new run id for ``job``, make its folder below ``root`` and write its first ``run.json``.

    Raises:
        OSError: if the folder cannot be made or written.
    """
    now = datetime.now(timezone.utc)
    # Sorts by time for people; the random part keeps two runs of one second apart.
    run_id = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    folder = root / job / run_id
    folder.mkdir(parents=True)
    run = Run(folder, RunRecord(run_id, job, None, yaml_digest, _now()))
    run._write(run.record)
    return run


def digest(text: str) -> str:
    """Return the SHA-256 of a job's settled configuration, by which two runs can be compared."""
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
