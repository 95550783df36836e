from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flink_agents.errors import InvalidInput
from flink_agents.tools.imports import resolve


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def folder(parent: Path, **files: str) -> Path:
    parent.mkdir(exist_ok=True)
    for name, text in files.items():
        (parent / f"{name}.py").write_text(text, encoding="utf-8")
    return parent


def test_an_attribute_of_an_installed_module() -> None:
    assert resolve("os.path:join") is __import__("os").path.join
    assert resolve("pathlib:Path.exists") is Path.exists


def test_a_module_beside_the_job(tmp_path: Path) -> None:
    folder(tmp_path, shop_under_test="from parts_under_test import found", parts_under_test="def found(): return 5")
    assert resolve("shop_under_test:found", [tmp_path])() == 5


@pytest.mark.parametrize(
    "reference", ["", "module", "module:", ":function", "a b:c", "module:f()", "../x:f", "a::b", "a:b:c"]
)
def test_malformed_reference(reference: str) -> None:
    with pytest.raises(InvalidInput, match="not of the form 'module:function'"):
        resolve(reference)


def test_missing_module_has_the_nearest_name(tmp_path: Path) -> None:
    folder(tmp_path, shop_under_test="")
    with pytest.raises(InvalidInput) as caught:
        resolve("shop_undre_test:found", [tmp_path])
    assert str(tmp_path) in str(caught.value)
    assert "did you mean 'shop_under_test'?" in str(caught.value)


def test_missing_attribute_has_the_nearest_name(tmp_path: Path) -> None:
    folder(tmp_path, shop_under_test="class Shop:\n    def look_up(self): ...\ndef find_order(): ...")
    with pytest.raises(InvalidInput, match=r"has no 'find_ordr'; did you mean 'find_order'\?"):
        resolve("shop_under_test:find_ordr", [tmp_path])
    with pytest.raises(InvalidInput, match=r"has no 'lookup'; did you mean 'look_up'\?"):
        resolve("shop_under_test:Shop.lookup", [tmp_path])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x = 1\nraise LookupError('of the author')", r"shop_under_test.py:2: LookupError: of the author"),
        ("import not_installed_at_all", r"shop_under_test.py:1: ModuleNotFoundError: .*not_installed_at_all"),
        ("x = 1\ndef broken(:", r"shop_under_test.py:2: SyntaxError"),
        ("import sys\nsys.exit(3)", r"shop_under_test.py:2: SystemExit: 3"),
    ],
)
def test_a_module_that_fails_is_told_with_its_own_error_and_line(tmp_path: Path, text: str, part: str) -> None:
    folder(tmp_path, shop_under_test=text)
    with pytest.raises(InvalidInput, match=part):
        resolve("shop_under_test:found", [tmp_path])


def test_a_namesake_of_another_job_is_not_taken_for_ours(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", shop_under_test="def found(): return 1")
    two = folder(tmp_path / "two", shop_under_test="def found(): return 2")
    first = resolve("shop_under_test:found", [one])
    assert resolve("shop_under_test:found", [two])() == 2
    assert first() == 1


def test_the_same_text_in_another_folder_is_the_same_module(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", shop_under_test="def found(): return 1")
    two = folder(tmp_path / "two", shop_under_test="def found(): return 1")
    assert resolve("shop_under_test:found", [one]) is resolve("shop_under_test:found", [two])


def test_search_path_stays_for_imports_made_later(tmp_path: Path) -> None:
    folder(
        tmp_path,
        shop_under_test="def found():\n    import parts_under_test\n    return parts_under_test.N",
        parts_under_test="N = 7",
    )
    assert resolve("shop_under_test:found", [tmp_path, tmp_path])() == 7
    assert sys.path.count(str(tmp_path)) == 1
