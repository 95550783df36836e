"""How this installation was built."""

from __future__ import annotations

from flink_agents.durable import slots

__all__ = ["is_compiled"]


def is_compiled() -> bool:
    """Whether the engine's inner modules are C extensions here: installed with ``FLINK_AGENTS_COMPILE=1``."""
    return not slots.__file__.endswith(".py")
