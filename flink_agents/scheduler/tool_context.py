"""What a running body may know about its call: handed to tools by parameter or by context variable."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from flink_agents.durable.identity import Identity
from flink_agents.durable.journal.rows import idempotency_key
from flink_agents.errors import HandleMisuse
from flink_agents.scheduler.attempt import CancellationToken

__all__ = ["Origin", "ToolContext", "current_tool_context", "running_call"]

_log = logging.getLogger("flink_agents.tools")


class _CallLogger(logging.LoggerAdapter):  # type: ignore[type-arg]  # generic from Python 3.11 on
    """Puts tool, key and request before each message."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        context: Any = self.extra
        return f"[{context['tool']} key={context['key']} request={context['request_id']}] {msg}", kwargs


class Origin(NamedTuple):
    """The request that the calls of a running action belong to.

    ``key`` is the key's value and ``key_text`` its canonical text, ``intake`` the request's number; ``look_up`` says
    whether an earlier attempt may have left something of this request in the journal.
    """

    run_id: str
    key: Any
    key_text: str
    request_id: str
    intake: int
    look_up: bool = False


class ToolContext:
    """One attempt of one call, as its tool sees it. Read on the thread that runs the body.

    ``call_id`` is what the request carried, ``attempt`` counts the bodies begun of this call as far as is known (the
    first is 1), ``token`` is set when the body should stop.
    """

    __slots__ = ("_counts", "_identity", "_origin", "_remaining_s", "attempt", "call_id", "token")

    def __init__(
        self,
        origin: Origin,
        identity: Identity,
        call_id: Any,
        attempt: int,
        token: CancellationToken,
        remaining_s: Callable[[], float | None] | None = None,
    ) -> None:
        self._remaining_s = remaining_s
        self._origin = origin
        self._identity = identity
        self._counts: dict[str, int] | None = None
        self.call_id = call_id
        self.attempt = attempt
        self.token = token

    @property
    def key(self) -> Any:
        """The request's key."""
        return self._origin.key

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._origin.request_id

    @property
    def tool(self) -> str:
        """The tool's name."""
        return self._identity.name

    @property
    def idempotency_key(self) -> str:
        """A name for this call: the same on every retry and after every failover, and no other call's."""
        origin, call = self._origin, self._identity
        return idempotency_key(
            origin.run_id, origin.key_text, origin.intake, call.index, call.kind, call.name, call.digest
        )

    @property
    def cancelled(self) -> bool:
        """Whether the body should stop."""
        return self.token.cancelled

    @property
    def remaining_s(self) -> float | None:
        """Seconds until this attempt times out or the call's deadline; None where no time limit applies."""
        return None if self._remaining_s is None else self._remaining_s()

    @property
    def log(self) -> _CallLogger:
        """A logger whose messages name tool, key and request."""
        return _CallLogger(_log, {"tool": self.tool, "key": self.key, "request_id": self.request_id})

    def count(self, name: str, n: int = 1) -> None:
        """Add to one of the tool's own counters; it appears as the metric ``tool.NAME`` once the body has ended."""
        if self._counts is None:
            self._counts = {}
        self._counts[name] = self._counts.get(name, 0) + n

    @property
    def counts(self) -> dict[str, int]:
        """What ``count`` added up, for the task thread."""
        return self._counts or {}


running_call: ContextVar[Any] = ContextVar("flink_agents_running_call", default=None)
"""The ``RunningCall`` whose body runs here, set by the workers around each body.

Threads and tasks that a tool starts itself see it only if they copy the context.
"""


def current_tool_context() -> ToolContext:
    """Return the context of the call whose body runs here.

    Raises:
        HandleMisuse: outside the body of a tool call.
    """
    call = running_call.get()
    if call is None:
        msg = "there is no tool call here: the context exists on the thread or task that runs a tool's body"
        raise HandleMisuse(msg)
    context: ToolContext = call.context
    return context
