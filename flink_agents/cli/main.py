"""Entry point of ``flink-agents``: finds the command, runs it, and turns bad input into messages and exit code 2."""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import flink_agents
from flink_agents.build import is_compiled
from flink_agents.config.problems import ConfigErrors
from flink_agents.errors import InvalidInput

__all__ = ["COMMANDS", "app", "main"]

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

COMMANDS = {
    "run": "Run the job on an embedded mini-cluster.",
    "validate": "Say everything that `run` would refuse, without starting Flink.",
    "tools": "Print the tools' schemas, to hand to a model.",
    "calls": "List the calls in the job's journal.",
    "cluster": "Start, stop or show a standalone Flink on this machine.",
    "submit": "Submit the job to a Flink cluster.",
    "stop": "Stop a submitted job with a savepoint.",
    "chaos": "Kill the job's TaskManagers and check what is promised.",
    "schema": "Print the JSON Schema of the job YAML, for editors.",
}
"""The commands and their one-line help, in the order of `--help`; each is a function of the same name in a module of
this package that has the same name."""

CLASH = (
    "Apache's own distribution 'flink-agents' is installed in this environment. It has the same import name as "
    "'flink-agents-toolcall', so neither can be relied on. Use an environment of its own for each, or run: "
    "pip uninstall flink-agents && pip install --force-reinstall --no-deps flink-agents-toolcall"
)


class LazyGroup(TyperGroup):
    """A group that imports a command's module when that command is called, so that none waits for another's imports."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        function = getattr(import_module(f"flink_agents.cli.{cmd_name}"), cmd_name)
        single.command(cmd_name, help=function.__doc__ or COMMANDS[cmd_name], short_help=COMMANDS[cmd_name])(function)
        return typer.main.get_command(single)


app = typer.Typer(
    name="flink-agents",
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        compiled = " (engine compiled)" if is_compiled() else ""
        typer.echo(f"flink-agents {flink_agents.__version__}{compiled}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Durable tool calls for agents, as a keyed Apache Flink operator."""


def main() -> None:
    """Run the command line and exit: 0 done, 1 the job failed, 2 bad input, 130 interrupted."""
    if _is_installed("flink-agents"):
        typer.echo(CLASH, err=True)
        sys.exit(EXIT_BAD_INPUT)
    try:
        app(prog_name="flink-agents")
    except ConfigErrors as error:
        typer.echo(str(error), err=True)
        typer.echo(f"{len(error.errors)} error{'s' if len(error.errors) != 1 else ''}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except InvalidInput as error:
        typer.echo(f"flink-agents: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
