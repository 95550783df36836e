"""What a benchmark says: named measures with their samples and targets, as a table and as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

__all__ = ["Measure", "Target", "measured", "median", "percentile", "table"]


@dataclass(frozen=True)
class Target:
    """A bound on a measure: at least, or at most."""

    bound: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        """Whether the value keeps to the bound."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"


@dataclass(frozen=True)
class Measure:
    """One number: the median of its samples, one for each repetition. ``value`` is NaN where the noise was larger."""

    name: str
    value: float
    unit: str
    samples: tuple[float, ...] = ()
    target: Target | None = None
    note: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None without a target or a number."""
        return None if self.target is None or math.isnan(self.value) else self.target.holds(self.value)

    def to_json(self) -> dict[str, Any]:
        """Return the measure for ``json.dumps``; NaN becomes null."""
        body = asdict(self)
        body["value"] = _number(self.value)
        body["samples"] = [_number(sample) for sample in self.samples]
        body["target"] = None if self.target is None else str(self.target)
        body["reached"] = self.reached
        return body


def measured(
    name: str, samples: Sequence[float], unit: str, *, target: Target | None = None, note: str = "", **detail: Any
) -> Measure:
    """Return the measure with the median of ``samples``."""
    return Measure(name, median(samples), unit, tuple(samples), target, note, detail)


def median(samples: Sequence[float]) -> float:
    """Return the median of the numbers among the samples; NaN if there is none."""
    numbers = [sample for sample in samples if not math.isnan(sample)]
    return statistics.median(numbers) if numbers else math.nan


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that is not below ``share`` of all (nearest rank); NaN without samples."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def table(cells: dict[str, list[Measure]]) -> Table:
    """Return all measures as a table."""
    shown = Table(title="flink_agents benchmarks", title_justify="left")
    for heading in ("cell", "measure"):
        shown.add_column(heading)
    for heading in ("median", "spread"):
        shown.add_column(heading, justify="right")
    for heading in ("target", "", "note"):
        shown.add_column(heading)
    for cell, measures in cells.items():
        for position, measure in enumerate(measures):
            low, high = min(measure.samples, default=measure.value), max(measure.samples, default=measure.value)
            shown.add_row(
                cell if position == 0 else "",
                measure.name,
                f"{_text(measure.value)} {measure.unit}".rstrip(),
                f"{_text(low)} .. {_text(high)}" if len(measure.samples) > 1 else "",
                "" if measure.target is None else str(measure.target),
                {None: "", True: "[green]reached[/]", False: "[red]missed[/]"}[measure.reached],
                measure.note,
                end_section=position == len(measures) - 1,
            )
    return shown


def _text(value: float) -> str:
    if math.isnan(value):
        return "noise"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
