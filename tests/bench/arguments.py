"""The cell about what a call costs before and after its body: its arguments read and checked, its value encoded."""

from __future__ import annotations

import json
from time import perf_counter_ns
from typing import Any

from flink_agents import FunctionTool, SchemaTool, Tool, codec
from flink_agents.options import Limits
from flink_agents.records import parse_arguments
from tests.bench.cell import Bench, Cell
from tests.bench.results import Measure, Target, measured, percentile

__all__ = ["CELLS", "passage_us"]

CALLS = 20_000
SIZE = 1024

ORDER: dict[str, Any] = {
    "customer": "C-1004711",
    "note": "leave it at the door " * 12,
    "express": True,
    "lines": [{"sku": f"SKU-{n:05}", "count": n + 1, "price": 9.5 + n} for n in range(10)],
    "address": {"street": "Long Street 5", "city": "Springfield", "zip": "12345"},
}
ORDER["padding"] = "x" * (SIZE - len(json.dumps({**ORDER, "padding": ""})))


def place_order(
    customer: str,
    note: str,
    express: bool,
    lines: list[dict[str, str | int | float]],
    address: dict[str, str],
    padding: str,
) -> dict[str, Any]:
    """Give the arguments back."""
    return {"customer": customer, "note": note, "express": express, "lines": lines, "address": address, "pad": padding}


def echo(tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the arguments back."""
    return arguments


def passage_us(tool: Tool, arguments: Any, calls: int) -> list[float]:
    """Return, for each call, the microseconds around its body: parse and check the arguments, encode the value."""
    limits = Limits()
    samples = []
    for _ in range(calls):
        began = perf_counter_ns()
        body = tool.prepare(parse_arguments(arguments, limits.arguments))
        checked = perf_counter_ns()
        value = body()
        returned = perf_counter_ns()
        codec.encode(value, limits.result)
        samples.append((perf_counter_ns() - returned + checked - began) / 1000)
    return samples


def digest_us(arguments: Any, calls: int) -> list[float]:
    """Return, for each call, the microseconds of the digest that its slot is known by."""
    samples = []
    for _ in range(calls):
        began = perf_counter_ns()
        codec.digest(arguments)
        samples.append((perf_counter_ns() - began) / 1000)
    return samples


def _arguments(bench: Bench) -> list[Measure]:
    function = FunctionTool(place_order)
    schema = SchemaTool({"name": "echo", "parameters": dict(function.spec.parameters)}, echo)
    measures = []
    for name, tool in (("function", function), ("schema file", schema)):
        for form, arguments in (("object", ORDER), ("string", json.dumps(ORDER))):
            halves = []
            for _ in range(bench.repeat):
                halves.append(percentile(passage_us(tool, arguments, bench.count(CALLS, 100)), 0.5))
                bench.say(f"arguments ({name}, {form}): p50 {halves[-1]:.1f} us")
            note = f"{SIZE} bytes: parse, check, encode the value"
            measures.append(measured(f"p50, {name}, {form}", halves, "us", target=Target(50), note=note))
    for form, arguments in (("object", ORDER), ("string", json.dumps(ORDER))):
        halves = [percentile(digest_us(arguments, bench.count(CALLS, 100)), 0.5) for _ in range(bench.repeat)]
        measures.append(measured(f"digest p50, {form}", halves, "us", note="of the arguments as asked, for their slot"))
    return measures


CELLS = [Cell("arguments", "validation and codec of a 1 KB argument object, without Flink", _arguments, options=None)]
