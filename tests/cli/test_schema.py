"""`schema`: the JSON Schema on stdout."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from flink_agents.config.schema import json_schema


def test_schema(command: Callable[..., Any]) -> None:
    ended = command("schema")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == json_schema()
