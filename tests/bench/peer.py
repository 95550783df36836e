"""The cell about the published peer: Apache Flink Agents on the same work, in an environment of its own.

Its import name is ours, so it runs in a virtual environment that this module makes, and in processes of that.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.bench.cell import Bench, Cell
from tests.bench.rates import CALLS, KEYS, Rates, Variant, marginal, rate
from tests.bench.results import Measure, Target, measured

__all__ = ["PINNED", "cell", "environment", "peer_lines"]

PINNED = ("flink-agents==0.2.0", "apache-flink==2.2.0")
"""The last release whose wheel carries its jars, and the Flink that it was built for."""

JOB = Path(__file__).with_name("peer_job.py")
SIZES = {"sync": (500, 3_000), "async": (300, 1_500)}
OURS = {"sync": ("inline", 5_000, 30_000), "async": ("instant", 2_000, 12_000)}
THREADS = 1000
DEADLINE_S = 900.0


def environment(folder: Path) -> Path:
    """Return the interpreter of the peer's environment in ``folder``, made by ``venv`` and ``pip`` unless it is there.

    Raises:
        RuntimeError: it cannot be installed; with the end of what pip said.
    """
    python = folder / "bin" / "python"
    made = folder / "installed.txt"
    if made.exists() and made.read_text(encoding="utf-8").split() == list(PINNED):
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, capture_output=True)
    # The newest setuptools have no pkg_resources, which the peer's Apache Beam imports.
    for packages in (("setuptools<80", "wheel"), PINNED):
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *packages], capture_output=True, text=True, check=False
        )
        if done.returncode:
            msg = f"the peer cannot be installed: {done.stderr.strip()[-2000:]}"
            raise RuntimeError(msg)
    made.write_text("\n".join(PINNED), encoding="utf-8")
    return python


def peer_lines(count: int) -> Iterator[str]:
    """Yield the same requests in the peer's form, over as many keys."""
    for number in range(count):
        calls = [{"id": f"c{number}-{i}", "name": "add", "args": {"a": number, "b": i}} for i in range(CALLS)]
        yield json.dumps({"key": f"k{number % KEYS}", "id": number, "calls": calls})


def took_s(bench: Bench, python: Path, mode: str, count: int) -> float:
    """Return how long the peer's job took, its start included.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    bench.folder.mkdir(parents=True, exist_ok=True)
    lines = bench.folder / f"peer-{count}.jsonl"
    if not lines.exists():
        lines.write_text("".join(f"{line}\n" for line in peer_lines(count)), encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ["PATH"] = f"{python.parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    done = subprocess.run(
        [python, JOB.name, lines, mode, str(THREADS)],
        cwd=JOB.parent,
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    said = done.stdout.strip().splitlines()
    if done.returncode or not said:
        msg = f"the peer failed: {done.stderr.strip()[-2000:]}"
        raise RuntimeError(msg)
    seconds = float(said[-1])
    bench.say(f"peer, {mode}: {count} requests in {seconds:.1f} s")
    return seconds


def _peer(bench: Bench, folder: Path | None) -> list[Measure]:
    python = environment(folder or bench.folder / "peer-environment")
    theirs: dict[str, list[float]] = {mode: [] for mode in SIZES}
    for _ in range(bench.repeat):
        for mode, sizes in SIZES.items():
            small, large = (bench.count(size, 50) for size in sizes)
            pair = (small, took_s(bench, python, mode, small)), (large, took_s(bench, python, mode, large))
            theirs[mode].append(rate(*pair))
    measures = []
    for mode, (tool, small, large) in OURS.items():
        (ours,) = marginal(bench, [Variant(f"ours, {tool}", {"tool": tool})], small, large).values()
        measures += _beside(mode, ours, theirs[mode])
    if folder is None:
        shutil.rmtree(python.parents[1], ignore_errors=True)
    return measures


def _beside(mode: str, ours: Rates, theirs: list[float]) -> list[Measure]:
    samples = [a / b for a, b in zip(ours.each(), theirs, strict=True)]
    target = Target(10, at_least=True)
    return [
        measured(f"ours / peer, {mode}", samples, "", target=target, note="it keeps nothing durable"),
        ours.measure(f"{CALLS} calls each, {KEYS} keys"),
        measured(f"peer, {mode}", theirs, "requests/s", note=PINNED[0]),
    ]


def cell(folder: Path | None) -> Cell:
    """Return the cell that measures the peer; its environment is made in ``folder``, or in a temporary one."""
    return Cell("peer", "the published peer on the same requests", partial(_peer, folder=folder), 2)
