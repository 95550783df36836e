"""Jobs that only read and write, to look at one connector at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents.cluster.embedded import EmbeddedCluster

Copy = Callable[..., str]


@pytest.fixture
def start(cluster: EmbeddedCluster, tmp_path: Path) -> Copy:
    """Return a function that submits the topology built by its argument, with a checkpoint every 100 ms."""

    def submit(build: Callable[[Any], None], **options: str) -> str:
        settings = {
            "execution.checkpointing.interval": "100 ms",
            "execution.checkpointing.dir": f"file://{tmp_path / 'checkpoints'}",
            "restart-strategy.type": "none",
        }
        return cluster.submit("job", {**settings, **options}, build)

    return submit
