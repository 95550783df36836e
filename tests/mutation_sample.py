"""Try a random sample of mutmut's changes to the engine, and say which the tests did not notice.

``mutmut`` makes some 5,800 changes to ``durable``, ``scheduler`` and ``runtime/turn.py``, which is hours of tests. A
simple random sample of them gives the score with an interval. The command may be interrupted and given again: what was
tried stays in the folder ``mutants`` and is not tried again.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Races and stress runs repeat their events this often: enough to notice a change, and quick.
QUICK = {"RACES": "5", "STRESS_CALLS": "6"}
AT_A_TIME = 25
CERTAIN = 1.96
# Not "timeout": mutmut says that as well where pytest found a test by none of the names it was given.
FOUND = ("killed", "segfault", "suspicious")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def mutmut(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mutmut in the checkout; its progress is not shown, because each line of it is a screen."""
    program = shutil.which("mutmut")
    if program is None:
        raise SystemExit("mutmut is not installed here: pip install mutmut")
    environment = {**os.environ, **QUICK, "PYTHONPATH": str(ROOT / "mutants")}
    return subprocess.run([program, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def verdicts() -> dict[str, str]:
    """Return what became of each change: ``not checked``, ``killed``, ``survived``, ``timeout``, ``no tests``…"""
    lines = (line.strip().rpartition(": ") for line in mutmut("results", "--all", "true").stdout.splitlines())
    return {name: verdict for name, _, verdict in lines if name}


def interval(found: int, tried: int) -> tuple[float, float]:
    """Return the 95 % interval of a share: Wilson's score interval (1927)."""
    share, z = found / tried, CERTAIN
    middle = (share + z * z / (2 * tried)) / (1 + z * z / tried)
    half = z / (1 + z * z / tried) * math.sqrt(share * (1 - share) / tried + z * z / (4 * tried * tried))
    return middle - half, middle + half


def made() -> list[str]:
    """Have the changes made, and return their names in order."""
    (ROOT / "mutants").mkdir(exist_ok=True)
    # A name that fits nothing: mutmut makes all changes, learns which tests reach which function, and tries none.
    ran = mutmut("run", "--max-children", "1", "nothing.of.this.name")
    names = sorted(verdicts())
    if not names:
        raise SystemExit(f"mutmut made no changes:\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}")
    return names


def attempt(names: Sequence[str], children: int) -> None:
    """Try the changes of these names that have not been tried."""
    known = verdicts()
    left = [name for name in names if known[name] == "not checked"]
    for start in range(0, len(left), AT_A_TIME):
        some = left[start : start + AT_A_TIME]
        ran = mutmut("run", "--max-children", str(children), *some)
        if all(verdicts()[name] == "not checked" for name in some):
            raise SystemExit(f"mutmut tried none of {len(some)} changes:\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}")
        report(names, brief=True)


def report(names: Sequence[str], *, brief: bool = False) -> None:
    """Print the score of what has been tried, and each change that no test noticed."""
    known = verdicts()
    counts = Counter(known[name] for name in names)
    tried = len(names) - counts["not checked"]
    found = sum(counts[verdict] for verdict in FOUND)
    if not tried:
        say("none tried yet")
        return
    low, high = interval(found, tried)
    say(f"{tried} of {len(names)} tried: {dict(counts)}; found {found / tried:.1%}, 95 %: {low:.1%} to {high:.1%}")
    if not brief:
        for name in (name for name in names if known[name] not in (*FOUND, "not checked")):
            say(f"\n{mutmut('show', name).stdout.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=500, metavar="N", help="how many changes (default: 500)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument("--children", type=int, default=1, help="how many at a time (default: 1)")
    parser.add_argument("--report", action="store_true", help="try none, and say what is known")
    given = parser.parse_args()
    names = sorted(verdicts()) if given.report else made()
    if not names:
        parser.error("nothing was tried yet: leave --report out")
    sample = random.Random(given.seed).sample(names, min(given.size, len(names)))
    say(f"{len(sample)} of {len(names)} changes, seed {given.seed}")
    if not given.report:
        attempt(sample, given.children)
    report(sample)


if __name__ == "__main__":
    main()
