"""Durations, sizes and rates."""

from __future__ import annotations

import pytest

from flink_agents.options import Rate
from flink_agents.units import UnitError, format_duration, format_size, parse_duration, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0ms", 0),
        ("1ms", 1),
        ("200ms", 200),
        ("1.5s", 1500),
        ("5 s", 5000),
        (" 2m ", 120_000),
        ("0.5h", 1_800_000),
        ("30d", 2_592_000_000),
    ],
)
def test_duration(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    ("text", "size"), [("1KiB", 1024), ("256KiB", 262_144), ("1.5MiB", 1_572_864), ("2GiB", 2**31)]
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ("5", "no unit in '5'", "5s"),
        (5, "got the number 5 without a unit", "5s"),
        (-5, "got the number -5 without a unit", None),
        ("5 seconds", "unknown unit 'seconds' in '5 seconds'", "5s"),
        ("5S", "unknown unit 'S' in '5S'", None),
        ("1w", "unknown unit 'w' in '1w'", None),
        ("-5s", "got text '-5s'", None),
        ("1h30m", "got text '1h30m'", None),
        ("0.1ms", "'0.1ms' is not a whole number of milliseconds", None),
        ("99999999999d", "'99999999999d' is too large", None),
        ("٣s", "got text '٣s'", None),
        ("s", "got text 's'", None),
        ("", "got text ''", None),
        ("x" * 100, f"got text '{'x' * 37}...'", None),
        (True, "got true or false", None),
        (None, "got nothing", None),
        ([], "got a list", None),
        ({}, "got a mapping", None),
    ],
)
def test_no_duration(value: object, message: str, hint: str | None) -> None:
    with pytest.raises(UnitError) as error:
        parse_duration(value)
    assert (str(error.value), error.value.hint) == (message, hint)
    assert error.value.expected == "a duration such as 200ms, 5s, 10m, 2h or 30d"


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ("256KB", "unknown unit 'KB' in '256KB'", "256KiB"),
        ("4m", "unknown unit 'm' in '4m'", "4MiB"),
        ("1gib", "unknown unit 'gib' in '1gib'", "1GiB"),
        ("12", "no unit in '12'", "12KiB"),
        ("1.0001KiB", "'1.0001KiB' is not a whole number of bytes", None),
        ("9999999GiB", "'9999999GiB' is too large", None),
        ("1TiB", "unknown unit 'TiB' in '1TiB'", None),
    ],
)
def test_no_size(value: object, message: str, hint: str | None) -> None:
    with pytest.raises(UnitError) as error:
        parse_size(value)
    assert (str(error.value), error.value.hint) == (message, hint)


@pytest.mark.parametrize("text", ["1ms", "999ms", "1s", "90s", "2m", "1h", "25h", "30d"])
def test_a_duration_is_written_as_it_was_read(text: str) -> None:
    assert format_duration(parse_duration(text)) == text


@pytest.mark.parametrize(("ms", "text"), [(0, "0ms"), (1500, "1500ms"), (60_000, "1m")])
def test_format_duration(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0KiB"), (1, "1 bytes"), (1024, "1KiB"), (1 << 20, "1MiB"), (3 << 30, "3GiB")]
)
def test_format_size(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50/s", Rate(50, 1_000)),
        (" 300 / m ", Rate(300, 60_000)),
        ("1/h", Rate(1, 3_600_000)),
        ("999999999/s", Rate(999_999_999, 1_000)),
    ],
)
def test_rates(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        (50, "got the number 50 without a unit", "50/s"),
        (-1, "got the number -1 without a unit", None),
        (True, "got true or false", None),
        (None, "got nothing", None),
        ("", "got text ''", None),
        ("50", "got text '50'", None),
        ("0.5/s", "got text '0.5/s'", None),
        ("-5/s", "got text '-5/s'", None),
        ("0/s", "a rate of zero lets nothing run", None),
        ("50/sec", "unknown unit 'sec' in '50/sec'", "50/s"),
        ("50/min", "unknown unit 'min' in '50/min'", "50/m"),
        ("50/day", "unknown unit 'day' in '50/day'", None),
        ("9999999999/s", "got text '9999999999/s'", None),
    ],
)
def test_what_is_no_rate(value: object, message: str, hint: str | None) -> None:
    with pytest.raises(UnitError) as error:
        parse_rate(value)
    assert (str(error.value), error.value.hint) == (message, hint)
    assert "50/s, 300/m or 1000/h" in error.value.expected
