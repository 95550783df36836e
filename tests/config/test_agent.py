"""The key `agent`: its tools are the job's too, and what is wrong with it stands where it was written."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from flink_agents.agent import resolve_agent
from flink_agents.config.build import prepare, prepare_tools
from flink_agents.config.problems import ConfigErrors
from flink_agents.config.schema import json_schema
from flink_agents.options import Execution, OnInterrupt, Rate
from flink_agents.tools.registry import build_registry

Write = Callable[..., str]

TEXT = """\
name: agents
source: {type: jsonl, path: requests.jsonl}
key_by: session
AGENT
sink: {type: print}
"""

AGENTS = '''
from flink_agents import Agent, InputEvent, action, tool


class Support(Agent):
    """Answers."""

    @action(InputEvent)
    async def on_input(self, event, ctx):
        pass

    @tool
    def look_up(self, order: str) -> str:
        """Look an order up."""
        return order


class Careful(Support):
    @tool(on_interrupt="fail")
    def charge(self, cents: int) -> int:
        """Charge."""
        return cents

    @tool(inject={"tenant": {"from": "config", "key": "tenant"}})
    def whose(self, tenant: str) -> str:
        """Say whose it is."""
        return tenant


class Idle(Agent):
    pass


class Broken(Agent):
    def __init__(self):
        raise LookupError("no such region")


ready = Support()
number = 7
'''


@pytest.fixture
def agents(folder: Path) -> None:
    (folder / "own_agents.py").write_text(AGENTS)


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize("name", ["Support", "ready"])
def test_an_agent_brings_its_tools(job: Write, name: str) -> None:
    prepared = prepare(job(TEXT.replace("AGENT", f"agent: own_agents:{name}")))
    assert prepared.config.agent == f"own_agents:{name}"
    assert (prepared.tools, prepared.registry.names()) == ((), ("look_up",))
    (spec,) = prepared.registry.specs()
    assert (spec.description, list(spec.parameters["properties"])) == ("Look an order up.", ["order"])


@pytest.mark.usefixtures("agents")
def test_the_jobs_own_tools_stand_beside_the_agents(job: Write) -> None:
    both = "agent: own_agents:Support\ntools:\n  - function: good_tools:add"
    assert prepare_tools(job(TEXT.replace("AGENT", both))).names() == ("add", "look_up")


OVERRIDDEN = """\
agent: own_agents:Careful
config: {tenant: a}
tools:
  - function: good_tools:add
  - tool: charge
    timeout: 5s
    deadline: 1m
    retry: {attempts: 3}
    rate: 10/s
    max_concurrent: 2
    on_interrupt: rerun
  - tool: whose
    execution: inline"""


@pytest.mark.usefixtures("agents")
def test_an_entry_that_names_a_tool_of_the_agent_overrides_its_decorator(job: Write) -> None:
    prepared = prepare(job(TEXT.replace("AGENT", OVERRIDDEN)))
    # The operator makes its tools of what travels and of what the agent brings.
    brought = resolve_agent("own_agents:Careful", prepared.options.module_path).tools()
    travelled = pickle.loads(pickle.dumps(prepared.tools))
    for registry in (prepared.registry, build_registry([*travelled, *brought], prepared.options.module_path)):
        assert registry.names() == ("add", "look_up", "charge", "whose")
        _, look_up, charge, whose = registry.specs()
        assert (charge.timeout_ms, charge.deadline_ms, charge.rate) == (5_000, 60_000, Rate(10, 1_000))
        assert (charge.retry and charge.retry.attempts, charge.max_concurrent) == (3, 2)
        assert (charge.on_interrupt, charge.description) == (OnInterrupt.RERUN, "Charge.")
        assert (whose.execution, list(whose.inject)) == (Execution.INLINE, ["tenant"])
        assert (look_up.timeout_ms, look_up.execution) == (None, Execution.THREAD)


WRONG = [
    (
        "agent: own_agents:Support\ntools:\n  - tool: look_upp",
        "6:11: tools.0.tool: there is no tool 'look_upp' to give options to; did you mean 'look_up'?",
    ),
    (
        "agent: own_agents:Support\ntools:\n  - {tool: look_up, timeout: 5s, execution: inline}",
        "tools.0.timeout: tool 'look_up': timeout: nothing can stop the task thread",
    ),
    (
        "agent: own_agents:Support\ntools:\n  - {tool: look_up, timeuot: 5s}",
        "tools.0.timeuot: unknown key `timeuot`",
    ),
    (
        "agent: own_agents:Support\njournal: none\ntools:\n  - {tool: look_up, on_interrupt: fail}",
        "7:35: tools.0.on_interrupt: its tool 'look_up' says on_interrupt: fail, and `journal` is none",
    ),
    (
        "tools:\n  - function: good_tools:add\n  - tool: add",
        "6:11: tools.1.tool: names a tool of the job's agent, and the job has none; expected an `agent`",
    ),
    ("agent: own_agents.Support", "4:8: agent: got text 'own_agents.Support'; expected module:function"),
    ("agent: own_agents:Suport", "'own_agents' has no 'Suport'; did you mean 'Support'?"),
    ("agent: own_agents:number", "4:8: agent: 'own_agents:number' is 7; expected an Agent or a class derived from it"),
    ("agent: own_agents:Idle", "4:8: agent: Idle() has no action: decorate a coroutine with @action(InputEvent)"),
    ("agent: own_agents:Broken", "agent: making Broken of 'own_agents:Broken' failed: LookupError: no such region"),
    ("agent: own_agents:Careful\njournal: none\nconfig: {tenant: a}", "its tool 'charge' says on_interrupt: fail"),
    ("agent: own_agents:Careful", "4:8: agent: tool 'whose': inject.tenant: config has no 'tenant'"),
    ("agent: own_agents:Support\ntools: 7", "5:8: tools: got the number 7; expected a list"),
    ("", "tools: is required, but missing; expected `tools`, or an `agent`"),
    ("tools: []", "4:8: tools: is empty; expected at least 1 entry"),
]


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize(("written", "expected"), WRONG, ids=[written.replace("\n", " ") for written, _ in WRONG])
def test_one_error(job: Write, written: str, expected: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        prepare(job(TEXT.replace("AGENT", written)))
    (error,) = raised.value.errors
    assert expected in str(error)


@pytest.mark.usefixtures("agents")
def test_a_tool_of_the_agent_and_one_of_the_job_may_not_share_a_name(job: Write) -> None:
    both = "agent: own_agents:Support\ntools:\n  - {function: 'good_tools:add', name: look_up}"
    with pytest.raises(ConfigErrors) as raised:
        prepare(job(TEXT.replace("AGENT", both)))
    assert [error.path for error in raised.value.errors] == ["agent", "tools.0.name"]


def test_editors_ask_for_tools_or_an_agent() -> None:
    minimal = {"name": "j", "source": {"type": "jsonl", "path": "in"}, "key_by": "k", "sink": {"type": "print"}}
    agents: list[dict[str, Any]] = [{"agent": None}, {"agent": "m:a"}, {"agent": "m:a", "tools": [{"tool": "t"}]}]
    found = [jsonschema_rs.is_valid(json_schema(), minimal | more) for more in [{}, {"tools": []}, *agents]]
    assert found == [False, False, False, True, True]
