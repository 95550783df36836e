"""Stands where asyncio looks for its running loop while an action runs: every use says what to use instead."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from flink_agents.errors import ForeignAwaitable

__all__ = ["LOOP_GUARD"]

_INSTEAD = {
    "create_future": "await ctx.sleep(seconds) instead of asyncio.sleep, and handles of ctx instead of futures",
    "call_later": "await ctx.sleep(seconds) instead of a timer of the loop",
    "call_at": "await ctx.sleep(seconds) instead of a timer of the loop",
    "time": "take the time from ctx.now()",
    "create_task": "ctx.gather(...) over handles instead of asyncio.gather and create_task",
    "run_in_executor": "await ctx.durable_execute(function, ...) instead of a thread of your own",
}


class _LoopGuard:
    """Refuses whatever asyncio asks of it: an action has no event loop, as it runs again from its top on a restore."""

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> Any:
        """Refuse a task, and close its coroutine, which nothing would ever run."""
        coro.close()
        raise _refusal("create_task")

    def get_debug(self) -> bool:
        """Say no: asyncio asks before it does anything."""
        return False

    def __getattr__(self, name: str) -> Any:
        raise _refusal(name)


def _refusal(name: str) -> ForeignAwaitable:
    instead = _INSTEAD.get(name, "the handles of ctx")
    return ForeignAwaitable(f"asyncio does not work inside an action ({name}): use {instead}")


LOOP_GUARD: Any = _LoopGuard()
