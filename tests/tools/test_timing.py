"""Time-outs, retries and rates, as the decorator, declarations and references say them."""

from __future__ import annotations

import pickle
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from flink_agents import FunctionDeclaration, FunctionTool, RetryPolicy, SchemaDeclaration, SchemaTool, tool
from flink_agents.errors import InvalidInput, InvalidOption
from flink_agents.options import Execution, Rate
from flink_agents.tools.registry import build_registry


def plain(order: str) -> str:
    return order


async def remote(order: str) -> str:
    return order


@tool(timeout="5s", deadline="30s", retry={"attempts": 3, "on": [httpx.TransportError, "TimeoutError"]}, rate="50/s")
def paced(order: str) -> str:
    return order


def handler(name: str, arguments: dict[str, Any]) -> Any:
    return name


def spec_of(declared: Any, search_path: Any = ()) -> Any:
    (spec,) = build_registry([declared], search_path).specs()
    return spec


def test_nothing_said_is_no_bound() -> None:
    spec = FunctionTool(plain).spec
    assert (spec.timeout_ms, spec.deadline_ms, spec.retry, spec.rate) == (None, None, None, None)


def test_the_decorator_says_it() -> None:
    spec = FunctionTool(paced).spec
    assert (spec.timeout_ms, spec.deadline_ms, spec.rate) == (5_000, 30_000, Rate(50, 1_000))
    assert spec.retry == RetryPolicy(attempts=3, on=(httpx.TransportError, TimeoutError))


def test_a_declaration_overrides_option_by_option() -> None:
    for function in (paced, FunctionTool(paced)):
        spec = spec_of(FunctionDeclaration(function, timeout=timedelta(seconds=1), rate=Rate(1, 60_000)))
        assert (spec.timeout_ms, spec.deadline_ms, spec.rate) == (1_000, 30_000, Rate(1, 60_000))
        # `retry` is one option: a policy that is half the author's and half the job's is nobody's.
        assert spec_of(FunctionDeclaration(function, retry={"attempts": 2})).retry == RetryPolicy(attempts=2)


def test_a_schema_file_s_tools_have_the_same_options() -> None:
    entries = ({"name": "a"}, {"name": "b"})
    options: Any = {"timeout": "1.5s", "deadline": "1m", "retry": RetryPolicy(attempts=2), "rate": "1/h"}
    specs = build_registry([SchemaDeclaration(entries, handler, **options)]).specs()
    assert [spec.timeout_ms for spec in specs] == [1_500, 1_500]
    assert [(spec.deadline_ms, spec.retry, spec.rate) for spec in specs] == 2 * [
        (60_000, RetryPolicy(attempts=2), Rate(1, 3_600_000))
    ]


def test_every_field_of_a_policy_in_the_units_of_the_yaml() -> None:
    said = {
        "attempts": 4,
        "initial": "1s",
        "multiplier": 3,
        "max": timedelta(minutes=1),
        "jitter": 0,
        "on": ["OSError"],
    }
    assert FunctionTool(plain, retry=said).spec.retry == RetryPolicy(4, 1_000, 3, 60_000, 0, (OSError,))
    # The usual longest wait gives way to a first wait beyond it.
    assert FunctionTool(plain, retry={"attempts": 2, "initial": "10s"}).spec.retry == RetryPolicy(2, 10_000, 2, 10_000)


def test_references_are_looked_up_where_the_job_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = "class Busy(Exception):\n    class Very(Exception): ...\n\nnumber = 5\n"
    (tmp_path / "timing_under_test.py").write_text(source, encoding="utf-8")
    declared = FunctionDeclaration(
        plain, retry={"attempts": 2, "on": ["timing_under_test.Busy", "timing_under_test:Busy.Very", "httpx.ReadError"]}
    )
    travelled = pickle.loads(pickle.dumps(declared))
    assert travelled == declared
    assert "timing_under_test" not in sys.modules
    policy = spec_of(travelled, [tmp_path]).retry
    assert [cls.__qualname__ for cls in policy.on] == ["Busy", "Busy.Very", "ReadError"]
    for wrong, message in (("timing_under_test.number", "is no exception class"), ("timing_under_test.Bsuy", "'Busy'")):
        with pytest.raises(InvalidOption, match=message):
            spec_of(FunctionDeclaration(plain, retry={"attempts": 2, "on": [wrong]}), [tmp_path])
    del sys.modules["timing_under_test"]


@pytest.mark.parametrize(
    ("options", "about", "message"),
    [
        ({"timeout": 5}, "timeout", "got the number 5 without a unit; expected a duration such as"),
        ({"timeout": 5}, "timeout", "did you mean '5s'?"),
        ({"timeout": "5 sec"}, "timeout", "did you mean '5s'?"),
        ({"timeout": "0s"}, "timeout", "timeout must be at least 1ms, not 0ms"),
        ({"timeout": timedelta(microseconds=1)}, "timeout", "is not a whole number of milliseconds"),
        ({"timeout": timedelta(seconds=-1)}, "timeout", "at least 1ms"),
        ({"deadline": timedelta.max}, "deadline", "up to 100 years"),
        ({"deadline": "1s", "timeout": "5s"}, "deadline", "1s cannot be below the timeout of one attempt, 5s"),
        ({"timeout": "1s", "execution": "inline"}, "timeout", "nothing can stop the task thread"),
        ({"rate": "50"}, "rate", "expected a whole number per second, minute or hour"),
        ({"rate": Rate(0)}, "rate", "at least 1"),
        ({"rate": Rate(True)}, "rate", "must be whole"),
        ({"retry": 3}, "retry", "a RetryPolicy or a mapping such as {'attempts': 3}, not 3"),
        ({"retry": {}}, "retry", "retry needs attempts"),
        ({"retry": {"attempts": 0}}, "retry", "attempts must be at least 1"),
        ({"retry": {"attempts": True}}, "retry", "retry.attempts must be a whole number, not True"),
        ({"retry": {"attempts": 2.0}}, "retry", "retry.attempts must be a whole number"),
        ({"retry": {"attempts": 2, "jitter": float("nan")}}, "retry", "retry.jitter must be a number, not nan"),
        ({"retry": {"attempts": 2, "multiplier": "2"}}, "retry", "retry.multiplier must be a number"),
        ({"retry": {"attempts": 2, "attemps": 2}}, "retry", "retry has no 'attemps'; did you mean 'attempts'?"),
        ({"retry": {"attempts": 2, "backoff": 2}}, "retry", "it takes attempts, initial, multiplier, max, jitter, on"),
        ({"retry": {"attempts": 2, "initial": 200}}, "retry.initial", "did you mean '200s'?"),
        ({"retry": {"attempts": 2, "initial": "9s", "max": "8s"}}, "retry", "max must not be below initial"),
        ({"retry": {"attempts": 2, "on": "OSError"}}, "retry", "retry.on must be a list of exceptions"),
        ({"retry": {"attempts": 2, "on": [OSError, int]}}, "retry.on.1", "<class 'int'> is no exception class"),
        ({"retry": {"attempts": 2, "on": ["int"]}}, "retry.on.0", "'int' is no exception class"),
        ({"retry": {"attempts": 2, "on": ["TimeuotError"]}}, "retry.on.0", "did you mean 'TimeoutError'?"),
        ({"retry": {"attempts": 2, "on": ["httpx.TransportErorr"]}}, "retry.on.0", "did you mean 'TransportError'?"),
        ({"retry": {"attempts": 2, "on": ["no_such_module.Error"]}}, "retry.on.0", "no module 'no_such_module'"),
        ({"retry": {"attempts": 2, "on": ["a b"]}}, "retry.on.0", "is not of the form"),
        ({"retry": RetryPolicy(2, on=("Nope",))}, "retry.on.0", "'Nope' is no built-in exception"),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused_and_which_option_it_is_about(options: Any, about: str, message: str) -> None:
    makes: list[Any] = [
        lambda: FunctionTool(plain, **options),
        lambda: FunctionTool(plain).override(**options),
        lambda: SchemaTool({"name": "plain"}, handler, **options),
    ]
    for make in makes:
        with pytest.raises(InvalidOption) as refused:
            make()
        assert refused.value.options[0] == about
        assert message in str(refused.value)
        assert str(refused.value).startswith("tool 'plain': ")
        assert pickle.loads(pickle.dumps(refused.value)).options == refused.value.options


def test_what_only_goes_wrong_together_with_the_decorator() -> None:
    with pytest.raises(InvalidInput, match="2s cannot be below the timeout of one attempt, 5s"):
        build_registry([FunctionDeclaration(paced, deadline="2s")])
    with pytest.raises(InvalidInput, match="nothing can stop the task thread"):
        build_registry([FunctionDeclaration(paced, execution="inline")])


def test_an_inline_tool_may_be_tried_again() -> None:
    spec = FunctionTool(plain, execution="inline", retry={"attempts": 2}, deadline="5s").spec
    assert (spec.execution, spec.retry) == (Execution.INLINE, RetryPolicy(attempts=2))


def test_an_option_that_does_not_exist() -> None:
    wrong: Any = {"tmeout": "5s"}
    with pytest.raises(TypeError, match="tmeout"):
        FunctionTool(plain, **wrong)
    with pytest.raises(InvalidOption, match="'tmeout'; did you mean 'timeout'"):
        tool(**wrong)


def test_a_tool_with_all_of_it_travels() -> None:
    assert pickle.loads(pickle.dumps(FunctionTool(paced))).spec == FunctionTool(paced).spec
