"""The writer: groups what waits, answers after the commit, tries again, gives up in time and never dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import pytest

from flink_agents.durable.journal import writer as writer_module
from flink_agents.durable.journal.operations import Answered, Finish, LookUp, Operation, PutRequest, Result
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import (
    CallFilter,
    CallKey,
    CallRow,
    Lease,
    RequestRow,
    RunRow,
    StartAnswer,
    StartStatus,
)
from flink_agents.durable.journal.writer import LAZY_OPERATIONS, JournalWriter
from flink_agents.durable.outcome import Outcome, Succeeded
from flink_agents.errors import (
    JournalCorrupt,
    JournalError,
    JournalFull,
    JournalLost,
    JournalRefused,
    JournalUnavailable,
    StateFormat,
)

CallOf = Callable[..., CallKey]
DEADLINE_S = 30.0


class ScriptedJournal(Journal):
    """Takes every batch and raises what the test planned for it; a held commit waits until the test lets it go."""

    place = "script"

    def __init__(self) -> None:
        self.batches: list[list[Operation]] = []
        self.planned: list[BaseException | None] = []
        self.poison: Operation | None = None
        self.poisoned: BaseException = OverflowError("this operation cannot be written")
        self.broken: BaseException | None = None
        self.held = threading.Event()
        self.entered = threading.Event()
        self.held.set()
        self.prunable = 0
        self.pruned: list[tuple[int, int, int]] = []
        self.prunes = threading.Event()

    def apply(self, operations: Sequence[Operation]) -> list[Result]:
        self.batches.append(list(operations))
        self.entered.set()
        assert self.held.wait(DEADLINE_S)
        if self.poison in operations:
            raise self.poisoned
        error = self.planned.pop(0) if self.planned else self.broken
        if error is not None:
            raise error
        return [number for number, _ in enumerate(operations)]

    def prune(self, now_ms: int, retention_ms: int, limit: int = 500) -> int:
        self.pruned.append((now_ms, retention_ms, limit))
        if self.broken is not None:
            self.prunes.set()
            raise self.broken
        count = min(limit, self.prunable)
        self.prunable -= count
        if not self.prunable:
            self.prunes.set()
        return count

    def create_run(self, run: RunRow) -> None: ...

    def find_run(self, run_id: str) -> RunRow | None:
        return None

    def find_lease(self, run_id: str) -> Lease | None:
        return None

    def open_attempt(self, run_id: str, attempt_id: str, subtask: int, parallelism: int) -> bool:
        return True

    def requests_from(self, run_id: str, key: str, intake: int, also: Collection[int] = ()) -> list[RequestRow]:
        return []

    def outcome_of(self, call: CallKey) -> Outcome | None:
        return None

    def calls(self, wanted: CallFilter = CallFilter()) -> Iterator[CallRow]:  # noqa: B008
        return iter(())

    def acquire_lease(self, run_id: str, owner: str, ttl_ms: int, now_ms: int) -> None: ...

    def renew_lease(self, run_id: str, owner: str, ttl_ms: int, now_ms: int) -> None: ...

    def release_lease(self, run_id: str, owner: str) -> None: ...

    def close(self) -> None: ...


class Answers:
    """Collects what the writer answers, by the name the test gave."""

    def __init__(self) -> None:
        self.by_name: dict[object, Result | JournalLost] = {}
        self.threads: set[str] = set()
        self._changed = threading.Condition()

    def take(self, name: object) -> Callable[[Result | JournalLost], None]:
        def on_done(result: Result | JournalLost) -> None:
            with self._changed:
                assert name not in self.by_name, "answered twice"
                self.by_name[name] = result
                self.threads.add(threading.current_thread().name)
                self._changed.notify_all()

        return on_done

    def wait(self, count: int) -> dict[object, Result | JournalLost]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.by_name) >= count, DEADLINE_S), self.by_name
        return self.by_name

    def lost(self) -> set[object]:
        return {name for name, result in self.by_name.items() if isinstance(result, JournalLost)}


@pytest.fixture
def script() -> ScriptedJournal:
    return ScriptedJournal()


@pytest.fixture
def answers() -> Answers:
    return Answers()


def look_up(call_of: CallOf, index: int) -> LookUp:
    return LookUp(call_of(index))


def hold_first(writer: JournalWriter, script: ScriptedJournal, answers: Answers, operation: Operation) -> None:
    """Submit one operation and wait until its commit is under way, so that all later ones wait for the next."""
    script.held.clear()
    writer.submit(operation, answers.take("held"))
    assert script.entered.wait(DEADLINE_S)


def test_what_waits_is_committed_together(script: ScriptedJournal, answers: Answers, call_of: CallOf) -> None:
    writer = JournalWriter(script)
    hold_first(writer, script, answers, look_up(call_of, 0))
    operations = [look_up(call_of, index) for index in range(1, 2_500)]
    for index, operation in enumerate(operations, 1):
        writer.submit(operation, answers.take(index))
    assert writer.statistics().queued == 2_500
    assert answers.by_name == {}
    script.held.set()
    answers.wait(2_500)
    assert [len(batch) for batch in script.batches] == [1, 1_000, 1_000, 499]
    assert [operation for batch in script.batches[1:] for operation in batch] == operations
    assert [answers.by_name[index] for index in (1, 2, 1_000, 1_001)] == [0, 1, 999, 0]
    assert answers.threads == {"flink-agents-journal"}
    done = writer.statistics()
    assert (done.operations, done.commits, done.mean_batch, done.lost) == (2_500, 4, 625.0, 0)


def test_what_names_it_goes_on_once_after_all_answers_of_a_commit(
    script: ScriptedJournal, answers: Answers, call_of: CallOf
) -> None:
    writer, seen = JournalWriter(script), list[tuple[str, int]]()

    def then(name: str) -> Callable[[], None]:
        def note() -> None:
            seen.append((name, len(answers.by_name)))
            if name == "breaks":
                raise OSError(name)

        return note

    thens = [then("breaks"), then("b"), None]
    hold_first(writer, script, answers, look_up(call_of, 0))
    for index in range(1, 10):
        writer.submit(look_up(call_of, index), answers.take(index), thens[index % 3])
    script.held.set()
    assert writer.wait(DEADLINE_S)
    assert sorted(seen) == [("b", 10), ("breaks", 10)]
    script.broken = JournalFull("full")
    writer.submit(look_up(call_of, 10), answers.take(10), thens[1])
    assert writer.wait(DEADLINE_S)
    assert seen[2:] == [("b", 11)]
    script.broken, script.poison = None, look_up(call_of, 11)
    hold_first(writer, script, Answers(), look_up(call_of, 12))
    for index in (11, 13):
        writer.submit(look_up(call_of, index), answers.take(index), thens[1])
    script.held.set()
    assert writer.wait(DEADLINE_S)
    assert (answers.lost(), seen[3:]) == ({10, 11}, [("b", 12), ("b", 13)])


@pytest.mark.parametrize("busy", [True, False])
def test_where_operations_are_many_a_batch_waits_for_more(
    busy: bool, script: ScriptedJournal, answers: Answers, call_of: CallOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "GATHER_S", 2.0)
    monkeypatch.setattr(writer_module, "BUSY_OPERATIONS", 1 if busy else 1000)
    writer = JournalWriter(script)
    writer.submit(look_up(call_of, 0), answers.take(0))
    answers.wait(1)
    script.held.clear()
    script.entered.clear()
    writer.submit(look_up(call_of, 1), answers.take(1))
    if not busy:
        # It is being committed before anything else comes, or this waits for ever.
        assert script.entered.wait(DEADLINE_S)
    writer.submit(look_up(call_of, 2), answers.take(2))
    script.held.set()
    answers.wait(3)
    assert [len(batch) for batch in script.batches] == ([1, 2] if busy else [1, 1, 1])


def test_a_batch_is_bounded_in_bytes_too(script: ScriptedJournal, answers: Answers, call_of: CallOf) -> None:
    writer = JournalWriter(script)
    hold_first(writer, script, answers, look_up(call_of, 0))
    large = Succeeded('"' + "x" * (3 * 1024 * 1024) + '"')
    for index in range(7):
        writer.submit(Finish(call_of(index), large, 1, "first", 1, 2), answers.take(index))
    script.held.set()
    answers.wait(8)
    assert [len(batch) for batch in script.batches] == [1, 3, 3, 1]


@pytest.mark.rule(24)
def test_the_same_batch_is_tried_again_while_the_journal_is_away(
    script: ScriptedJournal, answers: Answers, call_of: CallOf, caplog: pytest.LogCaptureFixture
) -> None:
    script.planned = [JournalUnavailable("down"), JournalUnavailable("down"), None]
    writer = JournalWriter(script)
    hold_first(writer, script, answers, look_up(call_of, 0))
    writer.submit(look_up(call_of, 1), answers.take(1))
    script.held.set()
    answers.wait(2)
    first, second = [look_up(call_of, 0)], [look_up(call_of, 1)]
    assert script.batches == [first, first, first, second]
    assert answers.lost() == set()
    assert writer.statistics().retries == 2
    assert [record.getMessage() for record in caplog.records] == ["1 operations wait for the journal: down"] * 2


@pytest.mark.rule(24)
def test_after_the_time_everything_that_waits_is_told_and_the_next_one_is_tried(
    script: ScriptedJournal, answers: Answers, call_of: CallOf
) -> None:
    script.broken = JournalUnavailable("server down")
    writer = JournalWriter(script, give_up_s=1.0)
    operations = [look_up(call_of, index) for index in range(1, 1_500)]
    hold_first(writer, script, answers, look_up(call_of, 0))
    for index, operation in enumerate(operations, 1):
        writer.submit(operation, answers.take(index))
    script.held.set()
    answers.wait(1_500)
    assert len(answers.lost()) == 1_500
    lost = answers.by_name["held"]
    assert isinstance(lost, JournalLost)
    assert "server down" in str(lost)
    assert writer.statistics().lost == 1_500
    assert writer.statistics().queued == 0
    assert 1 < len(script.batches) < 10
    script.broken = None
    writer.submit(look_up(call_of, 0), answers.take("later"))
    assert answers.wait(1_501)["later"] == 0


@pytest.mark.rule(24)
@pytest.mark.parametrize("error", [JournalFull("full"), JournalCorrupt("damaged"), JournalRefused("read-only")])
def test_what_will_not_pass_by_itself_is_told_at_once(
    script: ScriptedJournal,
    answers: Answers,
    call_of: CallOf,
    error: JournalError,
    caplog: pytest.LogCaptureFixture,
) -> None:
    script.planned = [error]
    writer = JournalWriter(script)
    hold_first(writer, script, answers, look_up(call_of, 0))
    writer.submit(look_up(call_of, 1), answers.take(1))
    script.held.set()
    answers.wait(2)
    assert answers.lost() == {"held", 1}
    assert len(script.batches) == 1
    assert [record.getMessage() for record in caplog.records] == [f"the journal is lost to 2 operations: {error}"]
    told = answers.by_name[1]
    assert isinstance(told, JournalLost)
    assert told.__cause__ is error


@pytest.mark.parametrize("error", [StateFormat("unreadable"), JournalError("something"), OverflowError("a number")])
def test_one_operation_that_breaks_its_batch_goes_down_alone(
    script: ScriptedJournal, answers: Answers, call_of: CallOf, error: BaseException
) -> None:
    writer = JournalWriter(script)
    hold_first(writer, script, answers, look_up(call_of, 0))
    operations = [look_up(call_of, index) for index in range(1, 6)]
    script.poison = operations[2]
    for index, operation in enumerate(operations):
        writer.submit(operation, answers.take(index))
    script.poisoned = error
    script.held.set()
    answers.wait(6)
    assert answers.lost() == {2}
    told = answers.by_name[2]
    assert isinstance(told, JournalLost)
    assert str(told) == f"not known to be recorded: {error}"
    assert told.__cause__ is error
    assert writer.statistics().lost == 1


def test_an_answer_that_raises_stops_nobody(script: ScriptedJournal, answers: Answers, call_of: CallOf) -> None:
    writer = JournalWriter(script)
    hold_first(writer, script, answers, look_up(call_of, 0))

    def raising(_: Result | JournalLost) -> None:
        raise SystemExit(3)

    writer.submit(look_up(call_of, 1), raising)
    writer.submit(look_up(call_of, 2), answers.take(2))
    script.held.set()
    answers.wait(2)
    writer.submit(look_up(call_of, 3), answers.take(3))
    answers.wait(3)
    assert answers.lost() == set()


def test_waiting_ends_when_all_before_is_applied_or_lost(
    script: ScriptedJournal, answers: Answers, call_of: CallOf
) -> None:
    writer = JournalWriter(script)
    assert writer.wait(DEADLINE_S)
    hold_first(writer, script, answers, look_up(call_of, 0))
    assert not writer.wait(0.05)
    script.held.set()
    assert writer.wait(DEADLINE_S)
    assert set(answers.by_name) == {"held"}
    script.broken = JournalFull("full")
    writer.submit(look_up(call_of, 1), answers.take(1))
    assert writer.wait(DEADLINE_S)
    assert answers.lost() == {1}


def test_marks_of_answered_requests_wait_for_each_other_or_a_while(
    script: ScriptedJournal, answers: Answers, call_of: CallOf
) -> None:
    writer = JournalWriter(script)
    marks: list[Operation] = [Answered("run-1", '"k"', intake, 5) for intake in range(LAZY_OPERATIONS)]
    began = time.monotonic()
    writer.submit(marks[0])
    writer.submit(look_up(call_of, 0), answers.take(0))
    answers.wait(1)
    writer.submit(marks[1], answers.take("asked for"))
    answers.wait(2)
    assert [len(batch) for batch in script.batches] == [1, 1]
    script.entered.clear()
    assert script.entered.wait(DEADLINE_S)
    assert time.monotonic() - began > 0.9
    assert script.batches[2] == [marks[0]]
    # As many as this go at once, behind the work that is there.
    script.held.clear()
    script.entered.clear()
    writer.submit(look_up(call_of, 1), answers.take(1))
    assert script.entered.wait(DEADLINE_S)
    for mark in marks:
        writer.submit(mark)
    writer.submit(look_up(call_of, 2), answers.take(2))
    script.held.set()
    answers.wait(4)
    assert script.batches[4] == [look_up(call_of, 2), *marks]


def test_old_rows_go_in_chunks_between_other_work(script: ScriptedJournal, answers: Answers, call_of: CallOf) -> None:
    script.prunable = 1_200
    writer = JournalWriter(script, retention_ms=1_000, clock=lambda: 50_000, prune_every_s=0.05)
    assert script.prunes.wait(DEADLINE_S)
    writer.submit(look_up(call_of, 0), answers.take(0))
    answers.wait(1)
    assert script.pruned[:3] == [(50_000, 1_000, 500)] * 3
    assert writer.statistics().pruned == 1_200
    script.prunes.clear()
    script.broken = JournalUnavailable("down")
    assert script.prunes.wait(DEADLINE_S)
    script.broken = None
    writer.submit(look_up(call_of, 1), answers.take(1))
    answers.wait(2)


def test_marks_that_come_without_end_wait_for_no_end(
    script: ScriptedJournal, answers: Answers, call_of: CallOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "LAZY_S", 0.0)
    writer = JournalWriter(script)
    hold_first(writer, script, answers, look_up(call_of, 0))
    marks: list[Operation] = [Answered("run-1", '"k"', intake, 5) for intake in range(5)]
    for mark in marks:
        writer.submit(mark)
    writer.submit(look_up(call_of, 1), answers.take(1))
    script.held.set()
    answers.wait(2)
    assert script.batches[1:] == [[mark] for mark in marks] + [[look_up(call_of, 1)]]


def test_an_error_of_its_own_neither_ends_the_writer_nor_is_repeated_at_once(
    script: ScriptedJournal, answers: Answers, call_of: CallOf, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    def clock() -> int:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise ZeroDivisionError
        return 50_000

    began = time.monotonic()
    writer = JournalWriter(script, retention_ms=1_000, clock=clock, prune_every_s=0.05)
    assert script.prunes.wait(DEADLINE_S)
    assert time.monotonic() - began >= 4 * 0.05
    assert script.pruned[0] == (50_000, 1_000, 500)
    assert [record.getMessage() for record in caplog.records] == [
        "the journal's writer goes on after an error of its own"
    ] * 3
    writer.submit(look_up(call_of, 0), answers.take(0))
    assert answers.wait(1) == {0: 0}


@pytest.mark.rule(33, 54)
def test_attempts_that_end_the_same_calls_through_two_writers_get_the_same(
    journal: Journal, open_another: Callable[[], Journal], answers: Answers, call_of: CallOf
) -> None:
    writers = {"first": JournalWriter(journal), "second": JournalWriter(open_another())}
    for index in range(200):
        for attempt_id, writer in writers.items():
            finish = Finish(call_of(index), Succeeded(f'"{attempt_id}"'), 1, attempt_id, 1, 2)
            writer.submit(finish, answers.take((index, attempt_id)))
    answers.wait(400)
    for index in range(200):
        one, other = answers.by_name[index, "first"], answers.by_name[index, "second"]
        assert isinstance(one, StartAnswer)
        assert one.status is StartStatus.TERMINAL
        assert one == other
        assert one.outcome == Succeeded(f'"{one.attempt_id}"')
    assert len(list(journal.calls())) == 200


def test_requests_of_many_threads_all_get_there(journal: Journal, answers: Answers, call_of: CallOf) -> None:
    writer = JournalWriter(journal)

    def submit(key: int) -> None:
        for intake in range(100):
            row = RequestRow("run-1", str(key), intake, f"{key}/{intake}", "d")
            writer.submit(PutRequest(row), answers.take((key, intake)))

    threads = [threading.Thread(target=submit, args=(key,)) for key in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.wait(800)
    for key in range(8):
        assert [row.intake for row in journal.requests_from("run-1", str(key), 0)] == list(range(100))
    assert writer.statistics().commits < 800
