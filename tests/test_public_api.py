"""What the package offers by name: every `__all__` is sorted and true, and the root loads without Flink."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flink_agents

PACKAGE = Path(__file__).resolve().parent.parent / "flink_agents"
FILES = {
    ".".join(("flink_agents", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def declared(path: Path) -> list[str] | None:
    """Return the module's `__all__` as written, or None where there is none."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


# What users import; the rest is internal and may name its pieces plainly without exporting them.
PUBLIC = [
    "flink_agents",
    "flink_agents.clock",
    "flink_agents.errors",
    "flink_agents.events",
    "flink_agents.options",
    "flink_agents.testing",
    "flink_agents.tools",
    "flink_agents.tools.base",
    "flink_agents.tools.execute",
]
DECLARING = sorted(module for module, path in FILES.items() if declared(path) is not None)


def sort_key(name: str) -> tuple[int, list[tuple[int, str, int]]]:
    """Return the linter's order: CONSTANTS, Classes, everything else; numbers in names by value."""
    row = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    parts = re.findall(r"\d+|\D+", name)
    return row, [(0, "", int(part)) if part.isdigit() else (1, part, 0) for part in parts]


@pytest.mark.parametrize("module", DECLARING)
def test_all_is_sorted_and_true(module: str) -> None:
    names = declared(FILES[module])
    assert names is not None
    assert names == sorted(set(names), key=sort_key)
    loaded = importlib.import_module(module)
    assert [name for name in names if not hasattr(loaded, name)] == []


@pytest.mark.parametrize("module", [module for module in PUBLIC if module in FILES])
def test_all_has_every_public_definition(module: str) -> None:
    body = ast.parse(FILES[module].read_text(encoding="utf-8")).body
    definitions = [n.name for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    names = declared(FILES[module]) or []
    assert [name for name in definitions if not name.startswith("_") and name not in names] == []


def test_every_module_says_in_one_sentence_where_it_stands() -> None:
    for module, path in FILES.items():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert docstring, f"{module} has no docstring"
        sentence = docstring.split("\n\n")[0].rstrip()
        assert sentence.endswith((".", "?", "::")), f"{module}: {sentence!r}"


def test_the_root_loads_no_flink() -> None:
    script = (
        "import sys, flink_agents; flink_agents.tool_calls; "
        "print(sorted({'pyflink', 'pemja', 'py4j'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_version_is_that_of_the_distribution() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", flink_agents.__version__)
