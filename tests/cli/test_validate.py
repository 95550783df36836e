"""`validate`: every error on stderr with its place, and exit code 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def test_a_job_that_can_run(command: Command, folder: Path) -> None:
    ended = command("validate", "job.yaml")
    assert (ended.code, ended.out) == (0, "job.yaml: the job 'commanded' is valid (1 tool)\n")
    # What a tool module prints when it is imported is not the command's output.
    assert ended.err == "imported\n"


def test_a_job_that_cannot(command: Command, folder: Path) -> None:
    ended = command("validate", "job.yaml", "--set", "workers.thread=3", "--set", "tools.0.function=loud_tools:ad")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[-3:] == [
        "--set tools.0.function: 'loud_tools:ad': module 'loud_tools' has no 'ad'; did you mean 'add'?",
        "--set workers.thread: unknown key `thread`; "
        "expected 'threads', 'async_limit' or 'max_strays'; did you mean 'threads'?",
        "2 errors",
    ]


@pytest.mark.parametrize("path", ["nowhere.yaml", ".", "requests.jsonl"])
def test_no_job(command: Command, folder: Path, path: str) -> None:
    ended = command("validate", path)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"{path}: ")
    assert ended.err.endswith("1 error\n")


def test_as_json(command: Command, folder: Path) -> None:
    ended = command("validate", "job.yaml", "--json")
    assert ended.code == 0
    assert json.loads(ended.out) == {
        "valid": True,
        "file": "job.yaml",
        "errors": [],
        "name": "commanded",
        "tools": ["add"],
    }


def test_errors_as_json(command: Command, folder: Path) -> None:
    ended = command("validate", "job.yaml", "--json", "--set", "version=2")
    report = json.loads(ended.out)
    assert (ended.code, report["valid"]) == (2, False)
    assert [error["text"] for error in report["errors"]] == [
        "--set version: got the number 2; expected 1",
    ]
