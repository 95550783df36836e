"""`- execute: {...}` of a job YAML: what it says reaches the provider, and errors stand where they were written."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents.config.build import PreparedJob, prepare
from flink_agents.config.loader import load
from flink_agents.config.problems import ConfigErrors
from flink_agents.config.remote import prepare_for_cluster
from flink_agents.config.schema import ExecuteToolConfig
from flink_agents.errors import InvalidInput
from flink_agents.tools.execute import (
    ExecuteTool,
    JshellSession,
    LocalProcess,
    NoExecution,
    ProcessOptions,
    PythonSession,
    SessionProvider,
)
from flink_agents.tools.registry import ExecuteDeclaration, build_registry

Write = Callable[..., str]

TEXT = """\
name: executes
source: {type: jsonl, path: requests.jsonl}
key_by: k
tools:
  - execute: EXECUTE
sink: {type: print}
journal: none
"""

SANDBOX = """
from flink_agents.tools.execute import ExecuteProvider, ExecuteResult

class Sandbox(ExecuteProvider):
    runtimes = ("lisp",)

    def __init__(self, region="near"):
        if region == "moon":
            raise ValueError("too far")
        self.region = region

    def execute(self, request, token):
        return ExecuteResult(0, self.region)

class Other: ...
"""

ALL = (
    "{type: process, runtimes: [python, shell], time_limit: 1s, max_time_limit: 2m, grace: 50ms, output: 1KiB, "
    "permits: 3, environment: [PATH, LANG], cpu: 5s, memory: 64MiB, file_size: 1MiB, network: false, "
    "folder: /var/tmp, idle: 1h}"
)


@pytest.fixture
def prepared(job: Write, folder: Path) -> Callable[[str], PreparedJob]:
    (folder / "sandboxes.py").write_text(SANDBOX, encoding="utf-8")
    return lambda execute: prepare(job(TEXT.replace("EXECUTE", execute)))


def tool_of(job: PreparedJob) -> ExecuteTool:
    declared = pickle.loads(pickle.dumps(job.tools))
    (made,) = build_registry(declared).tools()
    assert isinstance(made, ExecuteTool)
    return made


def error_of(prepared: Callable[[str], PreparedJob], execute: str) -> str:
    with pytest.raises(ConfigErrors) as raised:
        prepared(execute)
    (error,) = raised.value.errors
    return str(error)


def test_every_option_reaches_the_provider(job: Write) -> None:
    made = tool_of(prepare_for_cluster(job(TEXT.replace("EXECUTE", ALL).replace("requests.jsonl", "/r.jsonl"))))
    assert isinstance(made.provider, LocalProcess)
    assert made.provider.runtimes == ("python", "shell")
    assert made.provider.options == ProcessOptions(
        time_limit_ms=1000,
        max_time_limit_ms=120_000,
        grace_ms=50,
        output=1024,
        permits=3,
        environment=("PATH", "LANG"),
        cpu_ms=5000,
        memory=64 << 20,
        file_size=1 << 20,
        network=False,
        folder="/var/tmp",
        idle_ms=3_600_000,
    )


def test_defaults_are_the_providers_own(prepared: Callable[[str], PreparedJob]) -> None:
    made = tool_of(prepared("{type: process}"))
    assert isinstance(made.provider, LocalProcess)
    assert (made.spec.name, made.provider.options) == ("execute", ProcessOptions())


@pytest.mark.parametrize(("kind", "cls"), [("python", PythonSession), ("jshell", JshellSession)])
def test_sessions(job: Write, kind: str, cls: type[SessionProvider]) -> None:
    text = TEXT.replace("EXECUTE", f"{{type: {kind}, sessions: 2, idle: 5s}}").replace("requests.jsonl", "/r.jsonl")
    provider = tool_of(prepare_for_cluster(job(text))).provider
    assert type(provider) is cls
    assert (provider.sessions, provider.options.idle_ms) == (2, 5000)


def test_none(prepared: Callable[[str], PreparedJob]) -> None:
    assert isinstance(tool_of(prepared("{type: none}")).provider, NoExecution)


def test_a_provider_of_ones_own(prepared: Callable[[str], PreparedJob]) -> None:
    made: Any = tool_of(prepared("{type: provider, class: 'sandboxes:Sandbox', options: {region: far}}"))
    assert (made.provider.region, made.provider.runtimes) == ("far", ("lisp",))


def test_options_of_the_tool(job: Write) -> None:
    text = TEXT.replace("EXECUTE", "{type: none}\n    name: run_code\n    max_concurrent: 2\n    timeout: 90s")
    spec = tool_of(prepare(job(text))).spec
    assert (spec.name, spec.max_concurrent, spec.timeout_ms) == ("run_code", 2, 90_000)


KINDS = "'process', 'python', 'jshell', 'none' or 'provider'"


@pytest.mark.parametrize(
    ("execute", "told"),
    [
        ("{type: docker}", f"5:21: tools.0.execute.type: got text 'docker'; expected {KINDS}"),
        ("{type: jshel}", "did you mean 'jshell'?"),
        ("{type: python, sessions: -1}", "tools.0.execute.sessions: got the number -1; expected at least 0"),
        ("{type: jshell, session: 1}", "tools.0.execute.session: unknown key `session`"),
        ("{}", "tools.0.execute.type: is required, but missing"),
        ("shell", "tools.0.execute: got text 'shell'; expected a mapping with `type`"),
        ("{type: process, runtimes: [ruby]}", "tools.0.execute.runtimes.0: got text 'ruby'"),
        ("{type: process, runtime: [shell]}", "did you mean 'runtimes'?"),
        ("{type: process, runtimes: []}", "tools.0.execute.runtimes: is empty"),
        ("{type: process, sessions: 3}", "tools.0.execute.sessions: unknown key `sessions`"),
        ("{type: process, time_limit: 2m}", "tools.0.execute.max_time_limit: is below `time_limit`"),
        (
            "{type: process, folder: tmp}",
            "execute.folder: got text 'tmp'; expected an absolute path such as",
        ),
        ("{type: process, memory: 5}", "tools.0.execute.memory"),
        ("{type: process, memory: 1KiB}", "tools.0.execute.memory: is too small; expected at least 1MiB"),
        ("{type: provider, class: 'sandboxes:Sandbx'}", "did you mean 'Sandbox'?"),
        (
            "{type: provider, class: 'sandboxes:Other'}",
            "is no class of an Exec",
        ),
        ("{type: provider, class: 'sandboxes:Sandbox', options: {region: moon}}", "with region: too far"),
        ("{type: provider, class: 'sandboxes:Sandbox', options: {size: 1}}", "unexpected keyword argument 'size'"),
        ("{type: none}\n    execution: inline", "tools.0"),
    ],
)
def test_errors_stand_where_they_were_written(prepared: Callable[[str], PreparedJob], execute: str, told: str) -> None:
    assert told in error_of(prepared, execute)


def test_what_this_machine_cannot_do_is_refused_here_and_not_for_a_cluster(
    prepared: Callable[[str], PreparedJob], job: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    needs = "needs node on the PATH of this machine"
    assert error_of(prepared, "{type: process, runtimes: [node]}").startswith("job.yaml:5:14: tools.0.execute: ")
    assert needs in error_of(prepared, "{type: process, runtimes: [node]}")
    assert "jshell needs a JDK" in error_of(prepared, "{type: jshell}")
    text = TEXT.replace("EXECUTE", "{type: process, runtimes: [node]}").replace("requests.jsonl", "/r.jsonl")
    tool = tool_of(prepare_for_cluster(job(text)))
    with pytest.raises(InvalidInput, match=needs):
        tool.open()


def test_looking_leaves_nothing_behind(prepared: Callable[[str], PreparedJob], tmp_path: Path) -> None:
    assert shutil.which("sh")
    prepared(f"{{type: process, folder: '{tmp_path}'}}")
    assert list(tmp_path.glob("flink-agents-execute-*/*")) == []


def test_the_yaml_alone_imports_nothing(job: Write) -> None:
    text = TEXT.replace("EXECUTE", "{type: provider, class: 'nowhere:Sandbox'}")
    assert isinstance(load(job(text)).tools[0], ExecuteToolConfig)


def test_a_declaration_in_a_program() -> None:
    (made,) = build_registry([ExecuteDeclaration(NoExecution(), name="nothing")]).tools()
    assert (made.spec.name, made.spec.timeout_ms) == ("nothing", None)
