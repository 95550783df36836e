"""What holds for every test: the JUnit report says which tests started a mini-cluster, so that CI can miss them."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("flink") is not None:
            item.user_properties.append(("flink", "true"))
