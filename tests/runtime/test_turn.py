"""Requests and replies through the engine, without Flink."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import StateFormat
from flink_agents.options import Limits, Mode, ToolCallOptions, WorkerOptions
from flink_agents.runtime.turn import Turn, content_digest
from flink_agents.testing import ControlledTool, Harness, tool_request
from flink_agents.tools.registry import FunctionDeclaration

PARALLEL = ToolCallOptions()
SEQUENTIAL = ToolCallOptions(mode=Mode.SEQUENTIAL)
BOTH_MODES = pytest.mark.parametrize("tool_calls", [PARALLEL, SEQUENTIAL], ids=["parallel", "sequential"])


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def explode(message: str) -> str:
    """Raise."""
    raise LookupError(message)


@BOTH_MODES
@pytest.mark.rule(1, 4)
def test_one_response_holds_every_result_whatever_each_call_did(tool_calls: ToolCallOptions) -> None:
    def unstorable() -> Any:
        """Return what cannot be stored."""
        return (n for n in range(3))

    with Harness([add, explode, unstorable], tool_calls=tool_calls) as harness:
        harness.send(
            tool_request(
                "k",
                ("add", {"a": 1, "b": 2}),
                ("explode", {"message": "no such order"}),
                ("missing", {}),
                ("add", {"a": "x", "b": 2}),
                ("unstorable", {}),
                ("add", '{"a": 3, "b": 4}'),
                id="r1",
            )
        )
        harness.run()
        (response,) = harness.responses
        kinds = [result.get("error", {}).get("kind") for result in response["results"]]
        assert kinds == [None, "tool_error", "unknown_tool", "invalid_arguments", "unserializable", None]
        assert response["results"][0]["value"] == 3
        assert response["results"][5]["value"] == 7
        assert response["results"][1]["error"]["message"] == "no such order"
        assert response["results"][1]["error"]["type"] == "LookupError"
        assert response["results"][3]["error"]["expected"]["properties"].keys() == {"a", "b"}
        assert "generator" in response["results"][4]["error"]["message"]
        assert response["request_id"] == "r1"
        assert harness.statistics == {
            "request": 1, "response": 1, "reject": 0, "calls": 6, "succeeded": 2, "failed": 4,
            "timed_out": 0, "replayed": 0, "reran": 0,
        }  # fmt: skip


@pytest.mark.rule(1)
def test_no_response_before_the_last_call_settled() -> None:
    tool = ControlledTool("held")
    with Harness([tool]) as harness:
        harness.send(tool_request("k", ("held", {}), ("held", {})))
        harness.run()
        tool.running[0].succeed(1)
        harness.run()
        assert harness.responses == []
        tool.running[0].succeed(2)
        harness.run()
        assert [result["value"] for result in harness.results()] == [1, 2]


@pytest.mark.rule(1, 5)
def test_rejects_and_responses_add_up_to_the_input() -> None:
    with Harness([add]) as harness:
        wrong: list[str | dict[str, Any]] = [
            "not json",
            {"tool_calls": []},
            {"key": "k"},
            {"key": "k", "tool_calls": [{"function": {"arguments": {}}}]},
        ]
        harness.send(*wrong, tool_request("k", ("add", {"a": 1, "b": 1})), tool_request("k"))
        harness.run()
        assert len(harness.rejects) == 4
        assert len(harness.responses) == 2
        assert all(reject["reason"] for reject in harness.rejects)
        records = [wrong[0], *(json.dumps(record, separators=(",", ":")) for record in wrong[1:])]
        assert [reject["record"] for reject in harness.rejects] == records
        assert harness.statistics["reject"] == 4
        assert harness.statistics["response"] == 2
        assert harness.head("k") == {"v": 1, "next": 3, "answered": 2, "active": None}


@pytest.mark.rule(2)
def test_case_9_results_keep_the_order_of_the_calls_live_and_on_replay() -> None:
    tool = ControlledTool("held")
    with Harness([tool]) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(4)]))
        harness.run()
        for held in list(reversed(tool.running))[:2]:
            held.succeed(held.arguments["n"])
        harness.run()
        harness.checkpoint()
        harness.crash()
        harness.run()
        # In the second life the calls still open end in the other order than in the first.
        for held in list(tool.running)[2:]:
            held.succeed(held.arguments["n"])
        harness.run()
        assert [result["value"] for result in harness.results()] == [0, 1, 2, 3]
        assert [result["replayed"] for result in harness.results()] == [False, False, True, True]
        assert sorted(held.arguments["n"] for held in tool.begun) == [0, 0, 1, 1, 2, 3]


@pytest.mark.rule(3)
def test_case_16_a_tool_that_changes_its_arguments_changes_nobody_elses() -> None:
    def spoil(items: list[int], options: dict[str, Any]) -> int:
        """Change what was passed in."""
        items.append(99)
        options["spoiled"] = True
        return len(items)

    arguments = {"items": [1], "options": {"deep": {"a": 1}}}
    record = tool_request("k", ("spoil", arguments), ("spoil", arguments))
    before = json.dumps(record)
    with Harness([spoil], always_replay=True) as harness:
        harness.send(record)
        harness.run()
        assert [result["value"] for result in harness.results()] == [2, 2]
        assert json.dumps(record) == before


@pytest.mark.rule(3)
def test_what_is_recorded_is_what_was_asked() -> None:
    tool = ControlledTool("held")
    with Harness([tool]) as harness:
        harness.send(tool_request("k", ("held", {"list": [1]})))
        harness.run()
        tool.running[0].arguments["list"].append(2)
        stored = json.loads(harness.backend.entries('"k"', StateName.REQUESTS)["1"])
        assert stored["r"]["tool_calls"][0]["function"]["arguments"] == {"list": [1]}


@BOTH_MODES
@pytest.mark.rule(7)
def test_case_15_missing_empty_and_repeated_ids_all_run_once(tool_calls: ToolCallOptions) -> None:
    runs: list[int] = []

    def note(n: int) -> int:
        """Note the number."""
        runs.append(n)
        return n

    record = tool_request("k", *[("note", {"n": n}) for n in range(5)])
    ids: list[Any] = ["same", "same", "", None, "other"]
    for call, call_id in zip(record["tool_calls"], ids, strict=True):
        call["id"] = call_id
    del record["tool_calls"][3]["id"]
    with Harness([note], tool_calls=tool_calls) as harness:
        harness.send(record)
        harness.run()
        assert sorted(runs) == [0, 1, 2, 3, 4]
        assert [result["value"] for result in harness.results()] == [0, 1, 2, 3, 4]
        assert [result["call_id"] for result in harness.results()] == ["same", "same", "", None, "other"]


@pytest.mark.rule(9)
def test_requests_of_a_key_run_one_at_a_time_in_order_while_keys_interleave() -> None:
    tool = ControlledTool("held")
    with Harness([tool]) as harness:
        for n in range(3):
            harness.send(tool_request("slow", ("held", {"n": n}), id=f"slow{n}"))
            harness.send(tool_request("fast", ("held", {"n": n}), id=f"fast{n}"))
        harness.run()
        assert [(held.call.key, held.arguments["n"]) for held in tool.running] == [('"slow"', 0), ('"fast"', 0)]
        for _ in range(3):
            next(held for held in tool.running if held.call.key == '"fast"').succeed("ok")
            harness.run()
        assert [response["request_id"] for response in harness.responses] == ["fast0", "fast1", "fast2"]
        for _ in range(3):
            tool.running[0].succeed("ok")
            harness.run()
        assert [response["request_id"] for response in harness.responses][3:] == ["slow0", "slow1", "slow2"]


@pytest.mark.rule(9)
def test_free_workers_go_round_robin_over_keys() -> None:
    tool = ControlledTool("held")
    with Harness([tool], workers=WorkerOptions(threads=2), tool_calls=ToolCallOptions(max_in_flight=100)) as harness:
        harness.send(tool_request("many", *[("held", {"n": n}) for n in range(50)]))
        for key in ("a", "b", "c"):
            harness.send(tool_request(key, ("held", {"n": 0})))
        harness.run()
        order = []
        while tool.running:
            order.append(tool.running[0].call.key)
            tool.running[0].succeed(None)
            harness.run()
        assert len(order) == 53
        # Two of the long batch began at once; after that every key gets its turn before the batch gets a second one.
        assert set(order[:9]) >= {'"a"', '"b"', '"c"'}


@pytest.mark.rule(10)
def test_case_6_keys_keep_their_type() -> None:
    keys: list[Any] = [1, "1", True, "", "x" * 10_000, 1.0, "a_b/c"]
    with Harness([add]) as harness:
        for key in keys:
            harness.send(tool_request(key, ("add", {"a": 1, "b": 1})))
            harness.run()
        assert [response["key"] for response in harness.responses] == keys
        heads = [harness.head(key) for key in keys]
        assert [head["next"] if head else None for head in heads] == [3, 2, 2, 2, 2, 3, 2]
        assert harness.responses[-1]["request_id"] == "a_b/c/1"


@pytest.mark.rule(10)
@pytest.mark.parametrize("key", [None, [1], {"a": 1}])
def test_keys_without_identity_are_rejects(key: Any) -> None:
    with Harness([add]) as harness:
        harness.send(tool_request(key, ("add", {"a": 1, "b": 1})))
        harness.run()
        assert harness.responses == []
        assert len(harness.rejects) == 1
        assert harness.rejects[0]["field"] == "key"


@BOTH_MODES
def test_case_14_four_calls_four_results(tool_calls: ToolCallOptions) -> None:
    def cancel_itself() -> None:
        """Raise a cancellation that nobody asked for."""
        raise asyncio.CancelledError

    async def slow() -> str:
        """Take a while."""
        await asyncio.sleep(0)
        return "fine"

    with Harness([explode, cancel_itself, slow, add], tool_calls=tool_calls) as harness:
        harness.send(
            tool_request(
                "k", ("explode", {"message": "x"}), ("cancel_itself", {}), ("slow", {}), ("add", {"a": 1, "b": 1})
            )
        )
        harness.run()
        assert [result["status"] for result in harness.results()] == ["failed", "failed", "succeeded", "succeeded"]
        assert harness.results()[1]["error"]["type"] == "CancelledError"
        assert harness.results()[2]["value"] == "fine"


@BOTH_MODES
@pytest.mark.rule(4, 6, 17)
@pytest.mark.parametrize("levels", [101, 380])
@pytest.mark.parametrize("with_journal", [True, False])
def test_arguments_too_deep_for_an_identity_of_their_own_are_one_failed_result(
    tool_calls: ToolCallOptions, levels: int, with_journal: bool, tmp_path: Path
) -> None:
    held = ControlledTool("held")
    deep: Any = 1
    for _ in range(levels):
        deep = [deep]
    with (
        closing(SqliteJournal(tmp_path / "journal.db")) as journal,
        Harness([held, add], tool_calls=tool_calls, journal=journal if with_journal else None) as harness,
    ):
        harness.send(json.dumps(tool_request("k", ("add", {"a": deep, "b": 1}), ("held", {}))))
        harness.run()
        harness.checkpoint()
        harness.crash()
        harness.run()
        held.running[-1].succeed("fine")
        harness.run()
        assert [result["status"] for result in harness.results()] == ["failed", "succeeded"]
        assert harness.results()[0]["error"]["kind"] == "invalid_arguments"


@pytest.mark.rule(1, 5)
def test_a_request_that_was_taken_in_is_read_again_whatever_its_shape_and_the_limits_since() -> None:
    held = ControlledTool("held")
    deep = "[" * 380 + "]" * 380
    # As text a few bytes a number, many times that once it is read and written again.
    long = ",".join(["1e15"] * 100)
    with Harness([held], limits=Limits(record=1500)) as harness:
        for metadata in (deep, f"[{long}]"):
            calls = '[{"function": {"name": "held", "arguments": {}}}]'
            harness.send(f'{{"key": "k", "metadata": {metadata}, "tool_calls": {calls}}}')
        harness.run()
        harness.checkpoint()
        harness.crash()
        for _ in range(2):
            harness.run()
            held.running[-1].succeed("fine")
        harness.run()
        assert [response["metadata"] for response in harness.responses] == [json.loads(deep), [1e15] * 100]


@pytest.mark.rule(12)
def test_case_2_thirty_calls_that_end_at_once_are_all_stored() -> None:
    tool = ControlledTool("held")
    with Harness([tool], tool_calls=ToolCallOptions(max_in_flight=30)) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(31)]))
        harness.run()
        for held in list(tool.running):
            held.succeed(held.arguments["n"])
        harness.run()
        harness.checkpoint()
        stored = harness.slots("k")
        assert [stored[f"1/{n}"]["o"] for n in range(30)] == list(range(30))
        harness.crash()
        harness.run()
        tool.running[-1].succeed(30)
        harness.run()
        assert [result["value"] for result in harness.results()] == list(range(31))
        assert len(tool.begun) == 32
        assert harness.statistics["replayed"] == 30


@pytest.mark.rule(25)
def test_case_26_state_is_live_work_and_one_head_per_key() -> None:
    keys = 500
    with Harness([add]) as harness:
        for n in range(10 * keys):
            harness.send(tool_request(n % keys, ("add", {"a": n, "b": 1})))
        harness.run()
        assert len(harness.responses) == 10 * keys
        for key in range(keys):
            assert harness.slots(key) == {}
            assert harness.pending_requests(key) == []
            head = harness.backend.entries(str(key), StateName.HEAD)[""]
            assert len(head) < 60
        assert harness.subtask.unanswered == 0
        assert not harness.subtask.has_work


def test_case_22_values_that_look_like_nothing_are_values() -> None:
    values: list[Any] = [None, "", [], {}, 0, False]
    remaining = itertools.count()

    def nothing() -> Any:
        """Return the next value that looks like nothing."""
        return values[next(remaining)]

    tool = ControlledTool("held")
    with Harness([nothing, tool], tool_calls=SEQUENTIAL) as harness:
        harness.send(tool_request("k", *[("nothing", {})] * len(values), ("held", {})))
        harness.run()
        harness.checkpoint()
        harness.crash()
        harness.run()
        tool.running[-1].succeed("end")
        harness.run()
        assert [result["value"] for result in harness.results()] == [*values, "end"]
        assert harness.statistics["replayed"] == len(values)


def test_an_answer_within_one_turn_writes_only_the_head() -> None:
    from flink_agents.tools.registry import FunctionDeclaration

    inline = FunctionDeclaration(add, execution="inline")
    with Harness([inline]) as harness:
        harness.send(tool_request("k", *[("add", {"a": 1, "b": 1})] * 4))
        assert len(harness.responses) == 1
        assert harness.backend.writes == 1


def test_case_25_a_result_over_the_limit_is_one_failed_result() -> None:
    runs: list[int] = []

    def huge() -> str:
        """Return too much."""
        runs.append(1)
        return "x" * (40 << 20)

    with Harness([huge, add]) as harness:
        harness.send(tool_request("k", ("huge", {}), ("add", {"a": 1, "b": 1})))
        harness.run()
        assert harness.results()[0]["error"]["kind"] == "too_large"
        assert len(json.dumps(harness.responses[0])) < 4096
        assert harness.results()[1]["value"] == 2
        assert len(runs) == 1


def test_a_record_over_the_limit_is_a_reject() -> None:
    with Harness([add], limits=Limits(record=2000)) as harness:
        harness.send(json.dumps(tool_request("k", ("add", {"a": 1, "b": 1}), padding="x" * 5000)))
        harness.run()
        assert "2000" in harness.rejects[0]["reason"] or "2 KB" in harness.rejects[0]["reason"]
        assert len(json.dumps(harness.rejects[0])) < 2048


def test_a_long_queue_of_quick_requests_gives_the_task_thread_back() -> None:
    from flink_agents.tools.registry import FunctionDeclaration

    tool = ControlledTool("held")
    with Harness([tool, FunctionDeclaration(add, execution="inline")]) as harness:
        harness.send(tool_request("k", ("held", {}), id="first"))
        for n in range(200):
            harness.send(tool_request("k", ("add", {"a": n, "b": 0}), id=f"r{n}"))
        tool.running[0].succeed(0)
        harness.run()
        assert [response["request_id"] for response in harness.responses] == ["first"] + [f"r{n}" for n in range(200)]


@pytest.mark.parametrize("execution", ["thread", "inline"])
def test_without_statistics_everything_else_is_the_same(execution: Literal["thread", "inline"]) -> None:
    outputs = []
    for wanted in (True, False):
        with Harness([FunctionDeclaration(add, execution=execution)]) as harness:
            harness.options = replace(harness.options, statistics=wanted)
            harness.crash()
            harness.send(
                tool_request("k", ("add", {"a": 1, "b": 2}), id="r1"),
                tool_request("k", ("missing", {}), id="r2"),
                {"key": "k", "id": "r3"},
            )
            harness.run()
            assert [result.get("value") for result in harness.results()] == [3, None]
            outputs.append(([response["request_id"] for response in harness.responses], harness.rejects))
            assert harness.statistics.get("request", 0) == (2 if wanted else 0)
            assert bool(harness.statistics) is wanted
    assert outputs[0] == outputs[1]
    assert [len(lines) for lines in outputs[0]] == [2, 1]


@pytest.mark.parametrize("always_replay", [False, True])
def test_a_long_queue_that_needs_no_worker_gives_the_task_thread_back_in_between(
    always_replay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = ControlledTool("held")
    with Harness([held], always_replay=always_replay) as harness:
        harness.send(tool_request("k", ("held", {}), id="first"))
        harness.send(*(tool_request("k", ("missing", {}), id=f"r{n}") for n in range(200)))
        harness.run()
        held.running[0].succeed(1)
        answered: list[int] = []
        subtask = harness.subtask

        class Counted:
            """The subtask, and how much each wake-up answered."""

            def __getattr__(self, name: str) -> Any:
                return getattr(subtask, name)

            def wake(self, key: str, store: WriteBehind) -> Turn:
                turn = subtask.wake(key, store)
                answered.append(len(turn.responses))
                return turn

        monkeypatch.setattr(harness, "subtask", Counted())
        harness.run()
        assert answered == [64, 64, 64, 9]
        assert [response["request_id"] for response in harness.responses] == ["first", *(f"r{n}" for n in range(200))]
        assert harness.pending_requests("k") == []


@pytest.mark.parametrize("request_id", ["read before", None])
def test_a_record_that_was_read_already_is_taken_as_it_was_read(request_id: str | None) -> None:
    request = tool_request("k", ("missing", {}))
    if request_id is not None:
        request["id"] = request_id
    with Harness([add]) as harness:
        harness.send(request)
        (expected,) = harness.responses
    with Harness([add]) as harness:
        harness.backend.current_key = '"k"'
        turn = harness.subtask.intake('"k"', json.dumps(request), WriteBehind(harness.backend), request)
        assert [json.loads(line) for line in turn.responses] == [expected]


def test_an_answered_request_may_leave_the_journal(tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal, Harness([add], journal=journal) as harness:
        harness.send(tool_request("k", ("add", {"a": 1, "b": 2}), id="r1"))
        harness.run()
        assert [row.request_id for row in journal.requests_from("run", '"k"', 1)] == ["r1"]
        journal.prune(10_000, 0)
        assert journal.requests_from("run", '"k"', 1) == []


def test_the_time_that_a_request_took_is_counted() -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.advance(250)
        held.running[0].succeed(1)
        harness.run()
        assert harness.counters.latencies["request_ms"] == [250]


@pytest.mark.rule(1)
def test_a_wake_up_for_nothing_changes_nothing() -> None:
    with Harness([add]) as harness:
        for key in ("never seen", "idle"):
            if key == "idle":
                harness.send(tool_request(key, ("add", {"a": 1, "b": 2})))
                harness.run()
            writes, responses = harness.backend.writes, harness.responses
            harness._wake(f'"{key}"')
            assert (harness.backend.writes, harness.responses) == (writes, responses)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"v":2,"r":{}}', 'request 1 of key "k" has format version 2, this release reads 1'),
        ("junk", 'request 1 of key "k" cannot be read from state: '),
        ('{"v":1}', 'request 1 of key "k" cannot be read from state: '),
        ('{"v":1,"r":{"key":"k"}}', 'request 1 of key "k" cannot be read from state: '),
    ],
)
def test_a_stored_request_that_cannot_be_read_is_a_fault_that_names_it(text: str, message: str) -> None:
    held = ControlledTool("held")
    with Harness([held]) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.backend.current_key = '"k"'
        harness.backend.put(StateName.REQUESTS, "1", text)
        harness.checkpoint()
        with pytest.raises(StateFormat, match=f"^{re.escape(message)}"):
            harness.crash()


def test_a_text_that_is_no_text_has_a_digest_too() -> None:
    assert len({content_digest(text) for text in ("\ud800", "\ud801", "?", "")}) == 4
