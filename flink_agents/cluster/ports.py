"""Ports of this machine: one that is free, or the sentence that says that one is not."""

from __future__ import annotations

import socket

from flink_agents.errors import ClusterFault

__all__ = ["free_port", "require_free"]


def free_port(host: str) -> int:
    """Return a port that nobody listens on; another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def require_free(host: str, port: int) -> None:
    """Return if a server could listen on the port.

    Raises:
        ClusterFault: if another process does, or this user may not; names the port and the way on.
    """
    with socket.socket() as probe:
        # As servers do: connections that have ended do not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            msg = f"port {port} of {host} is taken: {error.strerror or error}. Give another one, or none for a free one"
            raise ClusterFault(msg) from error
