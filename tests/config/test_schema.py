"""The JSON Schema that editors use: it accepts what the loader accepts and describes every key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from flink_agents.config.schema import JobConfig, json_schema
from flink_agents.config.section import Section
from flink_agents.config.unavailable import UNAVAILABLE

JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*/job.yaml"))

MINIMAL: dict[str, Any] = {
    "name": "minimal",
    "source": {"type": "jsonl", "path": "in"},
    "key_by": "k",
    "tools": [{"function": "m:f"}],
    "sink": {"type": "print"},
}


def test_it_is_a_schema() -> None:
    jsonschema_rs.meta.validate(json_schema())


@pytest.mark.parametrize("job", JOBS, ids=[job.parent.name for job in JOBS])
def test_it_accepts_the_jobs_of_this_project(job: Path) -> None:
    jsonschema_rs.validate(json_schema(), YAML(typ="safe", pure=True).load(job))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"journal": "none"},
        {"journal": {"type": "none"}},
        {"journal": "sqlite"},
        {"journal": {"type": "sqlite", "path": "j.db", "retention": "2h"}},
        {"journal": {"type": "postgresql", "dsn": "postgresql://h/d"}},
        {"journal": {"type": "postgresql", "dsn": {"env": "DSN"}, "retention": "24h"}},
        {"tools": [{"function": "m:f", "on_interrupt": "reconcile", "reconcile": "m:r"}]},
        {"tools": [{"function": "größen.tools:Größe.in_cm"}]},
        {"sink": {"type": "jsonl", "path": "out", "roll": "10s"}},
        {"tools": [{"schema": "t.json", "function": "m:f", "execution": "async"}]},
        {"limits": {"result": "1.5MiB", "intake_wait": "0ms"}},
        {"flink": {"options": {"a": 1, "b": True, "c": "x"}}},
    ],
)
def test_it_accepts(change: dict[str, Any]) -> None:
    jsonschema_rs.validate(json_schema(), MINIMAL | change)
    JobConfig.model_validate(MINIMAL | change)


@pytest.mark.parametrize(
    "change",
    [
        {"nmae": "x"},
        {"name": "a b"},
        {"journal": "postgresql"},
        {"journal": {"type": "postgresql", "dsn": {"name": "DSN"}}},
        {"tools": []},
        {"tools": [{"function": "m.f"}]},
        {"tools": [{"schema": "t.json", "function": "m:f", "name": "x"}]},
        {"tools": [{"function": "m:f", "retry": {}}]},
        {"sink": {"type": "kafka"}},
        {"limits": {"result": "1MB"}},
        {"limits": {"idle_key": 30}},
        {"flink": {"parallelism": 0}},
    ],
)
def test_it_refuses(change: dict[str, Any]) -> None:
    assert not jsonschema_rs.is_valid(json_schema(), MINIMAL | change)


def models(model: type[BaseModel]) -> list[type[BaseModel]]:
    subclasses = [deeper for sub in model.__subclasses__() for deeper in models(sub)]
    return [model, *subclasses]


def test_every_key_is_described() -> None:
    # The library call has a model of its own, which no editor sees.
    shown = [model for model in models(Section) if not model.__name__.startswith("_")]
    fields = [(model.__name__, name, field) for model in shown for name, field in model.model_fields.items()]
    assert len(fields) > 30
    assert not [(model, name) for model, name, field in fields if not field.description]


def test_what_is_not_available_is_not_offered() -> None:
    properties = json_schema()["properties"]
    offered = {f"tools.*.{key}" for model in json_schema()["$defs"].values() for key in model.get("properties", {})}
    for row in UNAVAILABLE:
        if row.value is None and row.path.startswith("tools."):
            assert row.path not in offered
        elif row.value is None and "." not in row.path:
            assert row.path not in properties
