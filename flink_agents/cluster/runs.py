"""Run ids and run folders: where one life of a job's state is kept, and what became of it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

from flink_agents.errors import RunRefused

__all__ = ["Ending", "Run", "RunRecord", "Totals", "create_run", "digest", "last_run", "read_run", "run_of_state"]

FORMAT = 1
RECORD_FILE = "run.json"


class Ending(str, Enum):
    """How a run ended. One whose process was killed could not note it, so a record without any was cut off too."""

    FINISHED = "finished"
    STOPPED = "stopped"
    CUT_OFF = "cut off"
    FAILED = "failed"


@dataclass(frozen=True)
class Totals:
    """What Flink counts per job, added up over all jobs of a run; ``wall_s`` in seconds."""

    restarts: int = 0
    checkpoints: int = 0
    wall_s: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.restarts + other.restarts, self.checkpoints + other.checkpoints, self.wall_s + other.wall_s)


@dataclass(frozen=True)
class RunRecord:
    """What ``run.json`` holds. Times are ISO 8601 in UTC; ``checkpoint`` is the newest checkpoint or savepoint noted.

    ``lives`` counts the Flink jobs that worked on the run; ``job_id`` is the last one, None before the first.
    ``settings`` is what a resume compares, see :func:`flink_agents.cluster.resume.settings`. ``jobmanager`` is the
    ``HOST:PORT`` of the cluster that the last job was submitted to, None for one that ran inside a command.
    """

    run_id: str
    job: str
    job_id: str | None
    yaml_digest: str
    started: str
    ended: str | None = None
    how: Ending | None = None
    checkpoint: str | None = None
    lives: int = 0
    totals: Totals = Totals()
    settings: Mapping[str, str] = field(default_factory=dict)
    jobmanager: str | None = None
    format: int = FORMAT

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RunRecord:
        """Return the record of a ``run.json``; fields that this release does not know are left out.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: if it is none.
        """
        known = {name.name: content[name.name] for name in fields(cls) if name.name in content}
        if known.get("format") != FORMAT:
            msg = f"it has format {known.get('format')}, this release reads {FORMAT}"
            raise ValueError(msg)
        if known.get("how") is not None:
            known["how"] = Ending(known["how"])
        known["totals"] = Totals(**known.get("totals", {}))
        record = cls(**known)
        if not all(isinstance(text, str) for text in (record.run_id, record.job, record.started)):
            msg = "run_id, job and started have to be texts"
            raise TypeError(msg)
        return record


class Run:
    """One run's folder: ``run.json``, ``checkpoints``, ``savepoints``, ``statistics`` and ``logs``. One thread's."""

    def __init__(self, folder: Path, record: RunRecord) -> None:
        self.folder = folder
        self.record = record
        self._before = record.totals

    @property
    def run_id(self) -> str:
        """The id that names this life of the job's state."""
        return self.record.run_id

    @property
    def checkpoints(self) -> Path:
        """Where Flink keeps this run's checkpoints."""
        return self.folder / "checkpoints"

    @property
    def savepoints(self) -> Path:
        """Where a stop leaves its savepoint."""
        return self.folder / "savepoints"

    @property
    def statistics(self) -> Path:
        """Where the operator's statistics records are written."""
        return self.folder / "statistics"

    @property
    def logs(self) -> Path:
        """Where the logs of an embedded cluster are."""
        return self.folder / "logs"

    @property
    def totals(self) -> Totals:
        """What the run's jobs counted up to the last note."""
        return self.record.totals

    def submitted(
        self, job_id: str, yaml_digest: str, settings: Mapping[str, str], jobmanager: str | None = None
    ) -> None:
        """Note the Flink job that works on it from now on, where, and with which configuration."""
        self._before = self.record.totals
        self._write(
            replace(
                self.record,
                job_id=job_id,
                yaml_digest=yaml_digest,
                settings=dict(settings),
                jobmanager=jobmanager,
                ended=None,
                how=None,
                lives=self.record.lives + 1,
            )
        )

    def progress(self, of_job: Totals) -> None:
        """Note what the present job counted so far, for the case that it cannot say so at its end."""
        self._write(replace(self.record, totals=self._before + of_job))

    def ended(self, how: Ending, checkpoint: str | None) -> None:
        """Note how the run ended and where its state is; a savepoint's folder gets a copy of the record."""
        self._write(replace(self.record, ended=_now(), how=how, checkpoint=checkpoint))
        kept = Path(checkpoint) if checkpoint else None
        # A stop may have put its savepoint anywhere.
        if kept and not kept.is_relative_to(self.checkpoints) and kept.is_dir():
            _write_record(kept, self.record)

    def put_back(self, record: RunRecord) -> None:
        """Let the record say again what it said before a job that never came to work on the run."""
        self._write(record)

    def _write(self, record: RunRecord) -> None:
        self.record = record
        _write_record(self.folder, record)


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
    _write_record(folder, run.record)
    return run


def read_run(folder: Path) -> Run:
    """Return the run whose ``run.json`` is in ``folder``.

    Raises:
        RunRefused: if the file is none.
    """
    file = folder / RECORD_FILE
    try:
        return Run(folder, RunRecord.from_json(json.loads(file.read_text(encoding="utf-8"))))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        msg = f"{file} cannot be read ({error}), so it is not known what became of that run; --fresh begins a new one"
        raise RunRefused(msg) from error


def last_run(folder: Path) -> Run | None:
    """Return the last run below a job's ``folder`` that reached Flink, or None.

    Raises:
        RunRefused: if the record of the newest one cannot be read.
    """
    # Ids sort by time to the second, so what began within the last run's second has to be looked at more closely.
    candidates = sorted((path.parent for path in folder.glob(f"*/{RECORD_FILE}")), reverse=True)
    found: Run | None = None
    for candidate in candidates:
        if found is not None and candidate.name[:16] < found.run_id[:16]:
            break
        run = read_run(candidate)
        if run.record.job_id is not None and (found is None or run.record.started > found.record.started):
            found = run
    return found


def run_of_state(root: Path, job: str, location: str) -> Run | None:
    """Return the run that a checkpoint or savepoint belongs to, or None if nothing there names one.

    A savepoint may have been moved; the run's folder is then made anew below ``root``.

    Raises:
        RunRefused: if it belongs to another job, or its record cannot be read.
        OSError: if the folder cannot be made.
    """
    state = Path(location.removeprefix("file:"))
    # <run>/savepoints/<savepoint> or <run>/checkpoints/<Flink's job>/chk-<number>
    for folder in (*state.parents[1:3], state):
        if not (folder / RECORD_FILE).is_file():
            continue
        run = read_run(folder)
        if run.record.job != job:
            msg = f"{state} is of job '{run.record.job}', not of '{job}'"
            raise RunRefused(msg)
        if folder == state:
            run.folder = root / job / run.run_id
            run.folder.mkdir(parents=True, exist_ok=True)
        return run
    return None


def digest(text: str) -> str:
    """Return the SHA-256 of a job's settled configuration, by which two runs can be compared."""
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def _write_record(folder: Path, record: RunRecord) -> None:
    text = json.dumps(asdict(record), indent=2) + "\n"
    # A kill in between must leave the old content or the new one.
    draft = folder / f"{RECORD_FILE}.new"
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / RECORD_FILE)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
