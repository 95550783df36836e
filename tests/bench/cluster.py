"""The clusters that jobs are measured on, and what their TaskManagers take of the machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.cluster.gateway import Gateway
from flink_agents.cluster.rest import FlinkRest
from flink_agents.cluster.standalone import StandaloneCluster

__all__ = ["BenchCluster", "cpu_s", "embedded", "peak_mib", "resident_mib", "standalone"]

OPTIONS = {
    "web.checkpoints.history": "2000",
    # A machine that stands still for a minute spoils a number, and should not also end the job.
    "heartbeat.timeout": "600 s",
}


class BenchCluster(Protocol):
    """What a measured job needs of a cluster."""

    @property
    def rest(self) -> FlinkRest:
        """The cluster's REST interface."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the JVMs that run tasks."""

    def submit(self, name: str, options: Mapping[str, str], build: Callable[[Any], None]) -> str:
        """Submit what ``build`` makes and return the job's id."""


class _Embedded:
    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.submit = cluster.submit
        self.rest = cluster.rest
        self.pids = (cluster.pid,)


class _Standalone:
    def __init__(self, cluster: StandaloneCluster, gateway: Gateway, taskmanagers: int) -> None:
        self._gateway = gateway
        self.rest = cluster.rest
        self.pids = tuple(cluster.pid(index) for index in range(1, taskmanagers + 1))

    def submit(self, name: str, options: Mapping[str, str], build: Callable[[Any], None]) -> str:
        return self._gateway.submit(name, options, build, self.rest.address)


@contextmanager
def embedded(folder: Path, options: Mapping[str, str] | None = None) -> Iterator[BenchCluster]:
    """Start a cluster in one JVM; ``options`` are Flink's."""
    with EmbeddedCluster(folder, slots=2, options={**OPTIONS, **(options or {})}) as cluster:
        yield _Embedded(cluster)


@contextmanager
def standalone(folder: Path, taskmanagers: int) -> Iterator[BenchCluster]:
    """Start a cluster of several JVMs, and another JVM that submits to it."""
    with (
        StandaloneCluster(folder / "cluster", taskmanagers=taskmanagers, options=OPTIONS) as cluster,
        Gateway(folder / "gateway") as gateway,
    ):
        yield _Standalone(cluster, gateway, taskmanagers)


def cpu_s(pid: int) -> float:
    """Return the processor time of a whole process so far, in seconds."""
    # Behind the command's name, which may hold blanks: state is the first field there, utime the twelfth.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def peak_mib(pid: int) -> float:
    """Return the most memory that a process has had so far (``VmHWM``), in MiB."""
    return _status_mib(pid, "VmHWM")


def _status_mib(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def resident_mib(pid: int) -> float:
    """Return the memory that a process has now (``VmRSS``), in MiB."""
    return _status_mib(pid, "VmRSS")
