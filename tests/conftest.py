"""What holds for every test: which start a cluster, the clusters and servers they share, agents written for a test."""

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
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flink_agents import ActionContext, Agent, InputEvent, OutputEvent
from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.cluster.standalone import StandaloneCluster
from flink_agents.testing import Harness

PASSWORD = "n0t-for-logs"
START_S = 30.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("flink") is not None:
            item.user_properties.append(("flink", "true"))


Scenario = Callable[[Any, ActionContext], Awaitable[Any]]


def double(n: int) -> int:
    """Double a number."""
    return 2 * n


class Trial:
    """An agent written for a test, on a harness."""

    @staticmethod
    def acting(scenario: Scenario, **attributes: Any) -> Agent:
        """Return an agent of one action, whose result is its output."""
        agent = type("Acting", (Agent,), attributes)()

        @agent.action(InputEvent)  # type: ignore[untyped-decorator]
        async def act(event: InputEvent, ctx: ActionContext) -> None:
            ctx.send_event(OutputEvent(await scenario(event, ctx)))

        made: Agent = agent
        return made

    @staticmethod
    def record(number: int = 1, **fields: Any) -> dict[str, Any]:
        """Return a record of the key ``k``."""
        return {"id": f"r{number}", "key": "k", **fields}

    def run(self, agent: Agent, *records: dict[str, Any], tools: Any = (double,), **options: Any) -> Harness:
        """Return a harness on which the agent has taken the records, or one record, as far as it goes."""
        harness = Harness(tools, agent=agent, **options)
        harness.send(*(records or (self.record(),)))
        harness.run()
        return harness

    @staticmethod
    def error_of(harness: Harness) -> dict[str, Any]:
        """Return the error of the only response, which is an action's."""
        (line,) = harness.responses
        error: dict[str, Any] = line["error"]
        assert error["kind"] == "action_error"
        return error


@pytest.fixture
def trial() -> Trial:
    """Return what runs a test's own agent."""
    return Trial()


@pytest.fixture(scope="session")
def cluster_output() -> list[str]:
    """What the shared JVM has printed so far, line by line."""
    return []


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, cluster_output: list[str]) -> Iterator[EmbeddedCluster]:
    """One JVM for the whole session: it takes seconds to start, and a process can have one at a time."""
    # Tests are over before the second compiler has paid for itself.
    options = {"env.java.opts.all": "-XX:TieredStopAtLevel=1"}
    folder = tmp_path_factory.mktemp("flink")
    with EmbeddedCluster(folder, slots=8, options=options, on_output=cluster_output.append) as started:
        yield started


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """One standalone cluster of two TaskManagers for the whole session; a test that ends one starts it again."""
    options = {"env.java.opts.all": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with StandaloneCluster(tmp_path_factory.mktemp("standalone"), taskmanagers=2, options=options) as started:
        yield started


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
