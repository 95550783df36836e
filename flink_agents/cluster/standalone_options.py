"""Flink's options of a standalone cluster on this machine: loopback only, one slot a TaskManager, small memory."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flink_agents.errors import ClusterFault

__all__ = ["HOST", "jobmanager_heap", "options_of_cluster", "taskmanager_heap"]

HOST = "127.0.0.1"

# Flink's scripts would work the sizes out by a JVM of their own; a TaskManager asks for all of these.
MEMORY = {
    "taskmanager.cpu.cores": "1.0",
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.task.heap.size": "256m",
    "taskmanager.memory.task.off-heap.size": "0m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.managed.size": "128m",
    "taskmanager.memory.jvm-metaspace.size": "192m",
    "taskmanager.memory.jvm-overhead.min": "128m",
    "taskmanager.memory.jvm-overhead.max": "128m",
    "jobmanager.memory.heap.size": "384m",
    "jobmanager.memory.off-heap.size": "128m",
    "jobmanager.memory.jvm-metaspace.size": "192m",
}

MEBIBYTES = re.compile(r"(\d+) ?(m|mb|mebibytes|g|gb|gibibytes)", re.IGNORECASE)


def options_of_cluster(given: Mapping[str, str], *, rest_port: int, rpc_port: int) -> dict[str, str]:
    """Return all options of a cluster; ``given`` replaces defaults, but not addresses, ports and slots."""
    defaults = {
        **MEMORY,
        # Jobs with flink-python among their own jars would load a second one, which cannot find the first's library.
        "classloader.parent-first-patterns.additional": "pemja.",
        # A TaskManager that was killed is missed at once by its connections; one that stands still only by these.
        "heartbeat.interval": "1 s",
        "heartbeat.timeout": "15 s",
        # A TaskManager that ended may come back: its job waits for a slot and does not fail for it.
        "resourcemanager.standalone.start-up-time": "7 d",
        # Answers are cached this long, which is also how late the end of a job is seen; 3 s as shipped.
        "web.refresh-interval": "200",
        "metrics.fetcher.update-interval": "500",
        "web.exception-history-size": "100",
    }
    own = {
        "jobmanager.rpc.address": HOST,
        "jobmanager.bind-host": HOST,
        "jobmanager.rpc.port": str(rpc_port),
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "rest.port": str(rest_port),
        "rest.bind-port": str(rest_port),
        "taskmanager.numberOfTaskSlots": "1",
        "web.submit.enable": "false",
    }
    return {**defaults, **given, **own}


def jobmanager_heap(options: Mapping[str, str]) -> list[str]:
    """Return the JVM arguments for the memory of a JobManager with these options."""
    return [
        f"-Xmx{_mebibytes(options, 'jobmanager.memory.heap.size')}m",
        f"-XX:MaxMetaspaceSize={_mebibytes(options, 'jobmanager.memory.jvm-metaspace.size')}m",
    ]


def taskmanager_heap(options: Mapping[str, str]) -> list[str]:
    """Return the JVM arguments for the memory of a TaskManager with these options."""
    heap = ("framework.heap.size", "task.heap.size")
    direct = ("framework.off-heap.size", "task.off-heap.size", "network.max")
    return [
        f"-Xmx{sum(_mebibytes(options, f'taskmanager.memory.{size}') for size in heap)}m",
        f"-XX:MaxDirectMemorySize={sum(_mebibytes(options, f'taskmanager.memory.{size}') for size in direct)}m",
        f"-XX:MaxMetaspaceSize={_mebibytes(options, 'taskmanager.memory.jvm-metaspace.size')}m",
    ]


def _mebibytes(options: Mapping[str, str], name: str) -> int:
    found = MEBIBYTES.fullmatch(options[name])
    if found is None:
        msg = f"{name} is {options[name]!r}: a size in whole mebibytes or gibibytes is needed, such as 256m"
        raise ClusterFault(msg)
    return int(found[1]) * (1024 if found[2][0] in "gG" else 1)
