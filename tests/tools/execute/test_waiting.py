"""Permits and turns: who waits, who is next, and that a cancelled wait leaves nothing behind."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from flink_agents.errors import Interrupted
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.tools.execute.waiting import Permits, Turns
from tests.tools.execute.conftest import eventually


class Holder:
    """A thread that holds a permit until it is told to end."""

    def __init__(self, permits: Permits | Turns, token: CancellationToken | None = None, key: str = "k") -> None:
        self.token = token or CancellationToken()
        self.entered = threading.Event()
        self.leave = threading.Event()
        self.interrupted = False
        self._held = permits.held(key, self.token) if isinstance(permits, Turns) else permits.held(self.token)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._held:
                self.entered.set()
                self.leave.wait()
        except Interrupted:
            self.interrupted = True

    def end(self) -> None:
        self.leave.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def waiting(permits: Permits, count: int) -> bool:
    return permits.waiting == count


def test_first_come_first_served() -> None:
    permits = Permits(1)
    first = Holder(permits)
    assert first.entered.wait(30)
    others = []
    for count in range(1, 4):
        others.append(Holder(permits))
        eventually(partial(waiting, permits, count))
    first.end()
    for holder in others:
        assert holder.entered.wait(30)
        holder.end()
    assert (permits.free, permits.waiting) == (1, 0)


@pytest.mark.rule(67)
def test_a_cancelled_wait_starts_nothing_and_holds_nothing() -> None:
    permits = Permits(1)
    first = Holder(permits)
    assert first.entered.wait(30)
    second, third = Holder(permits), Holder(permits)
    eventually(lambda: permits.waiting == 2)
    second.token.cancel()
    second.end()
    assert second.interrupted
    assert not second.entered.is_set()
    assert permits.waiting == 1
    first.end()
    assert third.entered.wait(30)
    third.end()
    assert (permits.free, permits.waiting) == (1, 0)


@pytest.mark.rule(67)
def test_a_permit_that_comes_with_the_cancellation_is_given_back() -> None:
    for _ in range(300):
        permits = Permits(1)
        first = Holder(permits)
        assert first.entered.wait(30)
        second = Holder(permits)
        eventually(partial(waiting, permits, 1))
        canceller = threading.Thread(target=second.token.cancel)
        canceller.start()
        first.end()
        canceller.join()
        second.end()
        assert second.interrupted != second.entered.is_set()
        assert (permits.free, permits.waiting) == (1, 0)


@pytest.mark.rule(67)
def test_a_permit_that_comes_after_the_cancellation_starts_nothing() -> None:
    permits, token = Permits(1), CancellationToken()
    first = Holder(permits)
    assert first.entered.wait(30)
    # Called when the token is set, before the one that waits is told.
    token.on_cancel(first.end)
    second = Holder(permits, token)
    eventually(lambda: permits.waiting == 1)
    token.cancel()
    second.end()
    assert second.interrupted
    assert not second.entered.is_set()
    assert permits.free == 1


@pytest.mark.rule(67)
def test_a_token_that_is_set_before_starts_nothing() -> None:
    token = CancellationToken()
    token.cancel()
    permits = Permits(1)
    with pytest.raises(Interrupted), permits.held(token):
        pytest.fail("it must not begin")
    assert permits.free == 1


@pytest.mark.rule(67)
def test_a_shared_token_keeps_no_callback() -> None:
    token = CancellationToken()
    permits = Permits(1)
    first = Holder(permits, token)
    assert first.entered.wait(30)
    second = Holder(permits, token)
    eventually(lambda: permits.waiting == 1)
    assert len(token._callbacks or ()) == 1
    first.end()
    second.end()
    assert not token._callbacks


def test_turns_are_for_each_key() -> None:
    turns = Turns()
    first, other = Holder(turns, key="a"), Holder(turns, key="b")
    assert first.entered.wait(30)
    assert other.entered.wait(30)
    second = Holder(turns, key="a")
    cancelled = Holder(turns, key="a")
    eventually(lambda: turns._turns["a"][0].waiting == 2)
    cancelled.token.cancel()
    cancelled.end()
    assert cancelled.interrupted
    assert not second.entered.is_set()
    first.end()
    assert second.entered.wait(30)
    second.end()
    other.end()
    assert len(turns) == 0
