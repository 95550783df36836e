"""A process is known by its id and its start, and nothing else is hit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from flink_agents.cluster.processes import StartedProcess

WAIT_S = 30.0


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_it_is_alive_until_it_has_ended(child: subprocess.Popen[bytes]) -> None:
    known = StartedProcess.of(child.pid)
    assert known is not None
    assert known.alive
    assert known.signal(signal.SIGSTOP)
    assert known.alive
    # Its parent has not asked for its end yet, so its id is still taken.
    assert known.signal(signal.SIGKILL)
    assert known.wait(WAIT_S)
    assert not known.signal(signal.SIGKILL)
    assert StartedProcess.of(child.pid) is None


def test_a_later_process_of_the_same_id_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    known = StartedProcess.of(child.pid)
    assert known is not None
    earlier = replace(known, started=f"{known.started}0")
    assert not earlier.alive
    assert not earlier.signal(signal.SIGKILL)
    earlier.end(WAIT_S)
    assert child.poll() is None
    assert known.alive


def test_one_that_stands_still_ends_too(child: subprocess.Popen[bytes]) -> None:
    known = StartedProcess.of(child.pid)
    assert known is not None
    known.signal(signal.SIGSTOP)
    known.end(WAIT_S)
    assert not known.alive
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == -signal.SIGTERM
