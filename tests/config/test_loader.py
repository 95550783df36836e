"""A right YAML: defaults, units, paths, variables, positions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from flink_agents.config.loader import load
from flink_agents.config.problems import ConfigErrors
from flink_agents.config.schema import FunctionToolConfig, JsonlSink, PrintSink, SchemaToolsConfig, SqliteJournal
from flink_agents.options import Execution, Mode, OnInterrupt, OnMismatch

Write = Callable[..., str]

FULL = """\
version: 1
name: support-tools
source:  {type: jsonl, path: in, follow: true}
key_by: customer.id
tools:
  - function: good_tools:add
    name: plus
    execution: inline
    on_interrupt: rerun
    max_concurrent: 8
  - schema: tools.json
    function: good_tools:handler
tool_calls: {mode: sequential, max_in_flight: 4, on_mismatch: fail}
workers: {threads: 2, async_limit: 3, max_strays: 0}
limits: {arguments: 1KiB, result: 2KiB, record: 1GiB, live_requests: 5, intake_wait: 0ms, idle_key: 1d}
journal: {type: none}
sink:    {type: jsonl, path: out, roll: 1m}
rejects: {type: print}
flink:
  parallelism: 2
  checkpoints: {interval: 200ms, directory: file:///tmp/some%20where}
  state_backend: rocksdb
  restart: {type: exponential-delay, initial: 1s, max: 1s, attempts: 0}
  options: {"taskmanager.memory.managed.size": 128m, a.b: true, c: 1, d: 0.5}
"""


def test_what_is_left_out_has_the_documented_default(job: Write, folder: Path) -> None:
    config = load(job())
    assert config.version == 1
    assert config.source.path == folder / "requests.jsonl"
    assert not config.source.follow
    assert config.tools == [FunctionToolConfig(function="good_tools:add")]
    assert isinstance(config.sink, PrintSink)
    assert config.rejects == JsonlSink(type="jsonl", path=folder / "rejects")
    assert (config.tool_calls.mode, config.tool_calls.max_in_flight) == (Mode.PARALLEL, 16)
    assert config.limits.idle_key == 30 * 24 * 3600 * 1000
    assert config.journal == SqliteJournal(type="sqlite", path=folder / "state" / "journal.db")
    assert config.flink.checkpoints.directory == folder / "state" / "checkpoints"
    assert (config.flink.restart.initial, config.flink.restart.max, config.flink.restart.attempts) == (100, 10_000, 20)
    assert (config.file, config.folder) == (folder / "job.yaml", folder)


def test_everything_written_out(job: Write, folder: Path) -> None:
    config = load(job(FULL))
    first, second = config.tools
    assert isinstance(first, FunctionToolConfig)
    assert (first.name, first.execution, first.max_concurrent) == ("plus", Execution.INLINE, 8)
    assert isinstance(second, SchemaToolsConfig)
    assert second.schema_path == folder / "tools.json"
    assert config.tool_calls.on_mismatch is OnMismatch.FAIL
    assert config.limits.record == 1 << 30
    assert config.limits.intake_wait == 0
    assert isinstance(config.sink, JsonlSink)
    assert config.sink.roll == 60_000
    assert config.flink.checkpoints.directory == Path("/tmp/some where")
    assert config.flink.options == {
        "taskmanager.memory.managed.size": "128m",
        "a.b": "true",
        "c": "1",
        "d": "0.5",
    }


def test_relative_paths_start_at_the_folder_of_the_yaml(
    job: Write, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job()
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert load("../job.yaml").source.path == folder / "requests.jsonl"


def test_home_folder(job: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somebody")
    assert load(job(), ["source.path=~/in.jsonl"]).source.path == Path("/somebody/in.jsonl")


def test_byte_order_mark(folder: Path) -> None:
    from_text = (
        "name: bom\nsource: {type: jsonl, path: a}\nkey_by: k\ntools: [{function: 'm:f'}]\nsink: {type: print}\n"
    )
    (folder / "job.yaml").write_bytes(b"\xef\xbb\xbf" + from_text.encode())
    assert load("job.yaml").name == "bom"


def test_anchors_and_merge_keys(job: Write, folder: Path) -> None:
    text = """\
name: merged
source: {type: jsonl, path: in}
key_by: k
tools:
  - &first {function: "m:f", max_concurrent: 2}
  - {<<: *first, function: "m:g"}
sink: &files {type: jsonl, path: out, roll: 3s}
rejects: {<<: *files, path: rejects}
"""
    config = load(job(text))
    assert [(getattr(tool, "function", None), tool.max_concurrent) for tool in config.tools] == [("m:f", 2), ("m:g", 2)]
    assert config.rejects == JsonlSink.model_validate({"type": "jsonl", "path": str(folder / "rejects"), "roll": "3s"})


def test_where_a_value_was_written(job: Write) -> None:
    config = load(job(FULL), ["workers.threads=7"])
    assert config.place("tools.1.schema") == "job.yaml:11:13"
    assert config.place("sink.path") == "job.yaml:17:30"
    assert config.place("workers.threads") == "--set workers.threads"
    # A default was written nowhere; what it stands in was.
    assert config.place("limits.unknown") == "job.yaml:15:9"
    assert config.place("nowhere") == "job.yaml:1:1"


@pytest.mark.parametrize(
    ("path", "environ", "expected"),
    [
        ("${DIR}/in.jsonl", {"DIR": "/data"}, "/data/in.jsonl"),
        ("${DIR:-/default}/in", {}, "/default/in"),
        ("${DIR:-/default}/in", {"DIR": ""}, "/default/in"),
        ("${DIR:-/default}/in", {"DIR": "/data"}, "/data/in"),
        ("/${A}${B}/${A}", {"A": "x", "B": "y"}, "/xy/x"),
        ("/a/$${A}", {"A": "x"}, "/a/${A}"),
        ("/a/$A", {"A": "x"}, "/a/$A"),
        ("${DIR:-/with, comma [and] more: #x}", {}, "/with, comma [and] more: #x"),
        ("${DIR}", {"DIR": "/{a: b}"}, "/{a: b}"),
        ("${DIR}", {"DIR": "/${OTHER}"}, "/${OTHER}"),
    ],
)
@pytest.mark.parametrize(
    "style", ["{{type: jsonl, path: {}}}", '{{type: jsonl, path: "{}"}}', "\n  type: jsonl\n  path: {}"]
)
def test_variables(job: Write, style: str, path: str, environ: Mapping[str, str], expected: str) -> None:
    text = f"name: v\nsource: {style.format(path)}\nkey_by: k\ntools: [{{function: 'm:f'}}]\nsink: {{type: print}}\n"
    assert str(load(job(text), environ=environ).source.path) == expected


def test_an_unquoted_variable_may_be_a_number_where_one_is_wanted(job: Write) -> None:
    job()
    overrides = ["flink.parallelism=${P}", "source.follow=${F}", "name=${N}", "key_by=${K:-7}"]
    config = load("job.yaml", overrides, {"P": "3", "F": "false", "N": "2024"})
    assert (config.flink.parallelism, config.source.follow, config.name, config.key_by) == (3, False, "2024", "7")


def test_a_quoted_variable_is_text(job: Write) -> None:
    with pytest.raises(ConfigErrors, match=r"flink.parallelism: got the value of '\$\{P\}'; expected a whole number"):
        load(job(), ["flink.parallelism='${P}'"], {"P": "3"})


def test_the_environment_of_the_process_is_the_default(job: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB_NAME", "from-environment")
    assert load(job(), ["name=${JOB_NAME}"]).name == "from-environment"


def test_variables_in_comments_and_keys_mean_nothing(job: Write) -> None:
    assert load(job() and job(Path("job.yaml").read_text() + "# ${UNSET}\n"), environ={}).name == "good"


@pytest.mark.parametrize(
    ("override", "field", "expected"),
    [
        ("name=x", "name", "x"),
        ("name=5", "name", "5"),
        ("name= x ", "name", "x"),
        ("key_by='5'", "key_by", "5"),
        ("tools.0.max_concurrent=3", "tools.0.max_concurrent", 3),
        ("tool_calls.mode=sequential", "tool_calls.mode", Mode.SEQUENTIAL),
        ("tool_calls={mode: sequential}", "tool_calls.mode", Mode.SEQUENTIAL),
        ("flink.checkpoints.interval=5s", "flink.checkpoints.interval", 5000),
        ("limits.idle_key=2d", "limits.idle_key", 172_800_000),
        ("sink={type: jsonl, path: /o}", "sink.path", Path("/o")),
        ("journal=none", "journal.type", "none"),
        ("journal=sqlite", "journal.path.name", "journal.db"),
        ("journal={type: sqlite, path: /j.db}", "journal.path", Path("/j.db")),
        ("journal={type: postgresql, dsn: postgresql://h/d}", "journal.dsn", "postgresql://h/d"),
        ("journal={type: postgresql, dsn: {env: DSN}, retention: 1h}", "journal.dsn.env", "DSN"),
        ("journal={type: postgresql, dsn: {env: DSN}, retention: 1h}", "journal.retention", 3_600_000),
        ("tools.0.on_interrupt=fail", "tools.0.on_interrupt", OnInterrupt.FAIL),
        ("rejects.path=/bad", "rejects.path", Path("/bad")),
        ("rejects.type=print", "rejects.type", "print"),
    ],
)
def test_override(job: Write, override: str, field: str, expected: object) -> None:
    value: object = load(job(), [override])
    for step in field.split("."):
        value = value[int(step)] if isinstance(value, list) else getattr(value, step)
    assert value == expected


def test_the_last_override_wins_and_they_build_on_each_other(job: Write) -> None:
    config = load(job(), ["sink={type: jsonl, path: /a}", "sink.path=/b", "sink.roll=1s", "sink.roll=2s"])
    assert config.sink == JsonlSink.model_validate({"type": "jsonl", "path": "/b", "roll": "2s"})


def test_a_flink_option_keeps_the_dots_of_its_name(job: Write) -> None:
    config = load(job(), ["flink.options.taskmanager.memory.managed.size=1g", "flink.options.a=b=c"])
    assert config.flink.options == {"taskmanager.memory.managed.size": "1g", "a": "b=c"}


def test_an_override_comes_before_variables_are_looked_up(job: Write) -> None:
    text = (
        "name: ${UNSET}\nsource: {type: jsonl, path: a}\nkey_by: k\ntools: [{function: 'm:f'}]\nsink: {type: print}\n"
    )
    assert load(job(text), ["name=set"], {}).name == "set"


def test_a_config_is_immutable_and_hides_options_from_its_repr(job: Write) -> None:
    config = load(job(), ["flink.options.s3.secret-key=hunter2"])
    assert "hunter2" not in repr(config)
    with pytest.raises(ValueError, match="frozen"):
        config.name = "other"


def test_path_objects_are_taken(job: Write, folder: Path) -> None:
    job()
    assert load(folder / "job.yaml").name == load(os.fspath(folder / "job.yaml")).name == "good"
