"""House rules on the files themselves: no machine's paths, no registry's hosts, bounded sizes, one version."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

import flink_agents

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80
VAGUE = re.compile(r"(^|_)(managers?|helpers?|utils?|utilities|common|misc)($|_)")

# Written in pieces, so that this file passes its own test.
MACHINE_PATHS = re.compile(
    r"(?<![\w.])/(?:" + "|".join(["wor" + "k", "ro" + "ot", "ho" + "me", "tmp/d" + "ev", "Use" + "rs"]) + r")/"
)
REGISTRY_HOSTS = re.compile(
    "|".join(["pypi\\." + "org", "python" + "hosted", "debian\\." + "org", "npm" + "js", "pi" + "wheels"])
)


def tracked() -> list[Path]:
    """Return the files under version control; without git, or in an unpacked archive, all that are not hidden."""
    git = shutil.which("git")
    if git is not None:
        listing = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
        if listing.returncode == 0:
            return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    names = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    return [ROOT / name for name in names if not any(part.startswith(".") or part == "build" for part in name.parts)]


TRACKED = tracked()
PYTHON = [path for path in TRACKED if path.suffix == ".py"]
WRITTEN = [path for path in TRACKED if path.suffix in {".py", ".md", ".toml", ".yaml", ".yml", ".properties", ".sh"}]
WRITTEN += [ROOT / ".ci" / "run"]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines_matching(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{shown(path)}:{number}: {line.strip()[:120]}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_path_of_a_machine() -> None:
    assert lines_matching(MACHINE_PATHS, WRITTEN) == []


def test_no_host_of_a_registry() -> None:
    assert lines_matching(REGISTRY_HOSTS, WRITTEN) == []


def test_module_names_say_something() -> None:
    assert [shown(path) for path in PYTHON if VAGUE.search(path.stem) or VAGUE.search(path.parent.name)] == []


def test_files_are_short_enough() -> None:
    sizes = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PYTHON}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{shown(path)}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def test_functions_are_short_enough() -> None:
    assert [(name, size) for path in PYTHON for name, size in functions(path) if size > MAX_FUNCTION_LINES] == []


def test_changelog_opens_with_the_version_of_the_package() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert released[0] == flink_agents.__version__


def test_the_version_is_written_once() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'^version = "(.+)"', project, re.MULTILINE) == [flink_agents.__version__]
    quoted = re.compile(rf"[\"']{re.escape(flink_agents.__version__)}[\"']")
    assert lines_matching(quoted, [path for path in PYTHON if path.is_relative_to(ROOT / "flink_agents")]) == []


@pytest.mark.parametrize(
    "name", ["README.md", "LICENSE", "CHANGELOG.md", ".ci/run", "tests/rules.md", "docker/README.md"]
)
def test_expected_files_are_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 0


def test_the_image_pins_what_the_package_needs() -> None:
    # The image installs with --no-deps: a package without a pin is found missing only when the image is built.
    def named(requirement: str) -> str:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert match is not None, requirement
        return re.sub(r"[-_.]+", "-", match[0]).lower()

    pins = (ROOT / "docker" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pinned = {named(line) for line in pins if not line.startswith("#")}
    needed = [line for line in requires("flink-agents-toolcall") or [] if 'extra == "test"' not in line]
    assert len(needed) > 5
    assert [line for line in needed if named(line) not in pinned] == []


def test_no_job_module_is_named_like_an_installed_one() -> None:
    installed = set(packages_distributions())
    assert [shown(p) for p in PYTHON if p.is_relative_to(ROOT / "jobs") and p.stem in installed] == []
