"""Interruptions and cancellations at random moments; ``stress.py`` runs many more of them, also under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from flink_agents.tools.execute import LocalProcess, ProcessOptions, PythonSession
from tests.tools.execute.repetition import Repetitions


@pytest.mark.rule(66)
@pytest.mark.rule(67)
@pytest.mark.parametrize("how", ["interrupt", "cancel"])
def test_processes(tmp_path: Path, how: str) -> None:
    # A limit that no execution reaches, and a grace that no kill waits for.
    options = ProcessOptions(folder=str(tmp_path), permits=3, time_limit_ms=60_000, grace_ms=60_000)
    provider = LocalProcess(["shell"], options)
    try:
        repetitions = Repetitions(provider, how, seed=1)
        repetitions.run(200)
    finally:
        provider.close()
    assert repetitions.ends["interrupted"] > 20
    assert repetitions.ends["finished"] > 0


@pytest.mark.rule(68)
@pytest.mark.parametrize("how", ["interrupt", "cancel"])
def test_sessions(tmp_path: Path, how: str) -> None:
    options = ProcessOptions(folder=str(tmp_path), permits=3, time_limit_ms=60_000, grace_ms=60_000)
    provider = PythonSession(options)
    try:
        repetitions = Repetitions(provider, how, seed=2)
        repetitions.run(50)
    finally:
        provider.close()
    assert repetitions.ends["interrupted"] > 5
