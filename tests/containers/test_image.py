"""The image of docker/: what is in it, built twice."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from testcontainers.core.docker_client import DockerClient

if TYPE_CHECKING:
    from tests.containers.conftest import Images

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
PREPARE = ROOT / "tests" / "containers" / "prepare.sh"


def run(image: str, *command: str, user: str | None = None) -> list[str]:
    """Run a command in a container of an image and return its lines."""
    output = DockerClient().client.containers.run(image, list(command), user=user, remove=True)
    return sorted(output.decode().splitlines())


@pytest.fixture(scope="module")
def second(images: Images) -> Iterator[str]:
    """The image built once more, without anything of the first build."""
    if "CONTAINERS_DIR" not in os.environ:
        pytest.skip("the images were not made by tests/containers/prepare.sh")
    tag = f"flink-agents-tests/second-{uuid.uuid4().hex[:8]}"
    subprocess.run([PREPARE, "build", tag], check=True)
    yield tag
    DockerClient().client.images.remove(tag, force=True)


def test_two_builds_have_the_same_files_and_releases(images: Images, second: str) -> None:
    for command in (["find", "/", "-xdev", "-printf", "%M %u %g %p %l\\n"], ["pip", "freeze"]):
        first = run(images.flink_agents, *command, user="0")
        assert len(first) > 50
        assert first == run(second, *command, user="0")


def test_its_packages_are_the_pinned_ones(images: Images) -> None:
    pins = (ROOT / "docker" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.lower().replace("_", "-") for line in pins if not line.startswith("#")}
    freeze = run(images.flink_agents, "pip", "freeze")
    installed = {line.lower().replace("_", "-") for line in freeze if not line.startswith("flink-agents-toolcall")}
    assert installed == pinned


def test_nobody_is_root_and_nothing_of_the_build_is_left(images: Images) -> None:
    assert run(images.flink_agents, "id", "-u") == ["9999"]
    # Neither pip's settings nor a certificate of the machine that built it.
    assert run(images.flink_agents, "sh", "-c", "ls /etc/pip.conf /run/secrets/* /src 2>/dev/null || true") == []
    # Nothing that runs can change what it runs.
    writable = run(images.flink_agents, "find", "/opt", "-writable", "-not", "-type", "l")
    assert writable == ["/opt/flink/log"]


def test_thread_mode_finds_what_it_needs(images: Images) -> None:
    check = "from flink_agents.cluster.libpython import require_shared_library as r; print(r().exists())"
    assert run(images.flink_agents, "python3", "-c", check) == ["True"]
    (interpreter,) = run(images.flink_agents, "sh", "-c", "command -v python3")
    assert interpreter == "/opt/venv/bin/python3"
