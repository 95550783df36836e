"""The benchmarks as one command: measures the operator on this machine, beside a pass-through, in one run.

    python tests/bench/run.py --quick
    python tests/bench/run.py --cells inline,instant --repeat 5 --json results.json
    python tests/bench/run.py --cells inline,instant --peer
    python tests/bench/run.py --cells inline --repeat 1 --profile profiles; python -m pstats profiles/*.pstats

Each number is the median over the repetitions. Rates are marginal, from two sizes, so that what starting a job costs
is in none of them. Progress goes to stderr, the table to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console

from tests.bench import arguments as passage
from tests.bench import (
    checkpointing,
    idle,
    interpreter,
    journal,
    latency,
    peer,
    pressure,
    recovery,
    scaling,
    sections,
    shapes,
    state,
    steps,
    throughput,
)
from tests.bench.apart import apart
from tests.bench.cell import Bench, Cell, NoCluster
from tests.bench.cluster import BenchCluster, cpu_s, embedded, peak_mib
from tests.bench.machine import load, machine
from tests.bench.results import Measure, table

MODULES = (
    *(throughput, sections, shapes, latency, idle, steps, journal, state),
    *(checkpointing, pressure, recovery, scaling, interpreter, passage),
)
CELLS: dict[str, Cell] = {cell.name: cell for module in MODULES for cell in module.CELLS}
QUICK = 0.1

out = Console()
if not out.is_terminal:
    out = Console(width=160)
err = Console(stderr=True, highlight=False)


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    listed = "\n".join(f"  {cell.name:12} {cell.about}" for cell in CELLS.values())
    parser = argparse.ArgumentParser(
        prog="tests/bench/run.py",
        description=__doc__,
        epilog=f"cells:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", default=",".join(CELLS), help="names of cells, separated by commas (default: all)")
    parser.add_argument("--repeat", type=int, help="repetitions of each measurement (default: the cell's, 1 to 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests, one repetition: a try-out")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the requests (default: 1.0)")
    parser.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap", help="Flink's state backend")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured there")
    parser.add_argument(
        "--profile", type=Path, metavar="FOLDER", help="profile the operator in cells about rates; slow"
    )
    parser.add_argument(
        "--peer",
        type=Path,
        metavar="FOLDER",
        nargs="?",
        const=Path(),
        help="measure the published peer as well, in an environment made in FOLDER, or in a temporary one",
    )
    parser.add_argument("--folder", type=Path, help="where files of the jobs go (default: a temporary folder)")
    options = parser.parse_args(words)
    options.chosen = [name.strip() for name in options.cells.split(",") if name.strip()]
    unknown = [name for name in options.chosen if name not in CELLS]
    if unknown:
        parser.error(f"no cell {', '.join(unknown)}; there are {', '.join(CELLS)}")
    if (options.repeat is not None and options.repeat < 1) or options.scale <= 0:
        parser.error("--repeat must be at least 1 and --scale above 0")
    if options.quick:
        options.scale, options.repeat = QUICK * options.scale, 1
    return options


@dataclass
class Results:
    """What was measured, in which circumstances, and which cells failed of what."""

    cells: dict[str, list[Measure]] = field(default_factory=dict)
    circumstances: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, cell: Cell, options: argparse.Namespace, folder: Path) -> None:
        """Run a cell, and note its failure: the others are worth having."""
        before, began = load(), time.monotonic()
        repeat = options.repeat or cell.repeat
        try:
            self.cells[cell.name] = apart(_run, cell, repeat, options, folder / cell.name)
        except Exception as failure:
            err.print_exception()
            self.failed[cell.name] = f"{type(failure).__name__}: {failure}"
        seconds = round(time.monotonic() - began, 1)
        self.circumstances[cell.name] = {
            "repeat": repeat,
            "load_before": before,
            "load_after": load(),
            "seconds": seconds,
        }
        _say(f"{cell.name} took {seconds:.0f} s")


def _run(cell: Cell, repeat: int, options: argparse.Namespace, folder: Path) -> list[Measure]:
    """Run a cell on a cluster of its own, so that the JVM's processor time and memory are those of the cell."""

    def means(cluster: BenchCluster) -> Bench:
        return Bench(cluster, folder, repeat, options.scale, options.backend, _say, options.profile)

    if cell.options is None:
        return cell.run(means(NoCluster()))
    with embedded(folder / "flink", cell.options) as cluster:
        (pid,) = cluster.pids
        _say(f"{cell.name}: JVM {pid}")
        measures = cell.run(means(cluster))
        return [
            *measures,
            Measure("whole JVM, processor time", cpu_s(pid), "s", note="of the whole cell"),
            Measure("whole JVM, peak memory", peak_mib(pid), "MiB", note="Java's heap and Python's together"),
        ]


def measure(options: argparse.Namespace, folder: Path) -> Results:
    """Run the chosen cells, the peer's last."""
    results = Results()
    chosen = [CELLS[name] for name in options.chosen]
    if options.peer is not None:
        made = None if options.peer == Path() else options.peer
        chosen.append(peer.cell(made))
    for cell in chosen:
        results.add(cell, options, folder)
        if options.json is not None:
            # A run that is cut off keeps what it has.
            write(results, options)
    return results


def write(results: Results, options: argparse.Namespace) -> None:
    """Write everything that was measured so far."""
    body = {
        "machine": machine(),
        "scale": options.scale,
        "backend": options.backend,
        "failed": results.failed,
        "cells": {
            name: {**entry, "measures": [each.to_json() for each in results.cells.get(name, [])]}
            for name, entry in results.circumstances.items()
        },
    }
    options.json.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


def _say(text: str) -> None:
    err.print(f"load {load():5.2f} | {text}", markup=False, soft_wrap=True)


def main(words: list[str] | None = None) -> None:
    """Measure, print the table, write the JSON; exit code 1 if a cell failed."""
    options = arguments(words)
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        results = measure(options, options.folder or Path(scratch))
    here = machine()
    out.print(table(results.cells))
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in here.items())
    passed = results.circumstances.items()
    seconds = sum(entry["seconds"] for _, entry in passed)
    out.print(f"{facts}; {options.backend}, scale {options.scale:g}, {seconds / 60:.1f} minutes")
    loads = ", ".join(f"{name} {entry['load_before']} to {entry['load_after']}" for name, entry in passed)
    out.print(f"load before and after: {loads}")
    for name, failure in results.failed.items():
        out.print(f"{name} failed: {failure}", markup=False)
    if results.failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
