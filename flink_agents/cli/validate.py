"""``flink-agents validate``: everything that ``run`` would refuse, without starting Flink."""

from __future__ import annotations

import json
from typing import Any

import typer

from flink_agents.cli.arguments import JobFile, JsonFlag, Overrides, stdout_for_results
from flink_agents.config.build import prepare
from flink_agents.config.problems import ConfigErrors

__all__ = ["validate"]


def validate(job: JobFile, overrides: Overrides = None, as_json: JsonFlag = False) -> None:
    """Check the job's YAML, its tools and its folders; report every error with file, line and column.

    A SQLite journal is looked at if it is there, and not made; a PostgreSQL journal is not contacted.

    Exit code 0: the job can run; 2: it cannot.
    """
    report: dict[str, Any] = {"valid": False, "file": str(job), "errors": []}
    try:
        with stdout_for_results():
            prepared = prepare(job, overrides or ())
    except ConfigErrors as error:
        if not as_json:
            raise
        report["errors"] = [problem.to_json() for problem in error.errors]
    else:
        names = prepared.registry.names()
        report |= {"valid": True, "name": prepared.config.name, "tools": list(names)}
        if not as_json:
            typer.echo(
                f"{job}: the job '{prepared.config.name}' is valid ({len(names)} tool{'s' if len(names) != 1 else ''})"
            )
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=False))
    if not report["valid"]:
        raise typer.Exit(2)
