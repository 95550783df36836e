"""The interpreter's settings: the switch interval is set once, and another can be asked for from outside."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flink_agents.runtime.process import SWITCH_INTERVAL_S, SWITCH_INTERVAL_VARIABLE

# In a process of its own: the settings last as long as one.
TUNED = """
import sys
from flink_agents.runtime.process import tune_interpreter
before = sys.getswitchinterval()
tune_interpreter()
after = sys.getswitchinterval()
sys.setswitchinterval(0.25)
tune_interpreter()
print(before, after, sys.getswitchinterval())
"""


def tuned(asked: str | None) -> tuple[float, float, float, str]:
    """Return the interval before and after, and after a second time, and what was logged."""
    environ = {name: value for name, value in os.environ.items() if name != SWITCH_INTERVAL_VARIABLE}
    if asked is not None:
        environ[SWITCH_INTERVAL_VARIABLE] = asked
    done = subprocess.run([sys.executable, "-c", TUNED], env=environ, capture_output=True, text=True, check=True)
    before, after, again = map(float, done.stdout.split())
    return before, after, again, done.stderr


def test_the_interval_is_set_once() -> None:
    before, after, again, logged = tuned(None)
    assert after == pytest.approx(SWITCH_INTERVAL_S)
    assert before != after
    assert again == 0.25
    assert not logged


def test_another_interval_can_be_asked_for() -> None:
    assert tuned("0.002")[1] == pytest.approx(0.002)


def test_zero_leaves_the_interpreters_own() -> None:
    before, after, *_ = tuned("0")
    assert after == before


@pytest.mark.parametrize("asked", ["fast", "inf", "nan", ""])
def test_what_is_no_number_of_seconds_is_said_and_not_used(asked: str) -> None:
    _, after, _, logged = tuned(asked)
    assert after == pytest.approx(SWITCH_INTERVAL_S)
    assert f"{SWITCH_INTERVAL_VARIABLE} is {asked!r}" in logged
