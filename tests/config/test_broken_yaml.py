"""Broken YAML: every error with its place, its path, what was expected and the nearest valid key; all at once."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from flink_agents.config.loader import load
from flink_agents.config.problems import ConfigErrors, nearest, one_of

Write = Callable[..., str]

HEAD = """\
name: broken
source: {type: jsonl, path: requests.jsonl}
key_by: session
"""
TOOLS = """\
tools:
  - function: good_tools:add
"""
SINK = """\
sink: {type: print}
"""

TOP = (
    "'version', 'name', 'source', 'key_by', 'agent', 'tools', 'config', 'tool_calls', 'workers', 'limits', 'journal', "
    "'sink', 'rejects' or 'flink'"
)
FOLDER_NAME = (
    "a name usable as a folder: letters, digits, '.', '_' and '-', starting with a letter or digit, 100 at most"
)
FUNCTION = "module:function, such as support_tools:lookup_order"
DURATION = "a duration such as 200ms, 5s, 10m, 2h or 30d"
SIZE = "a size such as 256KiB, 4MiB or 1GiB"
PATH = "a path of this machine, or a file: URI"
DSN = "text such as postgresql://user@host/database, or {env: NAME}"


def errors_of(path: str, *overrides: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigErrors) as error:
        load(path, overrides, environ)
    assert str(error.value) == "\n".join(str(problem) for problem in error.value.errors)
    return [str(problem) for problem in error.value.errors]


# Each is appended to a job that is right without it, from line 7 on.
APPENDED = [
    ("nmae: x", f"7:1: nmae: unknown key `nmae`; expected {TOP}; did you mean 'name'?"),
    ("mode: parallel", f"7:1: mode: unknown key `mode`; expected {TOP}; did you mean 'tool_calls.mode'?"),
    ("zzz: x", f"7:1: zzz: unknown key `zzz`; expected {TOP}"),
    ("5: x", f"7:1: 5: unknown key `5`; expected {TOP}"),
    ("? [a]\n: b", "7:3: ?: a key must be text"),
    ("name: again", "7:1: name: the key `name` is written twice; the first one is at job.yaml:1:1"),
    ("version: 2", "7:10: version: got the number 2; expected 1"),
    ("version: '1'", "7:10: version: got text '1'; expected 1"),
    ("version: true", "7:10: version: got true; expected 1"),
    ("workers: 4", "7:10: workers: got the number 4; expected a mapping"),
    ("workers:", "7:1: workers: got nothing; expected a mapping"),
    (
        "workers: {thread: 4}",
        "7:11: workers.thread: unknown key `thread`; expected 'threads', 'async_limit' or 'max_strays'; "
        "did you mean 'threads'?",
    ),
    ("workers: {threads: 0}", "7:20: workers.threads: got the number 0; expected at least 1"),
    ("workers: {threads: 10001}", "7:20: workers.threads: got the number 10001; expected at most 10000"),
    ("workers: {threads: many}", "7:20: workers.threads: got text 'many'; expected a whole number"),
    ("workers: {threads: 4.0}", "7:20: workers.threads: got the number 4.0; expected a whole number"),
    ("workers: {threads: true}", "7:20: workers.threads: got true; expected a whole number"),
    ("workers: {threads: !x 4}", "7:20: workers.threads: the YAML tag `!x` is not known here; expected a plain value"),
    ("workers: &w {threads: *w}", "7:10: workers.threads: an alias that contains itself"),
    ("workers: {<<: 5}", "7:15: workers.<<: `<<` can only take over the keys of a mapping"),
    (
        "tool_calls: {mode: Paralel}",
        "7:20: tool_calls.mode: got text 'Paralel'; expected 'sequential' or 'parallel'; did you mean 'parallel'?",
    ),
    ("tool_calls: {on_mismatch: [fail]}", "7:27: tool_calls.on_mismatch: got a list; expected 'rerun' or 'fail'"),
    (
        "limits: {arguments: 256KB}",
        f"7:21: limits.arguments: unknown unit 'KB' in '256KB'; expected {SIZE}; did you mean '256KiB'?",
    ),
    ("limits: {result: 0KiB}", "7:18: limits.result: is too small; expected at least 1"),
    (
        "limits: {idle_key: 30}",
        f"7:20: limits.idle_key: got the number 30 without a unit; expected {DURATION}; did you mean '30s'?",
    ),
    ("limits: {idle_key: 1ms}", "7:20: limits.idle_key: is too small; expected at least 1s"),
    ("journal: [none]", "7:10: journal: got a list; expected a mapping with `type`"),
    (
        "journal: nonee",
        "7:10: journal: got text 'nonee'; expected 'none', 'sqlite' or 'postgresql'; did you mean 'none'?",
    ),
    (
        "journal: postgresql",
        "7:10: journal: `postgresql` alone is not enough; expected a mapping with `type` and `dsn`",
    ),
    ("journal: {type: postgresql}", "7:10: journal.dsn: is required, but missing"),
    (
        "journal: {path: a.db}",
        "7:10: journal.type: is required, but missing; expected 'none', 'sqlite' or 'postgresql'",
    ),
    (
        "journal: {type: sqlite, pth: a.db}",
        "7:25: journal.pth: unknown key `pth`; expected 'type', 'path' or 'retention'; did you mean 'path'?",
    ),
    (
        "journal: {type: sqlite, dsn: a}",
        "7:25: journal.dsn: unknown key `dsn`; expected 'type', 'path' or 'retention'",
    ),
    ("journal: {type: postgresql, dsn: 5}", f"7:34: journal.dsn: got a value (not shown); expected {DSN}"),
    ("journal: {type: postgresql, dsn: ''}", f"7:34: journal.dsn: got a value (not shown); expected {DSN}"),
    (
        "journal: {type: postgresql, dsn: {env: A, envv: B}}",
        "7:43: journal.dsn.envv: unknown key `envv`; expected 'env'; did you mean 'env'?",
    ),
    (
        "journal: {type: postgresql, dsn: {env: A-B}}",
        "7:40: journal.dsn.env: got a value (not shown); expected the name of an environment variable",
    ),
    ("journal: {type: sqlite, retention: 30s}", "7:36: journal.retention: is too small; expected at least 1m"),
    (
        "journal: {type: sqlite, retention: 30d}",
        "7:10: journal: keeps rows for 30d; expected a retention shorter than limits.idle_key, which is 30d",
    ),
    ("rejects: out", "7:10: rejects: got text 'out'; expected a mapping with `type`"),
    ("rejects: {path: out}", "7:10: rejects.type: is required, but missing; expected 'jsonl' or 'print'"),
    (
        "rejects: {type: jsonll, path: out}",
        "7:17: rejects.type: got text 'jsonll'; expected 'jsonl' or 'print'; did you mean 'jsonl'?",
    ),
    ("rejects: {type: jsonl}", "7:10: rejects.path: is required, but missing"),
    ("rejects: {type: jsonl, path: ''}", f"7:30: rejects.path: is empty; expected {PATH}"),
    (
        "rejects: {type: jsonl, path: 's3://bucket/x'}",
        f"7:30: rejects.path: `s3:` paths are not available in this version of flink-agents; expected {PATH}",
    ),
    (
        "rejects: {type: jsonl, path: 'file://host/x'}",
        "7:30: rejects.path: is no local file: URI; expected file:///folder/name",
    ),
    ('rejects: {type: jsonl, path: "a\\0"}', f"7:30: rejects.path: holds a NUL character; expected {PATH}"),
    ("rejects: {type: print, path: x}", "7:24: rejects.path: unknown key `path`; expected 'type'"),
    ("rejects: {type: jsonl, path: x, roll: 1ms}", "7:39: rejects.roll: is too small; expected at least 100ms"),
    (
        "flink: {checkpoints: {interval: 5ms}}",
        "7:33: flink.checkpoints.interval: is too small; expected at least 10ms",
    ),
    (
        "flink: {state_backend: rocks}",
        "7:24: flink.state_backend: got text 'rocks'; expected 'hashmap' or 'rocksdb'; did you mean 'rocksdb'?",
    ),
    (
        "flink: {restart: {initial: 10s, max: 1s}}",
        "7:38: flink.restart.max: is shorter than `initial`; expected a duration not below it",
    ),
    ("flink: {options: [a]}", "7:18: flink.options: got a list; expected a mapping"),
    (
        "flink: {options: {a: [1]}}",
        "7:22: flink.options.a: got a list; expected text, a number, true or false",
    ),
    (
        "flink: {options: {parallelism.default: 3}}",
        "7:19: flink.options.parallelism.default: `parallelism.default` is set by `flink.parallelism`; "
        "expected the value under `flink.parallelism`; did you mean 'flink.parallelism'?",
    ),
    (
        "flink: {options: {python.execution-mode: process}}",
        "7:19: flink.options.python.execution-mode: `python.execution-mode` cannot be set: the operator needs "
        "PyFlink's thread mode; process mode loses timers on recovery",
    ),
]


@pytest.mark.parametrize(("appended", "expected"), APPENDED, ids=[text for text, _ in APPENDED])
def test_one_error(job: Write, appended: str, expected: str) -> None:
    assert errors_of(job(HEAD + TOOLS + SINK + appended)) == [f"job.yaml:{expected}"]


ENTRIES = [
    ("", "4:1: tools: got nothing; expected a list"),
    (" []", "4:8: tools: is empty; expected at least 1 entry"),
    (" {function: 'a:b'}", "4:8: tools: got a mapping; expected a list"),
    ("\n  - good_tools:add", "5:5: tools.0: got text 'good_tools:add'; expected a mapping with `function`"),
    ("\n  - name: x", "5:5: tools.0.function: is required, but missing; expected module:function"),
    ("\n  - schema: t.json", "5:5: tools.0.function: is required, but missing"),
    (
        "\n  - function: good_tools.add",
        f"5:15: tools.0.function: got text 'good_tools.add'; expected {FUNCTION}; did you mean 'good_tools:add'?",
    ),
    ("\n  - function: 7", f"5:15: tools.0.function: got the number 7; expected {FUNCTION}"),
    ("\n  - function: ''", f"5:15: tools.0.function: is empty; expected {FUNCTION}"),
    ("\n  - function: a b:c", f"5:15: tools.0.function: got text 'a b:c'; expected {FUNCTION}"),
    (
        "\n  - {function: 'a:b', name: two words}",
        "5:29: tools.0.name: got text 'two words'; expected a tool name of 1 to 256 characters, without spaces",
    ),
    (
        "\n  - {function: 'a:b', execution: threads}",
        "5:34: tools.0.execution: got text 'threads'; expected 'thread', 'async' or 'inline'; did you mean 'thread'?",
    ),
    (
        "\n  - {function: 'a:b', on_interrupt: retry}",
        "5:37: tools.0.on_interrupt: got text 'retry'; expected 'rerun', 'fail' or 'reconcile'; did you mean 'rerun'?",
    ),
    (
        "\n  - {function: 'a:b', on_interrupt: reconcil}",
        "5:37: tools.0.on_interrupt: got text 'reconcil'; expected 'rerun', 'fail' or 'reconcile'; "
        "did you mean 'reconcile'?",
    ),
    (
        "\n  - {function: 'a:b', reconcile: a.c}",
        f"5:34: tools.0.reconcile: got text 'a.c'; expected {FUNCTION}; did you mean 'a:c'?",
    ),
    (
        "\n  - {function: 'a:b', schema: t.json, name: x}",
        "5:39: tools.0.name: unknown key `name`; "
        "expected 'function', 'execution', 'max_concurrent', 'on_interrupt', 'reconcile', "
        "'timeout', 'deadline', 'retry', 'rate', 'inject' or 'schema'",
    ),
    (
        "\n  - {function: 'a:b', max_concurent: 2}",
        "5:23: tools.0.max_concurent: unknown key `max_concurent`; "
        "expected 'function', 'execution', 'max_concurrent', 'on_interrupt', 'reconcile', "
        "'timeout', 'deadline', 'retry', 'rate', 'inject' or 'name'; "
        "did you mean 'max_concurrent'?",
    ),
]


@pytest.mark.parametrize(("entries", "expected"), ENTRIES, ids=[text.strip() for text, _ in ENTRIES])
def test_one_error_in_the_tools(job: Write, entries: str, expected: str) -> None:
    assert errors_of(job(f"{HEAD}tools:{entries}\n{SINK}")) == [f"job.yaml:{expected}"]


NAMES = ["a b", "a/b", "..", ".hidden", "-x", "é", "x" * 101]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_cannot_be_a_folder(job: Write, name: str) -> None:
    shown = name if len(name) <= 40 else f"{name[:37]}..."
    text = (HEAD + TOOLS + SINK).replace("name: broken", f"name: '{name}'")
    assert errors_of(job(text)) == [f"job.yaml:1:7: name: got text {shown!r}; expected {FOLDER_NAME}"]


@pytest.mark.parametrize("key", ["a..b", ".a", "a.", "a b"])
def test_a_key_that_is_no_path(job: Write, key: str) -> None:
    text = (HEAD + TOOLS + SINK).replace("session", key)
    expected = "a field name or a dotted path such as customer.id"
    assert errors_of(job(text)) == [f"job.yaml:3:9: key_by: got text {key!r}; expected {expected}"]


SYNTAX = [
    ("a: [1", "1:6: not valid YAML: expected ',' or ']', but got '<stream end>'"),
    ("a: 'x", "1:6: not valid YAML: found unexpected end of stream"),
    ("a: *nobody", "1:4: not valid YAML: found undefined alias 'nobody'"),
    ("a: 1\n\tb: 2", "2:1: not valid YAML: a tab; indent and separate with spaces"),
    ("name: x\nsource:\n\ttype: jsonl", "3:1: not valid YAML: a tab; indent and separate with spaces"),
    (
        "a: 1\n b: 2",
        "2:3: not valid YAML: a ':' where no key can stand; indent the line like its neighbours, "
        "or quote a value that holds ': '",
    ),
    ("a: 1\n---\nb: 2", "2:1: not valid YAML: a second document (`---`); a job is one document"),
    ("a: b\x07", "1:5: not valid YAML: a character that YAML does not allow"),
    ("a: " + "[" * 600, "1:1: not valid YAML: nested too deeply or not readable as YAML"),
    ("a: " + "[" * 100 + "]" * 100, "1:1: too many or too deeply nested values for a job YAML"),
    ("", "is empty; expected a mapping with `name`, `source`, `key_by`, `tools` and `sink`"),
    ("# nothing\n", "is empty; expected a mapping with `name`, `source`, `key_by`, `tools` and `sink`"),
    ("just text", "1:1: is not a job; expected a mapping with `name`, `source`, `key_by`, `tools` and `sink`"),
    ("- a\n- b", "1:1: is not a job; expected a mapping with `name`, `source`, `key_by`, `tools` and `sink`"),
]


@pytest.mark.parametrize(("text", "expected"), SYNTAX, ids=[str(number) for number in range(len(SYNTAX))])
def test_no_job_at_all(job: Write, text: str, expected: str) -> None:
    separator = ":" if expected[0].isdigit() else ": "
    assert errors_of(job(text)) == [f"job.yaml{separator}{expected}"]


def test_aliases_that_multiply_are_not_followed_to_the_end(job: Write) -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert errors_of(job("\n".join(lines))) == ["job.yaml:1:1: too many or too deeply nested values for a job YAML"]


def test_a_file_that_is_not_there(folder: Path) -> None:
    assert errors_of("nowhere/job.yaml") == ["nowhere/job.yaml: no such file; expected a job YAML file"]
    assert errors_of("good_tools.py/job.yaml") == ["good_tools.py/job.yaml: no such file; expected a job YAML file"]
    assert errors_of("good_tool.py") == [
        "good_tool.py: no such file; expected a job YAML file; did you mean 'good_tools.py'?"
    ]


def test_a_folder_instead_of_a_file(job: Write, folder: Path) -> None:
    assert errors_of(".") == [".: is a folder; expected a job YAML file"]
    job()
    assert errors_of(str(folder)) == [
        f"{folder}: is a folder; expected a job YAML file; did you mean '{folder}/job.yaml'?"
    ]


def test_a_file_that_is_not_text(folder: Path) -> None:
    (folder / "job.yaml").write_bytes(b"name: x\nkey_by: caf\xe9\n")
    assert errors_of("job.yaml") == ["job.yaml:2:12: is not UTF-8 text here; expected a file saved as UTF-8"]


def test_a_file_that_is_too_large(job: Write) -> None:
    assert errors_of(job("#" * (1 << 20) + "#")) == ["job.yaml: is larger than 1 MiB; expected a job YAML file"]


def test_a_name_that_no_file_can_have() -> None:
    assert errors_of("a\0b") == ["a\\x00b: cannot be read (embedded null byte); expected a job YAML file"]


def test_all_errors_at_once_in_the_order_of_the_file(job: Write) -> None:
    text = """\
name: 5
source: {type: jsonl}
tools:
  - functoin: a:b
  - {function: 'a:b', execution: async, max_concurrent: none}
sink: {type: jsonl, path: [out]}
flink: {parallelism: 0, restart: {atempts: 3}}
"""
    assert [error.split(": ")[0] + " " + error.split(": ")[1] for error in errors_of(job(text))] == [
        "job.yaml:1:1 key_by",
        "job.yaml:1:7 name",
        "job.yaml:2:9 source.path",
        "job.yaml:4:5 tools.0.function",
        "job.yaml:5:57 tools.1.max_concurrent",
        "job.yaml:6:27 sink.path",
        "job.yaml:7:22 flink.parallelism",
        "job.yaml:7:35 flink.restart.atempts",
    ]


VARIABLES = [
    (
        "${UNSET}",
        "the environment variable UNSET is not set; expected it to be set, or a default: ${UNSET:-...}",
    ),
    (
        "${DATA_DIRR}",
        "the environment variable DATA_DIRR is not set; expected it to be set, or a default: ${DATA_DIRR:-...}; "
        "did you mean 'DATA_DIR'?",
    ),
    (
        "${}",
        "a variable that cannot be read; expected ${NAME} or ${NAME:-default}; a literal ${ is written $${",
    ),
    (
        "${A-b}",
        "a variable that cannot be read; expected ${NAME} or ${NAME:-default}; a literal ${ is written $${",
    ),
    ("${DATA_DIR:-x}", None),
]


@pytest.mark.parametrize(("path", "expected"), VARIABLES)
def test_variable(job: Write, path: str, expected: str | None) -> None:
    text = (HEAD + TOOLS + SINK).replace("requests.jsonl", path)
    if expected is None:
        load(job(text), (), {"DATA_DIR": "d"})
    else:
        assert errors_of(job(text), DATA_DIR="d") == [f"job.yaml:2:29: source.path: {expected}"]


def test_what_came_from_the_environment_is_not_shown(job: Write) -> None:
    text = HEAD + TOOLS + SINK + "limits: {result: '${SECRET}'}\nworkers: {threads: \"${SECRET}\"}\nversion: ${SECRET}"
    found = errors_of(job(text), SECRET="hunter2")
    assert found == [
        f"job.yaml:7:18: limits.result: got the value of '${{SECRET}}'; expected {SIZE}",
        "job.yaml:8:20: workers.threads: got the value of '${SECRET}'; expected a whole number",
        "job.yaml:9:10: version: got the value of '${SECRET}'; expected 1",
    ]


def test_what_looks_like_a_secret_is_not_shown(job: Write) -> None:
    lines = ["api_key: hunter2", "tool_calls: {mode: 'postgresql://me:hunter2@host/db'}", "password: hunter2"]
    found = errors_of(job(HEAD + TOOLS + SINK + "\n".join([*lines, "api_key: hunter3"])), "key_by={token: hunter2}")
    assert len(found) == 5
    assert not [error for error in found if "hunter" in error]


OVERRIDES = [
    ("name", "no value to set; expected path.of.field=value, such as tool_calls.mode=sequential"),
    ("=x", "no field to set; expected path.of.field=value, such as tool_calls.mode=sequential"),
    ("a..b=x", "no field to set; expected path.of.field=value, such as tool_calls.mode=sequential"),
    ("tool_cals.mode=x", f"tool_cals: unknown key `tool_cals`; expected {TOP}; did you mean 'tool_calls'?"),
    (
        "tool_calls.mod=x",
        "tool_calls.mod: unknown key `mod`; expected 'mode', 'max_in_flight', 'timeout' or 'on_mismatch'; "
        "did you mean 'mode'?",
    ),
    ("tools.1.name=x", "tools.1: the list `tools` has 1 entries; expected a position from 0 to 0"),
    ("tools.first.name=x", "tools.first: the list `tools` has 1 entries; expected a position from 0 to 0"),
    ("key_by.x=1", "key_by.x: `key_by` holds a single value, so it has no `x`"),
    ("name=[", "name: not valid YAML: expected the node content, but found '<stream end>'"),
    ("name=", f"name: is empty; expected {FOLDER_NAME}"),
    ("workers.threads=x", "workers.threads: got text 'x'; expected a whole number"),
    (
        "name=${UNSET}",
        "name: the environment variable UNSET is not set; expected it to be set, or a default: ${UNSET:-...}",
    ),
    ("workers={threads: 1, threads: 2}", "workers.threads: the key `threads` is written twice; the first one is at {}"),
]


@pytest.mark.parametrize(("override", "expected"), OVERRIDES, ids=[text for text, _ in OVERRIDES])
def test_override(job: Write, override: str, expected: str) -> None:
    place = f"--set {override.partition('=')[0].strip()}"
    # What the `--set` is about is not said a second time.
    expected = expected.removeprefix(place.removeprefix("--set ") + ": ")
    assert errors_of(job(HEAD + TOOLS + SINK), override) == [f"{place}: {expected}".replace("{}", place)]


def test_control_characters_do_not_reach_the_terminal(job: Write) -> None:
    found = errors_of(job(HEAD + TOOLS + SINK + '"a\\e[31m\\n": 1'))
    assert found == [f"job.yaml:7:1: a\\x1b[31m\\n: unknown key `a\\x1b[31m\\n`; expected {TOP}"]


def test_very_long_keys_and_values_are_cut(job: Write) -> None:
    (error,) = errors_of(job(HEAD + TOOLS + SINK + f"{'k' * 120}: x"))
    assert len(error) < 400
    (error,) = errors_of(job(HEAD + TOOLS + SINK + f"journal: {'v' * 5000}"))
    assert len(error) < 200


def test_errors_can_be_sent_elsewhere(job: Write) -> None:
    with pytest.raises(ConfigErrors) as error:
        load(job(HEAD + TOOLS + SINK + "nmae: x"))
    copy = pickle.loads(pickle.dumps(error.value))
    assert (copy.errors, str(copy), copy.code) == (error.value.errors, str(error.value), "invalid_config")
    assert error.value.errors[0].to_json() == {
        "file": "job.yaml",
        "line": 7,
        "column": 1,
        "path": "nmae",
        "message": "unknown key `nmae`",
        "expected": TOP,
        "did_you_mean": "name",
        "text": str(error.value),
    }


def test_nearest() -> None:
    assert nearest("MODE", ["mode", "model"]) == "mode"
    assert nearest("xyz", ["mode"]) is None
    assert nearest("m" * 10_000, ["mode"]) is None


def test_one_of() -> None:
    assert (one_of(["a"]), one_of(["a", "b"]), one_of(["a", "b", "c"])) == ("'a'", "'a' or 'b'", "'a', 'b' or 'c'")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(job: Write, folder: Path) -> None:
    job()
    (folder / "job.yaml").chmod(0)
    assert errors_of("job.yaml") == ["job.yaml: cannot be read (Permission denied); expected a job YAML file"]
