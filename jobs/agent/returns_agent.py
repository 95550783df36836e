"""Takes goods back: an agent with two actions, three tools, and a memory of each customer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from flink_agents import ActionContext, Agent, InputEvent, OutputEvent, action, tool

ORDERS = {
    "A-1001": {"item": "kettle", "cents": 3900},
    "A-1002": {"item": "lamp", "cents": 12900},
    "A-1003": {"item": "desk", "cents": 45000},
}
LIMIT_CENTS = 50_000
SLOW_S = 60.0


@dataclass(frozen=True)
class Approved:
    """A return that may be refunded; sent from one action to the other."""

    order: str
    cents: int
    carrier: str | None


def pay_back(customer: str, order: str, cents: int) -> str:
    """Stand in for a payment provider."""
    return f"{customer}/{order}/{cents}"


class Returns(Agent):
    """Looks the order up, asks the carriers for a pick-up, refunds."""

    @tool
    def look_up(self, order: str) -> dict[str, Any]:
        """Look an order up."""
        return ORDERS[order]

    @tool
    async def ask_swift(self, order: str) -> int:
        """Ask the carrier Swift when it can pick the goods up, in days."""
        return 1 + int(order[-1])

    @tool
    async def ask_snail(self, order: str) -> int:
        """Ask the carrier Snail, which often does not answer, when it can pick the goods up, in days."""
        await asyncio.sleep(SLOW_S)
        return 0

    @action(InputEvent)
    async def decide(self, event: InputEvent, ctx: ActionContext) -> None:
        """Decide about one return."""
        order = event.input["order"]
        try:
            found = await ctx.call_tool("look_up", {"order": order})
        except KeyError:
            ctx.send_event(OutputEvent({"order": order, "refused": "no such order"}))
            return
        refunded = ctx.memory.get("refunded_cents", 0)
        if refunded + found["cents"] > LIMIT_CENTS:
            ctx.send_event(OutputEvent({"order": order, "refused": "a clerk has to look", "refunded_cents": refunded}))
            return
        asked = {name: ctx.call_tool(name, {"order": order}) for name in ("ask_swift", "ask_snail")}
        # Who has not answered in time is not waited for; what the others said stays.
        answers = await ctx.gather(*asked.values(), timeout="500ms")
        days = {name: answer.result() for name, answer in zip(asked, answers, strict=True) if answer.succeeded}
        fastest = min(days, key=days.__getitem__).removeprefix("ask_") if days else None
        ctx.send_event(Approved(order, found["cents"], fastest))

    @action(Approved)
    async def refund(self, event: Approved, ctx: ActionContext) -> None:
        """Refund what was approved."""
        receipt = await ctx.durable_execute(pay_back, ctx.key, event.order, event.cents)
        refunded = ctx.memory.get("refunded_cents", 0) + event.cents
        ctx.memory.set("refunded_cents", refunded)
        ctx.log.info("refunded %s", receipt)
        output = {"order": event.order, "carrier": event.carrier, "receipt": receipt, "refunded_cents": refunded}
        ctx.send_event(OutputEvent(output))
