"""Durable tool calls for agents, as a keyed Apache Flink operator; the names that users write against.

Importing the package loads no Flink. ``tool_calls`` loads it when it is called.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("flink-agents-toolcall")
except PackageNotFoundError:
    # A source tree put on the path without being installed has no metadata, and need not stop working for it.
    __version__ = "0+uninstalled"
