"""The entry point: what it lists, what it refuses, and what it must not import."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import flink_agents
from flink_agents.build import is_compiled
from flink_agents.cli.main import COMMANDS

Command = Callable[..., Any]


def test_version(command: Command) -> None:
    ended = command("--version")
    # Where tests are asked to run on the compiled engine, they must.
    asked = os.environ.get("FLINK_AGENTS_COMPILE") == "1"
    compiled = " (engine compiled)" if asked or is_compiled() else ""
    assert (ended.code, ended.out, ended.err) == (0, f"flink-agents {flink_agents.__version__}{compiled}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_lists_every_command(command: Command, arguments: list[str]) -> None:
    ended = command(*arguments)
    text = ended.out + ended.err
    # Without a command the text is the same; what that ends with is the library's choice and changed once.
    assert ended.code == 0 or not arguments
    assert [name for name in COMMANDS if f"  {name} " in text] == list(COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_of_a_command(command: Command, name: str) -> None:
    ended = command(name, "--help")
    assert ended.code == 0
    assert f"flink-agents {name}" in ended.out


@pytest.mark.parametrize("arguments", [["nonsense"], ["validate"], ["validate", "job.yaml", "--nonsense"]])
def test_a_wrong_command_line(command: Command, arguments: list[str]) -> None:
    ended = command(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "Error: " in ended.err


def test_without_flink(folder: Path) -> None:
    """Nothing but `run` needs Flink, whose import alone takes a second."""
    code = (
        "import sys; from flink_agents.cli.main import main; sys.argv = ['flink-agents', 'validate', 'job.yaml']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] in {'pyflink', 'pemja', 'py4j'}]\n"
    )
    root = Path(flink_agents.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(root), "PATH": ""}, timeout=60)


def test_it_does_not_start_beside_apaches_distribution(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    find = metadata.distribution
    monkeypatch.setattr(metadata, "distribution", lambda name: find("pytest" if name == "flink-agents" else name))
    ended = command("--version")
    assert (ended.code, ended.out) == (2, "")
    assert "Apache's own distribution 'flink-agents' is installed" in ended.err
