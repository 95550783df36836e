"""Reads what the files of a canonical savepoint hold of the operator's keyed state, from their bytes alone.

Not with the code under test, and file by file: each subtask writes one, so a key that two of them hold is seen.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Held", "held_by", "held_in"]

_VALUE = re.compile(rb'\{"v":\d+,"(next|r|s)"')
# A key as Flink lays out a row of one string, and behind it the namespace that is none.
_KEY = re.compile(rb'\x00([\x02-\x40])("[^"]*"|-?\d+|true|false)\x00')
# An entry's key with its lengths is shorter than this.
_BEFORE_VALUE = 64
_LENGTH_BYTES = 4
# A value begins with the time of its last write or a mark for null, and the length of its text.
_LONGEST_HEADER = 12


@dataclass
class Held:
    """The state of some keys, by the canonical text of the key."""

    heads: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The stored records of requests."""
    slots: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """Every key of which anything is held."""
        return {*self.heads, *self.requests, *self.slots}

    @property
    def only_heads(self) -> bool:
        """Whether no live work is held, only heads that say so."""
        idle = all(head["active"] is None and head["answered"] == head["next"] - 1 for head in self.heads.values())
        return idle and not self.requests and not self.slots

    def slots_by_status(self) -> dict[str, int]:
        """Count the slots of each status."""
        counts: dict[str, int] = {}
        for slot in (slot for slots in self.slots.values() for slot in slots):
            counts[slot["s"]] = counts.get(slot["s"], 0) + 1
        return counts


def held_in(*files: Path) -> Held:
    """Return what the files hold together.

    Raises:
        ValueError: if a key has two heads.
    """
    held = Held()
    for file in files:
        _read(file.read_bytes(), held)
    return held


def held_by(savepoint: Path) -> dict[str, Held]:
    """Return what each file of a savepoint holds, without the files that hold nothing of the operator."""
    files = {path.name: held_in(path) for path in sorted(savepoint.iterdir())}
    return {name: held for name, held in files.items() if held.keys}


def _read(data: bytes, held: Held) -> None:
    decoder = json.JSONDecoder()
    for found in _VALUE.finditer(data):
        key = _key_before(data, found.start())
        value, _ = decoder.raw_decode(data[found.start() : found.start() + 65536].decode("latin-1"))
        if found[1] == b"next":
            if key in held.heads:
                msg = f"key {key} has two heads"
                raise ValueError(msg)
            held.heads[key] = value
        elif found[1] == b"r":
            held.requests.setdefault(key, []).append(value["r"])
        else:
            held.slots.setdefault(key, []).append(value)


def _key_before(data: bytes, end: int) -> str:
    """Return the key of the entry whose value's text begins at ``end``.

    An entry is the length of its key, its key (group, row, namespace, the map's own key), and both of its value.
    """
    for match in _KEY.finditer(data, max(0, end - _BEFORE_VALUE), end):
        start = match.start() - 1
        length = int.from_bytes(data[start - _LENGTH_BYTES : start], "big")
        header = end - (start + length + _LENGTH_BYTES)
        if match[1][0] == len(match[2]) + 1 and 0 < header <= _LONGEST_HEADER:
            return match[2].decode()
    msg = f"no key before the value at byte {end}"
    raise ValueError(msg)
