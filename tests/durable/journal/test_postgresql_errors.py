"""What PostgreSQL says, told as the project's errors; where a journal is, told without its secrets. Needs no server."""

from __future__ import annotations

import psycopg
import pytest

from flink_agents.durable.journal.postgresql_errors import Address, translated
from flink_agents.errors import (
    JournalCorrupt,
    JournalError,
    JournalFull,
    JournalRefused,
    JournalUnavailable,
)

SECRET = "n0t-for-logs"
ADDRESS = Address(f"postgresql://u:{SECRET}@h/d")


@pytest.mark.parametrize(
    ("dsn", "place"),
    [
        (f"postgresql://u:{SECRET}@h:5433/d", "postgresql://u@h:5433/d"),
        (f"postgresql://u:{SECRET}@h/d?sslpassword={SECRET}", "postgresql://u@h/d"),
        (f"host=h port=5433 user=u dbname=d password={SECRET}", "postgresql://u@h:5433/d"),
        ("host=h hostaddr=10.0.0.1 dbname=d", "postgresql://h/d"),
        ("hostaddr=10.0.0.1 dbname=d", "postgresql://10.0.0.1/d"),
        ("dbname=d", "postgresql:///d"),
        ("", "postgresql:///"),
    ],
)
def test_a_place_names_user_host_port_and_database(dsn: str, place: str) -> None:
    address = Address(dsn)
    assert (address.dsn, address.place, repr(address)) == (dsn, place, f"Address('{place}')")


@pytest.mark.parametrize(
    ("dsn", "environment"),
    [
        (f"postgresql://u:{SECRET}@h/d", None),
        (f"host=h password={SECRET}", None),
        (f"host=h sslpassword={SECRET}", None),
        ("host=h", SECRET),
        ("host=h password=another", SECRET),
    ],
)
def test_no_password_stays_in_a_text(dsn: str, environment: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    if environment is not None:
        monkeypatch.setenv("PGPASSWORD", environment)
    address = Address(dsn)
    assert address.redacted(f"login of u with {SECRET} ({SECRET}) failed") == "login of u with *** (***) failed"
    assert SECRET not in str(translated(psycopg.OperationalError(f"connection failed: {SECRET}"), address))


def test_without_a_password_a_text_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    assert Address("host=h user=u").redacted("all of it") == "all of it"


@pytest.mark.parametrize("dsn", [f"host=127.0.0.1 {SECRET}", f"postgresql://u@h/d?{SECRET}=1"])
def test_a_dsn_that_cannot_be_read_is_refused_and_not_quoted(dsn: str) -> None:
    with pytest.raises(JournalRefused) as raised:
        Address(dsn)
    assert str(raised.value) == (
        "the journal's dsn is neither a postgresql:// URI nor a list of key=value pairs (not shown: secrets)"
    )
    assert raised.value.__context__ is None


@pytest.mark.parametrize(
    ("state", "kind", "reason"),
    [
        ("08006", JournalUnavailable, "the connection was lost"),
        ("25006", JournalUnavailable, "the server is read-only at the moment (a standby?)"),
        ("25P03", JournalUnavailable, "the transaction took too long and was ended by the server"),
        ("28P01", JournalRefused, "the server refuses the login: check user, password and the server's pg_hba.conf"),
        ("3D000", JournalRefused, "there is no such database: create it first"),
        ("3F000", JournalCorrupt, "its tables are gone"),
        ("40001", JournalUnavailable, "two transactions were in each other's way"),
        ("40P01", JournalUnavailable, "two transactions were in each other's way"),
        (
            "42501",
            JournalRefused,
            "the user may not do this: let it create a schema in the database, "
            "or create the schema flink_agents for it",
        ),
        ("42P01", JournalCorrupt, "its tables are gone"),
        ("53300", JournalUnavailable, "the server is out of resources"),
        ("53100", JournalFull, "the server's disk is full"),
        ("55P03", JournalUnavailable, "a row is locked by another session"),
        ("57P01", JournalUnavailable, "the server ended the session or is not ready"),
        ("58030", JournalError, "the server has a problem with its disk"),
        ("XX001", JournalCorrupt, "its data is damaged"),
        ("XX002", JournalCorrupt, "its data is damaged"),
        ("23505", JournalError, "the server answered with an error"),
    ],
)
def test_each_kind_of_trouble_is_told_by_its_own_error(state: str, kind: type[JournalError], reason: str) -> None:
    error = translated(psycopg.errors.lookup(state)("what  the\n  server says"), ADDRESS)
    assert type(error) is kind
    assert str(error) == f"the journal postgresql://u@h/d: {reason} (PostgreSQL: what the server says)"


@pytest.mark.parametrize(
    ("said", "kind", "reason"),
    [
        ('connection failed: FATAL: database "d" does not exist', JournalRefused, "there is no such database"),
        ('connection failed: FATAL: password authentication failed for user "u"', JournalRefused, "refuses the login"),
        ("connection failed: fe_sendauth: no password supplied", JournalRefused, "refuses the login"),
        ("connection failed: FATAL: no pg_hba.conf entry for host", JournalRefused, "refuses the login"),
        ('connection failed: FATAL: role "u" does not exist', JournalRefused, "refuses the login"),
        ('connection failed: permission denied for database "d"', JournalRefused, "refuses the login"),
        ("connection failed: Connection refused", JournalUnavailable, "the server cannot be reached: is it running"),
        ("failed to resolve host 'h'", JournalUnavailable, "the server cannot be reached: is it running"),
        ("connection timeout expired", JournalUnavailable, "the server cannot be reached: is it running"),
        ("server closed the connection unexpectedly", JournalUnavailable, "the connection was lost"),
    ],
)
@pytest.mark.parametrize("raised", [psycopg.OperationalError, psycopg.InterfaceError])
def test_where_no_state_is_given_the_words_decide(
    raised: type[psycopg.Error], said: str, kind: type[JournalError], reason: str
) -> None:
    error = translated(raised(said), ADDRESS)
    assert type(error) is kind
    assert reason in str(error)


def test_a_fault_of_the_driver_is_no_lost_connection() -> None:
    error = translated(psycopg.ProgrammingError("connection failed"), ADDRESS)
    assert type(error) is JournalError
    assert "the server answered with an error" in str(error)
