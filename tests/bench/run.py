"""The benchmarks as one command: measures the operator on this machine, beside a pass-through, in one run.

    python tests/bench/run.py --quick
    python tests/bench/run.py --cells inline,instant --repeat 5 --json results.json
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console

from flink_agents.cluster.embedded import EmbeddedCluster
from tests.bench import arguments as passage
from tests.bench import checkpointing, journal, latency, recovery, steps, throughput
from tests.bench.cell import Bench, Cell
from tests.bench.machine import load, machine
from tests.bench.results import Measure, table

CELLS: dict[str, Cell] = {
    cell.name: cell
    for module in (throughput, latency, steps, journal, checkpointing, recovery, passage)
    for cell in module.CELLS
}
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
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each measurement (default: 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests, one repetition: a try-out")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the requests (default: 1.0)")
    parser.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap", help="Flink's state backend")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured there")
    parser.add_argument(
        "--profile", type=Path, metavar="FOLDER", help="profile the operator in cells about rates; slow"
    )
    parser.add_argument("--folder", type=Path, help="where files of the jobs go (default: a temporary folder)")
    options = parser.parse_args(words)
    options.chosen = [name.strip() for name in options.cells.split(",") if name.strip()]
    unknown = [name for name in options.chosen if name not in CELLS]
    if unknown:
        parser.error(f"no cell {', '.join(unknown)}; there are {', '.join(CELLS)}")
    if options.repeat < 1 or options.scale <= 0:
        parser.error("--repeat must be at least 1 and --scale above 0")
    if options.quick:
        options.scale, options.repeat = QUICK * options.scale, 1
    return options


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, list[Measure]], dict[str, Any]]:
    """Run the chosen cells on one cluster; return their measures, and of each when it ran and under which load."""
    cells: dict[str, list[Measure]] = {}
    circumstances: dict[str, Any] = {}
    with EmbeddedCluster(folder / "flink", slots=2, options={"web.checkpoints.history": "2000"}) as cluster:
        bench = Bench(cluster, folder, options.repeat, options.scale, options.backend, _say, options.profile)
        for name in options.chosen:
            before, began = load(), time.monotonic()
            cells[name] = CELLS[name].run(bench)
            circumstances[name] = {
                "load_before": before,
                "load_after": load(),
                "seconds": round(time.monotonic() - began, 1),
            }
    return cells, circumstances


def _say(text: str) -> None:
    err.print(f"load {load():5.2f} | {text}", markup=False, soft_wrap=True)


def main(words: list[str] | None = None) -> None:
    """Measure, print the table, write the JSON."""
    options = arguments(words)
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        cells, circumstances = measure(options, options.folder or Path(scratch))
    here = machine()
    out.print(table(cells))
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in here.items())
    loads = ", ".join(f"{name} {c['load_before']} to {c['load_after']}" for name, c in circumstances.items())
    out.print(f"{facts}; {options.backend}, {options.repeat} repetitions, scale {options.scale:g}")
    out.print(f"load before and after: {loads}")
    if options.json is not None:
        body = {
            "machine": here,
            "repeat": options.repeat,
            "scale": options.scale,
            "backend": options.backend,
            "cells": {
                name: {**circumstances[name], "measures": [entry.to_json() for entry in measures]}
                for name, measures in cells.items()
            },
        }
        options.json.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
