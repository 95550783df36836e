"""Cells about the shape of requests: one call after another, few and many calls, small and large payloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flink_agents.options import Mode, ToolCallOptions
from tests.bench.cell import Bench, Cell
from tests.bench.rates import CALLS, Variant, marginal, ratio
from tests.bench.results import Measure, measured

__all__ = ["CELLS"]

BATCHES = {1: (2_000, 12_000), 4: (1_000, 7_000), 64: (100, 500)}
PAYLOADS = {100: (2_000, 12_000), 100_000: (100, 500)}
KINDS = {"inline": "inline", "async": "instant"}
CARRIERS = {"inline": "carry", "async": "fetch"}


def _sequential(bench: Bench) -> list[Measure]:
    one_by_one = ToolCallOptions(mode=Mode.SEQUENTIAL)
    variants = [
        Variant("pass-through", {"tool": "instant", "pass_through": True}),
        *(Variant(f"{kind}, sequential", {"tool": tool, "tool_calls": one_by_one}) for kind, tool in KINDS.items()),
        *(Variant(f"{kind}, parallel", {"tool": tool}) for kind, tool in KINDS.items()),
    ]
    rates = marginal(bench, variants, 1_000, 6_000)
    plain = rates["pass-through"]
    return [
        *(ratio(f"{kind}: sequential / parallel", *_both(rates, kind)) for kind in KINDS),
        *(ratio(f"{kind}, sequential / pass-through", rates[f"{kind}, sequential"], plain) for kind in KINDS),
        *(each.measure(f"{CALLS} calls each") for each in rates.values()),
    ]


def _both(rates: Mapping[str, Any], kind: str) -> tuple[Any, Any]:
    return rates[f"{kind}, sequential"], rates[f"{kind}, parallel"]


def _sweep(
    bench: Bench, kinds: Mapping[str, str], options: Mapping[str, Any], sizes: tuple[int, int], label: str, calls: int
) -> list[Measure]:
    """Measure requests of one shape: each kind of call beside the pass-through."""
    plain = {"tool": "instant", **options, "pass_through": True}
    variants = [
        Variant(f"pass-through, {label}", plain),
        *(Variant(f"{kind}, {label}", {**options, "tool": tool}) for kind, tool in kinds.items()),
    ]
    rates = marginal(bench, variants, *sizes)
    measures = []
    for kind in kinds:
        name = f"{kind}, {label}"
        measures += [
            measured(name, [each / calls for each in rates[name].micros()], "us a call"),
            ratio(f"{name} / pass-through", rates[name], rates[f"pass-through, {label}"]),
        ]
    return [*measures, rates[f"pass-through, {label}"].measure()]


def _batches(bench: Bench) -> list[Measure]:
    return [
        measure
        for calls, sizes in BATCHES.items()
        for measure in _sweep(bench, KINDS, {"calls": calls}, sizes, f"{calls} a request", calls)
    ]


def _payloads(bench: Bench) -> list[Measure]:
    return [
        measure
        for size, sizes in PAYLOADS.items()
        for measure in _sweep(
            bench, CARRIERS, {"calls": 1, "arguments": {"payload": "x" * size}}, sizes, f"{size:,} B", 1
        )
    ]


CELLS = [
    Cell("sequential", "4 calls one after another, beside all at once", _sequential, 1),
    Cell("batches", "requests of 1, 4 and 64 calls, inline and async: time a call", _batches, 1),
    Cell("payloads", "one call with 100 B and 100 KB of arguments, and a value of the same size", _payloads, 1),
]
