"""Runs the command line in this process, as its entry point does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from flink_agents.cli.main import main


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run ``flink-agents`` with the arguments given and return how it ended."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["flink-agents", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        captured = capsys.readouterr()
        return Ended(code if isinstance(code, int) else 0 if code is None else 1, captured.out, captured.err)

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a job that can run."""
    (tmp_path / "requests.jsonl").write_text("")
    (tmp_path / "loud_tools.py").write_text(
        "print('imported')\n\n\ndef add(a: int, b: int) -> int:\n    '''Add two numbers.'''\n    return a + b\n"
    )
    (tmp_path / "job.yaml").write_text(
        "name: commanded\nsource: {type: jsonl, path: requests.jsonl}\nkey_by: session\n"
        "tools:\n  - function: loud_tools:add\nsink: {type: print}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    # Each test imports its own folder's module.
    monkeypatch.delitem(sys.modules, "loud_tools", raising=False)
    return tmp_path
