"""``flink-agents tools``: the schemas of a job's tools, in the form that a model's API takes."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer

from flink_agents.cli.arguments import JobFile, Overrides, stdout_for_results
from flink_agents.config.build import prepare_tools
from flink_agents.tools.formats import to_format

__all__ = ["Format", "tools"]


class Format(str, Enum):
    """The model APIs whose form can be asked for."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


def tools(
    job: JobFile,
    form: Annotated[Format, typer.Option("--format", help="Whose form the schemas take.")] = Format.OPENAI,
    overrides: Overrides = None,
) -> None:
    """Print the schemas of the job's tools as a JSON list, to hand to a model."""
    with stdout_for_results():
        specs = prepare_tools(job, overrides or ()).specs()
    typer.echo(json.dumps(to_format(specs, form.value), indent=2, ensure_ascii=False))
