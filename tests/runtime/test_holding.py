"""The task thread while records follow each other: mails are held back, and nothing handed over is missed."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flink_agents.clock import monotonic_ms
from flink_agents.runtime import attempt_watch, wakeup
from flink_agents.runtime.attempt_watch import AttemptWatch
from flink_agents.runtime.wakeup import MailWakeups
from flink_agents.scheduler.attempt import Attempt

WAIT_S = 20.0
HANDED = 3000


class Mailbox:
    """In the place of Flink: mails that one thread runs, between records that come when the test says so."""

    def __init__(self, watch: AttemptWatch, serve: Callable[[], None]) -> None:
        self.attempt = Attempt()
        self.mails: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.posted = 0
        self.wakeups = wakeups = object.__new__(MailWakeups)
        wakeups._attempt = self.attempt
        wakeups._task = SimpleNamespace(is_dead=lambda: False)  # type: ignore[assignment]
        wakeups._execute = self._execute
        wakeups._runnable = wakeups._on_mail
        wakeups._fire = lambda _timer: serve()
        wakeups._timer = wakeups._failure = None
        wakeups._holds = False
        wakeups._signal = self.attempt.notify = watch.signal()
        watch.register(self.attempt, wakeups, wakeups._signal)

    def _execute(self, runnable: Callable[[], None], _name: str) -> None:
        self.posted += 1
        self.mails.put(runnable)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_is_handed_over_waits_for_ever(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the safety net, which would hide a lost wake-up.
    monkeypatch.setattr(attempt_watch, "_REPOST_MS", float("inf"))
    dice, served, over = random.Random(seed), threading.Semaphore(0), threading.Event()
    taken: list[Any] = []

    def turn(*, holds: bool) -> None:
        wakeups = box.wakeups
        wakeups.put_off(5)
        while box.attempt.completions:
            taken.append(box.attempt.completions.popleft())
            served.release()
        wakeups.after_turn(has_work=True, alarm_ms=None, flush_ms=None, hold_ms=monotonic_ms() + 2 if holds else None)

    box = Mailbox(AttemptWatch(), lambda: turn(holds=dice.random() < 0.5))

    def task() -> None:
        while not over.is_set():
            try:
                box.mails.get(timeout=dice.choice([0.0001, 0.001, 0.01]))()
            except queue.Empty:
                # A record, or a pause of the input in which only mails come.
                if dice.random() < 0.5:
                    turn(holds=True)
                else:
                    turn(holds=False)
                    box.mails.get(timeout=WAIT_S)()

    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    hand = random.Random(seed + 100)
    for n in range(HANDED):
        box.attempt.deliver(n)  # type: ignore[arg-type]
        if hand.random() < 0.3:
            # Nothing else is handed over until all was served: whoever waits now waits for this one alone.
            while len(taken) <= n:
                assert served.acquire(timeout=WAIT_S), f"{n} was handed over, {len(taken)} were served"
    over.set()
    # It may wait for one more mail.
    while thread.is_alive():
        box.attempt.deliver(HANDED)  # type: ignore[arg-type]
        thread.join(0.05)
    assert taken[:HANDED] == list(range(HANDED))


def test_while_records_follow_each_other_no_mail_is_posted() -> None:
    box = Mailbox(AttemptWatch(), lambda: None)
    assert wakeup._ABOUT_MS > 0
    far = monotonic_ms() + 60_000
    for n in range(100):
        box.wakeups.after_turn(has_work=True, alarm_ms=None, flush_ms=None, hold_ms=far)
        box.attempt.deliver(n)  # type: ignore[arg-type]
    assert box.posted == 0
    box.wakeups.after_turn(has_work=True, alarm_ms=None, flush_ms=None)
    box.mails.get(timeout=WAIT_S)
    assert box.posted == 1


def test_a_notice_without_a_completion_is_not_lost_with_the_hold() -> None:
    box = Mailbox(AttemptWatch(), lambda: None)
    box.wakeups.after_turn(has_work=True, alarm_ms=None, flush_ms=None, hold_ms=monotonic_ms() + 60_000)
    box.attempt.notify()  # as a worker that came free does, or a failure of the attempt
    box.wakeups.after_turn(has_work=True, alarm_ms=None, flush_ms=None)
    box.mails.get(timeout=WAIT_S)
    # One that came before the look at what is due asks for nothing more.
    box.wakeups.after_turn(has_work=True, alarm_ms=None, flush_ms=None, hold_ms=monotonic_ms() + 60_000)
    box.attempt.notify()
    box.wakeups.put_off(5)
    box.wakeups.after_turn(has_work=True, alarm_ms=None, flush_ms=None)
    assert box.posted == 1
