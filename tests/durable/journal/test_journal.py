"""One suite for every journal: what starts, finishes, looks up, numbers requests, leases and prunes."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing

import psycopg
import pytest

from flink_agents import codec
from flink_agents.durable.journal.operations import (
    Answered,
    Finish,
    LookUp,
    MarkFatal,
    Operation,
    PutRequest,
    RenewLease,
    Result,
    Start,
    StartAgain,
)
from flink_agents.durable.journal.postgresql import PostgresqlJournal
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import CallFilter, CallKey, Lease, RequestRow, RunRow, StartAnswer, StartStatus
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.journal.stored import outcome_text
from flink_agents.durable.outcome import Failed, Outcome, Succeeded
from flink_agents.durable.slots import SlotStatus
from flink_agents.errors import RunInUse, RunUnknown
from flink_agents.failures import capture

RUN = "run-1"
CallOf = Callable[..., CallKey]


def finish(call: CallKey, outcome: Outcome, attempt_id: str = "first", attempts: int = 1) -> Finish:
    return Finish(call, outcome, attempts, attempt_id, 100, 200)


def one(journal: Journal, operation: Operation) -> Result:
    (result,) = journal.apply([operation])
    return result


def asked(journal: Journal, operation: Operation) -> StartAnswer:
    result = one(journal, operation)
    assert isinstance(result, StartAnswer)
    return result


def digest_of(request_id: str) -> str:
    return codec.digest(request_id)


def put(journal: Journal, intake: int, request_id: str, key: str = '"k"') -> Result:
    return one(journal, PutRequest(RequestRow(RUN, key, intake, request_id, digest_of(request_id))))


@pytest.mark.rule(15)
def test_a_call_that_nobody_began_is_fresh(journal: Journal, call_of: CallOf) -> None:
    assert asked(journal, LookUp(call_of())) == StartAnswer(StartStatus.FRESH)
    assert asked(journal, Start(call_of(), "first", 5)) == StartAnswer(StartStatus.FRESH, 1, 0, "first")


@pytest.mark.rule(15, 16)
def test_a_call_begun_by_an_earlier_attempt_is_in_doubt_until_it_begins_again(
    journal: Journal, call_of: CallOf
) -> None:
    call = call_of()
    one(journal, Start(call, "first", 5))
    in_doubt = StartAnswer(StartStatus.IN_DOUBT, 1, 0, "first")
    assert asked(journal, Start(call, "second", 6)) == in_doubt
    assert asked(journal, LookUp(call)) == in_doubt
    # Deciding took so long that the attempt was lost: it is in doubt for the next one too, with no body counted twice.
    assert asked(journal, Start(call, "third", 7)) == in_doubt
    assert asked(journal, StartAgain(call, "third", 2, 8)) == StartAnswer(StartStatus.FRESH, 2, 0, "third")
    assert asked(journal, Start(call, "third", 9)) == StartAnswer(StartStatus.FRESH, 2, 0, "third")


@pytest.mark.rule(16)
def test_only_what_began_is_in_doubt(journal: Journal, call_of: CallOf) -> None:
    journal.apply([Start(call_of(index), "first", 5) for index in (17, 63)])
    answers = journal.apply([Start(call_of(index), "second", 6) for index in range(100)])
    statuses = [answer.status for answer in answers if isinstance(answer, StartAnswer)]
    assert [index for index, status in enumerate(statuses) if status is StartStatus.IN_DOUBT] == [17, 63]
    assert statuses.count(StartStatus.FRESH) == 98


@pytest.mark.rule(33, 54)
def test_an_attempt_that_is_over_does_not_begin_what_a_later_one_began(journal: Journal, call_of: CallOf) -> None:
    one(journal, Start(call_of(0), "first", 5))
    one(journal, StartAgain(call_of(0), "second", 2, 6))
    one(journal, Start(call_of(1), "second", 6))
    over: list[Operation] = [
        Start(call_of(0), "first", 7),
        StartAgain(call_of(0), "first", 9, 7),
        Start(call_of(1), "first", 7),
    ]
    for operation in over:
        assert asked(journal, operation).status is StartStatus.SUPERSEDED
    rows = list(journal.calls())
    assert [(row.attempts, row.first_attempt_id, row.attempt_id) for row in rows] == [
        (2, "first", "second"),
        (1, "second", "second"),
    ]


@pytest.mark.rule(33, 54)
def test_the_first_outcome_stands_and_both_get_it(journal: Journal, call_of: CallOf) -> None:
    call = call_of()
    one(journal, Start(call, "first", 5))
    one(journal, StartAgain(call, "second", 2, 6))
    stands = StartAnswer(StartStatus.TERMINAL, 2, 0, "first", Succeeded('{"n":1.0}'))
    assert asked(journal, finish(call, Succeeded('{"n":1.0}'))) == stands
    assert asked(journal, finish(call, Succeeded('{"n":2}'), "second", 2)) == stands
    assert asked(journal, finish(call, Failed(capture(ValueError("no"))), "second", 2)) == stands
    later: list[Operation] = [LookUp(call), Start(call, "third", 9), StartAgain(call, "third", 3, 9)]
    for operation in later:
        assert asked(journal, operation) == stands


@pytest.mark.rule(33, 54)
def test_the_first_outcome_stands_within_one_batch(journal: Journal, call_of: CallOf) -> None:
    outcomes = [Succeeded("1"), Succeeded("2"), Succeeded("3")]
    answers = journal.apply([finish(call_of(), outcome, f"by {outcome.text}") for outcome in outcomes])
    assert [answer.outcome for answer in answers if isinstance(answer, StartAnswer)] == [Succeeded("1")] * 3


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded("null"),
        Succeeded('""'),
        Succeeded("0"),
        Succeeded('{"b":1,"a":[1.0,1e22]}'),
        Succeeded('"nul \\u0000, quote \\", é, 🎈"'),
        Succeeded('"' + "x" * 2_000_000 + '"'),
        Failed(capture(TimeoutError("it took too long\x00"))),
    ],
    ids=["null", "empty", "zero", "object", "characters", "2 MB", "failure"],
)
def test_an_outcome_comes_back_as_it_was_given(
    journal: Journal, open_another: Callable[[], Journal], call_of: CallOf, outcome: Outcome
) -> None:
    call = call_of(tool="nul \x00 é '; DROP TABLE calls")
    for _ in range(2):
        assert asked(journal, finish(call, outcome)).outcome is outcome
    found = asked(open_another(), LookUp(call))
    assert found.outcome == outcome
    assert found.outcome is not outcome
    (row,) = journal.calls()
    assert (row.call, row.outcome) == (call, outcome)


@pytest.mark.rule(45)
def test_retries_count_in_the_row(journal: Journal, call_of: CallOf) -> None:
    call = call_of()
    one(journal, Start(call, "first", 5))
    one(journal, StartAgain(call, "first", 2, 6))
    assert asked(journal, StartAgain(call, "first", 3, 7)).attempts == 3
    assert asked(journal, Start(call, "second", 8)) == StartAnswer(StartStatus.IN_DOUBT, 3, 0, "first")
    assert asked(journal, finish(call, Succeeded("1"), "second", 4)).attempts == 4
    (row,) = journal.calls()
    assert (row.first_started_ms, row.started_ms, row.ended_ms) == (5, 100, 200)


@pytest.mark.rule(15, 45)
def test_counts_and_the_order_of_attempts_survive_the_process(
    journal: Journal, open_another: Callable[[], Journal], call_of: CallOf
) -> None:
    """A retry waits and its process dies: the row knows how often the body ran, and which attempts come after which."""
    call = call_of()
    journal.apply([Start(call, "second", 5), StartAgain(call, "second", 2, 6), StartAgain(call, "second", 3, 7)])
    journal.close()
    later = open_another()
    assert later.open_attempt(RUN, "fourth", 0, 1) is False
    assert asked(later, LookUp(call)) == StartAnswer(StartStatus.IN_DOUBT, 3, 0, "second")
    assert asked(later, Start(call, "first", 8)) == StartAnswer(StartStatus.SUPERSEDED, 3, 0, "second")
    assert asked(later, StartAgain(call, "fourth", 4, 9)) == StartAnswer(StartStatus.FRESH, 4, 0, "fourth")
    assert asked(open_another(), Start(call, "third", 10)) == StartAnswer(StartStatus.SUPERSEDED, 4, 0, "fourth")


@pytest.mark.rule(43)
def test_an_attempt_is_counted_once_for_the_call_that_brought_it_down(journal: Journal, call_of: CallOf) -> None:
    started, unknown = call_of(0), call_of(1)
    one(journal, Start(started, "first", 5))
    for call in (started, unknown):
        assert [one(journal, MarkFatal(call, by, 6)) for by in ("first", "first", "second", "first")] == [1, 1, 2, 2]
        assert journal.apply([MarkFatal(call, "third", 7), MarkFatal(call, "third", 7)]) == [3, 3]
        assert asked(journal, Start(call, "fourth", 8)).fatal_attempts == 3
    rows = [(row.attempts, row.first_started_ms, row.started_ms, row.ended_ms) for row in journal.calls()]
    assert rows == [(1, 5, 5, 0), (1, 6, 6, 0)]
    assert asked(journal, finish(started, Failed(capture(MemoryError())), "third")).fatal_attempts == 3
    assert one(journal, MarkFatal(started, "fifth", 9)) == 3


def every_operation(call_of: CallOf) -> list[Operation]:
    ended, begun, fresh = call_of(0), call_of(1), call_of(2)
    return [
        PutRequest(RequestRow(RUN, '"k"', 1, "a", "d")),
        LookUp(ended),
        Start(ended, "first", 5),
        Start(begun, "first", 5),
        StartAgain(ended, "first", 2, 6),
        MarkFatal(begun, "first", 6),
        Finish(ended, Succeeded("1"), 2, "first", 6, 7),
        Finish(fresh, Failed(capture(ValueError("no"))), 1, "first", 6, 7),
        Answered(RUN, '"k"', 1, 50),
        RenewLease(RUN, "job", 1000, 60),
    ]


@pytest.mark.rule(24, 33)
@pytest.mark.parametrize("known", [False, True], ids=["all new", "one known"])
def test_many_requests_and_outcomes_at_once(journal: Journal, call_of: CallOf, known: bool) -> None:
    if known:
        one(journal, finish(call_of(70), Succeeded('"first"')))
    rows = [RequestRow(RUN, '"k"', intake, f"r{intake}", "d") for intake in range(1, 131)]
    ends = [finish(call_of(index), Succeeded(str(index)), "second") for index in range(130)]
    answers = journal.apply([*map(PutRequest, rows), *ends])
    assert answers[:130] == rows
    outcomes = [answer.outcome for answer in answers[130:] if isinstance(answer, StartAnswer)]
    assert outcomes == [Succeeded('"first"') if known and n == 70 else Succeeded(str(n)) for n in range(130)]
    assert len(list(journal.calls())) == 130
    assert journal.requests_from(RUN, '"k"', 1) == rows


@pytest.mark.rule(24)
def test_a_batch_may_be_applied_again(journal: Journal, call_of: CallOf) -> None:
    """The commit's answer was lost with the connection: the repeated batch changes nothing."""
    journal.acquire_lease(RUN, "job", 1000, 0)
    operations = every_operation(call_of)
    journal.apply(operations)
    before = list(journal.calls())
    again = journal.apply(operations)
    assert list(journal.calls()) == before
    assert [row.attempts for row in before] == [2, 1, 1]
    # What is asked first is answered with what is known by now; everything else as the first time.
    ended = StartAnswer(StartStatus.TERMINAL, 2, 0, "first", Succeeded("1"))
    assert again[1:3] == [ended, ended]
    assert again[6] == ended
    assert journal.apply(operations) == again


@pytest.mark.rule(24)
@pytest.mark.parametrize("count", range(1, 11))
def test_a_batch_may_follow_a_part_of_itself(journal: Journal, call_of: CallOf, count: int) -> None:
    operations = every_operation(call_of)
    journal.apply(operations[:count])
    journal.apply(operations)
    assert [(row.status, row.attempts, row.fatal_attempts) for row in journal.calls()] == [
        (SlotStatus.SUCCEEDED, 2, 0),
        (SlotStatus.STARTED, 1, 1),
        (SlotStatus.FAILED, 1, 0),
    ]


def test_the_answers_stand_in_the_order_of_the_batch(journal: Journal, call_of: CallOf) -> None:
    one(journal, finish(call_of(1), Succeeded("1")))
    one(journal, Start(call_of(2), "first", 1))
    operations = [
        operation
        for index in range(4)
        for operation in (
            LookUp(call_of(index)),
            Start(call_of(index), "second", 2),
            PutRequest(RequestRow(RUN, '"k"', index, f"{index}", "d")),
            finish(call_of(index), Succeeded(f"{index}0"), "second"),
        )
    ]
    answers = journal.apply(operations)
    assert [answer.request_id for answer in answers[2::4] if isinstance(answer, RequestRow)] == ["0", "1", "2", "3"]
    ends = [answer.outcome for answer in answers[3::4] if isinstance(answer, StartAnswer)]
    assert ends == [Succeeded("00"), Succeeded("1"), Succeeded("20"), Succeeded("30")]
    assert journal.apply([]) == []


@pytest.mark.rule(10, 26)
def test_keys_of_any_type_and_length_are_kept_apart(journal: Journal, call_of: CallOf) -> None:
    keys = ["1", '"1"', "true", '""', '"' + "k" * 10_000 + '"', '"' + "k" * 9_999 + 'l"', '"\\u0000"', '"é\\n"']
    for number, key in enumerate(keys):
        put(journal, 1, f"request {number}", key)
        one(journal, finish(call_of(key=key), Succeeded(str(number))))
    for number, key in enumerate(keys):
        assert [row.request_id for row in journal.requests_from(RUN, key, 1)] == [f"request {number}"]
        assert asked(journal, LookUp(call_of(key=key))).outcome == Succeeded(str(number))
        assert [row.call.key for row in journal.calls(CallFilter(key=key))] == [key]


def test_requests_come_back_by_number(journal: Journal, open_another: Callable[[], Journal]) -> None:
    for intake, request_id in ((3, "c"), (1, "a"), (5, "nul \x00"), (2, "b")):
        assert put(journal, intake, request_id) == RequestRow(RUN, '"k"', intake, request_id, digest_of(request_id))
    put(journal, 4, "of another key", '"l"')

    def numbers(intake: int, also: Sequence[int] = ()) -> list[int]:
        return [row.intake for row in journal.requests_from(RUN, '"k"', intake, also)]

    assert numbers(1) == [1, 2, 3, 5]
    assert numbers(3) == [3, 5]
    assert numbers(5, [1, 3, 4, 5]) == [1, 3, 5]
    assert numbers(6) == []
    assert journal.requests_from("another run", '"k"', 1) == []
    assert open_another().requests_from(RUN, '"k"', 5)[0].request_id == "nul \x00"


@pytest.mark.rule(33)
def test_a_number_belongs_to_the_request_that_got_it_first(journal: Journal) -> None:
    first = put(journal, 1, "a")
    assert put(journal, 1, "a") == first
    assert put(journal, 1, "b") == first
    assert [row.request_id for row in journal.requests_from(RUN, '"k"', 1)] == ["a"]


def test_an_attempt_may_skip_look_ups_only_where_nobody_can_have_been(open_another: Callable[[], Journal]) -> None:
    journal = open_another()
    for run_id in ("run-a", "run-b"):
        journal.create_run(RunRow(run_id, "job", 1))
    opened = [
        ("run-a", "a0", 0, 2, True),
        ("run-a", "a1", 1, 2, True),
        ("run-a", "a0 again", 0, 2, False),
        ("run-a", "a2", 2, 3, False),
        ("run-b", "b0", 0, 2, True),
    ]
    for run_id, attempt_id, subtask, parallelism, nothing_there in opened:
        assert journal.open_attempt(run_id, attempt_id, subtask, parallelism) is nothing_there
    for run_id, attempt_id, subtask, parallelism, nothing_there in opened:
        assert open_another().open_attempt(run_id, attempt_id, subtask, parallelism) is nothing_there


def test_runs_are_found_and_kept_as_they_were_created(journal: Journal) -> None:
    journal.create_run(RunRow(RUN, "renamed", 2_000))
    assert journal.find_run(RUN) == RunRow(RUN, "support-tools", 1_000)
    assert journal.find_run("nobody's") is None
    with pytest.raises(RunUnknown, match=unknown_to(journal)):
        journal.open_attempt("nobody's", "x", 0, 1)


def unknown_to(journal: Journal) -> str:
    said = f"the journal {journal.place} does not know run nobody's: the job was submitted with another journal"
    return f"^{re.escape(said)}"


def test_a_run_has_one_live_owner(journal: Journal, open_another: Callable[[], Journal]) -> None:
    other = open_another()
    assert (journal.find_lease(RUN), journal.find_lease("nobody's")) == (None, None)
    journal.acquire_lease(RUN, "job 1 on host-a", 10_000, 0)
    assert other.find_lease(RUN) == Lease("job 1 on host-a", 10_000)
    journal.acquire_lease(RUN, "job 1 on host-a", 10_000, 1_000)
    with pytest.raises(RunInUse, match=r"run run-1 is in use by job 1 on host-a; its lease runs for another 8\.5 s"):
        other.acquire_lease(RUN, "job 2", 10_000, 2_500)
    with pytest.raises(RunInUse, match=r"run run-1 is in use by job 1 on host-a; its lease runs for another 8\.5 s"):
        other.renew_lease(RUN, "job 2", 10_000, 2_500)
    other.release_lease(RUN, "job 2")
    journal.renew_lease(RUN, "job 1 on host-a", 10_000, 5_000)
    assert other.find_lease(RUN) == Lease("job 1 on host-a", 15_000)
    with pytest.raises(RunInUse):
        other.acquire_lease(RUN, "job 2", 10_000, 14_999)
    other.acquire_lease(RUN, "job 2", 10_000, 15_000)
    with pytest.raises(RunInUse, match="job 2"):
        journal.renew_lease(RUN, "job 1 on host-a", 10_000, 15_001)
    (lost,) = journal.apply([RenewLease(RUN, "job 1 on host-a", 10_000, 15_001)])
    assert isinstance(lost, RunInUse)
    assert str(lost).startswith("run run-1 is in use by job 2; its lease runs for another 10.0 s unless")
    assert other.apply([RenewLease(RUN, "job 2", 10_000, 15_002)]) == [None]
    assert journal.find_lease(RUN) == Lease("job 2", 25_002)
    other.release_lease(RUN, "job 2")
    assert journal.find_lease(RUN) is None
    with pytest.raises(RunInUse, match="was given back"):
        other.renew_lease(RUN, "job 2", 10_000, 15_003)
    journal.acquire_lease(RUN, "job 3", 10_000, 15_004)
    for name in ("acquire_lease", "renew_lease"):
        with pytest.raises(RunUnknown, match=unknown_to(journal)):
            getattr(journal, name)("nobody's", "job 1", 1, 1)
    (unknown,) = journal.apply([RenewLease("nobody's", "job", 1, 1)])
    assert isinstance(unknown, RunUnknown)
    assert re.match(unknown_to(journal), str(unknown))


def test_only_answered_requests_go_and_not_before_their_time(journal: Journal, call_of: CallOf) -> None:
    for intake in (1, 2, 3, 4):
        put(journal, intake, f"r{intake}")
        one(journal, finish(call_of(intake=intake), Succeeded("1")))
    put(journal, 1, "of another key", '"l"')
    # The mark of the first one was lost; that of the second, in one batch with its request's row, makes up for it.
    journal.apply([Answered(RUN, '"k"', 2, 1_000), Answered(RUN, '"k"', 3, 3_000)])
    journal.apply([Answered(RUN, '"k"', 3, 9_000)])

    def left() -> tuple[list[int], list[int]]:
        return [row.intake for row in journal.requests_from(RUN, '"k"', 1)], [r.call.intake for r in journal.calls()]

    assert journal.prune(1_999, 1_000) == 0
    assert journal.prune(2_000, 1_000, limit=1) == 1
    assert journal.prune(2_000, 1_000) in (1, 2)
    assert journal.prune(10_000, 1_000) in (0, 1)
    assert left() == ([4], [4])
    assert len(journal.requests_from(RUN, '"l"', 1)) == 1


@pytest.mark.rule(33, 54)
def test_attempts_go_and_what_they_say_stays(
    journal: Journal, open_another: Callable[[], Journal], call_of: CallOf
) -> None:
    journal.open_attempt(RUN, "of another subtask", 1, 1)
    begun = call_of(0)
    one(journal, Start(begun, "second", 5))
    for attempt_id in ("fourth", "fifth"):
        journal.open_attempt(RUN, attempt_id, 0, 1)
    assert attempts_in(journal) == ["first", "second", "third", "of another subtask", "fourth", "fifth"]
    journal.prune(1_000, 1_000)
    assert attempts_in(journal) == ["of another subtask", "fourth", "fifth"]
    # Both are over: the one that began the call, and one from before that.
    for attempt_id in ("first", "third"):
        assert asked(journal, Start(begun, attempt_id, 6)).status is StartStatus.SUPERSEDED
        assert asked(journal, StartAgain(begun, attempt_id, 9, 6)).status is StartStatus.SUPERSEDED
    in_doubt = StartAnswer(StartStatus.IN_DOUBT, 1, 0, "second")
    assert asked(journal, LookUp(begun)) == in_doubt
    assert asked(journal, Start(begun, "fifth", 7)) == in_doubt
    # Asked again by the last one, and by new ones, it knows that there were others.
    other = open_another()
    assert [other.open_attempt(RUN, attempt_id, 0, 1) for attempt_id in ("fifth", "sixth")] == [False, False]
    assert other.open_attempt(RUN, "of another parallelism", 1, 2) is False


def attempts_in(journal: Journal) -> list[str]:
    """Return the ids of the registered attempts, in their order."""
    if isinstance(journal, SqliteJournal):
        with closing(sqlite3.connect(journal.path)) as connection:
            return [row[0] for row in connection.execute("SELECT attempt_id FROM attempts ORDER BY opened")]
    assert isinstance(journal, PostgresqlJournal)
    with psycopg.connect(journal._address.dsn) as connection:
        return [row[0] for row in connection.execute("SELECT attempt_id FROM flink_agents.attempts ORDER BY opened")]


def test_calls_are_listed_by_what_is_wanted(journal: Journal, call_of: CallOf) -> None:
    journal.create_run(RunRow("run-2", "job", 1))
    for intake, request_id in ((1, "a"), (2, "b")):
        put(journal, intake, request_id)
    one(journal, finish(call_of(1, intake=2), Failed(capture(ValueError("no")))))
    one(journal, finish(call_of(0, intake=2), Succeeded("1")))
    one(journal, Start(call_of(0, intake=1), "first", 5))
    one(journal, Start(call_of(0, key="7"), "first", 5))
    one(journal, Start(call_of(0, run_id="run-2"), "first", 5))

    def listed(**wanted: object) -> list[tuple[str, str, int, int]]:
        rows = journal.calls(CallFilter(**wanted))  # type: ignore[arg-type]
        return [(row.call.run_id, row.call.key, row.call.intake, row.call.index) for row in rows]

    k1, k2, k3 = (RUN, '"k"', 1, 0), (RUN, '"k"', 2, 0), (RUN, '"k"', 2, 1)
    seven, other = (RUN, "7", 1, 0), ("run-2", '"k"', 1, 0)
    assert listed() == [k1, k2, k3, seven, other]
    assert listed(run_id="run-2") == [other]
    assert listed(key="7") == [seven]
    assert listed(request_id="b") == [k2, k3]
    assert listed(status=SlotStatus.STARTED, run_id=RUN) == [k1, seven]
    assert listed(status=SlotStatus.FAILED, request_id="b", key='"k"') == [k3]
    assert [row.request_id for row in journal.calls()] == ["a", "b", "b", None, None]
    assert len(list(itertools.islice(journal.calls(), 1))) == 1


@pytest.mark.parametrize("outcome", [Succeeded("[1, 2]"), Failed(capture(ValueError("no")))])
def test_the_outcome_of_one_call_is_read_without_the_other_rows_of_its_key(
    journal: Journal, call_of: CallOf, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert journal.outcome_of(call_of()) is None  # also where this is the first thing the journal is asked
    one(journal, finish(call_of(0, intake=2), Succeeded("7")))
    one(journal, finish(call_of(1), Succeeded("8")))
    one(journal, finish(call_of(0, run_id="run-2"), Succeeded("9")))
    assert journal.outcome_of(call_of()) is None
    one(journal, Start(call_of(), "first", 5))
    assert journal.outcome_of(call_of()) is None
    one(journal, finish(call_of(), outcome))
    monkeypatch.setattr(type(journal), "calls", None)
    found = journal.outcome_of(call_of())
    assert (type(found), found and outcome_text(found)) == (type(outcome), outcome_text(outcome))
    assert journal.outcome_of(call_of(1)) == Succeeded("8")


def test_a_closed_journal_opens_again(journal: Journal, call_of: CallOf) -> None:
    one(journal, finish(call_of(), Succeeded("1")))
    journal.close()
    journal.close()
    assert asked(journal, LookUp(call_of())).outcome == Succeeded("1")
    assert journal.requests_from(RUN, '"k"', 1) == []
