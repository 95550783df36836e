"""A folder with a job in it whose every part is right, for tests that break one part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """\
name: good
source: {type: jsonl, path: requests.jsonl}
key_by: session
tools:
  - function: good_tools:add
sink: {type: print}
"""

TOOLS = '''\
"""Tools of the tests' jobs."""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def alone() -> None:
    """Take nothing."""


async def ask(question: str) -> str:
    """Ask."""
    return question


def handler(tool: str, arguments: dict) -> object:
    """Serve declared tools."""
    return [tool, arguments]
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with ``requests.jsonl`` and ``good_tools.py``."""
    (tmp_path / "requests.jsonl").write_text("")
    (tmp_path / "good_tools.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    # Loading a job puts its folder on the path for good; a test must not leave its own there.
    monkeypatch.setattr("sys.path", [*sys.path])
    return tmp_path


@pytest.fixture
def job(folder: Path) -> Callable[[str], str]:
    """Write a YAML to ``job.yaml`` and return that path, relative as a user gives it."""

    def write(text: str = GOOD) -> str:
        (folder / "job.yaml").write_text(text, encoding="utf-8")
        return "job.yaml"

    return write
