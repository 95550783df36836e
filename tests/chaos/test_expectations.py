from __future__ import annotations

import gzip
import json
from pathlib import Path

from flink_agents.chaos.expectations import Expected, expectations, read_records


def test_records_are_those_that_the_source_would_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\n\n2")
    (tmp_path / "deep").mkdir()
    with gzip.open(tmp_path / "deep" / "b.gz", "wt") as file:
        file.write("3\n")
    (tmp_path / ".hidden").write_text("no\n")
    (tmp_path / "_made").mkdir()
    (tmp_path / "_made" / "c").write_text("no\n")
    assert list(read_records(tmp_path)) == ["1", "", "2", "3"]
    assert list(read_records(tmp_path / "a.jsonl")) == ["1", "", "2"]


def test_equal_requests_are_expected_as_often_as_they_come() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": {}}}
    given = json.dumps({"id": "r", "key": 1, "tool_calls": [call]})
    made_up = json.dumps({"key": "k", "tool_calls": [call, call]})
    found = expectations([given, given, made_up, "{", "{"], "key", 1 << 20)
    assert found.answers == {
        Expected("1", "r", ((0, "f", '"c"'),)): 2,
        Expected('"k"', None, ((0, "f", '"c"'), (1, "f", '"c"'))): 1,
    }
    assert list(found.rejects.values()) == [2]
    assert found.total == 5
