"""The pure retry policy: which failures are worth another attempt, and after what wait."""

from __future__ import annotations

import pickle

import pytest

from flink_agents.errors import CallTimeout, InvalidArguments, InvalidInput, Uncapturable
from flink_agents.retry import MAX_WAIT_MS, NonRetryable, RetryLater, RetryPolicy, next_wait_ms


class Permanent(ValueError, NonRetryable):
    pass


class Hostile(RetryLater):
    def __init__(self) -> None:
        pass


def test_the_wait_grows_to_its_bound_and_never_overflows() -> None:
    policy = RetryPolicy(attempts=10_000, initial_ms=100, multiplier=2, max_ms=1000, jitter=0)
    assert [policy.backoff_ms(n, 0.5) for n in (1, 2, 3, 4, 5, 5000)] == [100, 200, 400, 800, 1000, 1000]
    steep = RetryPolicy(attempts=100, initial_ms=1, multiplier=1e10, max_ms=1000, jitter=0)
    assert [steep.backoff_ms(n, 0.5) for n in (1, 2, 40, 99)] == [1, 1000, 1000, 1000]
    assert RetryPolicy(attempts=100, initial_ms=0, multiplier=1e10, jitter=0).backoff_ms(99, 0.5) == 0


@pytest.mark.parametrize(("chance", "wait"), [(0, 80), (0.5, 100), (1, 120)])
def test_jitter_goes_either_way(chance: float, wait: int) -> None:
    policy = RetryPolicy(attempts=2, initial_ms=100, jitter=0.2)
    assert next_wait_ms(policy, OSError(), 1, chance) == wait


def test_no_attempt_beyond_the_policys() -> None:
    policy = RetryPolicy(attempts=2)
    assert next_wait_ms(policy, OSError(), 1) is not None
    assert next_wait_ms(policy, OSError(), 2) is None
    assert next_wait_ms(None, OSError(), 1) is None


def test_what_is_worth_another_attempt_by_default() -> None:
    policy = RetryPolicy(attempts=2, jitter=0)
    assert next_wait_ms(policy, TimeoutError("the tool's own"), 1) == 200
    for end in (CallTimeout("t"), InvalidArguments("a"), SystemExit(1), Uncapturable(), NonRetryable(), Permanent()):
        assert next_wait_ms(policy, end, 1) is None, end


@pytest.mark.rule(39)
def test_on_names_what_is_worth_it_and_timeout_error_includes_the_engines() -> None:
    policy = RetryPolicy(attempts=2, jitter=0, on=(OSError,))
    assert next_wait_ms(policy, ConnectionError(), 1) == 200
    assert next_wait_ms(policy, ValueError(), 1) is None
    assert next_wait_ms(RetryPolicy(attempts=2, jitter=0, on=(TimeoutError,)), CallTimeout("t"), 1) == 200
    assert next_wait_ms(RetryPolicy(attempts=2, on=(Exception,)), InvalidArguments("a"), 1) is None
    # A wider class is said of what the tool raises: the engine's time-out has to be named.
    for wider in (OSError, Exception):
        assert next_wait_ms(RetryPolicy(attempts=2, on=(wider,)), TimeoutError("the tool's own"), 1) is not None
        assert next_wait_ms(RetryPolicy(attempts=2, on=(wider,)), CallTimeout("t"), 1) is None


@pytest.mark.parametrize(("after_s", "wait"), [(1.5, 1500), (0, 0), (-1, 0), (float("nan"), 0), (1e30, MAX_WAIT_MS)])
def test_retry_later_goes_before_on_and_backoff(after_s: float, wait: int) -> None:
    policy = RetryPolicy(attempts=2, on=(OSError,))
    assert next_wait_ms(policy, RetryLater(after_s), 1) == wait
    assert next_wait_ms(policy, RetryLater(after_s), 2) is None


def test_a_subclass_without_the_constructor_waits_for_nothing() -> None:
    assert next_wait_ms(RetryPolicy(attempts=2), Hostile(), 1) == 0


def test_retry_later_says_what_it_asks_for_and_travels() -> None:
    assert str(RetryLater(2)) == "try again in 2 s"
    assert str(pickle.loads(pickle.dumps(RetryLater(2, "busy")))) == "busy"


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"initial_ms": -1},
        {"multiplier": 0.5},
        {"multiplier": float("nan")},
        {"initial_ms": 10, "max_ms": 5},
        {"jitter": 1.5},
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=r"^retry: "):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
