"""Durations, sizes and rates as people write them, turned into milliseconds, bytes and counts: the values layer."""

from __future__ import annotations

import re
from fractions import Fraction

from flink_agents.options import Rate

__all__ = [
    "MAX_DURATION_MS",
    "MAX_SIZE",
    "UnitError",
    "format_duration",
    "format_size",
    "parse_duration",
    "parse_rate",
    "parse_size",
]

DURATION_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZE_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

# Both stay far inside a signed 64-bit number, which is what Flink stores them in.
MAX_DURATION_MS = 36_500 * DURATION_UNITS["d"]
MAX_SIZE = 1 << 50

# What people write from habit, and the unit of ours that is meant.
DURATION_SLIPS = {
    "msec": "ms", "millis": "ms", "milliseconds": "ms", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
    "min": "m", "mins": "m", "minute": "m", "minutes": "m", "hr": "h", "hour": "h", "hours": "h",
    "day": "d", "days": "d",
}  # fmt: skip
SIZE_SLIPS = {
    "k": "KiB", "kb": "KiB", "kib": "KiB", "m": "MiB", "mb": "MiB", "mib": "MiB", "g": "GiB", "gb": "GiB", "gib": "GiB",
}  # fmt: skip

RATE_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000}

QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]{0,12})")
RATE = re.compile(r"([0-9]{1,9}) ?/ ?([A-Za-z]{1,12})")


class UnitError(ValueError):
    """Raised for text that is no duration or size. ``expected`` and ``hint`` finish the sentence for the user."""

    def __init__(self, message: str, expected: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.expected = expected
        self.hint = hint


def parse_duration(value: object) -> int:
    """Return the milliseconds of a duration such as ``200ms``, ``1.5s``, ``5m``, ``2h`` or ``30d``.

    Raises:
        UnitError: for anything else, a number without a unit and a fraction of a millisecond included.
    """
    expected = "a duration such as 200ms, 5s, 10m, 2h or 30d"
    return _parse(value, DURATION_UNITS, DURATION_SLIPS, expected, "s", MAX_DURATION_MS, "millisecond")


def parse_size(value: object) -> int:
    """Return the bytes of a size such as ``256KiB``, ``1.5MiB`` or ``2GiB``.

    Raises:
        UnitError: for anything else, a number without a unit and a fraction of a byte included.
    """
    return _parse(value, SIZE_UNITS, SIZE_SLIPS, "a size such as 256KiB, 4MiB or 1GiB", "KiB", MAX_SIZE, "byte")


def parse_rate(value: object) -> Rate:
    """Return the rate of a text such as ``50/s``, ``300/m`` or ``1000/h``.

    Raises:
        UnitError: for anything else, a rate of zero and a fraction included.
    """
    expected = "a whole number per second, minute or hour, such as 50/s, 300/m or 1000/h"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise UnitError(f"got the number {value} without a unit", expected, f"{value}/s" if value > 0 else None)
    if not isinstance(value, str):
        raise UnitError(f"got {_kind(value)}", expected)
    match = RATE.fullmatch(value.strip())
    if match is None:
        raise UnitError(f"got text {_quoted(value.strip())}", expected)
    count, unit = match.groups()
    if unit not in RATE_UNITS:
        meant = DURATION_SLIPS.get(unit.lower(), unit[:1].lower())
        raise UnitError(
            f"unknown unit '{unit}' in {_quoted(value.strip())}",
            expected,
            f"{count}/{meant}" if meant in RATE_UNITS else None,
        )
    if not int(count):
        raise UnitError("a rate of zero lets nothing run", expected)
    return Rate(int(count), RATE_UNITS[unit])


def format_duration(ms: int) -> str:
    """Return the shortest exact way to write ``ms`` milliseconds as a duration."""
    return _format(ms, DURATION_UNITS)


def format_size(size: int) -> str:
    """Return the shortest exact way to write ``size`` bytes as a size; below a KiB as a number of bytes."""
    return f"{size} bytes" if size % SIZE_UNITS["KiB"] else _format(size, SIZE_UNITS)


def _parse(
    value: object,
    units: dict[str, int],
    slips: dict[str, str],
    expected: str,
    usual: str,
    maximum: int,
    smallest: str,
) -> int:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        hint = f"{value}{usual}" if value >= 0 else None
        raise UnitError(f"got the number {value} without a unit", expected, hint)
    if not isinstance(value, str):
        raise UnitError(f"got {_kind(value)}", expected)
    text = value.strip()
    match = QUANTITY.fullmatch(text)
    if match is None:
        raise UnitError(f"got text {_quoted(text)}", expected)
    number, unit = match.groups()
    if unit not in units:
        meant = slips.get(unit.lower()) if unit else usual
        problem = f"unknown unit '{unit}' in {_quoted(text)}" if unit else f"no unit in {_quoted(text)}"
        raise UnitError(problem, expected, f"{number}{meant}" if meant else None)
    exact = Fraction(number) * units[unit]
    if exact.denominator != 1:
        raise UnitError(f"{_quoted(text)} is not a whole number of {smallest}s", expected)
    if exact > maximum:
        raise UnitError(f"{_quoted(text)} is too large", expected)
    return int(exact)


def _format(value: int, units: dict[str, int]) -> str:
    for unit, factor in reversed(units.items()):
        if value % factor == 0 and (value or factor == 1):
            return f"{value // factor}{unit}"
    smallest = next(iter(units))
    return f"{value}{smallest}"


def _quoted(text: str) -> str:
    return f"'{text}'" if len(text) <= 40 else f"'{text[:37]}...'"


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return {bool: "true or false", list: "a list", dict: "a mapping"}.get(type(value), type(value).__name__)
