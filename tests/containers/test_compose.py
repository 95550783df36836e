"""The README's lines from the image to a running cluster, and what that cluster lets in and keeps to itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from testcontainers.core.docker_client import DockerClient

if TYPE_CHECKING:
    from tests.containers.conftest import Images

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WAIT_S = 180.0


def lines_of_readme() -> dict[str, str]:
    """Return the lines of the section, with what is continued in one, by the command in each."""
    section = README.split("\n## On a cluster of containers\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    lines = block.replace("\\\n", "").splitlines()
    names = ["build", "password", "up", "submit", "show", "down"]
    assert len(lines) == len(names)
    return dict(zip(names, lines, strict=True))


class Project:
    """One cluster of compose.yaml, reached by the README's lines."""

    def __init__(self, compose: str, environ: dict[str, str]) -> None:
        self._compose = compose
        self.environ = environ
        self.lines = lines_of_readme()

    def shell(self, *lines: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        script = "\n".join(lines).replace("docker compose", self._compose)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not check, done.stderr
        return done

    def containers(self, service: str | None = None) -> list[Any]:
        """Return the containers that run, of one service or all."""
        labels = [f"com.docker.compose.project={self.environ['COMPOSE_PROJECT_NAME']}"]
        labels += [f"com.docker.compose.service={service}"] if service else []
        return list(DockerClient().client.containers.list(filters={"label": labels}))

    def web(self, path: str) -> httpx.Response:
        """Ask the web UI's port."""
        (jobmanager,) = self.containers("jobmanager")
        port = jobmanager.ports["8081/tcp"][0]["HostPort"]
        return httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False)


@pytest.fixture(scope="module")
def project(images: Images) -> Iterator[Project]:
    client = os.environ.get("CONTAINERS_DOCKER", "docker")
    compose = f"{client} compose"
    if subprocess.run([client, "compose", "version"], capture_output=True, check=False).returncode != 0:
        compose = "docker-compose"
        if shutil.which(compose) is None:
            pytest.skip("Compose is not installed (Debian: apt-get install docker-compose)")
    environ = {**os.environ, "COMPOSE_PROJECT_NAME": f"compose{uuid.uuid4().hex[:8]}", "WEB_PORT": "0"}
    made = Project(compose, environ)
    # The image is there: with the settings that this machine's index needs.
    password = made.shell(made.lines["password"], 'printf "%s" "$JOURNAL_PASSWORD"').stdout
    environ["JOURNAL_PASSWORD"] = password
    try:
        made.shell(made.lines["up"])
        yield made
    finally:
        made.shell(made.lines["down"])


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {what}"
        time.sleep(0.2)


def test_the_file_is_clean(project: Project) -> None:
    checked = project.shell("docker compose -f docker/compose.yaml config -q")
    assert (checked.stdout, checked.stderr) == ("", "")
    told = project.shell("unset JOURNAL_PASSWORD", "docker compose -f docker/compose.yaml config -q", check=False)
    assert told.returncode != 0
    assert "set JOURNAL_PASSWORD" in told.stderr


def test_the_quickstart_is_answered_and_the_password_stays_where_it_belongs(project: Project) -> None:
    job_id = project.shell(project.lines["submit"]).stdout.split()[0]
    until(lambda: project.web(f"/jobs/{job_id}").json()["state"] == "FINISHED", "the end of the job")
    shown = project.shell(project.lines["show"]).stdout
    requests = (ROOT / "jobs" / "quickstart" / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    # One of them is no request.
    assert len({json.loads(line)["request_id"] for line in shown.splitlines()}) == len(requests) - 1

    password = project.environ["JOURNAL_PASSWORD"]
    for path in ("", "/config", "/plan", "/exceptions", "/checkpoints/config"):
        assert password not in project.web(f"/jobs/{job_id}{path}").text
    (jobmanager,) = project.containers("jobmanager")
    assert password not in json.dumps(jobmanager.attrs)
    # What was submitted is in the JobManager's files, what came of it in the volumes.
    for container in [jobmanager, *project.containers("taskmanager")]:
        search = ["grep", "-rlsF", "--", password, "/tmp", "/opt/flink/log", "/opt/flink/conf", "/state", "/data"]
        assert container.exec_run(search).output == b""
        assert password.encode() not in container.logs()


def test_only_the_web_ui_is_open_and_only_to_this_machine(project: Project) -> None:
    bound = {
        (container.labels["com.docker.compose.service"], port, binding["HostIp"])
        for container in project.containers()
        for port, bindings in container.ports.items()
        for binding in bindings or ()
    }
    assert bound == {("jobmanager", "8081/tcp", "127.0.0.1")}
    assert "Apache Flink" in project.web("/").text
    # Jobs come by the command: a jar sent to the web UI is refused.
    assert project.web("/jars").status_code == 404


def test_taskmanagers_can_be_added(project: Project) -> None:
    project.shell("docker compose -f docker/compose.yaml up -d --no-recreate --scale taskmanager=3")
    until(lambda: project.web("/overview").json()["taskmanagers"] == 3, "three TaskManagers")
    flink = [*project.containers("jobmanager"), *project.containers("taskmanager")]
    assert len(flink) == 4

    def healthy() -> bool:
        for container in flink:
            container.reload()
        return all(container.attrs["State"]["Health"]["Status"] == "healthy" for container in flink)

    until(healthy, "healthy containers")
    for container in flink:
        assert container.exec_run(["id", "-u"]).output.strip() == b"9999"
