"""Agents: actions that users write, each a coroutine that takes events, and the tools they share."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from flink_agents.context import ActionContext
from flink_agents.errors import HandleMisuse, InvalidInput
from flink_agents.events import InputEvent, OutputEvent, ToolRequestEvent, ToolResponseEvent
from flink_agents.options import OnMismatch
from flink_agents.tool_call_action import ToolCallAction
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
        if issubclass(event_type, OutputEvent):
            msg = "no action takes an OutputEvent: it goes to the sink"
            raise InvalidInput(msg)

    def mark(function: F) -> F:
        _check_coroutine(function)
        setattr(function, _MARK, event_types)
        return function

    return mark


def _check_coroutine(function: Any) -> None:
    if not inspect.iscoroutinefunction(function):
        msg = f"an action is a coroutine function: write `async def {getattr(function, '__name__', function)}`"
        raise InvalidInput(msg)


class Agent:
    """Actions and tools of one job. Derive from it and decorate methods, or register functions on an instance.

    A method that overrides an action is one for the same events, with or without the decorator; ``name = None`` takes
    an inherited one out. A class is made without arguments, once on the client and once in each subtask; an instance
    in a module is shared by the subtasks of a process. Actions run again after a restore, so an agent keeps nothing in
    its attributes: what is to be remembered belongs into ``ctx.memory``.

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
        methods = [getattr(self, name) for name in self._names()]
        return [*(method for method in methods if is_marked(method)), *self._own_tools()]

    def actions(self) -> list[tuple[tuple[type, ...], Action]]:
        """Return the actions with the event types that each takes.

        Raises:
            InvalidInput: if there is none.
        """
        found = [(types, function) for types, function in map(self._as_action, self._names()) if types]
        for _, function in found:
            _check_coroutine(function)
        found += [(getattr(function, _MARK), function) for function in self._own()]
        if not found:
            msg = f"{self!r} has no action: decorate a coroutine with @action(InputEvent) or @action(ToolRequestEvent)"
            raise InvalidInput(msg)
        return found

    def _as_action(self, name: str) -> tuple[tuple[type, ...], Any]:
        """Return which events the method takes (none if it is no action), by its own mark or the nearest base's."""
        places = [vars(cls)[name] for cls in type(self).__mro__ if name in vars(cls)]
        types = next((getattr(place, _MARK) for place in places if hasattr(place, _MARK)), ())
        return types, getattr(self, name)

    def _names(self) -> list[str]:
        seen: dict[str, None] = {}
        for cls in reversed(type(self).__mro__):
            if cls is not Agent and issubclass(cls, Agent):
                seen.update(dict.fromkeys(name for name, value in vars(cls).items() if callable(value)))
        return [name for name in seen if callable(getattr(type(self), name))]

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
    choices = [choice.value for choice in OnMismatch]
    if found.on_mismatch not in choices:
        msg = f"{found!r}: on_mismatch must be {' or '.join(map(repr, choices))}, not {found.on_mismatch!r}"
        raise InvalidInput(msg)
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
        self.takes_input = any(issubclass(InputEvent, types) for types, _ in self._actions)

    async def run(self, event: Any, ctx: ActionContext) -> list[Any]:
        """Handle one request: its event, and every event that follows from it. Return what goes to the sink.

        Raises:
            HandleMisuse: for an event that no action takes, or a handle that an action leaves unresolved.
        """
        waiting: deque[Any] = deque([event])
        outputs: list[Any] = []
        while waiting:
            current = waiting.popleft()
            is_output = isinstance(current, OutputEvent)
            takers = [function for types, function in self._actions if not is_output and isinstance(current, types)]
            if takers:
                for function in takers:
                    ctx.collect(waiting)
                    await function(current, ctx)
                    ctx.check_settled()
            elif isinstance(current, ToolRequestEvent):
                waiting.append(await self._tool_calls(current, ctx))
            elif is_output or isinstance(current, ToolResponseEvent):
                outputs.append(current)
            else:
                msg = f"no action takes {type(current).__name__}: decorate one with @action({type(current).__name__})"
                raise HandleMisuse(msg)
        return outputs
