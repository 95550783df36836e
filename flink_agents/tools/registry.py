"""All tools of a job by name: declarations travel with the job, the registry is built from them at open."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from flink_agents.errors import InjectionFailed, InvalidInput, UnknownTool
from flink_agents.options import InjectFrom
from flink_agents.redaction import Redaction
from flink_agents.tools.base import Tool, ToolSpec
from flink_agents.tools.class_tools import class_tools
from flink_agents.tools.execute.protocol import ExecuteProvider
from flink_agents.tools.execute.tool import ExecuteTool, made_provider
from flink_agents.tools.function import FunctionTool
from flink_agents.tools.imports import resolve
from flink_agents.tools.injection import find, secrets_in
from flink_agents.tools.options import CallOptions
from flink_agents.tools.refusal import bounded, nearest
from flink_agents.tools.schema_file import schema_tools

__all__ = [
    "ClassDeclaration",
    "Declaration",
    "ExecuteDeclaration",
    "FunctionDeclaration",
    "OverrideDeclaration",
    "SchemaDeclaration",
    "ToolRegistry",
    "build_registry",
    "resolve",
]

_log = logging.getLogger(__name__)

_MAX_LISTED_BYTES = 600
_MAX_NAME_BYTES = 120
_MAX_GUESSES = 256


@dataclass(frozen=True)
class FunctionDeclaration(CallOptions):
    """A function tool as a job declares it: by reference (``module:attribute``), the callable, or a ready tool.

    Its options (by keyword) are those of ``tool``, and stronger.
    """

    function: str | Callable[..., Any] | Tool
    name: str | None = None


@dataclass(frozen=True)
class SchemaDeclaration(CallOptions):
    """The tools of one schema file with their handler; ``entries`` are what ``load_entries`` read from it.

    Its options (by keyword) hold for each of them.
    """

    entries: tuple[Mapping[str, Any], ...]
    function: str | Callable[..., Any]


@dataclass(frozen=True)
class ClassDeclaration(CallOptions):
    """The methods of a class as tools, by reference (``module:Class``) or as the class itself.

    Its options (by keyword) hold for each of them, and are stronger than those of ``@tool``.
    """

    cls: str | type


@dataclass(frozen=True)
class ExecuteDeclaration(CallOptions):
    """A tool that runs code through a provider: a ready one, or ``module:Class`` with its keyword ``arguments``."""

    provider: ExecuteProvider | str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None


@dataclass(frozen=True)
class OverrideDeclaration(CallOptions):
    """Options for the tool of this name, which something else declares; they are stronger than its own."""

    tool: str


Declaration: TypeAlias = (
    Tool
    | Callable[..., Any]
    | str
    | FunctionDeclaration
    | SchemaDeclaration
    | ClassDeclaration
    | ExecuteDeclaration
    | OverrideDeclaration
)
"""What ``build_registry`` makes tools of."""


class ToolRegistry:
    """The tools of a job by name. Its tools never change; read by the task thread.

    Raises:
        InvalidInput: for a name that occurs twice.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        self._guesses: dict[str, str] = {}
        for tool in tools:
            if tool.spec.name in self._tools:
                msg = f"two tools are named {tool.spec.name!r}: {self._tools[tool.spec.name]!r} and {tool!r}"
                raise InvalidInput(msg)
            self._tools[tool.spec.name] = tool

    def get(self, name: str) -> Tool:
        """Return the tool ``name``.

        Raises:
            UnknownTool: with the nearest name and some of those there are, bounded.
        """
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownTool(self._unknown(name)) from None

    def find(self, name: str) -> Tool | None:
        """Return the tool ``name``, or None."""
        return self._tools.get(name)

    def names(self) -> tuple[str, ...]:
        """Return all names in the order of declaration."""
        return tuple(self._tools)

    def tools(self) -> tuple[Tool, ...]:
        """Return all tools in the order of declaration."""
        return tuple(self._tools.values())

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return all specifications in the order of declaration."""
        return tuple(tool.spec for tool in self._tools.values())

    def redaction(self, config: Mapping[str, Any]) -> Redaction:
        """Return what hides the secrets of a resolved configuration: its own, and what a tool takes as one."""
        return Redaction([*secrets_in(config), *self._taken_secrets(config)])

    def _taken_secrets(self, config: Mapping[str, Any]) -> Iterator[str]:
        for tool in self._tools.values():
            for name, injection in tool.spec.inject.items():
                if injection.source is InjectFrom.CONFIG:
                    with suppress(KeyError, InjectionFailed):
                        yield from secrets_in(tool.read_injected(name, find(config, injection.key)))

    def open(self) -> None:
        """Open every tool. Task thread; where one fails, those before it are closed again.

        Raises:
            Exception: what the tool's own ``open`` raises.
        """
        with ExitStack() as opened:
            for tool in self._tools.values():
                tool.open()
                opened.callback(_close, tool)
            opened.pop_all()

    def close(self) -> None:
        """Close every tool; what one of them raises is logged, and the others are closed. Any thread, also twice."""
        for tool in self._tools.values():
            _close(tool)

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __repr__(self) -> str:
        return f"ToolRegistry({len(self)} tools)"

    def _unknown(self, name: str) -> str:
        shown = bounded(name, _MAX_NAME_BYTES)
        if shown not in self._guesses:
            # A guess among hundreds of names takes milliseconds of the task thread, and models repeat their mistakes.
            if len(self._guesses) >= _MAX_GUESSES:
                self._guesses.clear()
            meant = nearest(shown, self._tools)
            self._guesses[shown] = f" Did you mean {meant!r}?" if meant else ""
        listed = bounded(", ".join(self._tools), _MAX_LISTED_BYTES) or "none"
        return f"there is no tool {shown!r}.{self._guesses[shown]} The tools are: {listed}"


def _close(tool: Tool) -> None:
    try:
        tool.close()
    except Exception:
        _log.exception("closing the tool %s failed", tool.spec.name)


def build_registry(tools: Sequence[Declaration], search_path: Sequence[str | Path] = ()) -> ToolRegistry:
    """Make a registry of whatever a job lists as its tools. Called once in each process, at open and by ``validate``.

    Args:
        tools: ready tools, functions, references (``module:function``), and declarations of the five kinds.
        search_path: folders in which references are looked up first.

    Raises:
        InvalidInput: for the first that is wrong, a name that occurs twice, or options for a tool that is not there.
    """
    overrides = [declared for declared in tools if isinstance(declared, OverrideDeclaration)]
    registry = ToolRegistry(made for declared in tools for made in _make(declared, search_path))
    return ToolRegistry(_overridden(registry, overrides, search_path)) if overrides else registry


def _overridden(
    registry: ToolRegistry, overrides: Sequence[OverrideDeclaration], search_path: Sequence[str | Path]
) -> Iterable[Tool]:
    tools = {tool.spec.name: tool for tool in registry.tools()}
    for override in overrides:
        tool = tools.get(override.tool)
        if tool is None:
            meant = nearest(override.tool, tools)
            hint = f"; did you mean {meant!r}?" if meant else ""
            msg = f"there is no tool {override.tool!r} to give options to{hint}"
            raise InvalidInput(msg)
        if not isinstance(tool, FunctionTool):
            msg = f"{tool!r} says itself how it is run; it takes no options here"
            raise InvalidInput(msg)
        tools[override.tool] = tool.override(search_path=search_path, **override.keywords())
    return tools.values()


def _make(declared: Declaration, search_path: Sequence[str | Path]) -> Iterable[Tool]:
    if isinstance(declared, Tool):
        return [declared]
    if isinstance(declared, OverrideDeclaration):
        return []
    if isinstance(declared, SchemaDeclaration):
        handler = _object(declared.function, search_path)
        return schema_tools(declared.entries, handler, search_path=search_path, **declared.keywords())
    if isinstance(declared, ClassDeclaration):
        return class_tools(_object(declared.cls, search_path), search_path, **declared.keywords())
    if isinstance(declared, ExecuteDeclaration):
        provider = made_provider(declared.provider, declared.arguments, search_path)
        return [ExecuteTool(provider, name=declared.name, search_path=search_path, **declared.keywords())]
    if not isinstance(declared, FunctionDeclaration):
        declared = FunctionDeclaration(declared)
    function = _object(declared.function, search_path)
    options = declared.keywords()
    if isinstance(function, FunctionTool):
        return [function.override(declared.name, search_path, **options)]
    if isinstance(function, Tool):
        if declared.name is not None or declared.says_something:
            msg = f"{function!r} says itself how it is named and run; it takes no options here"
            raise InvalidInput(msg)
        return [function]
    return [FunctionTool(function, name=declared.name, search_path=search_path, **options)]


def _object(function: str | Callable[..., Any] | Tool, search_path: Sequence[str | Path]) -> Any:
    return resolve(function, search_path) if isinstance(function, str) else function
