"""Writes the requests of this job: the same bytes for the same numbers and seed.

python jobs/generated/generate.py --requests 20000
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REQUESTS_OF_A_KEY = 50
NO_REQUEST_EVERY = 29
NO_ID_EVERY = 5


def records(count: int, *, calls: int, keys: int, seed: int) -> Iterator[str]:
    """Yield ``count`` lines: requests of 1 to ``calls`` calls, spread over ``keys`` keys, and some that are none.

    A fifth of the requests have no id, and a fifth of the calls ask for a tool that is not there.
    """
    drawn = random.Random(seed)
    for i in range(count):
        if i % NO_REQUEST_EVERY == 7:
            yield f"no json {i}"
            continue
        asked = []
        for j in range(drawn.randint(1, calls)):
            name = drawn.choice(["look", "fetch", "add", "pay", "gone"])
            arguments: dict[str, dict[str, Any]] = {
                "look": {"name": f"n{i}"},
                "fetch": {"name": f"f{i}"},
                "add": {"a": i, "b": j},
                "pay": {"cents": i * 10 + j},
            }
            asked.append({"id": f"c{j}", "function": {"name": name, "arguments": arguments.get(name, {})}})
        record = {"session": f"s{i % keys}", "tool_calls": asked}
        yield json.dumps(record if i % NO_ID_EVERY == 0 else {"id": f"r{i}", **record})


def main() -> None:
    """Write two files of requests beside the job; what was there under these names is replaced."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000, metavar="N", help="how many lines (default: 1000)")
    parser.add_argument("--calls", type=int, default=8, metavar="N", help="most calls of a request (default: 8)")
    parser.add_argument("--keys", type=int, metavar="N", help=f"keys (default: one for {REQUESTS_OF_A_KEY} requests)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of what is drawn (default: 1)")
    parser.add_argument("--folder", type=Path, default=Path(__file__).with_name("requests"), help="where the files go")
    options = parser.parse_args()
    keys = options.keys or max(1, options.requests // REQUESTS_OF_A_KEY)
    lines = list(records(options.requests, calls=options.calls, keys=keys, seed=options.seed))
    options.folder.mkdir(parents=True, exist_ok=True)
    half = len(lines) // 2
    for name, part in (("a.jsonl", lines[:half]), ("b.jsonl", lines[half:])):
        (options.folder / name).write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
    sys.stderr.write(f"{len(lines)} lines for {keys} keys in {options.folder}\n")


if __name__ == "__main__":
    main()
