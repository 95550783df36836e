"""``flink-agents calls``: what the journal knows of the calls of a job, one by one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flink_agents import codec
from flink_agents.cli.arguments import JobFile, Overrides
from flink_agents.config.build import journal_spec
from flink_agents.config.loader import load
from flink_agents.durable.journal.opening import JournalType, open_journal
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import CallFilter, CallRow
from flink_agents.durable.journal.stored import ONE_MACHINE
from flink_agents.durable.outcome import Failed, Succeeded
from flink_agents.durable.slots import SlotStatus
from flink_agents.errors import InvalidInput, JournalError, RejectedRecord

__all__ = ["Status", "calls", "note_on"]

SHOWN_CHARS = 200


class Status(str, Enum):
    """How far a call has come."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="K", help="Of this key: JSON (1, true, '\"1\"'), or text as it is.")
]
RequestOption = Annotated[str | None, typer.Option("--request", metavar="ID", help="Of this request.")]
RunOption = Annotated[str | None, typer.Option("--run", metavar="ID", help="Of this run.")]
StatusOption = Annotated[Status | None, typer.Option("--status", help="That have come this far.")]
ManyJsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object for each call, a line each.")]


def calls(
    job: JobFile,
    key: KeyOption = None,
    request: RequestOption = None,
    status: StatusOption = None,
    run: RunOption = None,
    overrides: Overrides = None,
    as_json: ManyJsonFlag = False,
) -> None:
    """List the calls in the job's journal: attempts, times, outcome, and a note on why a call ran again.

    A key is read as JSON if it is a JSON text, number or boolean, and as plain text otherwise: `--key 7` is the number,
    `--key '"7"'` the text. Calls of requests answered longer ago than the journal's retention are gone. Tools that
    run again after a crash leave no row before they have ended.

    Exit code 0: listed, maybe none; 2: bad input, or no such journal or run.
    """
    config = load(job, overrides or ())
    spec = journal_spec(config.journal)
    place = config.place("journal")
    if spec is None:
        msg = f"{place}: the job has no journal"
        raise InvalidInput(msg)
    wanted = CallFilter(
        run_id=run,
        key=None if key is None else _key(key),
        request_id=request,
        status=None if status is None else SlotStatus(status.value),
    )
    if spec.type is JournalType.SQLITE and _is_missing(Path(str(spec.path))):
        msg = (
            f"{place}: journal: there is no journal {spec.path} on this machine yet: run the job first, by "
            f"`flink-agents run {shlex.quote(str(job))}`. If it ran elsewhere: {ONE_MACHINE}"
        )
        raise InvalidInput(msg)
    try:
        with closing(open_journal(spec, create=False)) as journal:
            # A journal is shared by runs, and PostgreSQL's maybe by jobs: only a row's own run says whose it is.
            jobs: dict[str, bool] = {}
            if run is not None and not _is_run_of(config.name, run, journal, jobs):
                msg = f"--run: the journal {journal.place} knows no run {run} of job {config.name}"
                raise InvalidInput(msg)
            rows = (row for row in journal.calls(wanted) if _is_run_of(config.name, row.call.run_id, journal, jobs))
            _print(rows, as_json)
    except JournalError as error:
        msg = f"{place}: journal: {error}"
        raise InvalidInput(msg) from error


def _is_missing(file: Path) -> bool:
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        # It may be there: opening it says why it cannot be read.
        return False
    return False


def _is_run_of(job: str, run_id: str, journal: Journal, jobs: dict[str, bool]) -> bool:
    if run_id not in jobs:
        found = journal.find_run(run_id)
        jobs[run_id] = found is not None and found.job == job
    return jobs[run_id]


def _key(text: str) -> str:
    try:
        return codec.key_text(codec.loads(text))
    except (codec.JsonSyntax, RejectedRecord):
        return codec.key_text(text)


def note_on(row: CallRow) -> str | None:
    """Return why the call ran again, or did not although it was cut off, as far as its row tells; None if neither."""
    fatal = row.fatal_attempts
    if fatal:
        return f"brought the task down in {fatal} attempt{'s' if fatal != 1 else ''}"
    if row.attempts > 1:
        return "ran again: an earlier body left no outcome"
    if row.first_attempt_id == row.attempt_id or row.outcome is None:
        return None
    if isinstance(row.outcome, Failed) and row.outcome.failure.kind == "in_doubt":
        return "cut off and not run again (on_interrupt: fail)"
    return "cut off; its reconciler decided"


def _print(rows: Iterator[CallRow], as_json: bool) -> None:
    if as_json:
        for row in rows:
            typer.echo(json.dumps(_entry(row), ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "key", "request", "call", "tool", "status", "attempts", "started", "took", "outcome", "note"):
        table.add_column(name, overflow="fold", justify="right" if name in ("call", "attempts", "took") else "left")
    for row in rows:
        table.add_row(*map(Text, _cells(row)))
    console = Console()
    if console.is_terminal:
        console.print(table)
    else:
        # A terminal wraps its lines; a pipe gets each call on one.
        typer.echo(_lines(table))


def _lines(table: Table) -> str:
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    return "\n".join("\t".join(cells) for cells in zip(*columns, strict=True))


def _cells(row: CallRow) -> list[str]:
    took = f"{row.ended_ms - row.started_ms} ms" if row.ended_ms else ""
    cells = [
        row.call.run_id,
        row.call.key,
        row.request_id or f"number {row.call.intake}",
        str(row.call.index),
        row.call.tool,
        row.status.value,
        str(row.attempts),
        _time(row.first_started_ms) or "",
        took,
        _outcome_text(row),
        note_on(row) or "",
    ]
    return ["".join(c if c.isprintable() else ascii(c)[1:-1] for c in cell) for cell in cells]


def _outcome_text(row: CallRow) -> str:
    if isinstance(row.outcome, Succeeded):
        return _cut(row.outcome.text)
    if isinstance(row.outcome, Failed):
        error = row.outcome.failure.error()
        return _cut(f"{error['type']}: {error['message']}")
    return ""


def _entry(row: CallRow) -> dict[str, Any]:
    call = row.call
    entry: dict[str, Any] = {
        "run_id": call.run_id,
        "key": json.loads(call.key),
        "request_id": row.request_id,
        "intake": call.intake,
        "index": call.index,
        "tool": call.tool,
        "idempotency_key": call.idempotency_key,
        "status": row.status.value,
        "attempts": row.attempts,
        "fatal_attempts": row.fatal_attempts,
        "first_attempt_id": row.first_attempt_id,
        "attempt_id": row.attempt_id,
        "first_started": _time(row.first_started_ms),
        "started": _time(row.started_ms),
        "ended": _time(row.ended_ms),
        "note": note_on(row),
    }
    if isinstance(row.outcome, Succeeded):
        # As text: what was cut is no JSON any more.
        entry["value"] = _cut(row.outcome.text)
    elif isinstance(row.outcome, Failed):
        error = row.outcome.failure.error()
        entry["error"] = {"kind": error["kind"], "type": error["type"], "message": _cut(error["message"])}
    return entry


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}... ({len(text):,} characters)"


def _time(ms: int) -> str | None:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="milliseconds") if ms else None
