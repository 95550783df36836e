"""What an action may ask for while it runs."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, MutableSequence
from datetime import datetime, timezone
from typing import Any, TypeVar

from flink_agents import codec
from flink_agents.durable.memory import KeyMemory
from flink_agents.durable_call import CallSettings, DurableCall, Seconds, milliseconds
from flink_agents.errors import HandleMisuse
from flink_agents.options import Execution, Limits
from flink_agents.scheduler.handles import (
    AsyncFuture,
    CompletedFuture,
    DurableFuture,
    GatherFuture,
    HandleState,
    SleepFuture,
)
from flink_agents.scheduler.run import ActionRun, RunStatus
from flink_agents.scheduler.services import Counters
from flink_agents.scheduler.tool_context import running_call
from flink_agents.tool_call import ToolCallFuture, ToolTerms
from flink_agents.tools.async_tool import AsyncTool
from flink_agents.tools.options import Retry
from flink_agents.tools.registry import ToolRegistry

__all__ = ["ActionContext", "ActionMetrics", "ContextParts"]

T = TypeVar("T")
_log = logging.getLogger("flink_agents.actions")


class ContextParts:
    """What the contexts of one subtask share. ``config`` is resolved. Task thread only."""

    __slots__ = ("config", "counters", "has_journal", "limit", "registry", "terms")

    def __init__(
        self,
        registry: ToolRegistry,
        limits: Limits,
        counters: Counters,
        *,
        has_journal: bool,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.registry = registry
        self.limit = limits.arguments
        self.counters = counters
        self.has_journal = has_journal
        self.config = config or {}
        self.terms = ToolTerms()


class ActionContext:
    """Handed to an action. Task thread only, and only while the action runs; everything it offers is safe to replay.

    Handles are cold: nothing is reserved or begun for one before it is awaited or gathered. One that a user's action
    creates must be awaited, gathered or cancelled before the action ends.
    """

    __slots__ = ("_created", "_events", "_memory", "_parts", "_run", "_submitting", "_thread")

    def __init__(self, parts: ContextParts, run: ActionRun, memory: KeyMemory) -> None:
        self._parts = parts
        self._run = run
        self._created: list[DurableFuture] | None = None
        self._events: MutableSequence[Any] | None = None
        self._submitting = False
        self._thread = threading.get_ident()
        self._memory = memory

    @property
    def memory(self) -> KeyMemory:
        """What is remembered of the key, by path; changes are written when the request is answered."""
        self._check_action()
        return self._memory

    @property
    def key(self) -> Any:
        """The request's key."""
        return self._run.origin.key

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._run.origin.request_id

    @property
    def is_replaying(self) -> bool:
        """Whether what runs now ran before a restore already."""
        return self._run.is_replaying

    def call_tool(self, name: str, arguments: Any, *, position: int = -1, call_id: Any = None) -> DurableFuture:
        """Return a cold handle on one call of a tool.

        ``arguments`` is an object or a JSON string of one; ``position`` is the call's place in its request, ``call_id``
        what the request calls it. An unknown tool and arguments that do not fit are the call's own failure, when it is
        awaited. The built-in action passes arguments that nothing changes any more; of a user's, they are copied here.

        Raises:
            HandleMisuse: for a name that is no text.
            Unserializable: for arguments that cannot be recorded.
        """
        if self._created is None:
            return ToolCallFuture(self._parts, self, self._run, name, position, arguments, call_id)
        given: Any = name
        if not isinstance(given, str):
            msg = f"call_tool takes the name of a tool and its arguments, as in call_tool('find', {{}}), not {given!r}"
            raise HandleMisuse(msg)
        return self._note(ToolCallFuture(self._parts, self, self._run, name, position, _own(arguments), call_id))

    def durable_execute(
        self,
        function: Callable[..., Any],
        *args: Any,
        id: str | None = None,
        reconcile: Callable[..., Any] | None = None,
        timeout: Seconds | None = None,
        deadline: Seconds | None = None,
        retry: Retry | None = None,
        execution: Execution | str | None = None,
        prepare: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> DurableFuture:
        """Return a cold handle on one call of a function, recorded like a tool's: it does not run again once it ended.

        A plain function runs on a worker's thread, a coroutine function on the worker loop, and with ``execution:
        "inline"`` (microseconds only) on the task thread. The arguments are recorded by their digest and copied for
        each body; the value goes through the codec.

        Args:
            function: what runs; its name is the call's.
            args: values that the codec carries.
            id: another name for the call, such as one that survives a renaming of the function.
            reconcile: called with the same arguments after a crash cut the call off: returns the call's value, raises
                its failure, or returns ``NOT_STARTED``. Needs a journal.
            timeout: bounds one body, from its begin.
            deadline: bounds the call with all bodies and waits.
            retry: a ``RetryPolicy``, or what the job YAML says.
            execution: where it runs.
            prepare: called with the same arguments before each body, on the task thread, so it must be quick; the
                function gets what it returns as its first argument. What it raises is the call's failure. It does not
                run for a call that has ended.
            kwargs: further arguments by name.

        A lambda needs an ``id``: it has no name that tells it from another one.

        Raises:
            HandleMisuse: for a setting that is wrong.
            Unserializable: for an argument that cannot be recorded.
        """
        settings = CallSettings(id, reconcile, timeout, deadline, retry, execution, prepare)
        return self._note(DurableCall(function, args, kwargs, settings, has_journal=self._parts.has_journal))

    def durable_execute_async(
        self, function: Callable[..., Awaitable[Any]], *args: Any, **settings: Any
    ) -> DurableFuture:
        """Return a cold handle on one call of a coroutine function; arguments and settings as ``durable_execute``.

        Raises:
            HandleMisuse: for a function that is no coroutine function, or a setting that is wrong.
        """
        return self.durable_execute(function, *args, execution=Execution.ASYNC, **settings)

    def completed(self, value: T) -> CompletedFuture[T]:
        """Return a handle whose result is there already; it takes no slot."""
        return CompletedFuture(value)

    def gather(
        self, *handles: AsyncFuture[Any], timeout: Seconds | None = None, max_in_flight: int = 16
    ) -> GatherFuture:
        """Return a handle on several calls: awaiting it gives their outcomes in the order of the arguments.

        At most ``max_in_flight`` of them run at once, in a sliding window; 1 means one after another. ``timeout``
        bounds the whole batch by an absolute time, which a failover does not move.

        Raises:
            NestedGather: if one of the handles is a gather itself.
            HandleMisuse: for something that is no handle, or a wrong number.
        """
        return GatherFuture(handles, max_in_flight, None if timeout is None else milliseconds("timeout", timeout))

    def sleep(self, seconds: Seconds) -> SleepFuture:
        """Return a handle on a durable wait: its end is recorded when it begins, and a failover does not move it."""
        self._check_action()
        handle = SleepFuture(milliseconds("sleep", seconds))
        self._note(handle)
        return handle

    def now(self) -> datetime:
        """Return the time in UTC, to the millisecond; recorded, so a replay gets the same."""
        self._check_action()
        return datetime.fromtimestamp(self._run.now_ms() / 1000, timezone.utc)

    def uuid(self) -> uuid.UUID:
        """Return a random-looking UUID that is the same on every replay, and no other call's."""
        self._check_action()
        return self._run.uuid()

    def send_event(self, event: Any) -> None:
        """Pass an event on to the actions of this key that take its type; an ``OutputEvent`` goes to the sink.

        The events of a request are handled in the order in which they were sent, after the running action has returned.

        Raises:
            HandleMisuse: outside an agent.
        """
        self._check_action()
        if self._events is None:
            msg = "send_event works in the actions of an Agent; there is none here"
            raise HandleMisuse(msg)
        self._events.append(event)

    @property
    def log(self) -> logging.LoggerAdapter[Any]:
        """A logger whose messages name key and request; silent while the action replays what it did before."""
        return _ActionLogger(_log, {"run": self._run})

    @property
    def metrics(self) -> ActionMetrics:
        """The action's own counters, as metrics of the job."""
        return ActionMetrics(self._parts.counters, self._run)

    def remembered(self, path: str) -> Any:
        """Return what is remembered under ``path``, or raise KeyError. For whoever prepares a call."""
        return self._memory.read(path)

    def submitted(self, tool: AsyncTool, arguments: dict[str, Any]) -> AsyncFuture[Any]:
        """Return the handle of an asynchronous tool; meanwhile the context offers only what a replay can do without.

        Raises:
            HandleMisuse: for what is no such handle, and for further handles that the tool leaves behind.
            Exception: what the tool raises.
        """
        outer, self._created = self._created, []
        self._submitting = True
        try:
            handle: Any = tool.submit(self, arguments)
        finally:
            self._submitting = False
            made, self._created = self._created, outer
            left = [each for each in made if each.state is HandleState.COLD]
        wanted = handle.call if isinstance(handle, AsyncFuture) and not isinstance(handle, GatherFuture) else None
        for each in left:
            if each is not wanted:
                each.close()
        name = tool.spec.name
        if not isinstance(handle, AsyncFuture) or isinstance(handle, GatherFuture):
            msg = f"the asynchronous tool {name!r} must return the handle of one call, not {handle!r}"
            raise HandleMisuse(msg)
        if wanted is not None and wanted not in left:
            msg = f"the asynchronous tool {name!r} must return a handle that it has made for this call"
            raise HandleMisuse(msg)
        if len(left) > (wanted is not None):
            msg = (
                f"the asynchronous tool {name!r} made {len(left)} handles: it must cancel() all that it does not return"
            )
            raise HandleMisuse(msg)
        return handle

    def collect(self, events: MutableSequence[Any]) -> None:
        """Have the context note handles, and put sent events into ``events``. For whoever runs a user's action."""
        self._created = []
        self._events = events

    def check_settled(self) -> None:
        """Look at the handles that were created since the last look.

        Raises:
            HandleMisuse: if one was neither awaited nor cancelled.
        """
        created, self._created = self._created or [], []
        for handle in created:
            if handle.state in (HandleState.COLD, HandleState.RESERVED):
                msg = (
                    f"the action ended with the handle of {handle.name!r} unresolved: await it, gather it, or cancel() "
                    "it if it is not needed"
                )
                raise HandleMisuse(msg)

    def _note(self, handle: DurableFuture) -> DurableFuture:
        self._check_thread()
        handle.owner = self._run
        if self._created is not None:
            self._created.append(handle)
        return handle

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread or running_call.get(None) is not None:
            msg = "the context belongs to the action: a tool or a durable function gets values, not the context"
            raise HandleMisuse(msg)
        if self._run.status is not RunStatus.RUNNING:
            msg = "the context belongs to an action that has ended: each action uses the context that it is given"
            raise HandleMisuse(msg)

    def _check_action(self) -> None:
        self._check_thread()
        if self._submitting:
            msg = (
                "an asynchronous tool may make handles and nothing else: what it is asked for again after a restore "
                "depends on what is recorded"
            )
            raise HandleMisuse(msg)


def _own(arguments: Any) -> Any:
    """Return a copy of a call's arguments."""
    return arguments if isinstance(arguments, str) else codec.decode(codec.encode(arguments))


class ActionMetrics:
    """Counters of an action, as metrics ``action.NAME``; what a replay does again is not counted again."""

    def __init__(self, counters: Counters, run: ActionRun) -> None:
        self._counters = counters
        self._run = run

    def count(self, name: str, n: int = 1) -> None:
        """Add ``n`` to the counter."""
        if not self._run.is_replaying:
            self._counters.inc(f"action.{name}", n)


class _ActionLogger(logging.LoggerAdapter):  # type: ignore[type-arg]  # generic from Python 3.11 on
    """Puts key and request before each message."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name is logging's
        """Say no while the action replays: it said this before."""
        return not self._run.is_replaying and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        origin = self._run.origin
        return f"[key={origin.key} request={origin.request_id}] {msg}", kwargs

    @property
    def _run(self) -> ActionRun:
        extra: Any = self.extra
        run: ActionRun = extra["run"]
        return run
