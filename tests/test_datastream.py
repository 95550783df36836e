"""The library call refuses what is wrong while the job is built, and spreads what is no request."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("pyflink")

from flink_agents import FunctionDeclaration, datastream, tool
from flink_agents.datastream import tool_calls
from flink_agents.durable.journal.opening import JournalSpec, JournalType
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.errors import InvalidInput, JournalError


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(on_interrupt="fail")
def once(a: int) -> int:
    """Do it at most once."""
    return a


class Stream:
    """Stands in for a DataStream and records how the operator is put on it."""

    def __init__(self) -> None:
        self.selector: Any = None
        self.operator: Any = None
        self.uids: list[str] = []
        self.tags: list[str] = []
        self.parameters: dict[str, str] = {}

    def get_execution_environment(self) -> Stream:
        return self

    def get_config(self) -> Stream:
        return self

    def get_global_job_parameters(self) -> dict[str, str]:
        return self.parameters

    def key_by(self, selector: Any, key_type: Any) -> Stream:
        self.selector = selector
        return self

    def process(self, operator: Any, output_type: Any) -> Stream:
        self.operator = operator
        return self

    def name(self, _: str) -> Stream:
        return self

    def uid(self, uid: str) -> Stream:
        self.uids.append(uid)
        return self

    def get_side_output(self, tag: Any) -> Stream:
        self.tags.append(tag.tag_id)
        return self


def test_options_have_the_names_and_units_of_the_yaml() -> None:
    stream = Stream()
    tool_calls(
        stream,
        key_by="session.id",
        tools=[add],
        tool_calls={"mode": "sequential", "max_in_flight": 3, "timeout": "30s"},
        config={"tenant": "acme", "api_key": {"env": "API_KEY"}},
        workers={"threads": 5},
        limits={"intake_wait": "50ms", "idle_key": "2d", "record": "1MiB"},
    )
    options = stream.operator._options
    assert options.key_by == "session.id"
    assert (options.tool_calls.mode.value, options.tool_calls.max_in_flight) == ("sequential", 3)
    assert options.tool_calls.timeout_ms == 30_000
    assert options.config == {"tenant": "acme", "api_key": {"env": "API_KEY"}}
    assert options.workers.threads == 5
    assert (options.limits.intake_wait_ms, options.limits.idle_key_ms) == (50, 2 * 86_400_000)
    assert options.limits.record == 1 << 20
    assert stream.uids == ["flink-agents"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": {}}, "limit: no such option; did you mean 'limits'?"),
        ({"limits": {"intake_wiat": "1s"}}, "limits.intake_wiat: no such option; did you mean 'intake_wait'?"),
        ({"limits": {"intake_wait": 50}}, "limits.intake_wait: got the number 50 without a unit"),
        ({"tool_calls": {"mode": "both"}}, "tool_calls.mode"),
        ({"workers": {"threads": 0}}, "workers.threads"),
        ({"journal": {"type": "sqlite", "pth": "j.db"}}, "journal.pth: no such option; did you mean 'path'?"),
        ({"journal": {"type": "sqlite", "retention": "40d"}}, "shorter than limits.idle_key, which is 30d"),
        ({"journal": {"type": "postgresql"}}, "journal.dsn"),
        ({"journal": "postgres"}, "journal"),
        ({"run_id": "a b"}, "run_id"),
        ({"config": {"key": SecretStr("hunter22")}}, 'would travel with the job; expected {"env": NAME}'),
        ({"config": {"key": {1}}}, "config.key: a value of type set; expected text, a number"),
        ({"config": {"key": {"env": "A", "b": 1}}}, "expected {env: NAME} alone"),
        ({"journal": "sqlite"}, "a journal needs run_id, or the job parameter flink-agents.run-id"),
    ],
)
def test_a_wrong_option_is_named_with_the_right_one(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        tool_calls(Stream(), key_by="k", tools=[add], **options)
    assert said in str(refused.value)


def test_all_wrong_options_are_named_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        tool_calls(Stream(), key_by="k", tools=[add], limits={"a": 1}, workers={"threads": "many"})
    assert "limits.a" in str(refused.value)
    assert "workers.threads" in str(refused.value)


def test_the_run_is_written_into_the_journal_before_anything_is_submitted(tmp_path: Path) -> None:
    stream, path = Stream(), tmp_path / "state" / "journal.db"
    journal = {"type": "sqlite", "path": str(path), "retention": "1h"}
    tool_calls(stream, key_by="k", tools=[once], journal=journal, run_id="run-1")
    with closing(SqliteJournal(path, create=False)) as opened:
        assert opened.find_run("run-1") is not None
    assert stream.operator._journal_spec == JournalSpec(JournalType.SQLITE, path=str(path), retention_ms=3_600_000)
    assert stream.operator._run_id == "run-1"
    stream.parameters["flink-agents.run-id"] = "run-2"
    tool_calls(stream, key_by="k", tools=[once], journal=journal)
    assert stream.operator._run_id == "run-2"


def test_what_needs_a_journal_is_refused_without_one() -> None:
    for declared in (once, FunctionDeclaration(add, on_interrupt="fail")):
        with pytest.raises(InvalidInput, match="on_interrupt: fail needs a journal"):
            tool_calls(Stream(), key_by="k", tools=[declared])


def test_what_the_configuration_cannot_give_is_refused() -> None:
    declared = FunctionDeclaration(add, inject={"b": {"from": "config", "key": "summand"}})
    for config, said in ({}, "config has no 'summand'"), ({"summand": "x"}, "Input should be a valid integer"):
        with pytest.raises(InvalidInput, match=said):
            tool_calls(Stream(), key_by="k", tools=[declared], config=config)
    tool_calls(Stream(), key_by="k", tools=[declared], config={"summand": 5})


def test_an_unreachable_journal_is_told_while_the_job_is_built(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("no journal, and long enough to be looked at" * 40)
    journal = {"type": "sqlite", "path": str(tmp_path / "taken")}
    with pytest.raises(JournalError, match="no SQLite database"):
        tool_calls(Stream(), key_by="k", tools=[add], journal=journal, run_id="run-1")


def test_without_a_run_id_each_submission_draws_one() -> None:
    first, second = Stream(), Stream()
    for stream in (first, second):
        tool_calls(stream, key_by="k", tools=[add])
    assert first.operator._run_id is None
    assert first.operator._drawn_id != second.operator._drawn_id


def test_no_tool_and_twice_the_same_are_refused() -> None:
    with pytest.raises(InvalidInput, match="tools is empty"):
        tool_calls(Stream(), key_by="k", tools=[])
    with pytest.raises(InvalidInput, match="add"):
        tool_calls(Stream(), key_by="k", tools=[add, add])


@pytest.mark.rule(5)
@pytest.mark.parametrize("record", ["junk", "[1]", "{}", '{"k": null}', '{"k": [1]}', 7, None, "\ud800"])
def test_what_is_no_request_still_has_a_key(record: Any) -> None:
    select = datastream._key_selector("k")
    key = select(record)
    assert key.startswith("!")
    assert 0 <= int(key[1:]) < 128
    assert select(record) == key


def test_records_without_a_key_are_spread() -> None:
    select = datastream._key_selector("k")
    assert len({select(f"junk {number}") for number in range(1000)}) == 128


@pytest.mark.rule(10)
def test_keys_keep_their_type() -> None:
    select = datastream._key_selector("k")
    keys = [select(json.dumps({"k": key})) for key in (1, "1", True, "", "x" * 10_240, "!5")]
    assert len(set(keys)) == len(keys)
    assert not any(key.startswith("!") for key in keys)
    assert select('{"k": 1.0}') == keys[0] == select({"k": 1})
