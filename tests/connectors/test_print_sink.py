"""Printed records are told from everything else that a JVM prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.connectors.jsonl_source import read_jsonl
from flink_agents.connectors.print_sink import MARK, printed_record, write_print


@pytest.mark.parametrize(
    ("line", "printed", "record"),
    [
        ("a tool says hello", "a tool says hello", None),
        (f"{MARK}> {{}}", "", "{}"),
        (f"{MARK}:3> {{}}", "", "{}"),
        (f"no newline{MARK}:12> {{}}", "no newline", "{}"),
        ("responses> {}", "responses> {}", None),
        ("", "", None),
    ],
)
def test_lines_are_told_apart(line: str, printed: str, record: str | None) -> None:
    assert printed_record(line) == (printed, record)


@pytest.mark.flink
def test_records_and_what_tools_print(
    cluster: EmbeddedCluster, cluster_output: list[str], start: Callable[..., str], tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"ü": 1}\n', encoding="utf-8")

    def talk(line: str) -> str:
        print("talking about", line)  # noqa: T201  # it is what the test is about
        return line

    def build(env: Any) -> None:
        from pyflink.common import Types

        stream = read_jsonl(env, source, follow=False).map(talk, Types.STRING())
        write_print(stream, name="responses", marked=True)
        write_print(stream, name="rejects", marked=False)

    before = len(cluster_output)
    assert cluster.rest.wait(start(build), timeout_s=60).state == "FINISHED"
    new = [printed_record(line) for line in cluster_output[before:]]
    assert ("", '{"ü": 1}') in new
    assert ('rejects> {"ü": 1}', None) in new
    assert ('talking about {"ü": 1}', None) in new
