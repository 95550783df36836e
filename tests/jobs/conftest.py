"""Runs a shipped job by its command, on a copy of its folder, and reads what it wrote."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).resolve().parent.parent.parent / "jobs"


@dataclass(frozen=True)
class Outcome:
    """What one run of a job left behind."""

    summary: dict[str, Any]
    responses: list[dict[str, Any]]
    rejects: list[dict[str, Any]]


def written_order(part: Path) -> list[tuple[int, str, int]]:
    pieces = re.findall(r"\d+|\D+", part.name)
    return [(0, "", int(piece)) if piece.isdigit() else (1, piece, 0) for piece in pieces]


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a sink's folder in the order written; a leading dot marks what is not committed."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    parts = sorted(files, key=written_order)
    return [json.loads(line) for path in parts for line in path.read_text(encoding="utf-8").splitlines()]


def run_in(folder: Path) -> Outcome:
    for name in ("out", "rejects"):
        shutil.rmtree(folder / name, ignore_errors=True)
    script = Path(sys.executable).with_name("flink-agents")
    command = [str(script), "run", str(folder / "job.yaml"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Outcome(summary, lines_in(folder / "out"), lines_in(folder / "rejects"))


@pytest.fixture
def run_job(tmp_path: Path) -> Callable[[str], Outcome]:
    """Return a function that runs the job of that name; a second run keeps the state folder of the first."""

    def run(name: str) -> Outcome:
        folder = tmp_path / name
        if not folder.exists():
            shutil.copytree(JOBS / name, folder, ignore=shutil.ignore_patterns("state", "out", "rejects"))
        return run_in(folder)

    return run
