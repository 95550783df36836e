"""Counters reach Flink as sums, seldom, and never as something that Flink's threads would ask Python for."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyflink")

from flink_agents.runtime.metrics import FLUSH_EVERY_MS, FlinkCounters


class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.calls = 0

    def inc(self, n: int = 1) -> None:
        self.count += n
        self.calls += 1


class Distribution:
    def __init__(self) -> None:
        self.values: list[int] = []

    def update(self, value: int) -> None:
        self.values.append(value)


class Group:
    """A metric group without a Java group behind it, so there are no histograms."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.distributions: dict[str, Distribution] = {}

    def add_group(self, name: str) -> Group:
        assert name == "flink_agents"
        return self

    def counter(self, name: str) -> Counter:
        return self.counters.setdefault(name, Counter())

    def distribution(self, name: str) -> Distribution:
        return self.distributions.setdefault(name, Distribution())

    def gauge(self, *_: Any) -> None:
        pytest.fail("a gauge runs Python on Flink's metric thread")


def test_counts_are_handed_over_as_sums() -> None:
    group = Group()
    counters = FlinkCounters(group)
    for _ in range(100):
        counters.inc("calls")
    counters.inc("in_flight", 3)
    counters.inc("in_flight", -1)
    assert group.counters == {}
    counters.flush()
    assert (group.counters["calls"].count, group.counters["calls"].calls) == (100, 1)
    assert group.counters["in_flight"].count == 2


def test_latencies_fall_back_to_the_latest_values() -> None:
    group = Group()
    counters = FlinkCounters(group)
    counters.latency("request_ms", 1.6)
    counters.latency("request_ms", 3)
    counters.flush()
    assert group.distributions["request_ms"].values == [2, 3]


def test_a_flush_is_due_while_something_is_unknown_to_flink(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("flink_agents.runtime.metrics.monotonic_ms", lambda: now)
    group = Group()
    counters = FlinkCounters(group)
    due = [counters.due_ms]
    counters.inc("calls")
    counters.flush_if_due()
    due.append(counters.due_ms)
    counters.inc("calls")
    counters.flush_if_due()
    due.append(counters.due_ms)
    assert due == [None, None, now + FLUSH_EVERY_MS]
    assert group.counters["calls"].count == 1
    now += FLUSH_EVERY_MS
    counters.flush_if_due()
    assert group.counters["calls"].count == 2
