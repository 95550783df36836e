"""The attempt watch against a task made of Python: who is woken, who is buried, and what reaches running bodies."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from flink_agents.clock import monotonic_ms
from flink_agents.runtime.attempt_watch import AttemptWatch, process_watch
from flink_agents.scheduler.attempt import Attempt, CancellationToken


class Port:
    """A task: counts mails, dies when told to."""

    def __init__(self) -> None:
        self.mails = 0
        self.mailed = threading.Condition()
        self.closed = False
        self.dead = False
        self.released = threading.Event()
        self.threads: set[str] = set()

    def post(self) -> None:
        self.threads.add(threading.current_thread().name)
        if self.closed:
            msg = "mailbox is closed"
            raise RuntimeError(msg)
        with self.mailed:
            self.mails += 1
            self.mailed.notify_all()

    def is_dead(self) -> bool:
        self.threads.add(threading.current_thread().name)
        return self.dead

    def release(self) -> None:
        self.released.set()

    def wait_for(self, mails: int) -> bool:
        with self.mailed:
            return self.mailed.wait_for(lambda: self.mails >= mails, 10)


@pytest.fixture(scope="module")
def watch() -> AttemptWatch:
    return process_watch()


@pytest.fixture
def port() -> Port:
    return Port()


@pytest.fixture
def attempt() -> Attempt:
    return Attempt()


@pytest.fixture
def wake(watch: AttemptWatch, port: Port, attempt: Attempt) -> Callable[[], None]:
    signal = watch.signal()
    attempt.notify = signal
    watch.register(attempt, port, signal)
    return signal


def test_one_watch_a_process(watch: AttemptWatch) -> None:
    assert process_watch() is watch


def test_many_wake_ups_before_the_mail_is_read_are_one_mail(watch: AttemptWatch, port: Port, attempt: Attempt) -> None:
    signal = watch.signal()
    watch.register(attempt, port, signal)
    for _ in range(1000):
        signal()
    assert port.wait_for(1)
    assert port.mails == 1
    signal.pending = False  # the mail was read
    signal()
    assert port.wait_for(2)
    port.dead = True


def test_wake_ups_come_from_the_one_thread_that_may_call_java(
    port: Port, attempt: Attempt, wake: Callable[[], None]
) -> None:
    callers = [threading.Thread(target=wake) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert port.wait_for(1)
    port.dead = True
    assert port.released.wait(10)
    assert port.threads == {"flink-agents-watch"}


@pytest.mark.rule(33)
def test_a_dead_task_interrupts_its_bodies_and_is_let_go(
    watch: AttemptWatch, port: Port, attempt: Attempt, wake: Callable[[], None]
) -> None:
    token = CancellationToken()
    attempt.enter(token)
    port.dead = True
    assert token.wait(1.0), "an end must reach running bodies within a second"
    assert port.released.wait(10)
    assert attempt.interrupted
    mails = port.mails
    wake()
    other, other_attempt = Port(), Attempt()
    signal = watch.signal()
    watch.register(other_attempt, other, signal)
    signal()
    assert other.wait_for(1), "the queue is behind the wake-up of the dead attempt now"
    assert port.mails == mails
    other.dead = True


def test_a_rejected_mail_is_a_death(port: Port, attempt: Attempt, wake: Callable[[], None]) -> None:
    port.closed = True
    wake()
    assert port.released.wait(10)
    assert attempt.interrupted


def test_an_alarm_rings_at_its_time(watch: AttemptWatch, port: Port, attempt: Attempt) -> None:
    signal = watch.signal()
    watch.register(attempt, port, signal)
    at = monotonic_ms() + 30
    signal.ring_at(at)
    assert port.wait_for(1)
    assert monotonic_ms() >= at
    assert port.mails == 1
    port.dead = True


def test_a_wake_up_that_was_lost_is_posted_again(watch: AttemptWatch, port: Port, attempt: Attempt) -> None:
    signal = watch.signal()
    watch.register(attempt, port, signal)
    attempt.completions.append(object())  # type: ignore[arg-type]  # the watch only looks whether something lies there
    signal()
    assert port.wait_for(2), "nobody consumed the completion, so the task must be told again"
    port.dead = True


def test_a_failing_task_does_not_end_the_watch(watch: AttemptWatch, attempt: Attempt) -> None:
    class Broken(Port):
        looked = threading.Event()

        def is_dead(self) -> bool:
            self.looked.set()
            if self.dead:
                return True
            msg = "the JVM is not well"
            raise RuntimeError(msg)

    broken = Broken()
    watch.register(attempt, broken, watch.signal())
    assert broken.looked.wait(10)
    port, signal = Port(), watch.signal()
    watch.register(Attempt(), port, signal)
    signal()
    assert port.wait_for(1)
    port.dead = broken.dead = True
    assert broken.released.wait(10)
