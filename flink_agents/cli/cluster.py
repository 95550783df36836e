"""``flink-agents cluster``: a standalone Flink on this machine, for trying out what a cluster does to a job."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from flink_agents.cli.jobmanager import EXIT_FAILED, cluster_errors
from flink_agents.cluster.standalone import ClusterStatus, StandaloneCluster
from flink_agents.errors import ClusterFault

__all__ = ["cluster"]


class Action(str, Enum):
    """What to do with the cluster."""

    START = "start"
    STOP = "stop"
    STATUS = "status"


ActionName = Annotated[Action, typer.Argument(help="start, stop or status.", show_default=False)]
TaskManagers = Annotated[
    int | None,
    typer.Option("--taskmanagers", min=1, max=64, metavar="N", help="TaskManagers to start, of one slot each [1]."),
]
Folder = Annotated[
    Path | None, typer.Option("--dir", metavar="D", help="The cluster's folder; without it, one of this user.")
]
Port = Annotated[
    int | None,
    typer.Option("--port", min=1, max=65535, help="Port of the JobManager's REST interface; without it, a free one."),
]


def cluster(action: ActionName, taskmanagers: TaskManagers = None, directory: Folder = None, port: Port = None) -> None:
    """Start, stop or show a standalone Flink on this machine, from the installed package.

    It has one JobManager and TaskManagers of one slot each, on the loopback interface only. `start` on a running one
    starts the TaskManagers that are missing. Exit code 0: done, or all that was started is at work; 1: not so.
    """
    folder = (directory or _default_folder()).absolute()
    with cluster_errors():
        if action is Action.STATUS:
            with closing(StandaloneCluster(folder)) as found:
                status = found.status()
            _show(status)
            raise typer.Exit(0 if status.complete else EXIT_FAILED)
        with _alone(folder):
            if action is Action.STOP:
                ended = StandaloneCluster(folder).stop()
                typer.echo(f"the cluster in {folder} {'is stopped' if ended else 'was not running'}")
                return
            _start(folder, taskmanagers, port)


def _start(folder: Path, taskmanagers: int | None, port: int | None) -> None:
    with closing(StandaloneCluster(folder, taskmanagers=taskmanagers, rest_port=port)) as standalone:
        try:
            standalone.start()
        except BaseException:
            # Half a cluster is of no use, and nobody would look for it.
            standalone.stop()
            raise
        _show(standalone.status())


def _show(status: ClusterStatus) -> None:
    rows = [f"jobmanager      {status.address}  {_state(status.pid, status.alive, status.answers)}"]
    rows += [
        f"taskmanager-{each.index}   {_state(each.pid, each.alive, each.registered)}" for each in status.taskmanagers
    ]
    rows.append(f"slots           {status.free_slots} of {status.slots} free")
    rows.append(f"logs            {status.folder / 'logs'}")
    for row in rows:
        typer.echo(row)


def _state(pid: int, alive: bool, at_work: bool) -> str:
    if not alive:
        return "not running"
    return f"pid {pid}  " + ("at work" if at_work else "started, does not answer yet")


def _default_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "flink-agents" / "cluster"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second command off the cluster while this one starts or stops it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            msg = f"another command starts or stops the cluster in {folder}"
            raise ClusterFault(msg) from error
        yield
    finally:
        os.close(descriptor)
