"""Where a request's time goes: processor time of the task's thread by section of its way through the operator.

What is wrapped here travels in the job itself, because nothing on the TaskManager can import this module.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from flink_agents.faults import Fault
from tests.bench.cell import Bench, Cell
from tests.bench.rates import CALLS, KEYS
from tests.bench.records import requests
from tests.bench.results import Measure, measured
from tests.bench.topology import marks_of

__all__ = ["CELLS"]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SECTIONS = {
    "read the record": [("runtime.operator", "read_plain")],
    "take the request in, prepare its calls": [("runtime.subtask.Subtask", "intake")],
    "write state": [("durable.store.WriteBehind", "flush")],
    "select and keep the key": [
        ("runtime.flink_state.KeyContext", "select"),
        ("runtime.flink_state.KeyContext", "remember"),
    ],
    "hand bodies to workers": [("runtime.subtask.Subtask", "start")],
    "record ends, answer": [("runtime.subtask.Subtask", "wake"), ("runtime.subtask.Subtask", "due_keys")],
    "arrange the next call": [("runtime.operator.ToolCallOperator", "_after_turn")],
}
REST = "rest: PyFlink, emission, Flink's operators and sink"


def sectioned(folder: Path, mark: Fault) -> Fault:
    """Return a fault that marks like ``mark`` and measures the sections from the opening to the end of input."""
    import importlib

    file = str(folder / "sections.json")
    spent_ns: dict[str, int] = {}
    undo: list[tuple[Any, str, Any]] = []

    def wrap(path: str, name: str, section: str) -> None:
        module, _, owner_name = path.rpartition(".") if path.split(".")[-1][0].isupper() else (path, "", "")
        owner = importlib.import_module(f"flink_agents.{module}")
        owner = getattr(owner, owner_name) if owner_name else owner
        original = getattr(owner, name)
        clock = time.thread_time_ns

        def timed(*args: Any, **options: Any) -> Any:
            began = clock()
            try:
                return original(*args, **options)
            finally:
                spent_ns[section] = spent_ns.get(section, 0) + clock() - began

        undo.append((owner, name, original))
        setattr(owner, name, timed)

    def measure(point: str) -> None:
        if point == "before:open":
            for section, places in SECTIONS.items():
                for path, name in places:
                    wrap(path, name, section)
        elif point == "after:drain":
            for owner, name, original in undo:
                setattr(owner, name, original)
            undo.clear()
            Path(file).write_text(json.dumps(spent_ns), encoding="utf-8")
        elif point == "after:open":
            spent_ns.clear()
        mark(point)

    vars(measure)["shell_only"] = True
    return measure


def _sections(bench: Bench, tool: str, count: int) -> dict[str, float]:
    """Return the microseconds a request of each section, of one job."""
    job = bench.job(f"{tool}-{count}", wrap_fault=sectioned)
    job.add("requests.jsonl", requests(range(count), keys=KEYS, calls=CALLS, tool=tool))
    job.wait(job.submit())
    spent_ns = json.loads((job.folder / "sections.json").read_text(encoding="utf-8"))
    opened, drained = (marks_of(job.folder)[point] for point in ("after:open", "after:drain"))
    shutil.rmtree(job.folder, ignore_errors=True)
    micros = {section: spent_ns.get(section, 0) / 1000 / count for section in SECTIONS}
    micros[REST] = (drained["cpu_s"] - opened["cpu_s"]) * 1e6 / count - sum(micros.values())
    bench.say(f"{tool}: {sum(micros.values()):.0f} us a request of processor time on the task's thread")
    return micros


def _where(bench: Bench, tool: str, small: int, large: int) -> list[Measure]:
    _sections(bench, tool, bench.count(small, 200))
    taken = [_sections(bench, tool, bench.count(large, 1000)) for _ in range(bench.repeat)]
    note = f"{CALLS} calls each, {KEYS} keys, with what measuring takes"
    return [
        measured("task's thread", [sum(each.values()) for each in taken], "us a request", note=note),
        *(measured(section, [each[section] for each in taken], "us a request") for section in (*SECTIONS, REST)),
    ]


def _where_inline(bench: Bench) -> list[Measure]:
    return _where(bench, "inline", 5_000, 40_000)


def _where_async(bench: Bench) -> list[Measure]:
    return _where(bench, "instant", 3_000, 20_000)


CELLS = [
    Cell("where-inline", "where the task's thread spends a request of 4 inline calls", _where_inline, repeat=1),
    Cell("where-async", "the same for 4 async calls that return at once", _where_async, repeat=1),
]
