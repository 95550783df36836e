"""Stands where asyncio looks for its running loop while an action runs: every use says what to use instead."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from flink_agents.errors import ForeignAwaitable

__all__ = ["LOOP_GUARD", "explained", "guarding"]

T = TypeVar("T")

_INSTEAD = {
    "create_future": "await ctx.sleep(seconds) instead of asyncio.sleep, and handles of ctx instead of futures",
    "call_later": "await ctx.sleep(seconds) instead of a timer of the loop",
    "call_at": "await ctx.sleep(seconds) instead of a timer of the loop",
    "time": "take the time from ctx.now(), and bound a wait by ctx.gather(..., timeout=seconds)",
    "create_task": "await ctx.gather(...) over handles instead of asyncio.gather and create_task",
    "current_task": "await ctx.gather(..., timeout=seconds) instead of time-outs and task groups of asyncio",
    "run": "await ctx.durable_execute(function, ...) with a coroutine function instead of a loop of your own",
    "run_in_executor": "await ctx.durable_execute(function, ...) instead of a thread of your own",
}


class _LoopGuard:
    """Refuses whatever asyncio asks of it: an action has no event loop, as it runs again from its top on a restore."""

    def create_task(self, coro: Any, **_: Any) -> NoReturn:
        """Refuse a task, and close its coroutine, which nothing would ever run."""
        if inspect.iscoroutine(coro):
            coro.close()
        raise _refusal("create_task")

    def __hash__(self) -> int:
        # By its hash asyncio finds the task that runs now, for time-outs and task groups.
        raise _refusal("current_task")

    def get_debug(self) -> bool:
        """Say no: asyncio asks before it does anything."""
        return False

    def __getattr__(self, name: str) -> Any:
        raise _refusal(name)


def _refusal(name: str) -> ForeignAwaitable:
    instead = _INSTEAD.get(name, "await the handles of ctx")
    return ForeignAwaitable(f"asyncio does not work inside an action ({name}): {instead}")


LOOP_GUARD: Any = _LoopGuard()

_ASYNCIO = Path(asyncio.__file__).parent


def guarding(step: Callable[[], T]) -> T:
    """Do ``step``, a piece of an action, where asyncio finds the guard; then what it found before."""
    before = asyncio._get_running_loop()
    # Without a running loop asyncio says so in words that lead a user astray.
    asyncio._set_running_loop(LOOP_GUARD)
    try:
        return step()
    finally:
        asyncio._set_running_loop(before)


def explained(error: BaseException) -> BaseException:
    """Return what an action raised; where asyncio did, because it found itself in an action, an error that says so."""
    if type(error) is RuntimeError and _raised_in(error.__traceback__).parent == _ASYNCIO:
        found = _refusal("run")
        found.__cause__ = error
        return found
    return error


def _raised_in(trace: TracebackType | None) -> Path:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return Path() if trace is None else Path(trace.tb_frame.f_code.co_filename)
