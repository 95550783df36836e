"""Canonical text and keys: equal for equal values in any process, different for everything else."""

from __future__ import annotations

import datetime as dt
import os
import random
import subprocess
import sys
import zoneinfo
from decimal import Decimal
from typing import Any

import pytest

from flink_agents import codec
from flink_agents.errors import RejectedRecord, Unserializable


@pytest.mark.rule(17)
def test_canonical_numbers_and_order() -> None:
    assert codec.canonical({"b": 1.0, "a": [True, 1, 0.5, -0.0, 2**70, 1e16]}) == (
        '{"a":[true,1,0.5,0,1180591620717411303424,10000000000000000],"b":1}'
    )
    assert codec.canonical(1e300) == codec.canonical(int(1e300))
    assert codec.canonical(True) != codec.canonical(1)
    assert codec.canonical("1") != codec.canonical(1)
    assert codec.canonical({"é": 1, "z": 2, "\U0001f600": 3, "\uffff": 4}) == '{"z":2,"é":1,"\uffff":4,"\U0001f600":3}'
    assert codec.canonical([0.1, 1e-7]) == "[0.1,1e-07]"
    assert codec.canonical([0.1, 1e-7, 2**70]) == f"[0.1,1e-07,{2**70}]"


@pytest.mark.rule(17)
def test_canonical_is_the_same_for_any_order_and_sharing() -> None:
    chooser = random.Random(5)

    def made(depth: int) -> Any:
        if depth == 0:
            return chooser.choice([1, 1.5, "text", None, True, 2**70, "é"])
        return {f"k{index}": made(depth - 1) for index in range(4)} if depth % 2 else [made(depth - 1)] * 2

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shuffled(value[name]) for name in chooser.sample(sorted(value), len(value))}
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    for _ in range(50):
        value = made(4)
        other = shuffled(value)
        assert codec.canonical(other) == codec.canonical(value)
        assert codec.digest(other) == codec.digest(value)
        assert codec.loads(codec.canonical(value)) == value


@pytest.mark.rule(17)
def test_canonical_of_rich_values() -> None:
    equal = [
        ({1: "a", 2: "b"}, {2.0: "b", 1: "a"}),
        (Decimal("1.10"), Decimal("1.1")),
        (Decimal("100"), Decimal("1e2")),
        (Decimal("0.0"), Decimal("-0")),
        (
            dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone.utc),
            dt.datetime(2024, 1, 1, 13, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        ),
        ((1, 2.0), (1.0, 2)),
    ]
    for left, right in equal:
        assert left == right
        assert codec.canonical(left) == codec.canonical(right)
    different = [(1, 2), [1, 2], {1, 2}, Decimal(1), 1, b"1", "1"]
    assert len({codec.digest(value) for value in different}) == len(different)
    with pytest.raises(Unserializable):
        codec.digest(object())


HASHED = """
import sys
from flink_agents import codec
shared = [1, 2]
value = {"a": {"x", "y", "z", ("t", 1)}, "b": frozenset("abcdef"), "c": {"k2": 1, "k1": shared, "k3": shared}, 1: None}
plain = {name: index for index, name in enumerate({"one", "two", "three", "four", "five"} and sorted("edcba"))}
sys.stdout.write(codec.digest(value) + codec.digest({k: plain[k] for k in set(plain)}) + codec.encode(value["b"]))
"""


@pytest.mark.rule(17)
def test_case_5_digest_is_the_same_under_another_hash_seed() -> None:
    def run(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", HASHED]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    outputs = {run(seed) for seed in ("0", "1", "4242")}
    assert len(outputs) == 1
    assert len(outputs.pop()) > 128


@pytest.mark.rule(10)
def test_case_6_keys_keep_their_type() -> None:
    keys: list[Any] = [1, "1", True, "", "x" * 10_240, "a_b", 1.5, False, 0, 2**70, "true", "é"]
    assert len({codec.key_text(key) for key in keys}) == len(keys)
    assert codec.key_text(1) == codec.key_text(1.0) == "1"
    assert codec.key_text("1") == '"1"'
    assert codec.key_text(-0.0) == codec.key_text(0) == "0"


def test_key_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(RejectedRecord, match="lone surrogate"):
        codec.key_text("\ud800")


@pytest.mark.rule(10)
@pytest.mark.parametrize("key", [None, [], {}, [1], {"a": 1}, float("nan"), float("inf"), b"x", (1,)])
def test_what_is_no_key(key: Any) -> None:
    with pytest.raises(RejectedRecord, match="must be a string, a number or a boolean") as caught:
        codec.key_text(key, "session.id")
    assert caught.value.field == "session.id"
