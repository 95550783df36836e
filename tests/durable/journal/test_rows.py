"""The names of calls and of keys."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from flink_agents import codec
from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.rows import CallKey, idempotency_key, key_hash

IDENTITY = Identity(2, "tool", "refund", 1, "ab" * 32)


@pytest.mark.rule(26)
def test_the_idempotency_key_is_the_digest_that_the_design_fixes() -> None:
    text = f'[1,"run-1","customer 7",3,2,"tool","refund","{"ab" * 32}"]'
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert CallKey.of("run-1", '"customer 7"', 3, IDENTITY).idempotency_key == expected
    assert expected == "d960005bde7c4b00bf20276d11f6210f2eb5be2677894369581845d4795edffe"


@pytest.mark.rule(10, 26)
def test_no_two_calls_share_a_key() -> None:
    keys = ["1", '"1"', "true", '"true"', '""', "1.5", str(2**70)]
    named = [
        idempotency_key(run_id, key, intake, index, kind, tool, digest)
        for run_id, key, intake, index, kind, tool, digest in itertools.product(
            ("run-1", "run-2"), keys, (1, 11), (0, 1), ("tool", "sleep"), ("a", "b"), ("d", "e")
        )
    ]
    assert len(set(named)) == len(named) == 2 * len(keys) * 32


@pytest.mark.rule(10)
def test_one_and_one_point_zero_are_one_key() -> None:
    keys = [codec.key_text(1), codec.key_text(1.0)]
    assert len({idempotency_key("r", key, 1, 0, "tool", "a", "d") for key in keys}) == 1
    assert len({key_hash("r", key) for key in keys}) == 1


def test_hashes_of_keys_differ_by_run_and_key() -> None:
    pairs = itertools.product(("r", "r1"), ("1", "11", '"1"', '"r\\n1"'))
    assert len({key_hash(*pair) for pair in pairs}) == 8
