"""From YAML to options and tools: functions import, schemas compile, names are unique; all errors at once."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from flink_agents.config.build import prepare, prepare_tools
from flink_agents.config.problems import ConfigErrors
from flink_agents.options import Execution, Limits, Mode, OnMismatch, OperatorOptions, ToolCallOptions, WorkerOptions

Write = Callable[..., str]

JOB = """\
name: built
source: {type: jsonl, path: requests.jsonl}
key_by: session.id
tools:
TOOLSsink: {type: print}
"""


def job_with(job: Write, *entries: str) -> str:
    return job(JOB.replace("TOOLS", "".join(f"  - {entry}\n" for entry in entries)))


def errors_of(path: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigErrors) as error:
        prepare(path, overrides)
    return [str(problem) for problem in error.value.errors]


def declare(folder: Path, *entries: object, name: str = "tools.json") -> None:
    (folder / name).write_text(json.dumps(entries))


def test_the_defaults_are_those_of_the_options(job: Write, folder: Path) -> None:
    prepared = prepare(job_with(job, "function: good_tools:add"))
    assert prepared.options == OperatorOptions(key_by="session.id", module_path=(str(folder),))


def test_a_function_has_any_name_that_python_takes(job: Write, folder: Path) -> None:
    (folder / "größen_tools.py").write_text(
        'def größe(x: int) -> int:\n    """Size."""\n    return x\n', encoding="utf-8"
    )
    prepared = prepare(job_with(job, "function: größen_tools:größe"))
    assert prepared.registry.names() == ("größe",)
    # The same name, its letters in two characters each.
    decomposed = unicodedata.normalize("NFD", "größe")
    prepared = prepare(job_with(job, f"function: größen_tools:{decomposed}"))
    assert prepared.registry.names() == ("größe",)


@pytest.mark.parametrize("name", ["1a:b", "a:b:c", "a..b:c", "a:", ":b", "a-b:c", "a:b²", "a：b"])
def test_a_function_that_python_cannot_name(job: Write, name: str) -> None:
    (found,) = errors_of(job_with(job, f"function: '{name}'"))
    assert "expected module:function" in found


def test_every_option_arrives(job: Write, folder: Path) -> None:
    prepared = prepare(
        job_with(job, "function: good_tools:add"),
        [
            "tool_calls={mode: sequential, max_in_flight: 2, on_mismatch: fail}",
            "workers={threads: 3, async_limit: 4, max_strays: 5}",
            "limits={arguments: 6KiB, result: 7KiB, record: 8KiB, live_requests: 9, intake_wait: 10ms, idle_key: 11d}",
            "limits.fatal_attempts=12",
        ],
    )
    assert prepared.options == OperatorOptions(
        key_by="session.id",
        tool_calls=ToolCallOptions(mode=Mode.SEQUENTIAL, max_in_flight=2, on_mismatch=OnMismatch.FAIL),
        workers=WorkerOptions(threads=3, async_limit=4, max_strays=5),
        limits=Limits(
            arguments=6 << 10,
            result=7 << 10,
            record=8 << 10,
            live_requests=9,
            intake_wait_ms=10,
            idle_key_ms=11 * 86_400_000,
            fatal_attempts=12,
        ),
        module_path=(str(folder),),
    )


def test_tools_of_both_kinds(job: Write, folder: Path) -> None:
    declare(folder, {"name": "declared.one"}, {"name": "declared.two", "parameters": {"type": "object"}})
    prepared = prepare(
        job_with(
            job,
            "{function: 'good_tools:add', name: plus, execution: inline}",
            "function: good_tools:ask",
            "{schema: tools.json, function: 'good_tools:handler', max_concurrent: 3}",
        )
    )
    specs = {spec.name: (spec.execution, spec.max_concurrent) for spec in prepared.registry.specs()}
    assert specs == {
        "plus": (Execution.INLINE, None),
        "ask": (Execution.ASYNC, None),
        "declared.one": (Execution.THREAD, 3),
        "declared.two": (Execution.THREAD, 3),
    }
    assert [getattr(declared, "function", None) for declared in prepared.tools] == [
        "good_tools:add",
        "good_tools:ask",
        "good_tools:handler",
    ]


FUNCTIONS = [
    (
        "function: good_tool:add",
        "5:15: tools.0.function: 'good_tool:add': there is no module 'good_tool' in FOLDER or among the installed "
        "packages; did you mean 'good_tools'?",
    ),
    (
        "function: good_tools:ad",
        "5:15: tools.0.function: 'good_tools:ad': module 'good_tools' has no 'ad'; did you mean 'add'?",
    ),
    (
        "function: broken_tools:add",
        "5:15: tools.0.function: 'broken_tools:add': importing 'broken_tools' failed at FOLDER/broken_tools.py:1: "
        "ZeroDivisionError: division by zero",
    ),
    (
        "function: leaving_tools:add",
        "5:15: tools.0.function: 'leaving_tools:add': importing 'leaving_tools' failed at FOLDER/leaving_tools.py:2: "
        "SystemExit: 3",
    ),
    (
        "{function: 'good_tools:ask', execution: inline}",
        "5:16: tools.0.function: tool 'ask': an async def runs on the event loop; execution 'inline' cannot run it",
    ),
    (
        "{function: 'good_tools:alone', schema: tools.json}",
        "5:16: tools.0.function: tool 'good_tools:alone': the handler must be callable as handler(tool_name, ",
    ),
    (
        "{function: 'good_tools:handler', schema: missing.json}",
        "5:46: tools.0.schema: FOLDER/missing.json: cannot be read: No such file or directory",
    ),
    (
        "{function: 'good_tools:handler', schema: broken.json}",
        "5:46: tools.0.schema: FOLDER/broken.json:2:1: not JSON: Expecting property name enclosed in double quotes",
    ),
    (
        "{function: 'good_tools:handler', schema: empty.json}",
        "5:46: tools.0.schema: FOLDER/empty.json declares no tool",
    ),
]


@pytest.mark.parametrize(("entry", "expected"), FUNCTIONS, ids=[entry for entry, _ in FUNCTIONS])
def test_a_tool_that_cannot_be_made(job: Write, folder: Path, entry: str, expected: str) -> None:
    (folder / "broken_tools.py").write_text("x = 1 / 0\n")
    (folder / "leaving_tools.py").write_text("import sys\nsys.exit(3)\n")
    (folder / "broken.json").write_text("{\n")
    declare(folder, name="empty.json")
    if "tools.json" in entry:
        declare(folder, *({"name": f"tool{number}"} for number in range(50)))
    (error,) = errors_of(job_with(job, entry))
    assert error.startswith(f"job.yaml:{expected}".replace("FOLDER", str(folder)))


def test_every_wrong_entry_of_a_schema_file_is_named(job: Write, folder: Path) -> None:
    declare(folder, {"name": "fine"}, {"description": "no name"}, {"name": "odd", "parameters": {"type": 5}})
    found = errors_of(job_with(job, "{function: 'good_tools:nowhere', schema: tools.json}"))
    assert [error.split(": ")[0] for error in found] == ["job.yaml:5:16", "job.yaml:5:46", "job.yaml:5:46"]
    assert ["entry 2" in found[1], "entry 3" in found[2]] == [True, True]


def test_a_name_used_twice_is_reported_at_both_places(job: Write, folder: Path) -> None:
    declare(folder, {"name": "add"})
    path = job_with(
        job,
        "function: good_tools:add",
        "{function: 'good_tools:ask', name: add}",
        "{function: 'good_tools:handler', schema: tools.json}",
    )
    assert errors_of(path) == [
        "job.yaml:5:15: tools.0.function: two tools are named 'add'; the other is at job.yaml:6:40",
        "job.yaml:5:15: tools.0.function: two tools are named 'add'; the other is at job.yaml:7:46",
        "job.yaml:6:40: tools.1.name: two tools are named 'add'; the other is at job.yaml:5:15",
        "job.yaml:7:46: tools.2.schema: two tools are named 'add'; the other is at job.yaml:5:15",
    ]


def test_functions_are_looked_at_although_other_parts_are_wrong(job: Write) -> None:
    path = job_with(job, "function: good_tools:ad", "{function: 'good_tools:ask', nmae: x}", "name: x")
    found = errors_of(path, "workers.threads=0", "key_by=")
    assert [error.removeprefix("--set ").split(": ")[not error.startswith("--set")] for error in found] == [
        "key_by",
        "workers.threads",
        "tools.0.function",
        "tools.1.nmae",
        "tools.2.function",
    ]


def test_the_tools_alone_need_no_source(job: Write, folder: Path) -> None:
    (folder / "requests.jsonl").unlink()
    assert prepare_tools(job_with(job, "function: good_tools:add")).names() == ("add",)


@pytest.mark.parametrize("name", ["bfcl", "quickstart"])
def test_the_jobs_of_this_project(folder: Path, name: str) -> None:
    file = Path(__file__).parents[2] / "jobs" / name / "job.yaml"
    assert prepare(file).config.name == name
