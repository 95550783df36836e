"""Asynchronous tools: a tool that answers with a handle on a durable call instead of a value."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from flink_agents.errors import HandleMisuse
from flink_agents.scheduler.handles import AsyncFuture
from flink_agents.tools.base import Body, Tool

if TYPE_CHECKING:
    from flink_agents.context import ActionContext

__all__ = ["AsyncTool"]


class AsyncTool(Tool):
    """A tool whose call is another durable call: of a function, of a remote agent, mapped as needed.

    ``ToolCallAction`` gathers such calls with ordinary ones, in one scheduler, in the order of the request. The call's
    slot is reserved before ``submit``; the call behind the returned handle runs in that very slot, and what is recorded
    is the result of the handle with its mappings.
    """

    @abstractmethod
    def submit(self, ctx: ActionContext, arguments: dict[str, Any]) -> AsyncFuture[Any]:
        """Return a cold handle of ``ctx``, such as ``ctx.durable_execute(...)`` with or without ``.map(...)``.

        Runs on the task thread, so it must be quick; not on replay of a finished call, and again for each further
        attempt. ``ctx`` makes handles here and nothing else: no time, no memory, no events. ``arguments`` is this
        call's own copy with what the job injects, not checked against the schema: raise ``InvalidArguments``. What it
        raises is the call's failure. The bounds of the tool's ``spec`` (time-out, deadline, retries, ...) are stronger
        than those of the handle.
        """

    def prepare(self, arguments: dict[str, Any]) -> Body:
        """Refuse: an asynchronous tool has no body of its own."""
        msg = f"{self.spec.name!r} is an asynchronous tool and runs within an action only"
        raise HandleMisuse(msg)
