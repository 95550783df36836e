"""Which prepared call begins next in one subtask: bounds per tool and per process, round-robin over keys."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from flink_agents.options import Execution
from flink_agents.scheduler.call import RunningCall
from flink_agents.scheduler.workers import Permits

__all__ = ["Admission"]


class _Gate:
    """One tool's bound in this subtask, and the calls that wait for it, by key in the order of the keys' turns."""

    __slots__ = ("limit", "running", "waiting")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.running = 0
        self.waiting: OrderedDict[str, deque[RunningCall]] = OrderedDict()

    @property
    def has_room(self) -> bool:
        return self.limit is None or self.running < self.limit

    @property
    def first(self) -> RunningCall:
        """The call whose turn it is; only while some wait."""
        return next(iter(self.waiting.values()))[0]

    def pop(self) -> RunningCall:
        """Take the first call of the key whose turn it is, and send that key to the end of the line."""
        key, calls = next(iter(self.waiting.items()))
        call = calls.popleft()
        if calls:
            self.waiting.move_to_end(key)
        else:
            del self.waiting[key]
        return call


class Admission:
    """Admits calls to the workers. Task thread only; decides, starts nothing.

    A call is begun only when a worker is free for it, so "started" always means that the body begins and a call that
    waits here can be withdrawn without a trace. Waiting occupies no worker. Calls of one tool are admitted round-robin
    over the keys that wait for it, and tools take turns, so a key with thousands of calls delays another by one call.
    """

    def __init__(self, permits: Callable[[Execution], Permits]) -> None:
        self._permits = permits
        self._gates: dict[str, _Gate] = {}
        self._line: OrderedDict[str, _Gate] = OrderedDict()
        self._granted: dict[str, list[RunningCall]] = {}
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many prepared calls wait for a worker or for their tool."""
        return self._waiting

    def admit(self, call: RunningCall) -> bool:
        """Return whether the call may begin now; otherwise it waits and is granted later, to its key."""
        gate = self._gate(call)
        # While others wait a newcomer goes to the end of the line, even if there is room: the room is theirs.
        if not self._line and gate.has_room and self._acquire(call):
            gate.running += 1
            call.admitted = True
            return True
        gate.waiting.setdefault(call.key, deque()).append(call)
        self._line.setdefault(call.prepared.gate, gate)
        self._waiting += 1
        return False

    def ended(self, call: RunningCall) -> None:
        """Note that a body ended; the worker gave its permit back itself."""
        if call.admitted:
            self._gate(call).running -= 1

    def withdraw(self, call: RunningCall) -> None:
        """Give back the room of a granted call that will not begin."""
        self._gate(call).running -= 1
        self._permits(call.prepared.execution).give_back(call.attempt)

    def grant(self) -> list[str]:
        """Give free room to waiting calls; return the keys that have calls to begin, each once."""
        busy: set[Execution] = set()
        progress = True
        while progress and self._line:
            progress = False
            for name, gate in list(self._line.items()):
                execution = gate.first.prepared.execution
                if execution in busy or not gate.has_room:
                    continue
                if not self._acquire(gate.first):
                    busy.add(execution)
                    continue
                self._grant_first(name, gate)
                progress = True
        return list(self._granted)

    def take_granted(self, key: str) -> list[RunningCall]:
        """Return the calls of ``key`` that were granted and must begin now."""
        return self._granted.pop(key, [])

    def _grant_first(self, name: str, gate: _Gate) -> None:
        call = gate.pop()
        gate.running += 1
        call.admitted = True
        self._waiting -= 1
        self._granted.setdefault(call.key, []).append(call)
        if gate.waiting:
            self._line.move_to_end(name)
        else:
            del self._line[name]

    def _gate(self, call: RunningCall) -> _Gate:
        prepared = call.prepared
        gate = self._gates.get(prepared.gate)
        if gate is None:
            gate = self._gates[prepared.gate] = _Gate(prepared.max_concurrent)
        return gate

    def _acquire(self, call: RunningCall) -> bool:
        return self._permits(call.prepared.execution).try_acquire(call.attempt)
