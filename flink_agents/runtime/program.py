"""What a subtask does with each request: the built-in action, or a user's agent."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from flink_agents import codec
from flink_agents.agent import Agent, Routes
from flink_agents.context import ActionContext
from flink_agents.durable.outcome import Failed
from flink_agents.durable.slot_log import SlotLog
from flink_agents.errors import CallError, StateFormat, Unserializable
from flink_agents.events import InputEvent, OutputEvent, ToolRequestEvent, ToolResponseEvent
from flink_agents.failures import capture
from flink_agents.options import OnMismatch, ToolCallOptions
from flink_agents.records import parse_input, parse_request, parse_stored, parse_stored_input
from flink_agents.scheduler.run import CALL_KINDS, ActionRun, RunStatus
from flink_agents.tool_call_action import ToolCallAction

__all__ = ["AgentProgram", "Answer", "Program", "ToolCallProgram"]

_log = logging.getLogger(__name__)

Request = ToolRequestEvent | InputEvent


# Not frozen, as each request makes one and a frozen class takes three times as long to make.
@dataclass(slots=True)
class Answer:
    """What leaves when a request is done: lines for the sink, and the counts of its statistics record."""

    lines: list[str]
    calls: int
    succeeded: int
    timed_out: int
    replayed: int
    reran: int

    def to_statistics(self) -> str:
        """Return the statistics record: one JSON line."""
        return (
            f'{{"request":1,"response":1,"reject":0,"calls":{self.calls},"succeeded":{self.succeeded},'
            f'"failed":{self.calls - self.succeeded},"timed_out":{self.timed_out},"replayed":{self.replayed},'
            f'"reran":{self.reran}}}'
        )


class Program(Protocol):
    """How requests are read, run and answered. Task thread only."""

    guarded: bool
    on_mismatch: OnMismatch

    def read(self, record: str | dict[str, Any], key_by: str, intake: int, limit: int) -> Request:
        """Return the request in a record; raises ``RejectedRecord``."""

    def read_stored(self, tree: dict[str, Any], key_by: str, intake: int) -> Request:
        """Return the request in a record from state; raises ``RejectedRecord``."""

    def run(self, request: Request, ctx: ActionContext) -> Coroutine[Any, Any, Any]:
        """Return the coroutine that handles the request."""

    def answer(self, request: Request, run: ActionRun) -> Answer:
        """Return what leaves for a run that is over."""


class ToolCallProgram:
    """Answers tool calls by the built-in action: one response for each request."""

    guarded = False

    def __init__(self, options: ToolCallOptions, action: ToolCallAction) -> None:
        self.on_mismatch = options.on_mismatch
        self._action = action

    def read(self, record: str | dict[str, Any], key_by: str, intake: int, limit: int) -> ToolRequestEvent:
        """Return the tool calls that a record asks for."""
        return parse_request(record, key_by, intake, limit)

    def read_stored(self, tree: dict[str, Any], key_by: str, intake: int) -> ToolRequestEvent:
        """Return the tool calls that a stored record asks for."""
        return parse_stored(tree, key_by, intake)

    def run(self, request: Any, ctx: ActionContext) -> Coroutine[Any, Any, Any]:
        """Return the built-in action on this request."""
        return self._action(request, ctx)

    def answer(self, request: Request, run: ActionRun) -> Answer:
        """Return the response.

        Raises:
            StateFormat: if the action returned anything else.
        """
        response = run.result
        if not isinstance(response, ToolResponseEvent):
            msg = f"the action of key {run.key} returned {type(response).__name__}, not a ToolResponseEvent"
            raise StateFormat(msg)
        succeeded = timed_out = replayed = 0
        for result in response.results:
            succeeded += result.error is None
            replayed += result.replayed
            timed_out += result.error is not None and result.error["kind"] == "timeout"
        return Answer([response.to_json()], len(response.results), succeeded, timed_out, replayed, run.reran)


class AgentProgram:
    """Hands each record to a user's agent; what its actions send out leaves when the last of them has returned."""

    guarded = True

    def __init__(self, agent: Agent, tool_calls: ToolCallAction) -> None:
        self.on_mismatch = OnMismatch(agent.on_mismatch)
        self._routes = Routes(agent, tool_calls)

    def read(self, record: str | dict[str, Any], key_by: str, intake: int, limit: int) -> Request:
        """Return the record as the event that the agent's actions take."""
        read = parse_input if self._routes.takes_input else parse_request
        return read(record, key_by, intake, limit)

    def read_stored(self, tree: dict[str, Any], key_by: str, intake: int) -> Request:
        """Return the stored record as the event that the agent's actions take."""
        read = parse_stored_input if self._routes.takes_input else parse_stored
        return read(tree, key_by, intake)

    def run(self, request: Request, ctx: ActionContext) -> Coroutine[Any, Any, Any]:
        """Return the coroutine that handles the request and all events that follow, and returns the lines."""
        return self._lines(request, ctx)

    async def _lines(self, request: Request, ctx: ActionContext) -> list[str]:
        # Within the action: an output that cannot be written is the action's failure, and not the task's.
        head = {"request_id": request.request_id, "key": request.key}
        return [_line(head, output) for output in await self._routes.run(request, ctx)]

    def answer(self, request: Request, run: ActionRun) -> Answer:
        """Return the agent's lines; one with the error, if an action raised."""
        calls, succeeded, timed_out = _counted(run.log)
        if run.status is RunStatus.FAILED and run.error is not None:
            failure = capture(run.error, run.secrets)
            # Not the exception itself: its message may hold what must not be in a log.
            _log.error("an action of key %s failed: %s\n%s", run.key, failure.message, failure.trace)
            error = {**failure.error(), "kind": "action_error"}
            lines = [codec.dumps({"request_id": request.request_id, "key": request.key, "error": error})]
        else:
            lines = run.result
        return Answer(lines, calls, succeeded, timed_out, run.replayed, run.reran)


def _line(head: dict[str, Any], output: OutputEvent | ToolResponseEvent) -> str:
    if isinstance(output, ToolResponseEvent):
        return output.to_json()
    try:
        text = codec.encode(output.output)
    except CallError as error:
        msg = f"an OutputEvent cannot be written: {error}"
        raise Unserializable(msg) from error
    return codec.dumps({**head, "output": codec.to_json(text)})


def _counted(log: SlotLog) -> tuple[int, int, int]:
    calls = succeeded = timed_out = 0
    for index in range(len(log)):
        slot = log[index]
        if slot.identity.kind in CALL_KINDS:
            calls += 1
            failed = isinstance(slot.outcome, Failed)
            succeeded += slot.outcome is not None and not failed
            timed_out += isinstance(slot.outcome, Failed) and slot.outcome.failure.kind == "timeout"
    return calls, succeeded, timed_out
