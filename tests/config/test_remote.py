"""What a job has to say before it goes to a cluster; everything is refused at its place, and at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from flink_agents.config.problems import ConfigErrors
from flink_agents.config.remote import prepare_for_cluster

JOB = """\
name: far
source: {{type: jsonl, path: {source}}}
key_by: k
tools: [{{function: "builtins:print"}}]
sink: {{type: jsonl, path: {sink}}}
{more}
"""


def problems(folder: Path, *overrides: str, source: str = "/in", sink: str = "/out", more: str = "") -> list[str]:
    file = folder / "job.yaml"
    (folder / "far_tools.py").write_text("def run(a: int) -> int:\n    return a\n", encoding="utf-8")
    text = JOB.format(source=source, sink=sink, more=more).replace("builtins:print", "far_tools:run")
    file.write_text(text, encoding="utf-8")
    try:
        prepare_for_cluster(file, overrides)
    except ConfigErrors as error:
        return [f"{each.place.line}: {each.path}" for each in error.errors]
    return []


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys, "path", [*sys.path])


def test_absolute_paths_and_a_journal_will_do(tmp_path: Path) -> None:
    # Nothing of it is there on this machine, and need not be.
    assert problems(tmp_path, more="journal: none") == []
    assert problems(tmp_path, source="file:///in", more="journal: {type: sqlite, path: /data/journal.db}") == []


def test_relative_paths_are_refused_all_at_once(tmp_path: Path) -> None:
    more = "rejects: {type: jsonl, path: no}\njournal: {type: sqlite, path: state/j.db}"
    found = problems(tmp_path, source="in.jsonl", sink="~/out", more=more)
    assert found == ["2: source.path", "5: sink.path", "6: rejects.path", "7: journal.path"]


@pytest.mark.parametrize("more", ["", "journal: sqlite", "journal: {type: sqlite}"])
def test_a_journal_has_to_be_given_with_its_path(tmp_path: Path, more: str) -> None:
    assert [found.partition(": ")[2] for found in problems(tmp_path, more=more)] == ["journal"]


def test_an_override_counts_like_what_is_written(tmp_path: Path) -> None:
    assert problems(tmp_path, "journal=none", "sink.path=/elsewhere", sink="out") == []
