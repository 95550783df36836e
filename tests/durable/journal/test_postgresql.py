"""The PostgreSQL journal in trouble, on a real server: what cannot be reached, is refused, is lost and comes back."""

from __future__ import annotations

import logging
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest

from flink_agents.durable.journal.operations import Finish, LookUp, Operation, PutRequest, Result
from flink_agents.durable.journal.postgresql import PostgresqlJournal
from flink_agents.durable.journal.postgresql_batch import Batch
from flink_agents.durable.journal.rows import CallKey, RequestRow, RunRow, StartAnswer, StartStatus
from flink_agents.durable.journal.writer import JournalWriter
from flink_agents.durable.outcome import Succeeded
from flink_agents.errors import (
    JournalCorrupt,
    JournalError,
    JournalFormat,
    JournalLost,
    JournalRefused,
    JournalUnavailable,
)

if TYPE_CHECKING:
    from tests.conftest import PostgresServer

CallOf = Callable[..., CallKey]
SECRET = "n0t-for-logs"
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def no_password_in_logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert SECRET not in caplog.text


def failure(dsn: str) -> JournalError:
    with closing(PostgresqlJournal(dsn)) as journal, pytest.raises(JournalError) as raised:
        journal.create_run(RunRow("run-1", "job", 1))
    return raised.value


def told(error: BaseException) -> str:
    """Everything that a log would show of the error, its chain included."""
    return "".join(traceback.format_exception(error))


def with_run(dsn: str) -> PostgresqlJournal:
    journal = PostgresqlJournal(dsn)
    journal.create_run(RunRow("run-1", "job", 1))
    return journal


def finish(call: CallKey, text: str = "1") -> Finish:
    return Finish(call, Succeeded(text), 1, "first", 1, 2)


def recorded(journal: PostgresqlJournal, call: CallKey) -> bool:
    (answer,) = journal.apply([LookUp(call)])
    return isinstance(answer, StartAnswer) and answer.status is StartStatus.TERMINAL


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid"])
def test_a_server_that_is_not_there(host: str) -> None:
    error = failure(f"postgresql://tester:{SECRET}@{host}/journal")
    assert type(error) is JournalUnavailable
    assert f"the journal postgresql://tester@{host}/journal: the server cannot be reached" in str(error)
    assert SECRET not in told(error)


def test_a_login_that_is_refused(postgres: PostgresServer) -> None:
    for dsn in (postgres.dsn("postgres", password="wr0ng-one"), postgres.dsn("postgres", user="nobody")):
        error = failure(dsn)
        assert type(error) is JournalRefused
        assert "the server refuses the login" in str(error)
        assert "wr0ng-one" not in told(error)
        assert SECRET not in told(error)


def test_a_database_that_does_not_exist(postgres: PostgresServer) -> None:
    error = failure(postgres.dsn("nowhere"))
    assert type(error) is JournalRefused
    assert "there is no such database: create it first" in str(error)


@pytest.mark.parametrize(
    "dsn", [f"host=127.0.0.1 {SECRET}", f"postgresql://u@h/d?{SECRET}=1", f"postgresql://u:{SECRET}@["]
)
def test_a_dsn_that_cannot_be_read_is_not_quoted(dsn: str) -> None:
    with pytest.raises(JournalRefused, match="neither a postgresql:// URI nor a list of key=value pairs") as raised:
        PostgresqlJournal(dsn)
    assert raised.value.__context__ is None
    assert SECRET not in str(raised.value)


def test_the_password_of_the_environment_is_not_shown_either(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    dsn = postgres.database().replace(f":{SECRET}", "")
    with closing(with_run(dsn)) as journal:
        assert SECRET not in repr(journal._address)
        assert SECRET not in journal.place


def test_a_user_who_may_not_create_the_schema(postgres: PostgresServer) -> None:
    dsn = postgres.database()
    database = dsn.rpartition("/")[2]
    postgres.execute(f"CREATE ROLE visitor_{database} LOGIN PASSWORD '{SECRET}'")
    theirs = postgres.dsn(database, user=f"visitor_{database}")
    error = failure(theirs)
    assert type(error) is JournalRefused
    assert "let it create a schema in the database, or create the schema flink_agents for it" in str(error)
    postgres.execute(f"CREATE SCHEMA flink_agents AUTHORIZATION visitor_{database}", database)
    with_run(theirs).close()


def test_a_newer_format_is_refused(postgres: PostgresServer) -> None:
    dsn = postgres.database()
    with_run(dsn).close()
    postgres.execute("UPDATE flink_agents.journal_format SET version = 2", dsn.rpartition("/")[2])
    with pytest.raises(JournalFormat, match="has format 2, this release reads up to 1"):
        with_run(dsn)


def test_tables_that_are_gone(postgres: PostgresServer, call_of: CallOf) -> None:
    dsn = postgres.database()
    with closing(with_run(dsn)) as journal:
        postgres.execute("DROP SCHEMA flink_agents CASCADE", dsn.rpartition("/")[2])
        with pytest.raises(JournalCorrupt, match="tables are gone"):
            journal.apply([finish(call_of())])


@pytest.mark.rule(24)
def test_a_commit_that_the_server_answers_with_a_rollback_records_nothing(
    postgres: PostgresServer, call_of: CallOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_done(batch: Batch) -> list[Result]:
        done = run(batch)
        with suppress(psycopg.Error):
            batch._connection.execute("SELECT 1 / 0")
        return done

    run = Batch.run
    dsn = postgres.database()
    with closing(with_run(dsn)) as journal:
        # A pipeline would have said so before.
        monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
        monkeypatch.setattr(Batch, "run", half_done)
        with pytest.raises(JournalError) as raised:
            journal.apply([finish(call_of())])
        assert type(raised.value) is JournalError
        assert str(raised.value) == f"the journal {journal.place}: the server answered ROLLBACK to a commit"
        monkeypatch.setattr(Batch, "run", run)
        assert not recorded(journal, call_of())
        journal.apply([finish(call_of())])
        assert recorded(journal, call_of())


def test_what_is_read_first_makes_the_tables_too(postgres: PostgresServer) -> None:
    with closing(PostgresqlJournal(postgres.database())) as journal:
        assert journal.requests_from("run-1", '"k"', 1) == []
        assert list(journal.calls()) == []


def test_many_create_the_tables_at_once(postgres: PostgresServer) -> None:
    dsn = postgres.database()
    journals = [PostgresqlJournal(dsn) for _ in range(6)]
    failed: list[BaseException] = []

    def create(journal: PostgresqlJournal) -> None:
        try:
            journal.create_run(RunRow("run-1", "job", 1))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=create, args=(journal,)) for journal in journals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for journal in journals:
        journal.close()
    assert failed == []


def sessions(dsn: str) -> list[int]:
    """The server processes of the journal's connections."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'flink-agents'"
        )
        return [pid for (pid,) in rows]


@pytest.mark.rule(24)
def test_a_connection_lost_within_a_transaction_records_nothing_and_is_opened_again(
    postgres: PostgresServer, call_of: CallOf
) -> None:
    dsn = postgres.database()
    with closing(with_run(dsn)) as journal, psycopg.connect(dsn) as other:
        journal.apply([finish(call_of(0))])
        # Another session holds a row that the batch needs, so the batch is in the midst of its transaction.
        other.execute("SELECT * FROM flink_agents.calls FOR UPDATE")
        other.execute("LOCK TABLE flink_agents.requests")
        errors: list[BaseException] = []

        def apply() -> None:
            request = PutRequest(RequestRow("run-1", '"k"', 1, "a", "d"))
            try:
                journal.apply([finish(call_of(1)), request])
            except JournalError as error:
                errors.append(error)

        thread = threading.Thread(target=apply)
        thread.start()
        (pid,) = sessions(dsn)
        waiting = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"
        deadline = time.monotonic() + DEADLINE_S
        while other.execute(waiting, (pid,)).fetchone() != (1,):
            assert time.monotonic() < deadline
        other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        thread.join(DEADLINE_S)
        other.rollback()
        assert [type(error) for error in errors] == [JournalUnavailable]
        assert not recorded(journal, call_of(1))
        journal.apply([finish(call_of(1))])
        assert recorded(journal, call_of(1))


@pytest.mark.rule(33)
def test_a_process_that_is_frozen_within_a_transaction_does_not_stop_the_others(
    postgres: PostgresServer, call_of: CallOf
) -> None:
    dsn = postgres.database()
    with closing(with_run(dsn)) as journal, closing(PostgresqlJournal(dsn)) as other:
        frozen = other._connect()
        frozen.execute("BEGIN")
        frozen.execute("INSERT INTO flink_agents.runs VALUES ('run-2', 'job', 1)")
        journal.create_run(RunRow("run-2", "job", 1))
        assert journal.find_run("run-2") == RunRow("run-2", "job", 1)
        with pytest.raises(psycopg.Error, match="idle-in-transaction timeout"):
            frozen.execute("COMMIT")
        frozen.close()


@pytest.mark.rule(24, 49)
def test_stopped_and_started_again_under_load(own_postgres: PostgresServer, call_of: CallOf) -> None:
    with closing(with_run(own_postgres.database())) as journal:
        journal.requests_from("run-1", '"k"', 1)
        writer = JournalWriter(journal)
        answers: dict[int, object] = {}
        open_calls = threading.Semaphore(50)
        stop = threading.Event()
        count = 0

        def load() -> None:
            nonlocal count
            while not stop.is_set():
                index = count
                count += 1
                open_calls.acquire()

                def on_done(answer: object, index: int = index) -> None:
                    answers[index] = answer
                    open_calls.release()

                writer.submit(finish(call_of(index), str(index)), on_done)

        def answered(number: int) -> None:
            deadline = time.monotonic() + DEADLINE_S
            while len(answers) < number:
                assert time.monotonic() < deadline
                stop.wait(0.005)

        thread = threading.Thread(target=load)
        thread.start()
        for how in (signal.SIGQUIT, signal.SIGINT):
            answered(len(answers) + 200)
            own_postgres.stop(how)
            own_postgres.start()
        answered(len(answers) + 200)
        stop.set()
        thread.join(DEADLINE_S)
        assert writer.wait(DEADLINE_S)
        assert writer.statistics().retries >= 2
        assert writer.statistics().lost == 0
        expected = {index: Succeeded(str(index)) for index in range(count)}
        assert {n: answer.outcome for n, answer in answers.items() if isinstance(answer, StartAnswer)} == expected
        assert {row.call.index: row.outcome for row in journal.calls()} == expected
        # The connections that read were lost as well.
        assert journal.requests_from("run-1", '"k"', 1) == []


@pytest.mark.rule(24)
def test_a_server_that_stays_away_is_told_in_time_and_used_again_when_it_is_back(
    own_postgres: PostgresServer, call_of: CallOf
) -> None:
    with closing(PostgresqlJournal(own_postgres.database(), read_timeout_s=0.5)) as journal:
        journal.create_run(RunRow("run-1", "job", 1))
        assert journal.requests_from("run-1", '"k"', 1) == []
        writer = JournalWriter(journal, give_up_s=1.0)
        own_postgres.stop()
        answers: list[object] = []
        operations: list[Operation] = [finish(call_of(index)) for index in range(20)]
        for operation in operations:
            writer.submit(operation, answers.append)
        began = time.monotonic()
        with pytest.raises(JournalUnavailable):
            journal.requests_from("run-1", '"k"', 1)
        assert time.monotonic() - began < 10
        assert writer.wait(DEADLINE_S)
        assert [type(answer) for answer in answers] == [JournalLost] * 20
        own_postgres.start()
        writer.submit(operations[0], answers.append)
        assert writer.wait(DEADLINE_S)
        assert isinstance(answers[-1], StartAnswer)
        assert [row.call.index for row in journal.calls()] == [0]
        assert journal.requests_from("run-1", '"k"', 1) == []
