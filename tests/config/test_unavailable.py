"""Features of later versions: refused by name wherever they are written, and never ignored."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flink_agents.config.loader import load
from flink_agents.config.problems import ConfigErrors
from flink_agents.config.unavailable import UNAVAILABLE

Write = Callable[..., str]

TEXT = """\
name: later
source: SOURCE
key_by: k
tools:
  - {function: "m:f"TOOL}
  - {function: "m:g"}
ENTRYsink: SINK
MORE
"""


def error_of(job: Write, **parts: str) -> str:
    text = TEXT
    for name, usual in {"SOURCE": "{type: jsonl, path: a}", "TOOL": "", "ENTRY": "", "SINK": "{type: print}"}.items():
        text = text.replace(name, parts.get(name.lower(), usual))
    with pytest.raises(ConfigErrors) as error:
        load(job(text.replace("MORE", parts.get("more", ""))))
    assert len(error.value.errors) == 1
    return str(error.value)


NOT_YET = "is not available in this version of flink-agents"

CASES = [
    ({"entry": "  - mcp: {command: x}\n"}, "7:5: tools.2.mcp: `mcp`"),
    ({"entry": "  - agent: m:a\n"}, "7:5: tools.2.agent: `agent`"),
    ({"source": "{type: kafka, topic: t, bootstrap: b}"}, "2:16: source.type: `type: kafka`; expected 'jsonl'"),
    ({"sink": "{type: kafka, topic: t}"}, "7:14: sink.type: `type: kafka`; expected 'jsonl' or 'print'"),
    ({"more": "rejects: {type: kafka}"}, "8:17: rejects.type: `type: kafka`; expected 'jsonl' or 'print'"),
]


@pytest.mark.parametrize(("parts", "expected"), CASES, ids=[expected.split(": ")[1] for _, expected in CASES])
def test_refused_by_name(job: Write, parts: dict[str, str], expected: str) -> None:
    what, *instead = expected.split("; ")
    assert error_of(job, **parts) == "; ".join([f"job.yaml:{what} {NOT_YET}", *instead])


def test_every_row_has_a_case() -> None:
    def pattern(expected: str) -> tuple[str, str | None]:
        _, path, key = expected.split(": ", 2)
        value = key.partition(";")[0].strip("`").partition(": ")[2] or None
        return ".".join("*" if step.isdecimal() else step for step in path.split(".")), value

    assert sorted(map(str, (pattern(expected) for _, expected in CASES))) == sorted(
        str((row.path, row.value)) for row in UNAVAILABLE
    )


def test_an_override_is_refused_too(job: Write) -> None:
    with pytest.raises(ConfigErrors) as error:
        load(job(), ["tools.0.mcp.command=x", "tools.0.mcp.args=y"])
    assert str(error.value) == f"--set tools.0.mcp.command: tools.0.mcp: `mcp` {NOT_YET}"


def test_the_rest_of_the_file_is_still_checked(job: Write) -> None:
    with pytest.raises(ConfigErrors) as error:
        load(job(), ["tools.1.mcp.command=x", "tools.0.nmae=x", "sink.type=kafka", "workers.threads=0"])
    assert len(error.value.errors) == 4
