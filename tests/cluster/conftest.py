"""Small jobs of one Python operator, for tests that are about the cluster and not about tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.connectors.jsonl_sink import write_jsonl
from flink_agents.connectors.jsonl_source import read_jsonl

Submit = Callable[..., str]


@pytest.fixture
def submit(cluster: EmbeddedCluster, tmp_path: Path) -> Submit:
    """Return a function that starts a job which maps the lines of ``source`` to lines in ``out``."""

    def start(
        function: Callable[[str], str],
        lines: list[str],
        *,
        name: str = "job",
        parallelism: int = 1,
        attempts: int = 0,
        follow: bool = False,
    ) -> str:
        folder = tmp_path / name
        source = folder / "source"
        source.mkdir(parents=True)
        (source / "lines.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        options = {
            "parallelism.default": str(parallelism),
            "execution.checkpointing.interval": "100 ms",
            "execution.checkpointing.dir": f"file://{folder / 'checkpoints'}",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "restart-strategy.type": "fixed-delay" if attempts else "none",
            "restart-strategy.fixed-delay.attempts": str(attempts),
            "restart-strategy.fixed-delay.delay": "50 ms",
        }

        def build(env: Any) -> None:
            from pyflink.common import Types

            stream = read_jsonl(env, source, follow=follow)
            write_jsonl(stream.map(function, Types.STRING()), folder / "out", roll_ms=200, name="out")

        return cluster.submit(name, options, build)

    return start
