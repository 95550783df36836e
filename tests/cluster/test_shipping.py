"""What travels with a job, and how a TaskManager finds it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flink_agents.cluster import shipping
from flink_agents.cluster.shipping import pack
from flink_agents.config.loader import load
from flink_agents.config.schema import JobConfig
from flink_agents.errors import ClusterFault, InvalidInput
from flink_agents.runtime.deployment import SHIPPED, check_version, installed_version, module_folders


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    files = {
        "job.yaml": "name: packed\nsource: {type: jsonl, path: /in}\nkey_by: k\nsink: {type: print}\n"
        "tools: [{function: tools_one:run}, {schema: schemas/all.json, function: tools_one:run}]\n",
        "tools_one.py": "run = print\n",
        "requests.jsonl": "{}\n",
        ".hidden.py": "",
        "library/__init__.py": "",
        "library/data.txt": "data",
        "library/__pycache__/old.pyc": "",
        "out/part.py.jsonl": "",
        "schemas/all.json": "[]",
    }
    for name, text in files.items():
        file = tmp_path / "job" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return load(tmp_path / "job" / "job.yaml")


def test_modules_packages_schemas_and_the_yaml(config: JobConfig, tmp_path: Path) -> None:
    folder = pack(config, tmp_path)
    packed = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert packed == {"job.yaml", "tools_one.py", "library/__init__.py", "library/data.txt", "schemas/all.json"}


def test_the_name_is_that_of_the_content(config: JobConfig, tmp_path: Path) -> None:
    first = pack(config, tmp_path).name
    assert pack(config, tmp_path).name == first
    (config.folder / "tools_one.py").write_text("run = repr\n", encoding="utf-8")
    assert pack(config, tmp_path).name != first


def test_too_much_is_refused(config: JobConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "LARGEST", 16)
    with pytest.raises(InvalidInput, match="install them on the TaskManagers"):
        pack(config, tmp_path)


def test_the_newest_copy_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [tmp_path / attempt / "files" for attempt in ("1", "2")]
    gone = tmp_path / "0" / "files"
    for second, copy in enumerate(copies):
        copy.mkdir(parents=True)
        os.utime(copy, (second, second))
    monkeypatch.setattr(sys, "path", [str(copies[0]), str(gone), str(copies[1]), *sys.path])
    assert module_folders([f"{SHIPPED}files", "/elsewhere"]) == (str(copies[1]), "/elsewhere")
    with pytest.raises(ClusterFault, match="have not arrived"):
        module_folders([f"{SHIPPED}others"])


def test_versions() -> None:
    check_version(installed_version())
    check_version("")
    with pytest.raises(ClusterFault, match=r"versions differ: .* 99\.0"):
        check_version("99.0")
