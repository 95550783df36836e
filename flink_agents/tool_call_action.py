"""The built-in action: answer a request's tool calls, one after another or side by side."""

from __future__ import annotations

from datetime import timedelta

from flink_agents.context import ActionContext
from flink_agents.durable.outcome import Failed
from flink_agents.events import CallResult, ToolCall, ToolRequestEvent, ToolResponseEvent
from flink_agents.options import Mode, ToolCallOptions
from flink_agents.scheduler.handles import CallOutcome

__all__ = ["ToolCallAction"]


class ToolCallAction:
    """Runs every call of a ``ToolRequestEvent`` and answers with one ``ToolResponseEvent``.

    Results stand in the order of the calls, whatever order they finished in. A failed call is a failed result; the
    others are untouched. Sequential mode is a window of one. Where ``timeout_ms`` is over, finished calls keep their
    results, running ones time out, and those that never began say ``not_started``.
    """

    def __init__(self, options: ToolCallOptions) -> None:
        self._max_in_flight = 1 if options.mode is Mode.SEQUENTIAL else options.max_in_flight
        self._timeout = None if options.timeout_ms is None else timedelta(milliseconds=options.timeout_ms)

    async def __call__(self, event: ToolRequestEvent, ctx: ActionContext) -> ToolResponseEvent:
        """Run the calls of ``event``. Runs again from its top after a restore; finished calls are not run again."""
        handles = [
            ctx.call_tool(call.tool, call.arguments, position=call.position, call_id=call.call_id)
            for call in event.calls
        ]
        outcomes = await ctx.gather(*handles, timeout=self._timeout, max_in_flight=self._max_in_flight)
        results = tuple(_result(call, outcome) for call, outcome in zip(event.calls, outcomes, strict=True))
        return ToolResponseEvent(event.request_id, event.key, results, event.metadata)


def _result(call: ToolCall, outcome: CallOutcome) -> CallResult:
    ended = outcome.outcome
    failed = isinstance(ended, Failed)
    return CallResult(
        position=call.position,
        call_id=call.call_id,
        tool=call.tool,
        status="failed" if failed else "succeeded",
        value_text=None if isinstance(ended, Failed) else ended.text,
        error=ended.failure.error() if isinstance(ended, Failed) else None,
        attempts=outcome.attempts,
        replayed=outcome.replayed,
        duration_ms=outcome.duration_ms,
    )
