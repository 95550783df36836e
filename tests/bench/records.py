"""The requests that benchmarks are made of: the same bytes for the same numbers, and where they are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["HOURS_MS", "add_file", "requests"]

HOURS_MS = 3_600_000
"""What a call waits that is to outlast its cell."""


def requests(
    numbers: Iterable[int],
    *,
    keys: int,
    calls: int,
    tool: str,
    gap_ms: float = 0,
    each: Callable[[], dict[str, Any]] = dict,
    **arguments: Any,
) -> Iterator[str]:
    """Yield one request a number, spread over ``keys`` keys, as a model writes them: arguments are JSON in a string.

    ``gap_ms`` is read by ``Paced``, which then lets that much time pass before the request. ``each`` returns arguments
    of one call, beside those of all.
    """
    for number in numbers:
        asked = [
            {
                "id": f"call_{number}_{position}",
                "type": "function",
                "function": {
                    "name": tool,
                    "arguments": json.dumps({"number": number, "i": position, **arguments, **each()}),
                },
            }
            for position in range(calls)
        ]
        record = {"id": f"r{number}", "key": f"k{number % keys}", "tool_calls": asked}
        yield json.dumps({**record, "metadata": {"gap_ms": gap_ms}} if gap_ms else record)


def add_file(folder: Path, name: str, lines: Iterable[str]) -> None:
    """Move a file of lines into ``folder`` whole, as a source that follows the folder needs it."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder.parent / f"{name}.made"
    with made.open("w", encoding="utf-8") as out:
        out.writelines(f"{line}\n" for line in lines)
    made.rename(folder / name)
