"""Agents: actions that users write, each a coroutine that takes events, and the tools they share."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from flink_agents.action import ToolCallAction
from flink_agents.context import ActionContext
from flink_agents.errors import HandleMisuse, InvalidInput
from flink_agents.events import InputEvent, OutputEvent, ToolRequestEvent, ToolResponseEvent
from flink_agents.options import OnMismatch
from flink_agents.tools.function import is_marked
from flink_agents.tools.imports import resolve
from flink_agents.tools.registry import Declaration

__all__ = ["Action", "Agent", "AgentSource", "InputEvent", "OutputEvent", "Routes", "action", "resolve_agent"]

Action: TypeAlias = Callable[[Any, ActionContext], Awaitable[None]]
"""A coroutine function of an event and the context. It runs again from its top after a restore."""

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__flink_agents_action__"


def action(*event_types: type) -> Callable[[F], F]:
    """Mark a coroutine function, or a method of an ``Agent``, as an action that takes events of these types.

    Raises:
        InvalidInput: without a type, for something that is no class, or for a function that is no coroutine function.
    """
    for event_type in event_types or (None,):
        if not isinstance(event_type, type):
            msg = f"@action takes the classes of the events it wants, as in @action(InputEvent), not {event_type!r}"
            raise InvalidInput(msg)

    def mark(function: F) -> F:
        if not inspect.iscoroutinefunction(function):
            msg = f"an action is a coroutine function: write `async def {getattr(function, '__name__', function)}`"
            raise InvalidInput(msg)
        setattr(function, _MARK, event_types)
        return function

    return mark


class Agent:
    """Actions and tools of one job. Derive from it and decorate methods, or register functions on an instance.

    Events of one key are handled one after the other, in the order in which they were sent; all actions that take an
    event's type get it, in the order of their definition. The request is answered when no event is left: its
    ``OutputEvent`` lines leave together. A ``ToolRequestEvent`` that no action takes goes to the built-in
    ``ToolCallAction``, whose ``ToolResponseEvent`` comes back as an event, and to the sink if no action takes that.

    ``on_mismatch`` says what happens when an action asks for other calls than it did before a restore: ``fail``
    (default) stops the job with the difference, ``rerun`` runs the calls from there on as new. All of it runs on the
    task thread.
    """

    on_mismatch: OnMismatch | str = OnMismatch.FAIL

    def __init__(self) -> None:
        self._registered: list[Action] = []
        self._registered_tools: list[Declaration] = []

    def action(self, *event_types: type) -> Callable[[F], F]:
        """Register a coroutine function as an action of this agent; a decorator, as ``@action``."""

        def register(function: F) -> F:
            self._own().append(action(*event_types)(function))
            return function

        return register

    def add_tool(self, declared: Declaration) -> None:
        """Add a tool: a function, a ready tool, or a declaration."""
        self._own_tools().append(declared)

    def tools(self) -> list[Declaration]:
        """Return the tools: methods that carry ``@tool``, and those added."""
        return [*(method for method in self._methods() if is_marked(method)), *self._own_tools()]

    def actions(self) -> list[tuple[tuple[type, ...], Action]]:
        """Return the actions with the event types that each takes.

        Raises:
            InvalidInput: if there is none.
        """
        found = [(getattr(function, _MARK), function) for function in self._methods() if hasattr(function, _MARK)]
        found += [(getattr(function, _MARK), function) for function in self._own()]
        if not found:
            msg = f"{self!r} has no action: decorate a coroutine with @action(InputEvent) or @action(ToolRequestEvent)"
            raise InvalidInput(msg)
        return found

    def _methods(self) -> Iterable[Any]:
        seen: dict[str, None] = {}
        for cls in reversed(type(self).__mro__):
            if cls is not Agent and issubclass(cls, Agent):
                seen.update(dict.fromkeys(name for name, value in vars(cls).items() if callable(value)))
        return [getattr(self, name) for name in seen]

    def _own(self) -> list[Action]:
        # A subclass may do without our constructor.
        if "_registered" not in self.__dict__:
            self._registered = []
        return self._registered

    def _own_tools(self) -> list[Declaration]:
        if "_registered_tools" not in self.__dict__:
            self._registered_tools = []
        return self._registered_tools

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}()"


AgentSource: TypeAlias = "Agent | type[Agent] | str"
"""An agent, its class, or ``module:object`` of either."""


def resolve_agent(source: AgentSource, search_path: Sequence[str | Path] = ()) -> Agent:
    """Return the agent that ``source`` names.

    Raises:
        InvalidInput: if it cannot be imported, is no agent, or has no action.
    """
    found = resolve(source, search_path) if isinstance(source, str) else source
    if isinstance(found, type) and issubclass(found, Agent):
        found = _made(found, source)
    if not isinstance(found, Agent):
        msg = f"{source!r} is {found!r}; expected an Agent or a class derived from it"
        raise InvalidInput(msg)
    found.actions()
    return found


def _made(cls: type[Agent], source: AgentSource) -> Agent:
    try:
        return cls()
    except Exception as error:
        msg = f"making {cls.__qualname__} of {source!r} failed: {type(error).__name__}: {error}"
        raise InvalidInput(msg) from error


class Routes:
    """Which actions take which events. Made once for each subtask; task thread only."""

    def __init__(self, agent: Agent, tool_calls: ToolCallAction) -> None:
        self._actions = agent.actions()
        self._tool_calls = tool_calls
        self.takes_input = any(InputEvent in types for types, _ in self._actions)

    async def run(self, event: Any, ctx: ActionContext) -> list[Any]:
        """Handle one request: its event, and every event that follows from it. Return what goes to the sink.

        Raises:
            HandleMisuse: for an event that no action takes, or a handle that an action leaves unresolved.
        """
        waiting: list[Any] = [event]
        outputs: list[Any] = []
        while waiting:
            current = waiting.pop(0)
            takers = [function for types, function in self._actions if isinstance(current, types)]
            if takers:
                for function in takers:
                    ctx.collect(waiting)
                    await function(current, ctx)
                    ctx.check_settled()
            elif isinstance(current, ToolRequestEvent):
                waiting.append(await self._tool_calls(current, ctx))
            elif isinstance(current, (OutputEvent, ToolResponseEvent)):
                outputs.append(current)
            else:
                msg = f"no action takes {type(current).__name__}: decorate one with @action({type(current).__name__})"
                raise HandleMisuse(msg)
        return outputs
