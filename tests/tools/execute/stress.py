"""Interrupts and cancels executions at random moments, thousands of times, half of them under full processor load.

    python tests/tools/execute/stress.py --repetitions 18000

Ends with 0 if every one of them ended as it must and left nothing behind; the first that did not ends it with 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from flink_agents.tools.execute import LocalProcess, ProcessOptions, PythonSession
from tests.tools.execute.repetition import Repetitions, elapsed_s, rounds

# Sessions take longer to start than processes do, so fewer of them are made.
KINDS = {
    "process interrupt": 4,
    "process cancel": 4,
    "session interrupt": 1,
    "session cancel": 1,
}


@contextmanager
def load(busy: bool) -> Iterator[None]:
    """Keep every processor busy with something else."""
    others = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1) if busy
    ]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=18_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    shares = [f"{kind} {busy}" for kind, share in KINDS.items() for _ in range(share) for busy in ("idle", "loaded")]
    total = 0
    for place, (kind, count) in enumerate(rounds(asked.repetitions, shares)):
        what, how, busy = kind.split()
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, load(busy == "loaded"):
            options = ProcessOptions(folder=folder, permits=3, time_limit_ms=60_000, grace_ms=600_000)
            provider = LocalProcess(["shell"], options) if what == "process" else PythonSession(options)
            repetitions = Repetitions(provider, how, asked.seed * 1000 + place)
            try:
                repetitions.run(count)
            finally:
                provider.close()
        total += count
        ends = ", ".join(f"{number} {end}" for end, number in sorted(repetitions.ends.items()))
        sys.stdout.write(f"{kind}: {count} ({ends}) in {elapsed_s(began)} s; {total} of {asked.repetitions}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
