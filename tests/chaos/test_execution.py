from __future__ import annotations

from pathlib import Path

from flink_agents.chaos.execution import ExecutionLogs


def test_logs_are_read_as_they_grow(tmp_path: Path) -> None:
    logs = ExecutionLogs(tmp_path)
    file = tmp_path / "12.jsonl"
    file.write_bytes(b'{"t":1,"e":"open","a":"A"}\n{"t":2,"e":"begin","a":"A","c":"x"}\n{"t":3,"e":"en')
    logs.update()
    assert [event.kind for event in logs.events] == ["open", "begin"]
    assert logs.running == {12: {"x"}}
    with file.open("ab") as rest:
        rest.write(b'd","a":"A","c":"x"}\n{"t":4,"e":"commit","a":"A","c":"x","by":"A","v":"1"}\n')
    logs.update()
    assert logs.running == {12: set()}
    assert logs.last_commit == 4
    assert (logs.opened_since(0), logs.opened_since(1), logs.opens_since(0)) == ({12}, set(), 1)


def test_who_has_begun_a_body_after_a_restore(tmp_path: Path) -> None:
    logs = ExecutionLogs(tmp_path)
    (tmp_path / "12.jsonl").write_bytes(b'{"t":1,"e":"open","a":"A"}\n{"t":6,"e":"begin","a":"A","c":"x"}\n')
    (tmp_path / "13.jsonl").write_bytes(b'{"t":5,"e":"open","a":"B"}\n')
    logs.update()
    # A, an attempt from before the kill at 4, lives on in 12 and begins one body more; B has only opened.
    assert logs.begun_since(4) == set()
    with (tmp_path / "13.jsonl").open("ab") as rest:
        rest.write(b'{"t":7,"e":"begin","a":"B","c":"x"}\n')
    logs.update()
    assert logs.begun_since(4) == {13}
