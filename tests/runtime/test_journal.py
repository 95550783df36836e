"""The journal through the engine, without Flink: what finished between checkpoints is not lost, what is in doubt is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flink_agents.durable.journal.rows import CallFilter
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.errors import JournalLost, JournalUnavailable
from flink_agents.options import Limits, Mode, OnInterrupt, ToolCallOptions, WorkerOptions
from flink_agents.scheduler.call_journal import NOT_STARTED
from flink_agents.scheduler.tool_context import current_tool_context
from flink_agents.testing import ControlledTool, Harness, HeldCall, tool_request
from flink_agents.tools.registry import FunctionDeclaration

BOTH_MODES = pytest.mark.parametrize("mode", [Mode.PARALLEL, Mode.SEQUENTIAL])


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    journal = SqliteJournal(tmp_path / "journal.db")
    yield journal
    journal.close()


@BOTH_MODES
@pytest.mark.rule(48, 49)
@pytest.mark.parametrize("with_journal", [True, False])
def test_what_finished_after_the_checkpoint_runs_again_only_without_a_journal(
    mode: Mode, with_journal: bool, journal: SqliteJournal
) -> None:
    held = ControlledTool("held")
    options = ToolCallOptions(mode=mode)
    with Harness([held], tool_calls=options, journal=journal if with_journal else None) as harness:
        harness.send(tool_request("k", ("held", {"n": 0}), ("held", {"n": 1})))
        harness.run()
        harness.checkpoint()
        held.running[0].succeed("finished")
        harness.run()
        harness.crash()
        harness.run()
        again = [call.arguments["n"] for call in held.begun].count(0)
        assert again == (1 if with_journal else 2)
        while any(call.call.attempt is harness.attempt for call in held.running):
            next(call for call in held.running if call.call.attempt is harness.attempt).succeed("finished")
            harness.run()
        assert [result["value"] for result in harness.results()] == ["finished", "finished"]
        assert harness.results()[0]["replayed"] is with_journal
        assert harness.statistics["replayed"] == int(with_journal)


@pytest.mark.rule(15)
@pytest.mark.parametrize("freed", ["late", "before the look-up", "after the look-up"])
def test_a_recorded_call_needs_no_free_worker_after_a_restore(journal: SqliteJournal, freed: str) -> None:
    quick, slow = ControlledTool("quick", max_concurrent=1), ControlledTool("slow")
    with Harness([quick, slow], journal=journal, workers=WorkerOptions(threads=2)) as harness:
        harness.send(tool_request("k", ("quick", {}), ("slow", {"n": 1}), ("slow", {"n": 2}), ("quick", {"again": 1})))
        harness.run()
        quick.running[0].succeed("recorded")
        harness.run()
        # The threads of the first life are still busy with what it began.
        dead = list(slow.running + quick.running)
        assert len(dead) == 2
        harness.crash()

        def end(bodies: list[HeldCall]) -> None:
            for body in bodies:
                body.succeed("first life")

        if freed == "before the look-up":
            end(dead)
            harness._settle_once()
        harness._commit()
        if freed == "after the look-up":
            end(dead)
        harness.run()
        if freed == "late":
            assert harness.slots("k")["1/0"]["s"] == "succeeded"
            assert len(quick.begun + slow.begun) == 3
            assert harness.subtask._admission.waiting == 3
            end(dead)
            harness.run()
        while live := [body for body in slow.running + quick.running if body.call.attempt is harness.attempt]:
            live[0].succeed("second life")
            harness.run()
        assert [body.arguments for body in quick.begun].count({}) == 1
        assert [harness.results()[0][name] for name in ("value", "attempts", "replayed")] == ["recorded", 1, True]
        assert harness.subtask._admission.waiting == harness.workers.threads.used == 0
        assert [gate.running for gate in harness.subtask._admission._gates.values()] == [0, 0]


@pytest.mark.rule(24)
def test_an_outcome_is_handed_over_only_once_it_is_committed(journal: SqliteJournal) -> None:
    held = ControlledTool("held")
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        held.running[0].succeed(1)
        assert not harness._settle_once()
        assert harness.slots("k")["1/0"]["s"] == "started"
        harness.run()
        assert len(harness.responses) == 1


def lose(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the journal fail from now on, until the patch is undone."""

    def lost(_operations: Any) -> Any:
        raise JournalUnavailable("gone")

    monkeypatch.setattr(journal, "apply", lost)


@pytest.mark.rule(24)
def test_a_lost_journal_fails_the_task_and_answers_nothing(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = ControlledTool("held")
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.checkpoint()

        lose(journal, monkeypatch)
        held.running[0].succeed(1)
        with pytest.raises(JournalLost):
            harness.run()
        assert harness.responses == []
        monkeypatch.undo()
        harness.crash()
        harness.run()
        held.running[-1].succeed(2)
        harness.run()
        assert [result["value"] for result in harness.results()] == [2]


@pytest.mark.rule(24)
def test_a_journal_that_is_lost_at_the_look_up_begins_no_body(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = ControlledTool("held")
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.checkpoint()
        harness.crash()

        lose(journal, monkeypatch)
        with pytest.raises(JournalLost):
            harness.run()
        assert len(held.begun) == 1
        assert harness.responses == []


@pytest.mark.rule(54, 33)
def test_the_first_recorded_outcome_wins_and_both_attempts_use_it(journal: SqliteJournal) -> None:
    held = ControlledTool("held")
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {}), ("held", {})))
        harness.run()
        harness.checkpoint()
        zombie = held.running[0]
        harness.crash()
        harness.run()
        (first, second) = [call for call in held.running if call.call.attempt is harness.attempt]
        zombie.succeed("of the old attempt")
        harness._commit()
        first.succeed("of the new attempt")
        second.succeed("second")
        harness.run()
        assert [result["value"] for result in harness.results()] == ["of the old attempt", "second"]


@pytest.mark.rule(15)
@pytest.mark.parametrize("policy", [OnInterrupt.FAIL, OnInterrupt.RECONCILE])
def test_a_started_row_is_committed_before_the_body_begins(journal: SqliteJournal, policy: OnInterrupt) -> None:
    held = ControlledTool("held", on_interrupt=policy, reconcile=lambda _: NOT_STARTED)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        assert held.begun == []
        assert list(journal.calls(CallFilter())) == []
        harness.run()
        assert [row.status.value for row in journal.calls(CallFilter())] == ["started"]
        assert len(held.begun) == 1


@pytest.mark.rule(15)
def test_of_a_hundred_calls_only_the_two_that_began_are_in_doubt(journal: SqliteJournal) -> None:
    held = ControlledTool("held", on_interrupt=OnInterrupt.FAIL)
    with Harness([held], tool_calls=ToolCallOptions(max_in_flight=2), journal=journal) as harness:
        harness.send(tool_request("k", *[("held", {"n": n}) for n in range(100)]))
        harness.run()
        assert len(held.begun) == 2
        harness.checkpoint()
        harness.crash()
        harness.run()
        while live := [call for call in held.running if call.call.attempt is harness.attempt]:
            live[0].succeed("ran")
            harness.run()
        kinds = [result.get("error", {}).get("kind") for result in harness.results()]
        assert kinds == ["in_doubt", "in_doubt", *[None] * 98]
        assert "may have taken effect" in harness.results()[0]["error"]["message"]
        assert len(held.begun) == 100


@pytest.mark.rule(15, 16)
@pytest.mark.parametrize("checkpointed", [True, False], ids=["slot restored", "slot not in the restored state"])
@pytest.mark.parametrize("answer", ["value", "raises", "not started"])
def test_a_reconciler_decides_about_a_call_in_doubt_and_only_then(
    journal: SqliteJournal, answer: str, checkpointed: bool
) -> None:
    asked: list[Any] = []

    def reconcile(arguments: dict[str, Any]) -> Any:
        asked.append((arguments, current_tool_context().tool))
        if answer == "raises":
            raise LookupError("it failed")
        return "it took effect" if answer == "value" else NOT_STARTED

    held = ControlledTool("held", on_interrupt=OnInterrupt.RECONCILE, reconcile=reconcile)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {"n": 1}), ("held", {"n": 2})))
        harness.run()
        if checkpointed:
            harness.checkpoint()
        held.running[1].succeed("finished")
        harness.run()
        assert asked == []
        harness.crash()
        harness.run()
        assert asked == [({"n": 1}, "held")]
        if answer == "not started":
            held.running[-1].succeed("ran")
            harness.run()
        first, second = harness.results()
        assert {
            "value": first.get("value") == "it took effect",
            "raises": first.get("error", {}).get("message") == "it failed",
            "not started": first.get("value") == "ran",
        }[answer]
        assert second["value"] == "finished"
        assert len(held.begun) == (3 if answer == "not started" else 2)


@pytest.mark.rule(16)
def test_interrupting_a_reconciler_records_nothing(journal: SqliteJournal) -> None:
    asked: list[int] = []

    def reconcile(_: dict[str, Any]) -> Any:
        asked.append(1)
        if len(asked) == 1:
            harness.interrupt()
            raise asyncio.CancelledError
        return "decided"

    import asyncio

    held = ControlledTool("held", on_interrupt=OnInterrupt.RECONCILE, reconcile=reconcile)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.checkpoint()
        harness.crash()
        harness.run()
        assert harness.slots("k")["1/0"]["s"] == "started"
        assert [row.status.value for row in journal.calls(CallFilter())] == ["started"]
        harness.crash()
        harness.run()
        assert [result["value"] for result in harness.results()] == ["decided"]


class HidesItsClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("no class to see")


@pytest.mark.rule(15, 21)
def test_a_reconcilers_exception_that_raises_when_it_is_looked_at_is_the_calls_failure(journal: SqliteJournal) -> None:
    def reconcile(_: dict[str, Any]) -> Any:
        raise HidesItsClass("x")

    held = ControlledTool("held", on_interrupt=OnInterrupt.RECONCILE, reconcile=reconcile)
    with Harness([held], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {})))
        harness.run()
        harness.crash()
        harness.run()
        assert [result["error"]["kind"] for result in harness.results()] == ["tool_error"]


@pytest.mark.rule(43)
def test_a_call_that_brings_the_task_down_again_and_again_is_recorded_failed(journal: SqliteJournal) -> None:
    runs: list[int] = []

    def poison() -> None:
        """Bring the task down."""
        runs.append(1)
        raise MemoryError("too much")

    held = ControlledTool("held")
    with Harness([poison, held], journal=journal, limits=Limits(fatal_attempts=3)) as harness:
        harness.send(tool_request("k", ("poison", {}), ("held", {})))
        for _ in range(3):
            harness.checkpoint()
            with pytest.raises(MemoryError):
                harness.run()
            harness.crash()
        harness.run()
        held.running[-1].succeed("fine")
        harness.run()
        assert len(runs) == 3
        assert harness.results()[0]["error"]["kind"] == "fatal"
        assert harness.results()[1]["value"] == "fine"


@pytest.mark.rule(26)
def test_case_27_idempotency_keys_are_stable_over_failovers_and_never_shared(journal: SqliteJournal) -> None:
    keys: list[tuple[int, str]] = []

    def note(n: int) -> int:
        """Note the idempotency key."""
        keys.append((n, current_tool_context().idempotency_key))
        return n

    held = ControlledTool("held")
    with Harness([note, held]) as harness:
        harness.send(tool_request("k", ("note", {"n": 1}), ("note", {"n": 1}), ("note", {"n": 2}), ("held", {})))
        harness.send(tool_request(1, ("note", {"n": 1})), tool_request("1", ("note", {"n": 1})))
        harness.run()
        first = list(keys)
        harness.crash()
        harness.run()
        assert keys[len(first) :] == first
        assert len({key for _, key in first}) == len(first) == 5


def test_requests_keep_their_numbers_when_the_source_repeats_them_in_another_order(journal: SqliteJournal) -> None:
    runs: list[str] = []

    def note(name: str) -> str:
        """Note the run."""
        runs.append(name)
        return name

    with Harness([note], journal=journal) as harness:
        for name in ("a", "b", "c"):
            harness.send(tool_request("k", ("note", {"name": name})))
        harness.run()
        assert runs == ["a", "b", "c"]
        harness.crash(reverse_input=True)
        harness.run()
        # Nothing was in a checkpoint, everything in the journal: no body runs again, each result is its own.
        assert runs == ["a", "b", "c"]
        assert [(r["request_id"], r["results"][0]["value"]) for r in harness.responses] == [
            ("k/3", "c"),
            ("k/2", "b"),
            ("k/1", "a"),
        ]
        harness.send(tool_request("k", ("note", {"name": "d"})))
        harness.run()
        assert harness.responses[-1]["request_id"] == "k/4"
        head = harness.head("k")
        assert head == {"v": 1, "next": 5, "answered": 4, "active": None}


def test_a_new_request_between_the_repeated_ones_gets_a_number_of_its_own(journal: SqliteJournal) -> None:
    runs: list[str] = []

    def note(name: str) -> str:
        """Note the run."""
        runs.append(name)
        return name

    with Harness([note], journal=journal) as harness:
        harness.send(tool_request("k", ("note", {"name": "a"})), tool_request("k", ("note", {"name": "b"})))
        harness.run()
        again = list(harness._since_checkpoint)
        harness._since_checkpoint.clear()
        harness.crash()
        harness.send(again[1], tool_request("k", ("note", {"name": "new"})))
        harness.run()
        harness.checkpoint()
        assert harness.head("k") == {"v": 1, "next": 4, "answered": 3, "active": None, "gaps": [1]}
        harness.crash()
        harness.send(again[0])
        harness.run()
        assert runs == ["a", "b", "new"]
        assert [response["request_id"] for response in harness.responses] == ["k/2", "k/3", "k/1"]
        assert harness.head("k") == {"v": 1, "next": 4, "answered": 3, "active": None}


@pytest.mark.rule(12)
def test_inline_calls_and_failed_preparations_are_recorded_before_they_are_handed_over(journal: SqliteJournal) -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    with Harness([FunctionDeclaration(add, execution="inline")], journal=journal) as harness:
        harness.send(tool_request("k", ("add", {"a": 1, "b": 2}), ("missing", {})))
        assert harness.responses == []
        harness.run()
        assert harness.results()[0]["value"] == 3
        rows = list(journal.calls(CallFilter()))
        assert [row.status.value for row in rows] == ["succeeded", "failed"]
        harness.crash()
        harness.run()
        assert harness.results()[0]["value"] == 3
        assert harness.results()[0]["replayed"] is True


@pytest.mark.rule(15)
def test_the_journals_outcome_answers_although_the_tool_is_gone(journal: SqliteJournal) -> None:
    held, other = ControlledTool("held"), ControlledTool("other")
    with Harness([held, other], journal=journal) as harness:
        harness.send(tool_request("k", ("held", {}), ("other", {})))
        harness.run()
        harness.checkpoint()
        held.running[0].succeed("recorded")
        harness.run()
        harness.crash(tools=[other])
        harness.run()
        other.running[-1].succeed("ran")
        harness.run()
        assert [result["value"] for result in harness.results()] == ["recorded", "ran"]
