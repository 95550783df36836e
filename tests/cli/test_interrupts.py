"""What Ctrl-C means at which moment."""

from __future__ import annotations

import signal

import pytest

from flink_agents.cli.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_at_first_it_raises(number: signal.Signals) -> None:
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_order_the_first_asks_and_the_second_raises_once(number: signal.Signals) -> None:
    with Interrupts() as interrupts:
        interrupts.orderly = True
        signal.raise_signal(number)
        assert interrupts.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(number)


def test_what_is_left_runs_to_its_end() -> None:
    with Interrupts() as interrupts:
        interrupts.ending()
        signal.raise_signal(signal.SIGINT)


def test_the_handlers_before_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
