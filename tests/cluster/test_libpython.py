"""A Python without its shared library is found before Java starts, and the message names the package."""

from __future__ import annotations

import sys

import find_libpython
import pytest

from flink_agents.cluster.libpython import require_shared_library
from flink_agents.errors import ClusterFault


def test_the_library_of_this_interpreter() -> None:
    assert f"python{sys.version_info.major}.{sys.version_info.minor}" in require_shared_library().name


def test_missing_library_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_libpython, "find_libpython", lambda: None)
    with pytest.raises(ClusterFault, match=rf"apt-get install libpython{sys.version_info.major}\.\d+\. pyenv: "):
        require_shared_library()
