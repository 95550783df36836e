# mypy: ignore-errors
"""The agent of the published peer: it runs the calls of each request, one after the other."""

from __future__ import annotations

from flink_agents.api.agents.agent import Agent
from flink_agents.api.core_options import AgentExecutionOptions
from flink_agents.api.decorators import action, tool
from flink_agents.api.events.event import Event, InputEvent, OutputEvent
from flink_agents.api.resource import ResourceType
from flink_agents.api.runner_context import RunnerContext
from pydantic import BaseModel
from pyflink.datastream import KeySelector


class Request(BaseModel):
    key: str
    id: int
    calls: list


class Key(KeySelector):
    def get_key(self, value):
        return value.key


class Asked(Event):
    calls: list


class Answered(Event):
    responses: dict


class AddingAgent(Agent):
    @tool
    @staticmethod
    def add(a: int, b: int) -> int:
        """Add.

        Parameters
        ----------
        a : int
            a
        b : int
            b
        """
        return a + b

    @action(InputEvent)
    @staticmethod
    def begin(event: Event, ctx: RunnerContext) -> None:
        ctx.send_event(Asked(calls=event.input.calls))

    @action(Asked)
    @staticmethod
    async def run_calls(event: Event, ctx: RunnerContext) -> None:
        at_worker = ctx.config.get(AgentExecutionOptions.TOOL_CALL_ASYNC)
        responses = {}
        for asked in event.calls:
            found = ctx.get_resource(asked["name"], ResourceType.TOOL)
            if at_worker:
                responses[asked["id"]] = await ctx.durable_execute_async(found.call, **asked["args"])
            else:
                responses[asked["id"]] = ctx.durable_execute(found.call, **asked["args"])
        ctx.send_event(Answered(responses=responses))

    @action(Answered)
    @staticmethod
    def end(event: Event, ctx: RunnerContext) -> None:
        ctx.send_event(OutputEvent(output=[str(value) for value in event.responses.values()]))
