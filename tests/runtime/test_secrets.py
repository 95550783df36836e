"""A secret that a tool is given is in no state, journal, response or log, whatever the tool says when it fails."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.context import ActionContext
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.retry import RetryPolicy
from flink_agents.testing import ControlledTool, Harness, tool_request
from flink_agents.tools.registry import FunctionDeclaration

SECRET = "hunter2-and-more"
CONFIG = {"api_key": {"env": "FLINK_AGENTS_TEST_API_KEY"}, "tenant": "acme"}
GIVEN = {"key": {"from": "config", "key": "api_key"}}


def refuse(order: str, key: SecretStr) -> str:
    raise PermissionError(f"{key.get_secret_value()} may not see {order}")


def refuse_twice(order: str, key: SecretStr) -> str:
    try:
        raise KeyError(key.get_secret_value())
    except KeyError as error:
        raise ExceptionWithState(key.get_secret_value()) from error


class ExceptionWithState(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(f"with {key}")
        self.key = key


def works(order: str, key: SecretStr) -> str:
    return f"{order} {len(key.get_secret_value())}"


class Careless(Agent):
    @action(InputEvent)
    async def fail(self, event: InputEvent, ctx: ActionContext) -> None:
        raise RuntimeError(f"it was {SECRET}")


@pytest.mark.rule(8)
@pytest.mark.parametrize("execution", ["thread", "inline"])
@pytest.mark.parametrize("with_journal", [False, True])
def test_a_failing_tool_that_tells_its_secret_is_not_quoted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    execution: str,
    with_journal: bool,
) -> None:
    monkeypatch.setenv("FLINK_AGENTS_TEST_API_KEY", SECRET)
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "journal.db"
    journal = SqliteJournal(file) if with_journal else None
    tools = [
        FunctionDeclaration(function, execution=execution, inject=GIVEN, retry=RetryPolicy(attempts=2, initial_ms=10))
        for function in (refuse, refuse_twice, works)
    ]
    with Harness(tools, config=CONFIG, journal=journal) as harness:
        calls: list[tuple[str, Any]] = [
            (name, {"order": "A-1", "key": "spoofed"} if spoofed else {"order": "A-1"})
            for name in ("refuse", "refuse_twice", "works")
            for spoofed in (False, True)
        ]
        harness.send(tool_request("k", *calls))
        harness.run()
        kept = [json.dumps(harness.slots("k"))]
        harness.checkpoint()
        harness.crash()
        for _ in range(10):
            harness.advance(50)
            kept.append(json.dumps(harness.slots("k")))
        (response,) = harness.responses
        kept.append(json.dumps(response))
    if journal is not None:
        journal.close()
        kept += [path.read_bytes().decode("latin-1") for path in tmp_path.iterdir()]
    kept.append(caplog.text)
    assert not [text for text in kept if SECRET in text]
    errors = [result["error"] for result in response["results"] if "error" in result]
    assert [error["message"].count("[secret]") for error in errors] == [1] * 4
    assert [result.get("value") for result in response["results"][4:]] == ["A-1 16"] * 2


def test_an_action_that_tells_a_secret_is_not_quoted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FLINK_AGENTS_TEST_API_KEY", SECRET)
    with Harness([], agent=Careless, config=CONFIG) as harness:
        harness.send({"key": "k"})
        harness.run()
        assert harness.responses[0]["error"]["message"] == "it was [secret]"
    assert SECRET not in caplog.text
    assert "it was [secret]" in caplog.text


def told(text: str) -> str:
    return text


class Quoting(Agent):
    @action(InputEvent)
    async def quote(self, event: InputEvent, ctx: ActionContext) -> None:
        try:
            await ctx.call_tool("refuse", {"order": "A-1"})
        except PermissionError as error:
            ctx.send_event(OutputEvent(await ctx.durable_execute(told, str(error))))
        await ctx.call_tool("held", {})


@pytest.mark.rule(8)
@pytest.mark.parametrize("execution", ["thread", "inline"])
def test_an_action_that_quotes_a_failure_has_the_same_text_live_and_on_replay(
    monkeypatch: pytest.MonkeyPatch, execution: str
) -> None:
    monkeypatch.setenv("FLINK_AGENTS_TEST_API_KEY", SECRET)
    held = ControlledTool("held")
    tools = [FunctionDeclaration(refuse, execution=execution, inject=GIVEN), held]
    with Harness(tools, config=CONFIG, agent=Quoting()) as harness:
        harness.send({"key": "k"})
        harness.run()
        assert SECRET not in json.dumps(harness.slots("k"))
        harness.checkpoint()
        harness.crash()
        harness.run()
        held.running[-1].succeed("ended")
        harness.run()
        assert [line["output"] for line in harness.responses] == ["[secret] may not see A-1"]
