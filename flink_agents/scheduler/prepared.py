"""What is known of a call before it runs: the terms of its tool, and a body that can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flink_agents.options import Execution, OnInterrupt, Rate
from flink_agents.retry import RetryPolicy

__all__ = ["UNPREPARED", "CallTerms", "Prepared"]


@dataclass(frozen=True)
class CallTerms:
    """How the calls of one name run: where, how many at once, how long, how often.

    ``gate`` names what ``max_concurrent`` and ``rate`` are counted by. ``timeout_ms`` bounds one body, ``deadline_ms``
    the call from the moment its turn in its batch comes.
    """

    gate: str
    execution: Execution
    max_concurrent: int | None = None
    on_interrupt: OnInterrupt = OnInterrupt.RERUN
    timeout_ms: int | None = None
    deadline_ms: int | None = None
    retry: RetryPolicy | None = None
    rate: Rate | None = None

    @cached_property
    def is_plain_inline(self) -> bool:
        """Whether a body runs here and now, and its first end is the call's."""
        return self.execution is Execution.INLINE and self._is_unbounded

    @cached_property
    def is_plain_worker(self) -> bool:
        """Whether a body runs on a worker, its first end is the call's, and it runs again where it was cut off."""
        is_here = self.execution is Execution.INLINE
        return not is_here and self._is_unbounded and self.on_interrupt is OnInterrupt.RERUN

    @property
    def _is_unbounded(self) -> bool:
        return (self.max_concurrent, self.timeout_ms, self.deadline_ms, self.retry, self.rate) == (None,) * 5


class Prepared:
    """What preparation of a call yields: a body that can run, and on which terms. Nothing changes it."""

    __slots__ = ("body", "reconcile", "terms")

    def __init__(self, body: Callable[[], Any], terms: CallTerms, reconcile: Callable[[], Any] | None = None) -> None:
        self.body = body
        self.terms = terms
        self.reconcile = reconcile

    def with_body(self, body: Callable[[], Any], terms: CallTerms | None = None) -> Prepared:
        """Return this with another body, and other terms where they are given."""
        return Prepared(body, terms or self.terms, self.reconcile)


UNPREPARED = Prepared(lambda: None, CallTerms("", Execution.INLINE))
"""Stands in where a call needs none in this life."""
