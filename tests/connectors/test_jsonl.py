"""Lines of files in, lines of files out: nothing lost, nothing doubled, whatever happens in between."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.connectors.jsonl_sink import write_jsonl, write_jsonl_each_checkpoint
from flink_agents.connectors.jsonl_source import read_jsonl

pytestmark = pytest.mark.flink

Start = Callable[..., str]
WAIT_S = 60.0


def lines_of(folder: Path) -> list[str]:
    return [line for part in sorted(folder.glob("*.jsonl")) for line in part.read_text(encoding="utf-8").splitlines()]


def copy(source: Path, out: Path, *, follow: bool = False, roll_ms: int = 200) -> Callable[[Any], None]:
    return lambda env: write_jsonl(read_jsonl(env, source, follow=follow), out, roll_ms=roll_ms, name="out")


def test_a_file(cluster: EmbeddedCluster, start: Start, tmp_path: Path) -> None:
    lines = ['{"key": "ü €"}', "", "no json", "x" * 3_000_000, "\ttail without newline"]
    source, out = tmp_path / "in #1 %20.jsonl", tmp_path / "out put %s"
    source.write_text("\n".join(lines), encoding="utf-8")
    assert cluster.rest.wait(start(copy(source, out)), timeout_s=WAIT_S).state == "FINISHED"
    assert lines_of(out) == lines
    # Flat, and nothing beside the parts: a reader may take every file.
    assert [path.name.startswith("part-") for path in out.iterdir()] == [True]


def test_a_folder_with_all_below_it(cluster: EmbeddedCluster, start: Start, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "deeper").mkdir(parents=True)
    (source / "a.jsonl").write_text("a1\na2\n", encoding="utf-8")
    (source / "deeper" / "b.txt").write_text("b1\n", encoding="utf-8")
    (source / "c.jsonl.gz").write_bytes(gzip.compress(b"c1\nc2\n"))
    (source / ".hidden.jsonl").write_text("no\n", encoding="utf-8")
    (source / "_hidden.jsonl").write_text("no\n", encoding="utf-8")
    job = start(copy(source, tmp_path / "out"))
    assert cluster.rest.wait(job, timeout_s=WAIT_S).state == "FINISHED"
    assert sorted(lines_of(tmp_path / "out")) == ["a1", "a2", "b1", "c1", "c2"]


def test_an_empty_folder_ends_at_once(cluster: EmbeddedCluster, start: Start, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    job = start(copy(tmp_path / "in", tmp_path / "out"))
    assert cluster.rest.wait(job, timeout_s=WAIT_S).state == "FINISHED"
    assert lines_of(tmp_path / "out") == []


def test_follow_sees_files_moved_in_and_parts_roll_by_age(
    cluster: EmbeddedCluster, start: Start, tmp_path: Path
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    job = start(copy(source, out, follow=True, roll_ms=100))
    for number in range(3):
        draft = tmp_path / "draft"
        draft.write_text(f"line {number}\n", encoding="utf-8")
        draft.rename(source / f"{number}.jsonl")
        # The next file comes when the line of this one is out, so each has a part of its own.
        while f"line {number}" not in lines_of(out):
            assert not cluster.rest.job(job).ended
    cluster.rest.cancel(job)
    assert cluster.rest.wait(job, timeout_s=WAIT_S).state == "CANCELED"
    assert sorted(lines_of(out)) == ["line 0", "line 1", "line 2"]
    assert len(list(out.glob("*.jsonl"))) == 3


@pytest.mark.parametrize("writer", ["by age", "each checkpoint"])
def test_output_is_exactly_once_over_a_failure(
    cluster: EmbeddedCluster, start: Start, tmp_path: Path, writer: str
) -> None:
    source, out, failed = tmp_path / "in.jsonl", tmp_path / "out", str(tmp_path / "failed")
    lines = [f"line {number}" for number in range(400)]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def slow_and_failing_once(line: str) -> str:
        import time
        from pathlib import Path

        time.sleep(0.002)
        if line == "line 350" and not Path(failed).exists():
            Path(failed).touch()
            raise ValueError("planned")
        return line

    def build(env: Any) -> None:
        from pyflink.common import Types

        mapped = read_jsonl(env, source, follow=False).map(slow_and_failing_once, Types.STRING())
        if writer == "by age":
            write_jsonl(mapped, out, roll_ms=100, name="out")
        else:
            write_jsonl_each_checkpoint(mapped, out, name="out")

    restart = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "50 ms"}
    job = start(build, **restart)
    assert cluster.rest.wait(job, timeout_s=WAIT_S).state == "FINISHED"
    assert cluster.rest.restarts(job) == 1
    assert Counter(lines_of(out)) == Counter(lines)
