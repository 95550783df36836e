"""What holds for every test: the JUnit report says which ones start a mini-cluster, and all that can share one JVM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flink_agents.cluster.embedded import EmbeddedCluster
from flink_agents.cluster.standalone import StandaloneCluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("flink") is not None:
            item.user_properties.append(("flink", "true"))


@pytest.fixture(scope="session")
def cluster_output() -> list[str]:
    """What the shared JVM has printed so far, line by line."""
    return []


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, cluster_output: list[str]) -> Iterator[EmbeddedCluster]:
    """One JVM for the whole session: it takes seconds to start, and a process can have one at a time."""
    # Tests are over before the second compiler has paid for itself.
    options = {"env.java.opts.all": "-XX:TieredStopAtLevel=1"}
    folder = tmp_path_factory.mktemp("flink")
    with EmbeddedCluster(folder, slots=8, options=options, on_output=cluster_output.append) as started:
        yield started


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """One standalone cluster of two TaskManagers for the whole session; a test that ends one starts it again."""
    options = {"env.java.opts.all": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with StandaloneCluster(tmp_path_factory.mktemp("standalone"), taskmanagers=2, options=options) as started:
        yield started
