"""The arguments that several commands share."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["JobFile", "JsonFlag", "Overrides", "stdout_for_results"]

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job's YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Replace one value of the YAML; may be given several times."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object, the last line of the output.")]


@contextlib.contextmanager
def stdout_for_results() -> Iterator[None]:
    """Send what a tool module prints while it is imported to stderr: stdout is for what the command was asked for."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
