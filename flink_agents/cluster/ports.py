"""Ports of this machine: one that is free, or the sentence that says that one is not."""

from __future__ import annotations

import random
import socket

from flink_agents.errors import ClusterFault

__all__ = ["free_port", "require_free"]


# Systems give ports from 32768 (Linux) or 49152 on to whoever asks for any, so one of those would soon be taken.
OURS = range(20_000, 32_000)
TRIES = 200


def free_port(host: str) -> int:
    """Return a port that nobody listens on; another process may take it before it is used, which is not likely.

    Raises:
        ClusterFault: if none can be found.
    """
    for port in random.SystemRandom().sample(OURS, TRIES):
        try:
            require_free(host, port)
        except ClusterFault:
            continue
        return port
    msg = f"no free port was found on {host}"
    raise ClusterFault(msg)


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
