"""The operator's counters and latencies as Flink metrics, for dashboards; they start anew with each attempt."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

from flink_agents.clock import monotonic_ms
from flink_agents.runtime.flink_state import java_class

__all__ = ["FLUSH_EVERY_MS", "FlinkCounters"]

_log = logging.getLogger(__name__)

FLUSH_EVERY_MS = 200
_HISTOGRAM_WINDOW = 1000


class FlinkCounters:
    """Collects counts in Python and hands sums to Flink's own metric objects.

    Nothing here is a gauge over Python: the metric reporter would run Python on its own thread beside the task thread,
    which can crash the JVM. Sums cross into Java at most every ``FLUSH_EVERY_MS`` milliseconds, because each crossing
    costs as much as an access to state. Task thread only. After a restore everything starts at zero.
    """

    def __init__(self, group: Any) -> None:
        self._group = group.add_group("flink_agents")
        self._sums: defaultdict[str, int] = defaultdict(int)
        self._samples: defaultdict[str, list[int]] = defaultdict(list)
        self._counters: dict[str, Any] = {}
        self._histograms: dict[str, Any] = {}
        self._flushed_ms = 0.0

    @property
    def due_ms(self) -> float | None:
        """When to flush what was counted since the last time, on the monotonic clock; None while nothing was."""
        return self._flushed_ms + FLUSH_EVERY_MS if self._sums or self._samples else None

    def inc(self, name: str, n: int = 1) -> None:
        """Add ``n`` to a counter; a negative ``n`` takes away, for what is in flight or queued."""
        self._sums[name] += n

    def latency(self, name: str, ms: float) -> None:
        """Note a duration in milliseconds."""
        samples = self._samples[name]
        # A window is all that the histogram keeps, so more samples than that within one flush are not worth a crossing.
        if len(samples) < _HISTOGRAM_WINDOW:
            samples.append(round(ms))

    def flush_if_due(self) -> bool:
        """Hand the sums to Flink, unless that was done moments ago; return whether it was done now."""
        now = monotonic_ms()
        if now - self._flushed_ms < FLUSH_EVERY_MS:
            return False
        self._flushed_ms = now
        self.flush()
        return True

    def flush(self) -> None:
        """Hand the sums to Flink now."""
        sums, self._sums = self._sums, defaultdict(int)
        samples, self._samples = self._samples, defaultdict(list)
        for name, n in sums.items():
            counter = self._counters.get(name)
            if counter is None:
                counter = self._counters[name] = self._group.counter(name)
            counter.inc(n)
        for name, values in samples.items():
            histogram = self._histograms.get(name)
            if histogram is None:
                histogram = self._histograms[name] = _histogram(self._group, name)
            for value in values:
                histogram.update(value)


def _histogram(group: Any, name: str) -> Any:
    """Return a histogram that lives in Java, or, where Flink has none under its known name, its latest value."""
    try:
        histogram = java_class("org.apache.flink.runtime.metrics.DescriptiveStatisticsHistogram")
        # PyFlink's metric group offers no histogram; the Java group behind it does.
        return group._metrics.histogram(name, histogram(_HISTOGRAM_WINDOW))
    except Exception as failure:  # whatever reflection raises: the metric is not worth the task
        _log.info("no histogram for %s, showing the latest value instead: %r", name, failure)
        return group.distribution(name)
