"""``flink-agents schema``: the JSON Schema of the job YAML, which lets an editor complete and check it."""

from __future__ import annotations

import json

import typer

from flink_agents.config.schema import json_schema

__all__ = ["schema"]


def schema() -> None:
    """Print the JSON Schema of the job YAML, for editors.

    With the YAML language server: `flink-agents schema > job.schema.json`, and as the first line of the job
    `# yaml-language-server: $schema=job.schema.json`.
    """
    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
