"""What a tool returns is what an action gets, live and on replay: the same value, of the same type."""

from __future__ import annotations

import datetime as dt
import enum
import math
import uuid
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from flink_agents.agent import Agent, InputEvent, OutputEvent
from flink_agents.testing import ControlledTool, Harness


class Colour(enum.Enum):
    RED = "red"


class Line(BaseModel):
    sku: str
    price: Decimal
    made: dt.datetime | None = None


@dataclass
class Order:
    number: uuid.UUID
    lines: list[Line]
    colours: set[Colour]


VALUES: list[Any] = [
    *(None, "", 0, False, [], {}),
    Line(sku="A", price=Decimal("1.10"), made=dt.datetime(2024, 5, 6, tzinfo=dt.timezone.utc)),
    Order(uuid.UUID(int=5), [Line(sku="B", price=Decimal(2))], {Colour.RED}),
    [Line(sku="C", price=Decimal(3))],
    {1: "int", (1, 2): "tuple"},
    {(1, "a"), (2, "b")},
    defaultdict(list, {"a": [1]}),
    (b"bytes", dt.date(2024, 5, 6), dt.timedelta(seconds=5), Colour.RED),
    2**70,
    math.inf,
]


def give(index: int) -> Any:
    """Give back one of the values."""
    return VALUES[index]


@pytest.mark.rule(19, 20)
def test_cases_22_and_23_first_value_and_replayed_value_are_equal_and_of_one_type() -> None:
    seen: list[list[Any]] = []
    agent = Agent()
    hold = ControlledTool("hold")

    @agent.action(InputEvent)
    async def collect(event: InputEvent, ctx: Any) -> None:
        got = [await ctx.call_tool("give", {"index": index}) for index in range(len(VALUES))]
        seen.append(got)
        await ctx.call_tool("hold", {})
        ctx.send_event(OutputEvent({"done": True}))

    with Harness([give, hold], agent=agent) as harness:
        harness.send({"key": "k"})
        harness.run()
        harness.checkpoint()
        harness.crash()
        harness.run()
        hold.running[-1].succeed(None)
        harness.run()
        assert len(harness.responses) == 1
        assert harness.counters.counts["replayed"] == len(VALUES)
    first, replayed = seen[0], seen[-1]
    assert len(seen) == 2
    for value, live, again in zip(VALUES, first, replayed, strict=True):
        assert live == value
        assert again == value
        assert type(live) is type(again) is type(value)
        # What one run changes, the other does not see.
        assert again is not live or not isinstance(value, (list, dict, set, Line, Order))
    assert type(first[7].lines[0]) is type(replayed[7].lines[0]) is Line
