"""Finds Python's shared library before Java starts: thread mode loads it, and fails obscurely without."""

from __future__ import annotations

import sys
from pathlib import Path

from flink_agents.errors import ClusterFault

__all__ = ["require_shared_library"]


def require_shared_library() -> Path:
    """Return the shared library of the running interpreter, found in the way that thread mode finds it.

    Raises:
        ClusterFault: if there is none; the message says what to install.
    """
    from find_libpython import find_libpython

    found = find_libpython()
    if found is not None:
        return Path(found)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    msg = (
        f"this Python ({sys.base_prefix}, {version}) comes without its shared library libpython{version}, which runs "
        f"Python inside Flink's Java. Debian, Ubuntu: apt-get install libpython{version}. "
        "pyenv: install this version again with PYTHON_CONFIGURE_OPTS=--enable-shared."
    )
    raise ClusterFault(msg)
