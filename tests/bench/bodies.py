"""The tools that measured jobs call: of all ways to run, with nothing to do, time to pass, or much to carry."""

from __future__ import annotations

import asyncio
import time

from flink_agents.options import Execution
from flink_agents.tools.registry import FunctionDeclaration

__all__ = ["hasty", "tools"]


def tools() -> list[FunctionDeclaration]:
    """Return the tools. They are nested, so that they travel in the job: no TaskManager can import this module."""

    def inline(number: int, i: int) -> int:
        """Answer at once, on the task thread."""
        return number + i

    async def instant(number: int, i: int) -> int:
        """Answer at once, on the worker loop."""
        return number + i

    def quick(number: int, i: int) -> int:
        """Answer at once, on a thread."""
        return number + i

    async def wait(number: int, i: int, ms: float) -> int:
        """Answer after a while; the value is when that was, in nanoseconds of the monotonic clock."""
        await asyncio.sleep(ms / 1000)
        return time.monotonic_ns()

    def block(number: int, i: int, ms: float) -> int:
        """Do the same on a thread."""
        time.sleep(ms / 1000)
        return time.monotonic_ns()

    def compute(number: int, i: int, ms: float) -> int:
        """Keep a thread busy in Python for a while; the value is as that of ``wait``."""
        until = time.monotonic_ns() + ms * 1e6
        while (now := time.monotonic_ns()) < until:
            pass
        return now

    def carry(number: int, i: int, payload: str) -> str:
        """Give the payload back, on the task thread."""
        return payload

    async def fetch(number: int, i: int, payload: str) -> str:
        """Give the payload back, on the worker loop."""
        return payload

    return [
        FunctionDeclaration(inline, execution=Execution.INLINE),
        FunctionDeclaration(instant),
        FunctionDeclaration(quick),
        FunctionDeclaration(wait),
        FunctionDeclaration(block),
        FunctionDeclaration(compute),
        FunctionDeclaration(carry, execution=Execution.INLINE),
        FunctionDeclaration(fetch),
    ]


def hasty() -> list[FunctionDeclaration]:
    """Return the tool ``wait`` of a later deployment, which does not wait; for calls that were cut off."""

    async def wait(number: int, i: int, ms: float) -> int:
        """Answer at once with the time, in nanoseconds since 1970."""
        return time.time_ns()

    return [FunctionDeclaration(wait)]
