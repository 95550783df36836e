"""`tools`: schemas on stdout, and nothing else there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        ([], {"type", "function"}),
        (["--format", "openai"], {"type", "function"}),
        (["--format", "anthropic"], {"name", "description", "input_schema"}),
        (["--format", "mcp"], {"name", "description", "inputSchema"}),
    ],
)
def test_formats(command: Command, folder: Path, arguments: list[str], keys: set[str]) -> None:
    ended = command("tools", "job.yaml", *arguments)
    (tool,) = json.loads(ended.out)
    assert (ended.code, set(tool)) == (0, keys)
    assert "Add two numbers." in ended.out


def test_an_unknown_format(command: Command, folder: Path) -> None:
    ended = command("tools", "job.yaml", "--format", "xml")
    assert (ended.code, ended.out) == (2, "")
    assert "'openai', 'anthropic', 'mcp'" in ended.err


def test_it_needs_no_source_but_right_tools(command: Command, folder: Path) -> None:
    (folder / "requests.jsonl").unlink()
    assert command("tools", "job.yaml").code == 0
    ended = command("tools", "job.yaml", "--set", "tools.0.name=a b")
    assert (ended.code, ended.out) == (2, "")
