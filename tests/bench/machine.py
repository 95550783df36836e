"""What the numbers were measured on, and what else ran there."""

from __future__ import annotations

import os
import platform
from typing import Any

from flink_agents.build import is_compiled
from flink_agents.cluster.java import choose_java

__all__ = ["load", "machine"]


def machine() -> dict[str, Any]:
    """Return cores, memory and versions of this machine."""
    java = choose_java(os.environ)
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(pages * size / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "java": java.version,
        "flink": _flink(),
        "engine": "compiled" if is_compiled() else "interpreted",
    }


def load() -> float:
    """Return the average number of running processes in the last minute."""
    return round(os.getloadavg()[0], 2)


def _flink() -> str:
    from importlib.metadata import version

    return version("apache-flink")
