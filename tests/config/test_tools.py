"""The entries of `tools`: what they say reaches the tools, and errors stand where they were written."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from flink_agents import RetryPolicy
from flink_agents.cluster.resume import settings
from flink_agents.config.build import PreparedJob, prepare
from flink_agents.config.problems import ConfigErrors
from flink_agents.config.schema import json_schema
from flink_agents.options import InjectFrom, Injection, Rate
from flink_agents.tools.formats import FORMATS
from flink_agents.tools.injection import resolve_config
from flink_agents.tools.registry import build_registry

Write = Callable[..., str]

TEXT = """\
name: tools
source: {type: jsonl, path: requests.jsonl}
key_by: k
tools:
  - function: timed_tools:TOOL
sink: {type: print}
"""

TOOLS = """
from pydantic import SecretStr
from flink_agents import tool

class Busy(Exception): ...

def plain(order: str) -> str:
    return order

@tool(timeout="5s", retry={"attempts": 3, "on": ["timed_tools.Busy"]})
def paced(order: str) -> str:
    return order

@tool(retry={"attempts": 3, "on": ["timed_tools.Bsuy"]})
def wrong(order: str) -> str:
    return order

def handle(name, arguments):
    return name

class Shop:
    @tool(timeout="5s")
    def stock(self, item: str) -> int:
        return 7

    @tool(on_interrupt="fail")
    def order(self, item: str) -> int:
        return 7

def owned(order: str, tenant: str = "nobody", limit: int = 1) -> str:
    return tenant

def keyed(order: str, key: SecretStr) -> str:
    return order

@tool(inject={"tenant": {"from": "config", "key": "tenant"}})
def hiding(order: str, tenant: str) -> str:
    return tenant

class Closed:
    def __init__(self, url): ...
"""


@pytest.fixture
def prepared(job: Write, folder: Path) -> Callable[[str], PreparedJob]:
    (folder / "timed_tools.py").write_text(TOOLS, encoding="utf-8")
    (folder / "tools.json").write_text('[{"name": "a"}, {"name": "b"}]', encoding="utf-8")
    return lambda tool: prepare(job(TEXT.replace("TOOL", tool)))


Prepare = Callable[[str], PreparedJob]


def test_every_option_reaches_the_tool(prepared: Prepare, folder: Path) -> None:
    made = prepared(
        "plain\n    timeout: 1s\n    deadline: 1m\n    rate: 30/m\n    retry: {attempts: 3, initial: 1s, "
        "multiplier: 3, max: 9s, jitter: 0, on: [TimeoutError, timed_tools.Busy]}"
    )
    (spec,) = made.registry.specs()
    assert (spec.timeout_ms, spec.deadline_ms, spec.rate) == (1_000, 60_000, Rate(30, 60_000))
    assert spec.retry is not None
    assert spec.retry.on is not None
    assert [cls.__name__ for cls in spec.retry.on] == ["TimeoutError", "Busy"]
    assert (spec.retry.attempts, spec.retry.initial_ms, spec.retry.multiplier) == (3, 1_000, 3.0)
    assert (spec.retry.max_ms, spec.retry.jitter) == (9_000, 0.0)
    # What travels names the exceptions: their module is found once the operator is open.
    travelled = pickle.dumps(made.tools)
    assert b"timed_tools.Busy" in travelled
    assert b"Busy'" not in travelled
    assert build_registry(pickle.loads(travelled), [folder]).specs() == made.registry.specs()


def test_the_yaml_goes_before_the_decorator(prepared: Prepare) -> None:
    (spec,) = prepared("paced\n    timeout: 9s").registry.specs()
    assert spec.timeout_ms == 9_000
    assert spec.retry is not None
    assert spec.retry.attempts == 3
    (spec,) = prepared("paced\n    retry: {attempts: 2}").registry.specs()
    assert (spec.timeout_ms, spec.retry) == (5_000, RetryPolicy(attempts=2))


def test_schema_tools_too(prepared: Prepare) -> None:
    specs = prepared("handle\n    schema: tools.json\n    timeout: 2s\n    rate: 1/h").registry.specs()
    assert [(spec.name, spec.timeout_ms, spec.rate) for spec in specs] == [
        ("a", 2_000, Rate(1, 3_600_000)),
        ("b", 2_000, Rate(1, 3_600_000)),
    ]


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (
            "plain\n    timeout: 5",
            "6:14: tools.0.timeout: got the number 5 without a unit; expected a duration such as ",
        ),
        ("plain\n    timeout: 0s", "6:14: tools.0.timeout: is too small; expected at least 1ms"),
        (
            "plain\n    timeout: 5s\n    deadline: 1s",
            "7:15: tools.0.deadline: bounds all attempts; expected a duration not below `timeout`, which is 5s",
        ),
        ("paced\n    deadline: 1s", "6:15: tools.0.deadline: tool 'paced': deadline bounds the call with all its att"),
        ("plain\n    timeout: 5s\n    execution: inline", "6:14: tools.0.timeout: tool 'plain': timeout: nothing can"),
        ("paced\n    execution: inline", "6:16: tools.0.execution: tool 'paced': timeout: nothing can stop the task "),
        ("plain\n    rate: 5", "6:11: tools.0.rate: got the number 5 without a unit; expected a whole number per "),
        ("plain\n    rate: 0/s", "6:11: tools.0.rate: a rate of zero lets nothing run; expected a whole number per"),
        ("plain\n    retry: 3", "6:12: tools.0.retry: got the number 3; expected a mapping"),
        ("plain\n    retry: {initial: 1s}", "6:12: tools.0.retry.attempts: is required, but missing"),
        ("plain\n    retry: {attempts: 0}", "6:23: tools.0.retry.attempts: got the number 0; expected at least 1"),
        (
            "plain\n    retry: {attempts: 2, jiter: 0}",
            "6:26: tools.0.retry.jiter: unknown key `jiter`; expected 'attempts'",
        ),
        (
            "plain\n    retry: {attempts: 2, initial: 9s, max: 8s}",
            "6:44: tools.0.retry.max: is shorter than `initial`; expected a duration not below it",
        ),
        ("plain\n    retry: {attempts: 2, jitter: 1.5}", "6:34: tools.0.retry.jitter: got the number 1.5; expected"),
        ("plain\n    retry: {attempts: 2, on: [5]}", "6:31: tools.0.retry.on.0: got the number 5; expected an except"),
        (
            "plain\n    retry: {attempts: 2, on: [OSError, TimeotError]}",
            "6:40: tools.0.retry.on.1: tool 'plain': retry.on: 'TimeotError' is no built-in exception, and names no "
            "module; did you mean 'TimeoutError'?",
        ),
        (
            "handle\n    schema: tools.json\n    retry: {attempts: 2, on: [timed_tools.Bsuy]}",
            "7:31: tools.0.retry.on.0: tool 'timed_tools:handle': retry.on: 'timed_tools:Bsuy': module 'timed_tools' "
            "has no 'Bsuy'; did you mean 'Busy'?",
        ),
        ("wrong", "5:15: tools.0.function: tool 'wrong': retry.on: 'timed_tools:Bsuy': module 'timed_tools' has no"),
    ],
)
def test_an_error_stands_where_it_was_written(prepared: Prepare, tool: str, expected: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        prepared(tool)
    assert [str(error)[: len(expected) + 9] for error in caught.value.errors] == [f"job.yaml:{expected}"]


CLASS = TEXT.replace("function: timed_tools:TOOL", "class: timed_tools:TOOL")


def test_the_methods_of_a_class(prepared: Prepare, job: Write, folder: Path) -> None:
    prepared("plain")
    made = prepare(job(CLASS.replace("TOOL", "Shop\n    rate: 5/s\n    on_interrupt: rerun")))
    assert [(spec.name, spec.timeout_ms, spec.rate) for spec in made.registry.specs()] == [
        ("stock", 5_000, Rate(5)),
        ("order", None, Rate(5)),
    ]
    travelled = pickle.loads(pickle.dumps(made.tools))
    assert build_registry(travelled, [folder]).names() == ("stock", "order")


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("Shpo", "5:12: tools.0.class: 'timed_tools:Shpo': module 'timed_tools' has no 'Shpo'; did you mean 'Shop'?"),
        ("Closed", "5:12: tools.0.class: class timed_tools:Closed must be makeable without arguments (missing a requ"),
        (
            "Shop\n    timeout: 1s\n    execution: inline",
            "6:14: tools.0.timeout: tool 'stock': timeout: nothing can st",
        ),
        ("Shop\n    name: x", "6:5: tools.0.name: unknown key `name`; expected 'class', 'execution', 'max_concurrent'"),
        ("Shop\njournal: none", "5:12: tools.0.class: `on_interrupt: fail` needs a journal, and `journal` is none"),
        ("Shop\n  - class: timed_tools:Shop", "5:12: tools.0.class: two tools are named 'stock'; the other is at job"),
    ],
)
def test_what_is_wrong_with_a_class(prepared: Prepare, job: Write, tool: str, expected: str) -> None:
    prepared("plain")
    with pytest.raises(ConfigErrors) as caught:
        prepare(job(CLASS.replace("TOOL", tool)))
    assert str(caught.value.errors[0])[: len(expected) + 9] == f"job.yaml:{expected}"


def test_the_batch_s_time_out(prepared: Prepare) -> None:
    assert prepared("plain").options.tool_calls.timeout_ms is None
    assert prepared("plain\ntool_calls: {timeout: 30s}").options.tool_calls.timeout_ms == 30_000
    with pytest.raises(ConfigErrors, match=r"6:23: tool_calls.timeout: is too small; expected at least 1ms"):
        prepared("plain\ntool_calls: {timeout: 0s}")


def test_editors_are_told() -> None:
    definitions = json_schema()["$defs"]
    assert set(definitions["Retry"]["properties"]) == {"attempts", "initial", "multiplier", "max", "jitter", "on"}
    assert definitions["Retry"]["required"] == ["attempts"]
    rate = definitions["FunctionToolConfig"]["properties"]["rate"]["anyOf"][0]
    assert rate == {"type": "string", "pattern": r"^[0-9]+ ?/ ?[smh]$"}


INJECT = (
    "owned\n    inject:\n      tenant: {from: config, key: customer.tenant}\n      limit: {from: memory, key: limit}\n"
)


def test_injection_and_the_job_s_configuration(prepared: Prepare) -> None:
    made = prepared(INJECT + "config: {customer: {tenant: acme}, key: {env: NOT_SET_HERE}, list: [1, {env: OTHER}]}")
    (spec,) = made.registry.specs()
    assert spec.inject == {
        "tenant": Injection(InjectFrom.CONFIG, "customer.tenant"),
        "limit": Injection(InjectFrom.MEMORY, "limit"),
    }
    assert list(spec.parameters["properties"]) == ["order"]
    assert made.options.config == {
        "customer": {"tenant": "acme"},
        "key": {"env": "NOT_SET_HERE"},
        "list": [1, {"env": "OTHER"}],
    }


def test_a_value_of_the_environment_does_not_travel(
    prepared: Prepare, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOP_KEY", "hunter22")
    made = prepared("keyed\n    inject: {key: {from: config, key: shop.key}}\nconfig: {shop: {key: {env: SHOP_KEY}}}")
    shown = [
        pickle.dumps((made.options, made.tools, made.registry)).decode(errors="replace"),
        repr((made, made.options, made.tools)),
        made.config.model_dump_json(),
        json.dumps(settings(made.config)),
        json.dumps([FORMATS[name](spec) for spec in made.registry.specs() for name in FORMATS]),
    ]
    assert [text for text in shown if "hunter22" in text] == []
    assert resolve_config(made.options.config, os.environ)["shop"]["key"].get_secret_value() == "hunter22"


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (
            "owned\n    inject: {tenant: {from: config, key: customer.tenant}}\nconfig: {customer: {tenat: acme}}",
            "6:42: tools.0.inject.tenant.key: tool 'owned': inject.tenant: config has no 'customer.tenant'; did you "
            "mean 'customer.tenat'?",
        ),
        (
            "owned\n    inject: {tenat: {from: memory, key: t}}",
            "6:21: tools.0.inject.tenat: tool 'owned': inject.tenat: the function has no parameter 'tenat'; did you me",
        ),
        (
            "owned\n    inject: {limit: {from: config, key: limit}}\nconfig: {limit: many}",
            "6:41: tools.0.inject.limit.key: tool 'owned': the value for its injected parameter 'limit': Input should",
        ),
        (
            "owned\n    inject: {tenant: {from: config, key: t}}\nconfig: {t: {env: TENANT}}",
            "6:42: tools.0.inject.tenant.key: tool 'owned': the value for its injected parameter 'tenant': Input",
        ),
        ("hiding", "5:15: tools.0.function: tool 'hiding': inject.tenant: config has no 'tenant'"),
        (
            "owned\n    inject: {tenant: {from: env, key: t}}",
            "6:29: tools.0.inject.tenant.from: got text 'env'; expected",
        ),
        ("owned\n    inject: {tenant: {key: t}}", "6:22: tools.0.inject.tenant.from: is required, but missing"),
        (
            "owned\n    inject: {tenant: {from: memory, key: t, kye: t}}",
            "6:45: tools.0.inject.tenant.kye: unknown key `kye`; ",
        ),
        ("owned\n    inject: {tenant: acme}", "6:22: tools.0.inject.tenant: got text 'acme'; expected a mapping"),
        ("plain\nconfig: {a.b: 1}", "6:10: config.a.b: `a.b` cannot be part of a path; expected"),
        (
            "plain\nconfig: {a: {env: NAME, or: else}}",
            "6:13: config.a: got a value (not shown); expected {env: NAME} alo",
        ),
        (
            "plain\nconfig: {a: {env: sk-live-12345}}",
            "6:13: config.a: got a value (not shown); expected {env: NAME} alon",
        ),
    ],
)
def test_what_is_wrong_with_an_injection(prepared: Prepare, tool: str, expected: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        prepared(tool)
    assert str(caught.value.errors[0])[: len(expected) + 9] == f"job.yaml:{expected}"
    assert "sk-live" not in str(caught.value)
