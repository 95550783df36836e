"""Every rule number that a test cites stands in `tests/rules.md`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def numbered() -> list[int]:
    lines = (TESTS / "rules.md").read_text(encoding="utf-8").splitlines()
    return [int(match[1]) for line in lines if (match := re.match(r"(\d+)\. ", line))]


def citations() -> Iterator[tuple[str, ast.expr]]:
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.rule"):
                place = f"{path.relative_to(TESTS.parent)}:{node.lineno}"
                yield from ((place, argument) for argument in node.args)


def test_rules_are_numbered_from_one_without_gaps() -> None:
    numbers = numbered()
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_citation_names_a_rule() -> None:
    known = set(numbered())
    wrong = [
        f"{place}: {ast.unparse(argument)}"
        for place, argument in citations()
        if not (isinstance(argument, ast.Constant) and type(argument.value) is int and argument.value in known)
    ]
    assert not wrong, "cited, but no rule of tests/rules.md:\n" + "\n".join(wrong)
