"""A Flink cluster of several JVMs on this machine, set up so that thread mode works; it outlives who started it.

The JVMs are started directly and not by Flink's scripts, so that the process ids are known. Each TaskManager has one
slot, because its Python is shared by all that runs in it. Everything of a cluster is in one folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from flink_agents.cluster.java import choose_java, jvm_environment
from flink_agents.cluster.jvm import class_path, jvm_arguments, last_lines, write_configuration
from flink_agents.cluster.libpython import require_shared_library
from flink_agents.cluster.ports import free_port, require_free
from flink_agents.cluster.processes import StartedProcess
from flink_agents.cluster.rest import FlinkRest
from flink_agents.cluster.standalone_options import HOST, jobmanager_heap, options_of_cluster, taskmanager_heap
from flink_agents.errors import ClusterFault

__all__ = ["ClusterStatus", "StandaloneCluster", "TaskManagerStatus"]

RECORD_FILE = "cluster.json"
FORMAT = 1
JOBMANAGER = "jobmanager"
JOBMANAGER_CLASS = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASKMANAGER_CLASS = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.1
PORT_TRIES = 3
TAIL = 15


@dataclass(frozen=True)
class TaskManagerStatus:
    """One TaskManager: ``alive`` its process, ``registered`` the JobManager counts on it, ``resource`` Flink's id."""

    index: int
    pid: int
    alive: bool
    registered: bool
    resource: str


@dataclass(frozen=True)
class ClusterStatus:
    """A cluster at one moment. ``answers``: the JobManager's REST interface does."""

    folder: Path
    address: str
    pid: int
    alive: bool
    answers: bool
    taskmanagers: tuple[TaskManagerStatus, ...]
    slots: int = 0
    free_slots: int = 0

    @property
    def complete(self) -> bool:
        """True if all that was started is at work."""
        return self.answers and all(each.alive and each.registered for each in self.taskmanagers)


@dataclass(frozen=True)
class Started:
    """A process of the cluster: ``resource`` is the id under which a TaskManager registers."""

    pid: int
    started: str
    resource: str

    @property
    def process(self) -> StartedProcess:
        """The process itself."""
        return StartedProcess(self.pid, self.started)


class StandaloneCluster:
    """A cluster in ``folder``: a new one, or what an earlier command left running there. One thread at a time.

    Args:
        folder: configuration, logs, temporary files, and ``cluster.json`` with ports and process ids.
        taskmanagers: how many there are to be, numbered from 1; None: as many as there were, or one.
        rest_port: port of the JobManager's REST interface on the loopback interface; None: a free one.
        options: Flink options of the cluster; memory sizes in whole mebibytes (``256m``).
        environ: environment of the JVMs, and so of the tools; the interpreter's folder is put first on its PATH.

    As a context manager it is started and stopped. Otherwise it stays until :meth:`stop`, called by any process.
    """

    def __init__(
        self,
        folder: Path,
        *,
        taskmanagers: int | None = None,
        rest_port: int | None = None,
        options: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self._wanted = taskmanagers
        self._rest_port = rest_port
        self._options = dict(options or {})
        self._environ = dict(os.environ if environ is None else environ)
        self._children: list[subprocess.Popen[bytes]] = []
        self._processes: dict[str, Started] = {}
        self._ports: dict[str, int] = {}
        self._starts = 0
        self._rest: FlinkRest | None = None
        self._read()

    def __enter__(self) -> StandaloneCluster:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def logs(self) -> Path:
        """Where each JVM has a ``.log`` of Flink's and an ``.out`` of what it and the tools print."""
        return self.folder / "logs"

    @property
    def address(self) -> str:
        """``HOST:PORT`` of the JobManager, as ``submit`` takes it.

        Raises:
            ClusterFault: if no cluster was started here.
        """
        if "rest" not in self._ports:
            msg = f"no cluster was started in {self.folder}"
            raise ClusterFault(msg)
        return f"{HOST}:{self._ports['rest']}"

    @property
    def rest(self) -> FlinkRest:
        """The JobManager's REST interface."""
        url = f"http://{self.address}"
        if self._rest is None or self._rest.address != url:
            self._rest = FlinkRest(url)
        return self._rest

    def pid(self, index: int | None = None) -> int:
        """Return the process id of TaskManager ``index``, or of the JobManager."""
        return self._started(JOBMANAGER if index is None else _name(index)).pid

    def start(self) -> StandaloneCluster:
        """Start what is not running; returns once all TaskManagers are registered.

        On a cluster that runs already this starts TaskManagers that are missing or have ended.

        Raises:
            ClusterFault: if a port is taken, there is no usable Java or Python, or something does not come up; the
                message has the end of its log. What did come up stays, see :meth:`stop`.
        """
        require_shared_library()
        self.folder.mkdir(parents=True, exist_ok=True)
        wanted = self._wanted or max(1, len(self._indexes()))
        if not self._alive(JOBMANAGER):
            # TaskManagers of a JobManager that has ended look for it where it was, and no other will be there.
            self._end_all()
            self._start_jobmanager()
        for index in range(1, wanted + 1):
            if not self._alive(_name(index)):
                self._launch_taskmanager(index)
        self._wait_registered(_name(index) for index in self._indexes() if self._alive(_name(index)))
        return self

    def start_taskmanager(self, index: int, *, wait: bool = True) -> None:
        """Start TaskManager ``index``, for the first time or after its end.

        Raises:
            ClusterFault: if it runs already, or does not come up.
        """
        if self._alive(_name(index)):
            msg = f"TaskManager {index} runs already, as process {self.pid(index)}"
            raise ClusterFault(msg)
        self._launch_taskmanager(index)
        if wait:
            self._wait_registered([_name(index)])

    def kill_taskmanager(self, index: int) -> None:
        """End TaskManager ``index`` by SIGKILL; returns once it is gone. :meth:`start_taskmanager` brings a new one.

        Raises:
            ClusterFault: if it is not running.
        """
        self._signal(index, signal.SIGKILL)
        process = self._started(_name(index)).process
        if not process.wait(STOP_TIMEOUT_S):
            msg = f"process {process.pid} of TaskManager {index} outlived SIGKILL"
            raise ClusterFault(msg)
        self._reap()

    def pause_taskmanager(self, index: int) -> None:
        """Let TaskManager ``index`` stand still (SIGSTOP); the JobManager gives it up after ``heartbeat.timeout``.

        Raises:
            ClusterFault: if it is not running.
        """
        self._signal(index, signal.SIGSTOP)

    def continue_taskmanager(self, index: int) -> None:
        """Let a TaskManager that stands still go on (SIGCONT).

        Raises:
            ClusterFault: if it is not running.
        """
        self._signal(index, signal.SIGCONT)

    def stop(self) -> bool:
        """End every process of the cluster, and no other; return whether there was any. Safe to call again.

        Jobs end without a savepoint. Checkpoints, configuration and logs stay.
        """
        self.close()
        ended = self._end_all()
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        return ended

    def close(self) -> None:
        """Close the connections of this object; the cluster goes on."""
        if self._rest is not None:
            self._rest.close()
            self._rest = None

    def status(self) -> ClusterStatus:
        """Return how the cluster is; changes nothing.

        Raises:
            ClusterFault: if no cluster was started here.
        """
        address = self.address
        overview: Mapping[str, int] = {}
        registered: frozenset[str] = frozenset()
        with suppress(ClusterFault):
            if self._alive(JOBMANAGER):
                overview, registered = self.rest.overview(), self.rest.taskmanagers()
        managers = [(index, self._processes[_name(index)]) for index in self._indexes()]
        return ClusterStatus(
            folder=self.folder,
            address=address,
            pid=self._processes[JOBMANAGER].pid if JOBMANAGER in self._processes else 0,
            alive=self._alive(JOBMANAGER),
            answers=bool(overview),
            taskmanagers=tuple(
                TaskManagerStatus(index, known.pid, known.process.alive, known.resource in registered, known.resource)
                for index, known in managers
            ),
            slots=overview.get("slots-total", 0),
            free_slots=overview.get("slots-available", 0),
        )

    def _start_jobmanager(self) -> None:
        if self._rest_port is not None:
            require_free(HOST, self._rest_port)
        for left in reversed(range(PORT_TRIES)):
            try:
                self._try_jobmanager(self._rest_port or free_port(HOST))
            except ClusterFault as error:
                # Somebody else took a port after it was found to be free.
                if not left or "BindException" not in str(error):
                    raise
            else:
                return

    def _try_jobmanager(self, rest: int) -> None:
        self._ports = {"rest": rest, "rpc": free_port(HOST)}
        options = options_of_cluster(self._options, rest_port=rest, rpc_port=self._ports["rpc"])
        write_configuration(self.folder / "conf", options)
        self._launch(JOBMANAGER, JOBMANAGER, JOBMANAGER_CLASS, jobmanager_heap(options), {})
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.rest.overview()
            except ClusterFault:
                self._check(JOBMANAGER, deadline, "did not answer")
                time.sleep(POLL_S)
            else:
                return

    def _launch_taskmanager(self, index: int) -> None:
        name = _name(index)
        self._starts += 1
        # An id of its own for each start, so that a new one is not taken for the one before it.
        resource = f"{name}-{self._starts}"
        scratch = self.folder / "tmp" / name
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        own = {"taskmanager.resource-id": resource, "io.tmp.dirs": str(scratch)}
        self._launch(name, resource, TASKMANAGER_CLASS, taskmanager_heap(self._conf_options()), own)

    def _launch(self, name: str, resource: str, main: str, sizes: list[str], own: Mapping[str, str]) -> None:
        conf = self.folder / "conf"
        java = choose_java(self._environ)
        environ = jvm_environment(self._environ, Path(sys.executable), java, conf)
        self.logs.mkdir(exist_ok=True)
        words = " ".join(self._conf_options().get(f"env.java.opts.{of}", "") for of in ("all", name.partition("-")[0]))
        command = [
            str(java.executable),
            *jvm_arguments(self.logs, self.logs / f"{name}.log", conf, [*sizes, *words.split()]),
            "-cp",
            class_path(),
            main,
            "--configDir",
            str(conf),
            *(f"-D{option}={value}" for option, value in own.items()),
        ]
        with (self.logs / f"{name}.out").open("ab") as output:
            # Neither the end of the terminal nor Ctrl-C in it is the end of the cluster.
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, start_new_session=True
            )
        self._children.append(child)
        process = StartedProcess.of(child.pid)
        self._processes[name] = Started(child.pid, process.started if process else "", resource)
        self._write()

    def _wait_registered(self, names: Any) -> None:
        missing = {self._processes[name].resource: name for name in names}
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            registered = self.rest.taskmanagers()
            missing = {resource: name for resource, name in missing.items() if resource not in registered}
            if not missing:
                return
            for name in missing.values():
                self._check(name, deadline, "did not register with the JobManager")
            time.sleep(POLL_S)

    def _check(self, name: str, deadline: float, what: str) -> None:
        """Raise if a process ended, or its time is over."""
        alive = self._alive(name)
        if alive and time.monotonic() < deadline:
            return
        log, out = self.logs / f"{name}.log", self.logs / f"{name}.out"
        said = last_lines(log, TAIL) or last_lines(out, TAIL) or "it wrote nothing"
        how = f"{what} within {START_TIMEOUT_S:g} s" if alive else "ended while it started"
        msg = f"the cluster's {name} {how}. The end of {log}:\n{said}"
        raise ClusterFault(msg)

    def _end_all(self) -> bool:
        alive = [known.process for known in self._processes.values() if known.process.alive]
        # All at once: each waits for the others otherwise.
        for process in alive:
            process.signal(signal.SIGTERM)
        for process in alive:
            process.end(STOP_TIMEOUT_S)
        self._reap()
        if self._processes:
            self._processes = {}
            self._write()
        return bool(alive)

    def _signal(self, index: int, number: signal.Signals) -> None:
        if not self._started(_name(index)).process.signal(number):
            msg = f"TaskManager {index} is not running"
            raise ClusterFault(msg)

    def _reap(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]

    def _alive(self, name: str) -> bool:
        return name in self._processes and self._processes[name].process.alive

    def _started(self, name: str) -> Started:
        if name not in self._processes:
            msg = f"{name} was not started in {self.folder}"
            raise ClusterFault(msg)
        return self._processes[name]

    def _indexes(self) -> list[int]:
        return sorted(int(name.rpartition("-")[2]) for name in self._processes if name != JOBMANAGER)

    def _conf_options(self) -> dict[str, str]:
        options: dict[str, str] = json.loads((self.folder / "conf" / "config.yaml").read_text(encoding="utf-8"))
        return options

    def _read(self) -> None:
        file = self.folder / RECORD_FILE
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                msg = f"{file} is of another release: stop the cluster by that one"
                raise ClusterFault(msg)
            self._ports = {str(name): int(port) for name, port in content["ports"].items()}
            self._starts = int(content["starts"])
            self._processes = {name: Started(**known) for name, known in content["processes"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f"{file} cannot be read ({error}), so it is not known what runs there"
            raise ClusterFault(msg) from error

    def _write(self) -> None:
        content = {
            "format": FORMAT,
            "address": self.address,
            "ports": self._ports,
            "starts": self._starts,
            "processes": {name: asdict(known) for name, known in self._processes.items()},
        }
        draft = self.folder / f"{RECORD_FILE}.new"
        draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        draft.replace(self.folder / RECORD_FILE)


def _name(index: int) -> str:
    return f"taskmanager-{index}"
