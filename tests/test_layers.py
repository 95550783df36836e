"""The import direction: a module imports only from its own row of the layers table, or from rows above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "flink_agents"

# Top row first. A folder's name stands for all modules in it; a longer name wins over a shorter one.
LAYERS = [
    (
        "values",
        [
            "errors",
            "options",
            "clock",
            "faults",
            "codec",
            "failures",
            "events",
            "records",
            "retry",
            "redaction",
            "units",
        ],
    ),
    ("durable", ["durable"]),
    ("scheduler", ["scheduler"]),
    ("authoring", ["context", "agent", "durable_call", "tool_call", "tool_call_action", "tools", "chat", "subagents"]),
    ("runtime", ["runtime"]),
    ("job", ["build", "config", "datastream", "travel", "job", "connectors", "cluster", "chaos", "cli"]),
]
TESTING = "testing"
TESTING_MAY_NOT_IMPORT = ("config", "cli", "job")

FLINK_LIBRARIES = {"pyflink", "pemja", "py4j", "java", "apache_flink_libraries"}
KNOWS_FLINK = [
    "runtime.operator",
    "runtime.flink_state",
    "runtime.wakeup",
    "runtime.attempt_watch",
    "runtime.metrics",
    "datastream",
    "job",
    "connectors",
    "cluster",
    "testing.flink",
]


@dataclass(frozen=True)
class Import:
    """One import statement: who, what, where, and whether it runs when the module is imported."""

    module: str
    target: str
    place: str
    at_load: bool

    def __str__(self) -> str:
        return f"{self.place}: {self.module or 'the package root'} imports {self.target}"


def within(name: str, prefixes: list[str] | tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def statements(node: ast.AST, at_load: bool = True) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_load
        else:
            later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(child)
            yield from statements(child, at_load and not later)


def targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif node.module is not None:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            is_module = full.startswith("flink_agents.") and full.removeprefix("flink_agents.") in MODULES
            yield full if is_module else node.module


def imports_of(path: Path, module: str) -> list[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    found = []
    for node, at_load in statements(tree):
        place = f"{path.relative_to(ROOT)}:{node.lineno}"
        assert isinstance(node, ast.Import) or node.level == 0, f"{place}: relative import"
        found += [Import(module, target, place, at_load) for target in targets(node)]
    return found


IMPORTS = [entry for module, path in MODULES.items() for entry in imports_of(path, module)]


def inner(target: str) -> str | None:
    """Return the name inside the package, or None for a foreign module."""
    if target == "flink_agents":
        return ""
    return target.removeprefix("flink_agents.") if target.startswith("flink_agents.") else None


def layer(module: str) -> int:
    rows = [row for row, (_, prefixes) in enumerate(LAYERS) if within(module, prefixes)]
    assert rows, f"flink_agents.{module} is in no layer: add it to the table in {Path(__file__).name}"
    return rows[0]


def test_every_module_has_a_layer() -> None:
    for module in MODULES:
        if module and not within(module, (TESTING,)):
            layer(module)


def test_imports_go_upwards_only() -> None:
    offending = []
    for entry in IMPORTS:
        target = inner(entry.target)
        if target is None or entry.module == "":
            continue
        if target == "" and within(entry.module, ("cli",)):
            continue  # the commands stand below everything, the root included
        if target == "":
            offending.append(f"{entry} (the root stands above no module: import from where the name is defined)")
        elif within(entry.module, (TESTING,)):
            if within(target, TESTING_MAY_NOT_IMPORT):
                offending.append(str(entry))
        elif within(target, (TESTING,)) or layer(target) > layer(entry.module):
            offending.append(str(entry))
    assert not offending, "\n".join(offending)


def test_only_the_shell_knows_flink() -> None:
    offending = [
        str(entry)
        for entry in IMPORTS
        if entry.target.partition(".")[0] in FLINK_LIBRARIES and not within(entry.module, KNOWS_FLINK)
    ]
    assert not offending, "\n".join(offending)


def loaded_by(module: str) -> dict[str, Import | None]:
    """Return every module that importing ``module`` loads, with the import that led there."""
    loaded: dict[str, Import | None] = {module: None}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        for entry in IMPORTS:
            if entry.module == current and entry.at_load and entry.target not in loaded:
                loaded[entry.target] = entry
                target = inner(entry.target)
                if target:
                    loaded.setdefault(target, entry)
                    waiting.append(target)
    return loaded


@pytest.mark.parametrize("module", [name for name in MODULES if not within(name, KNOWS_FLINK)])
def test_loading_a_module_outside_the_shell_loads_no_flink(module: str) -> None:
    led_there = [str(e) for name, e in loaded_by(module).items() if name.partition(".")[0] in FLINK_LIBRARIES and e]
    assert not led_there, f"loading flink_agents.{module} loads Flink through\n" + "\n".join(led_there)


def test_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for entry in IMPORTS:
        target = inner(entry.target)
        if target and entry.at_load and target != entry.module:
            graph[entry.module].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


PUBLIC_TO_JOBS = ("flink_agents.testing", "flink_agents.tools.base", "flink_agents.errors", "flink_agents.events")


def test_jobs_import_public_names_only() -> None:
    offending = [
        str(entry)
        for path in sorted((ROOT / "jobs").rglob("*.py"))
        for entry in imports_of(path, path.stem)
        if inner(entry.target) is not None
        and entry.target != "flink_agents"
        and not within(entry.target, PUBLIC_TO_JOBS)
    ]
    assert not offending, "\n".join(offending)
