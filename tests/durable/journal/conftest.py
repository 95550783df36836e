"""Journals of both kinds for one suite: SQLite in a folder, PostgreSQL on a server that the tests start themselves."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.postgresql import PostgresqlJournal
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import CallKey, RunRow
from flink_agents.durable.journal.sqlite import SqliteJournal

PASSWORD = "n0t-for-logs"
START_S = 30.0


def server_binaries() -> Path | None:
    """Return the folder of PostgreSQL's server programs, where Debian or the path have it."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    on_path = shutil.which("initdb")
    return Path(found[-1]).parent if found else Path(on_path).resolve().parent if on_path else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class PostgresServer:
    """A PostgreSQL server on a loopback port with a data folder of its own; never runs as root."""

    def __init__(self, binaries: Path, *, synced: bool = True) -> None:
        self._binaries = binaries
        self._synced = "on" if synced else "off"
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="journal-postgresql-"))
        self._identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            self._identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._create()

    def _create(self) -> None:
        secret = self.folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        options = [
            "-U",
            "tester",
            "-A",
            "scram-sha-256",
            "--pwfile",
            str(secret),
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]
        subprocess.run(
            [self._binaries / "initdb", "-D", self.folder / "data", *options],
            check=True,
            capture_output=True,
            cwd="/",
            **self._identity,
        )

    def start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 50,
            "fsync": self._synced,
        }
        options = [item for name, value in settings.items() for item in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.folder / "data", *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd="/",
                **self._identity,
            )
        deadline = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.dsn("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                # Nothing tells when the port is open; waiting for the process's end is the wait between two looks.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.05)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server; SIGQUIT is its crash: no farewell, and recovery at the next start."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_S)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def dsn(self, database: str, *, user: str = "tester", password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            connection.execute(statement)

    def database(self) -> str:
        """Create an empty database; return its DSN."""
        name = f"journal_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)


@pytest.fixture(scope="session")
def postgres_binaries() -> Path:
    binaries = server_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: apt-get install postgresql)")
    return binaries


@pytest.fixture(scope="session")
def postgres(postgres_binaries: Path) -> Iterator[PostgresServer]:
    """One server for the session; a test that stops it starts a server of its own."""
    server = PostgresServer(postgres_binaries, synced=False)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def own_postgres(postgres_binaries: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(postgres_binaries)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def open_another(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Journal]]:
    """Open the test's journal once more, with connections of its own, as another process would."""
    opened: list[Journal] = []
    make: Callable[[], Journal]
    if request.param == "sqlite":
        path = tmp_path / "state" / "journal.db"
        make = lambda: SqliteJournal(path)  # noqa: E731
    else:
        dsn = request.getfixturevalue("postgres").database()
        make = lambda: PostgresqlJournal(dsn)  # noqa: E731

    def open_one() -> Journal:
        opened.append(make())
        return opened[-1]

    yield open_one
    for journal in opened:
        journal.close()


RUN = "run-1"


@pytest.fixture
def journal(open_another: Callable[[], Journal]) -> Journal:
    """A journal with one run and three attempts, opened one after the other: first, second and third."""
    opened = open_another()
    opened.create_run(RunRow(RUN, "support-tools", 1_000))
    for attempt_id in ("first", "second", "third"):
        opened.open_attempt(RUN, attempt_id, 0, 1)
    return opened


@pytest.fixture
def call_of() -> Callable[..., CallKey]:
    """Name a call: by its slot, and by key and intake where that matters."""

    def name(index: int = 0, *, key: str = '"k"', intake: int = 1, run_id: str = RUN, tool: str = "refund") -> CallKey:
        return CallKey.of(run_id, key, intake, Identity(index, "tool", tool, index, "ab" * 32))

    return name
