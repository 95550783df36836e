"""PostgreSQL's errors as the project's: what it is, where, and what to do about it; never with a password."""

from __future__ import annotations

import os
import re
from contextlib import suppress

import psycopg
from psycopg.conninfo import conninfo_to_dict

from flink_agents.errors import JournalCorrupt, JournalError, JournalFull, JournalRefused, JournalUnavailable

__all__ = ["Address", "translated"]

_SECRET = ("password", "sslpassword")

# By the beginning of the SQLSTATE; the longest that fits decides.
_BY_STATE: dict[str, tuple[type[JournalError], str]] = {
    "08": (JournalUnavailable, "the connection was lost"),
    "25006": (JournalUnavailable, "the server is read-only at the moment (a standby?)"),
    "25P03": (JournalUnavailable, "the transaction took too long and was ended by the server"),
    "28": (JournalRefused, "the server refuses the login: check user, password and the server's pg_hba.conf"),
    "3D000": (JournalRefused, "there is no such database: create it first"),
    "3F000": (JournalCorrupt, "its tables are gone"),
    "40001": (JournalUnavailable, "two transactions were in each other's way"),
    "40P01": (JournalUnavailable, "two transactions were in each other's way"),
    "42501": (
        JournalRefused,
        "the user may not do this: let it create a schema in the database, or create the schema flink_agents for it",
    ),
    "42P01": (JournalCorrupt, "its tables are gone"),
    "53": (JournalUnavailable, "the server is out of resources"),
    "53100": (JournalFull, "the server's disk is full"),
    "55P03": (JournalUnavailable, "a row is locked by another session"),
    "57": (JournalUnavailable, "the server ended the session or is not ready"),
    "58": (JournalError, "the server has a problem with its disk"),
    "XX001": (JournalCorrupt, "its data is damaged"),
    "XX002": (JournalCorrupt, "its data is damaged"),
}

# A refused connection has no SQLSTATE, only the server's words; in another language they read as "cannot be reached".
_BY_WORDS = (
    (re.compile(r'database ".*" does not exist'), "3D000"),
    (
        re.compile(
            r'authentication failed|no password supplied|no pg_hba\.conf entry|role ".*" does not exist'
            r"|permission denied for database"
        ),
        "28",
    ),
)
_NO_CONNECTION = re.compile("connection failed|failed to resolve|connection timeout")


class Address:
    """Where a PostgreSQL journal is: ``dsn`` for the driver, ``place`` for people. Not to be logged itself.

    Raises:
        JournalRefused: if the DSN cannot be read. It is not quoted: nobody knows which part of it is the password.
    """

    __slots__ = ("_secrets", "dsn", "place")

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        parts = None
        with suppress(psycopg.Error):
            parts = conninfo_to_dict(dsn)
        if parts is None:
            # Not within the clause above: the driver's message, which quotes the DSN, must not hang on this error.
            msg = "the journal's dsn is neither a postgresql:// URI nor a list of key=value pairs (not shown: secrets)"
            raise JournalRefused(msg)
        self._secrets = [str(parts[name]) for name in _SECRET if parts.get(name)]
        if os.environ.get("PGPASSWORD"):
            self._secrets.append(os.environ["PGPASSWORD"])
        user = f"{parts['user']}@" if parts.get("user") else ""
        port = f":{parts['port']}" if parts.get("port") else ""
        host = parts.get("host") or parts.get("hostaddr") or ""
        self.place = f"postgresql://{user}{host}{port}/{parts.get('dbname') or ''}"

    def __repr__(self) -> str:
        return f"Address({self.place!r})"

    def redacted(self, text: str) -> str:
        """Return the text without any password of this address."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def translated(error: psycopg.Error, address: Address) -> JournalError:
    """Return the error to raise from ``error``. Any thread."""
    text = " ".join(str(error).split())
    state = error.sqlstate
    if state is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        state = next((known for words, known in _BY_WORDS if words.search(text)), "08")
    known = [begin for begin in _BY_STATE if state is not None and state.startswith(begin)]
    cls, reason = _BY_STATE[max(known, key=len)] if known else (JournalError, "the server answered with an error")
    if state == "08" and _NO_CONNECTION.search(text):
        reason = "the server cannot be reached: is it running, and are host and port right?"
    return cls(address.redacted(f"the journal {address.place}: {reason} (PostgreSQL: {text})"))
