"""Every way a tool call can end, through one running job that is killed and restored while the last call runs."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle  # type: ignore[import-untyped]
import pytest
from pydantic import SecretStr

from flink_agents import ClassDeclaration, FunctionDeclaration, SchemaDeclaration, ToolContext, tool
from flink_agents.options import Limits, OperatorOptions

if TYPE_CHECKING:
    from tests.runtime.conftest import CrashOnce, OperatorJob

    MakeJob = Callable[..., OperatorJob]
    MakeCrash = Callable[..., CrashOnce]

pytest.importorskip("pyflink")

# Nothing on the TaskManager can import this module, so what a job takes from here travels in the job itself.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def typed(
    order: str,
    count: int,
    day: dt.date,
    mode: Literal["fast", "slow"] = "fast",
    tags: list[str] | None = None,
) -> dict[str, Any]:
    """Give back what came, by type."""
    return {"count": count, "day": [day.year, day.month], "mode": mode, "tags": tags, "order": order}


def rich() -> dict[str, Any]:
    """Give back what JSON has no word for."""
    return {"price": Decimal("1.10"), "day": dt.date(2024, 5, 6), "raw": b"abc", "set": {3}, "pair": (1, 2**70)}


def give(what: Any) -> Any:
    """Give back anything."""
    return what


def spoil(items: list[Any]) -> list[Any]:
    """Change what came."""
    items.append("spoilt")
    return items


def fail(how: str) -> Any:
    """Fail."""

    class Local(Exception):
        def __init__(self, code: int, detail: str) -> None:
            super().__init__(f"{detail} ({code})")
            self.lock = threading.Lock()

    if how == "local":
        raise Local(5, "two arguments and a lock")
    if how == "exit":
        sys.exit(3)
    try:
        raise KeyError(how)
    except KeyError as error:
        msg = f"nothing like {how}"
        raise LookupError(msg) from error


def lock() -> Any:
    """Give back what no codec carries."""
    return threading.Lock()


def large(size: int) -> str:
    """Give back too much."""
    return "x" * size


def name_of(ctx: ToolContext, text: str) -> str:
    """Give back the idempotency key."""
    return ctx.idempotency_key


def tenant(order: str, tenant: str = "nobody") -> list[str]:
    """Say whose order it is."""
    return [order, tenant]


def keyed(key: SecretStr) -> str:
    """Say what a secret is shown as."""
    return f"{'a secret' if key.get_secret_value() == os.environ['PATH'] else 'something'}, shown as {key}"


def remote(tool_name: str, arguments: dict[str, Any]) -> list[Any]:
    """Serve declared tools."""
    return [tool_name, arguments]


RESTARTS = {
    "restart__strategy_type": "fixed-delay",
    "restart__strategy_fixed__delay_attempts": "3",
    "restart__strategy_fixed__delay_delay": "50 ms",
}


@dataclass
class Noted:
    """Where the instances of a class of tools note their lives."""

    file: str

    def __call__(self, text: str) -> None:
        with open(self.file, "a", encoding="utf-8") as lines:
            lines.write(f"{text}\n")


def shop(note: Noted) -> type:
    """Return a class of tools that notes the life of its instances."""

    class Shop:
        def open(self) -> None:
            self.number = f"{time.time_ns()}"
            note(f"open {self.number}")

        @tool
        def stock(self, item: str) -> str:
            """Look what is in stock."""
            note(f"use {self.number}")
            return f"7 {item}"

        @tool
        def last(self, until: str) -> str:
            """Wait for a file."""
            note(f"use {self.number}")
            while not os.path.exists(until):
                time.sleep(0.02)
            return "last"

        def close(self) -> None:
            note(f"close {self.number}")

    return Shop


DECLARED = {
    "name": "declared",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}
GOOD = {"order": "A-1", "count": "2", "day": "2024-05-06", "tags": ["x"]}
TYPED = {"count": 2, "day": [2024, 5], "mode": "fast", "tags": ["x"], "order": "A-1"}
INJECTION = ("injection", "InjectionFailed")
INVALID = ("invalid_arguments", "InvalidArguments")

# Tool, arguments, and what becomes of it: a value, or kind, type and a part of the message.
CALLS: list[tuple[str, Any, Any]] = [
    ("typed", GOOD, TYPED),
    ("typed", json.dumps(GOOD), TYPED),
    ("typed", {**GOOD, "count": 2.0, "tags": None}, {**TYPED, "tags": None}),
    ("typed", json.dumps(GOOD)[:-1], (*INVALID, "not valid JSON")),
    ("typed", json.dumps(GOOD) + "}", (*INVALID, "not valid JSON")),
    ("typed", "null", (*INVALID, "must be a JSON object, got null")),
    ("typed", [], (*INVALID, "must be a JSON object, got a list")),
    ("typed", '{"order": NaN}', (*INVALID, "not valid JSON")),
    ("typed", {**GOOD, "count": "two"}, (*INVALID, "count: Input should be a valid integer")),
    ("typed", {**GOOD, "mode": "faster"}, (*INVALID, "mode: Input should be 'fast' or 'slow'")),
    ("typed", {**GOOD, "modes": "fast"}, (*INVALID, "modes: unknown field, did you mean 'mode'?")),
    ("typed", {"order": "A-1"}, (*INVALID, "count: required, but missing")),
    ("typed", {**GOOD, "order": "x" * 5_000}, ("too_large", "TooLarge", "over the limit of 4096")),
    ("tpyed", GOOD, ("unknown_tool", "UnknownTool", "Did you mean 'typed'?")),
    ("rich", {}, {"price": "1.10", "day": "2024-05-06", "raw": "abc", "set": [3], "pair": [1, 2**70]}),
    ("spoil", {"items": [1]}, [1, "spoilt"]),
    ("give", {"what": None}, None),
    ("give", {"what": ""}, ""),
    ("give", {"what": 0}, 0),
    ("give", {"what": False}, False),
    ("give", {"what": []}, []),
    ("give", {"what": {}}, {}),
    ("fail", {"how": "it"}, ("tool_error", "LookupError", "nothing like it")),
    ("fail", {"how": "local"}, ("tool_error", "Local", "two arguments and a lock (5)")),
    ("fail", {"how": "exit"}, ("tool_error", "SystemExit", "3")),
    ("lock", {}, ("unserializable", "Unserializable", "cannot carry _thread.lock")),
    ("large", {"size": 5_000}, ("too_large", "TooLarge", "over the limit of 1024")),
    ("declared", {"a": 5, "b": 1}, ["declared", {"a": 5, "b": 1}]),
    ("declared", {"a": "5"}, (*INVALID, "is not of type")),
    ("tenant", {"order": "A-1"}, (*INJECTION, "no value for its injected parameter 'tenant'")),
    ("tenant", {"order": "A-1", "tenant": "evil"}, (*INJECTION, "the job's config has no 'nobody'")),
    ("remembered", {"order": "A-1", "tenant": "evil"}, (*INJECTION, "the memory of this key has no 'tenant'")),
    ("owned", {"order": "A-1", "tenant": "evil"}, ["A-1", "acme"]),
    ("keyed", {"key": "stolen"}, "a secret, shown as **********"),
    ("stock", {"item": "kettle"}, "7 kettle"),
    ("stock", {"item": 5}, (*INVALID, "item: Input should be a valid string")),
]


def tools_of(folder: Path) -> list[Any]:
    """Return every kind of declaration."""
    config = {"from": "config"}
    return [
        FunctionDeclaration(tenant, inject={"tenant": {**config, "key": "nobody"}}),
        FunctionDeclaration(tenant, "owned", inject={"tenant": {**config, "key": "customer.tenant"}}),
        FunctionDeclaration(tenant, "remembered", inject={"tenant": {"from": "memory", "key": "tenant"}}),
        FunctionDeclaration(keyed, inject={"key": {**config, "key": "key"}}),
        *(typed, rich, give, spoil, fail, lock, name_of),
        FunctionDeclaration(large, retry={"attempts": 5, "initial": "1ms"}),
        SchemaDeclaration((DECLARED,), remote),
        ClassDeclaration(shop(Noted(str(folder / "lives.txt")))),
    ]


def check(result: dict[str, Any], expected: Any) -> None:
    """Assert what became of one call."""
    if not isinstance(expected, tuple):
        assert result["status"] == "succeeded", result
        assert result["value"] == expected, result
        return
    kind, name, message = expected
    error = result["error"]
    assert (result["status"], error["kind"], error["type"]) == ("failed", kind, name), result
    assert message in error["message"]
    assert ("expected" in error) == (kind == "invalid_arguments")


@pytest.mark.flink
@pytest.mark.rule(2, 3, 4, 6, 7, 8, 19, 20, 21, 26)
def test_every_outcome_in_a_running_job_and_the_same_after_a_restore(
    operator_job: MakeJob, crash_once: MakeCrash, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    calls = [*CALLS, *2 * [("name_of", {"text": "same"}, None)], ("last", {"until": str(go)}, "last")]
    options = OperatorOptions(
        "key",
        limits=Limits(arguments=4096, result=1024),
        config={"customer": {"tenant": "acme"}, "key": {"env": "PATH"}},
    )
    # At the end of the input no checkpoint would complete, so the source goes on.
    job = operator_job(options=options, fault=crash_once("before:recorded", len(calls)), follow=True)
    wanted = [{"id": "same", "function": {"name": name, "arguments": given}} for name, given, _ in calls]
    job.add("a.jsonl", [json.dumps({"id": "r0", "key": "k", "tool_calls": wanted})])
    submitted = job.submit(tools_of(tmp_path), **RESTARTS)
    passed = tmp_path / "passed.txt"
    job.until(lambda: passed.exists() and passed.stat().st_size == len(calls) - 1)
    rest = job.cluster.rest
    known = rest.completed_checkpoints(submitted)
    # The second from now began after the last of the others was recorded.
    job.until(lambda: rest.completed_checkpoints(submitted) >= known + 2)
    go.touch()
    job.until(lambda: len(job.responses()) == 1)
    rest.cancel(submitted)
    assert rest.restarts(submitted) == 1
    (response,) = job.responses()
    results = response["results"]
    assert [(result["tool"], result["position"]) for result in results] == [
        (name, position) for position, (name, _, _) in enumerate(calls)
    ]
    assert {result["call_id"] for result in results} == {"same"}
    for result, (_, _, expected) in zip(results[: len(CALLS)], CALLS, strict=True):
        check(result, expected)
        assert result["replayed"], result
    # Case 25: a result that is too large is no fault that passes.
    assert {result["attempts"] for result in results[:-1] if result["tool"] == "large"} == {1}
    first, second, last = results[-3:]
    assert first["value"] != second["value"]
    assert (last["value"], last["replayed"], last["attempts"]) == ("last", False, 2)


@pytest.mark.flink
def test_an_instance_lives_from_open_to_close_in_each_attempt(
    operator_job: MakeJob, crash_once: MakeCrash, tmp_path: Path
) -> None:
    job = operator_job(fault=crash_once("before:recorded", 3))
    wanted = [{"function": {"name": "stock", "arguments": {"item": "kettle"}}}]
    records = [json.dumps({"id": f"r{n}", "key": f"k{n}", "tool_calls": wanted}) for n in range(5)]
    job.add("a.jsonl", records)
    submitted = job.submit([ClassDeclaration(shop(Noted(str(tmp_path / "lives.txt"))))], **RESTARTS)
    job.finish(submitted)
    assert job.cluster.rest.restarts(submitted) == 1
    assert len(job.responses()) == 5

    def lives() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for line in (tmp_path / "lives.txt").read_text(encoding="utf-8").splitlines():
            what, number = line.split()
            found.setdefault(number, []).append(what)
        return found

    # The failed attempt's instance is closed by the watch, which may be later than the job's end.
    job.until(lambda: all(life[-1] == "close" for life in lives().values()))
    assert len(lives()) == 2
    for life in lives().values():
        assert life[0] == "open"
        assert life.count("open") == life.count("close") == 1
        assert "use" in life
