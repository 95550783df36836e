"""The option that names a cluster, and the errors that are about one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from flink_agents.cluster.rest import FlinkRest
from flink_agents.errors import ClusterFault, InvalidInput

__all__ = ["JobManager", "cluster_errors", "jobmanager_rest"]

EXIT_FAILED = 1
ADDRESS = re.compile(r"(?:http://)?((?:[\w.-]+|\[[0-9A-Fa-f:]+\]):(\d{1,5}))/?")

JobManager = Annotated[
    str,
    typer.Option("--jobmanager", metavar="HOST:PORT", help="REST address of the JobManager.", show_default=False),
]


def jobmanager_rest(address: str) -> tuple[FlinkRest, str]:
    """Return the REST interface at ``HOST:PORT``, and the address in that form.

    Raises:
        InvalidInput: if it is no such address.
    """
    found = ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        msg = f"--jobmanager {address!r} is not of the form HOST:PORT, such as 127.0.0.1:8081"
        raise InvalidInput(msg)
    return FlinkRest(f"http://{found[1]}"), found[1]


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn what is wrong with a cluster into a message and exit code 1."""
    try:
        yield
    except ClusterFault as error:
        typer.echo(f"flink-agents: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from error
