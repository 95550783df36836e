"""The floor under asynchronous calls: an operator that writes the same state and runs the same coroutines, and no more.

It parses nothing, checks nothing, names nothing and recovers nothing: whatever an engine does comes on top of it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from pyflink.datastream.functions import KeyedProcessFunction

from flink_agents.durable.store import StateName
from flink_agents.faults import Fault

__all__ = ["Floor"]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CALLS = 4
LIVE = 1000
END_OF_INPUT = 2**63 - 2**40
IDLE_KEY_MS = 30 * 24 * 60 * 60 * 1000
HEAD = '{"v":1,"next":2,"answered":1,"active":null}'
SLOT = '{"v":1,"s":"started","k":"tool","n":"instant","p":0,"d":"%s","a":1,"by":"%s","at":1700000000000}' % (  # noqa: UP031
    "0" * 64,
    "0" * 32,
)


async def _call() -> int:
    return 1


class Floor(KeyedProcessFunction):  # type: ignore[misc]  # pyflink has no types
    """For each record: a request and its slots written, coroutines run on a loop, maps cleared, a line out."""

    def __init__(self, mark: Fault) -> None:
        self._mark = mark
        self._touched = False

    def open(self, runtime_context: Any) -> None:
        """Open the state and start the loop."""
        from flink_agents.runtime.flink_state import FlinkStore, KeyContext
        from flink_agents.runtime.process import tune_interpreter

        tune_interpreter()
        self._store = FlinkStore(runtime_context, IDLE_KEY_MS)
        self._keys = KeyContext(runtime_context)
        self._done: deque[tuple[str, str]] = deque()
        self._arrived = threading.Event()
        self._live = 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._mark("after:open")

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Take a record in, and hand out what is done."""
        if not self._touched:
            self._touched = True
            ctx.timer_service().register_event_time_timer(END_OF_INPUT)
        key = self._keys.current()
        self._keys.remember(key)
        self._store.put(StateName.HEAD, "", HEAD)
        self._store.put(StateName.REQUESTS, "1", value)
        self._store.put_all(StateName.SLOTS, {f"1/{index}": SLOT for index in range(CALLS)})
        self._live += 1
        self._loop.call_soon_threadsafe(self._begin, key, value)
        yield from self._finish()
        while self._live > LIVE:
            self._arrived.wait(0.02)
            self._arrived.clear()
            yield from self._finish()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """Wait for what is under way, and note when the input ends."""
        while self._live:
            self._arrived.wait(0.02)
            self._arrived.clear()
            yield from self._finish()
        self._mark("after:drain")

    def _finish(self) -> Iterator[Any]:
        while self._done:
            key, line = self._done.popleft()
            self._live -= 1
            self._keys.select(key)
            self._store.clear(StateName.SLOTS)
            self._store.clear(StateName.REQUESTS)
            self._store.put(StateName.HEAD, "", HEAD)
            yield line

    def _begin(self, key: str, line: str) -> None:
        left = [None] * CALLS
        for _ in range(CALLS):
            self._loop.create_task(self._run(key, line, left))

    async def _run(self, key: str, line: str, left: list[None]) -> None:
        await _call()
        left.pop()
        if not left:
            self._done.append((key, line))
            self._arrived.set()
