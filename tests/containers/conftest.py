"""A cluster of containers from the image of docker/, and one job on it with what it leaves behind."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from flink_agents.chaos.execution import Event, ExecutionLogs
from flink_agents.chaos.expectations import expectations
from flink_agents.chaos.remains import checkpoint_ns, committed, journal_rows, live_entries, parsed
from flink_agents.chaos.verdict import Check, Evidence, judge
from flink_agents.cluster.rest import FlinkRest
from flink_agents.cluster.runs import Run, last_run
from flink_agents.durable.journal.opening import JournalSpec, JournalType
from flink_agents.errors import ClusterFault
from flink_agents.runtime.observation import Observation

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PASSWORD = "n0t-for-logs-0r-layers"
TASKMANAGERS = ("tm1", "tm2", "tm3")
WAIT_S = 180.0
PORTION = 60
# Missed heartbeats are what tells a container that stands still or is cut off, and these tests wait for that.
PROPERTIES = """
heartbeat.interval: 500ms
heartbeat.timeout: 6s
env.java.opts.jobmanager: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
env.java.opts.taskmanager: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("containers") is not None:
            item.user_properties.append(("containers", "true"))


@dataclass(frozen=True)
class Images:
    """What `prepare.sh` made."""

    flink_agents: str
    postgresql: str


@pytest.fixture(scope="session")
def images() -> Images:
    try:
        return Images(os.environ["FLINK_AGENTS_IMAGE"], os.environ["POSTGRES_IMAGE"])
    except KeyError:
        # A missing daemon is a reason that CI accepts; one that runs and was not used is none.
        pytest.skip(os.environ.get("CONTAINERS_MISSING") or "no images: see tests/containers/prepare.sh")


def until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Return the condition's first value that counts as true."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.1)
    return value


class Cluster:
    """JobManager, three TaskManagers, PostgreSQL and a client, each in a container; folders are the machine's."""

    def __init__(self, folder: Path, images: Images) -> None:
        self.folder = folder
        self._images = images
        self._stack = ExitStack()
        for name in ("data", "state", *(f"executions/{name}" for name in TASKMANAGERS)):
            _open_folder(folder / name)

    def __enter__(self) -> Cluster:
        with ExitStack() as stack:
            self.network = stack.enter_context(Network())
            journal = DockerContainer(self._images.postgresql).with_envs(
                POSTGRES_USER="flink", POSTGRES_DB="journal", POSTGRES_PASSWORD=PASSWORD
            )
            self.journal = self._start(stack, journal, "journal", 5432)
            self.jobmanager = self._start(stack, self._flink("jobmanager"), "jobmanager", 8081)
            self.taskmanagers = {
                name: self._start(stack, self._with_journal(self._flink("taskmanager", name)), name)
                for name in TASKMANAGERS
            }
            client = self._flink("sleep infinity").with_volume_mapping(HERE, "/watched")
            self.client = self._start(stack, self._with_journal(client), "client")
            self.rest = FlinkRest(f"http://127.0.0.1:{port_of(self.jobmanager, 8081)}")
            stack.callback(lambda: self.rest.close())
            self.complete()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def dsn(self) -> str:
        """The journal as this process reaches it."""
        return f"postgresql://flink:{PASSWORD}@127.0.0.1:{port_of(self.journal, 5432)}/journal"

    def complete(self) -> None:
        """Wait until all TaskManagers are there and none is at work."""
        until(lambda: self.slots() == (3, 3), "three free TaskManagers")

    def restart_jobmanager(self) -> None:
        """Start the JobManager that ended, and wait until the TaskManagers have found it."""
        self.jobmanager.get_wrapped_container().start()
        self.rest.close()
        self.rest = FlinkRest(f"http://127.0.0.1:{port_of(self.jobmanager, 8081)}")
        self.complete()

    def slots(self) -> tuple[int, int] | None:
        """Return how many TaskManagers there are and how many are free; None while no JobManager answers."""
        try:
            overview = self.rest.overview()
        except ClusterFault:
            return None
        return overview["taskmanagers"], overview["slots-available"]

    def run(self, *words: str) -> str:
        """Run a command in the client's container and return what it printed."""
        code, (out, err) = self.client.get_wrapped_container().exec_run(list(words), demux=True)
        assert code == 0, f"{shlex.join(words)}\n{(err or b'').decode()}"
        return str((out or b"").decode())

    def _flink(self, command: str, name: str = "") -> DockerContainer:
        container = DockerContainer(self._images.flink_agents).with_command(command)
        container = container.with_env("FLINK_PROPERTIES", PROPERTIES)
        for host, inside, mode in (("data", "/data", "rw"), ("state", "/state", "rw")):
            container = container.with_volume_mapping(self.folder / host, inside, mode)
        if name:
            # Process ids are alike in all containers, and with them the names of the logs.
            container = container.with_volume_mapping(self.folder / "executions" / name, "/executions", "rw")
        return container.with_volume_mapping(ROOT / "jobs", "/jobs")

    def _with_journal(self, container: DockerContainer) -> DockerContainer:
        return container.with_env("JOURNAL_DSN", f"postgresql://flink:{PASSWORD}@journal:5432/journal")

    def _start(self, stack: ExitStack, container: DockerContainer, name: str, *ports: int) -> DockerContainer:
        for port in ports:
            container.ports[str(port)] = ("127.0.0.1",)  # type: ignore[assignment]  # as Docker's library takes it
        container = container.with_network(self.network).with_network_aliases(name)
        return stack.enter_context(container.with_kwargs(hostname=name, cap_drop=["ALL"]))


def port_of(container: DockerContainer, port: int) -> int:
    """Return the port of this machine; another one after the container was started again."""
    wrapped = container.get_wrapped_container()
    wrapped.reload()
    return int(wrapped.ports[f"{port}/tcp"][0]["HostPort"])


def _open_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    # The image's user is none of this machine's.
    folder.chmod(0o777)
    return folder


@pytest.fixture(scope="session")
def container_cluster(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("containers")
    for each in (folder, folder.parent):
        each.chmod(0o755)
    with Cluster(folder, images) as cluster:
        yield cluster


class BfclJob:
    """The requests of jobs/bfcl on two TaskManagers of three, with calls that take some time."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.job_id = ""
        self.records = (ROOT / "jobs" / "bfcl" / "requests.jsonl").read_text(encoding="utf-8").splitlines()
        self.left = list(self.records)
        self._fed = 0
        self.folder = _open_folder(cluster.folder / "data" / name)
        self.source = _open_folder(self.folder / "requests")
        self.logs = {tm: ExecutionLogs(_open_folder(cluster.folder / "executions" / tm / name)) for tm in TASKMANAGERS}

    def submit(self, *options: str) -> None:
        """Submit it by the command, from the client's container."""
        observation = Observation(f"/executions/{self.name}", shortest_ms=500, longest_ms=3_000)
        settings = {
            "name": self.name,
            "key_by": "id",
            "source": f"{{type: jsonl, path: /data/{self.name}/requests, follow: true}}",
            "sink": f"{{type: jsonl, path: /data/{self.name}/out, roll: 1s}}",
            "rejects": f"{{type: jsonl, path: /data/{self.name}/rejects, roll: 1s}}",
            "journal": "{type: postgresql, dsn: {env: JOURNAL_DSN}}",
            # Enough for all calls of a portion. A call that waits for a thread on a TaskManager that stands still would
            # begin late there, without a look into the journal.
            "workers.threads": "128",
            "flink.parallelism": "2",
            "flink.checkpoints": "{interval: 2s, directory: /state}",
            "flink.options": "{execution.checkpointing.timeout: 20s}",
        }
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        watched = ["python", "/watched/submit_watched.py", observation.to_text()]
        submit = ["submit", "/jobs/bfcl/job.yaml", "--jobmanager", "jobmanager:8081"]
        self.job_id = self.cluster.run(*watched, *submit, *words, *options).splitlines()[-2]

    def feed(self, count: int) -> None:
        """Move a file with the next requests in."""
        assert self.left, "no moment was found before the requests were used up"
        lines, self.left = self.left[:count], self.left[count:]
        self._fed += 1
        draft = self.folder / f"{self._fed}.jsonl"
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        draft.rename(self.source / draft.name)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition on the logs."""

        def updated() -> Any:
            for logs in self.logs.values():
                logs.update()
            return condition()

        return until(updated, what)

    @property
    def events(self) -> list[Event]:
        """All events, with the TaskManager's number for its process id."""
        return [replace(event, pid=number) for number, logs in enumerate(self.logs.values()) for event in logs.events]

    @property
    def run(self) -> Run:
        run = last_run(self.cluster.folder / "state" / self.name)
        assert run is not None
        return run

    def busy(self) -> str:
        """Feed until a TaskManager is at work, while outcomes are recorded that no checkpoint knows; name it."""

        def found() -> str | None:
            if not any(self.running(tm) for tm in self.logs):
                self.feed(PORTION)
                self.until(lambda: any(self.running(tm) for tm in self.logs), "calls to begin")
            checkpoint = checkpoint_ns(self.run.checkpoints)
            fresh = checkpoint and time.monotonic_ns() - checkpoint < 1e9
            newer = max(logs.last_commit for logs in self.logs.values()) > checkpoint
            busiest = max(self.logs, key=lambda tm: len(self.running(tm)))
            return busiest if fresh and newer and len(self.running(busiest)) > 3 else None

        return str(self.until(found, "calls at work on a TaskManager, and outcomes that no checkpoint knows"))

    def running(self, tm: str) -> set[str]:
        """Return the calls whose bodies run on a TaskManager."""
        return set().union(*self.logs[tm].running.values())

    def recorded_elsewhere(self, tm: str, calls: set[str]) -> bool:
        """Whether the other TaskManagers have recorded an outcome of each of these calls."""
        others = [logs for name, logs in self.logs.items() if name != tm]
        return calls <= {event.call for logs in others for event in logs.events if event.kind == "commit"}

    def cancel(self) -> None:
        """End the job if it is still there, for the next one to have its place."""
        with suppress(ClusterFault):
            self.cluster.rest.cancel(self.job_id)

    def finish(self) -> Sequence[Check]:
        """Wait for all answers, stop the job by the command, and return what was broken."""
        out, rejects = (self.folder / sink for sink in ("out", "rejects"))
        self.until(lambda: len(committed(out)) + len(committed(rejects)) >= len(self.records), "all answers")
        stop = ["flink-agents", "stop", self.job_id, "--drain", "--jobmanager", "jobmanager:8081"]
        savepoint = self.cluster.run(*stop).split()[-1]
        self.until(lambda: True, "the ends of the logs")
        run = self.run
        evidence = Evidence(
            expected=expectations(self.records, "id", 1 << 22),
            responses=parsed(committed(out)),
            rejects=committed(rejects),
            events=self.events,
            rows=journal_rows(JournalSpec(JournalType.POSTGRESQL, dsn=self.cluster.dsn), run.run_id),
            in_state=live_entries(run.savepoints / Path(savepoint).name),
            orphans=[],
        )
        return judge(evidence, [], 0).checks


@pytest.fixture
def job(container_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[BfclJob]:
    container_cluster.complete()
    made = BfclJob(container_cluster, request.node.name.removeprefix("test_").replace("_", "-")[:40])
    yield made
    made.cancel()
