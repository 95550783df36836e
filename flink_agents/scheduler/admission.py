"""Which prepared call begins next in one subtask: bounds and rates per tool, bounds per process, keys in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from flink_agents.clock import Clock, now_ms
from flink_agents.options import Execution, Rate
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.call import RunningCall
from flink_agents.scheduler.prepared import CallTerms
from flink_agents.scheduler.workers import Permits

__all__ = ["Admission"]


class _Gate:
    """One tool's bounds in this subtask, and the calls that wait for it, by key in the order of the keys' turns."""

    __slots__ = ("_begun", "limit", "rate", "running", "waiting")

    def __init__(self, limit: int | None, rate: Rate | None) -> None:
        self.limit = limit
        self.rate = rate
        self.running = 0
        self.waiting: OrderedDict[str, deque[RunningCall]] = OrderedDict()
        # The last ``rate.count`` beginnings: the window slides, so no period has more.
        self._begun: deque[int] = deque(maxlen=None if rate is None else rate.count)

    def has_room(self, now_ms: int) -> bool:
        """Whether one more body may begin now."""
        if self.limit is not None and self.running >= self.limit:
            return False
        return self.rate is None or self.free_ms() <= now_ms

    def free_ms(self) -> int:
        """Return when the rate has room again, 0 if it has."""
        if self.rate is None or len(self._begun) < self.rate.count:
            return 0
        return self._begun[0] + self.rate.per_ms

    def enter(self, now_ms: int) -> None:
        """Count a body that may begin now."""
        self.running += 1
        if self.rate is not None:
            self._begun.append(now_ms)

    def first(self) -> RunningCall | None:
        """Return the call whose turn it is, past those that were withdrawn; None where none waits."""
        while self.waiting:
            key, calls = next(iter(self.waiting.items()))
            while calls and calls[0].fenced:
                calls.popleft()
            if calls:
                return calls[0]
            del self.waiting[key]
        return None

    def pop(self) -> None:
        """Take away the first call, and send its key to the end of the line."""
        key, calls = next(iter(self.waiting.items()))
        calls.popleft()
        if calls:
            self.waiting.move_to_end(key)
        else:
            del self.waiting[key]


class Admission:
    """Admits calls to the workers. Task thread only; decides, starts nothing.

    A call is begun only when a worker is free for it, so "started" always means that the body begins and a call that
    waits here can be withdrawn without a trace. Waiting occupies no worker. Calls of one tool are admitted round-robin
    over the keys that wait for it, and tools take turns, so a key with thousands of calls delays another by one call.
    """

    def __init__(self, permits: Callable[[Execution], Permits], clock: Clock = now_ms) -> None:
        self._permits = permits
        self._clock = clock
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
        gate = self._gate(call.terms)
        # While others wait a newcomer goes to the end of the line, even if there is room: the room is theirs.
        if not self._line:
            now = self._clock() if gate.rate is not None else 0
            if gate.has_room(now) and self._acquire(call):
                gate.enter(now)
                call.admitted = True
                return True
        gate.waiting.setdefault(call.key, deque()).append(call)
        self._line.setdefault(call.terms.gate, gate)
        call.in_line = True
        self._waiting += 1
        return False

    def admit_all(self, attempt: Attempt, terms: Sequence[CallTerms]) -> bool:
        """Return whether calls that only the workers bound may all begin now; otherwise nothing was taken for any."""
        if self._line:
            return False
        wanted: dict[Execution, int] = {}
        for each in terms:
            wanted[each.execution] = wanted.get(each.execution, 0) + 1
        taken: list[tuple[Permits, int]] = []
        for execution, n in wanted.items():
            permits = self._permits(execution)
            if self.is_refused(execution) or not permits.try_acquire(attempt, n):
                for earlier, m in taken:
                    earlier.give_back(attempt, m)
                return False
            taken.append((permits, n))
        for each in terms:
            self._gate(each).running += 1
        return True

    def ended(self, call: RunningCall) -> None:
        """Note that a body ended; the worker gave its permit back itself."""
        if call.admitted:
            self._gate(call.terms).running -= 1

    def withdraw(self, call: RunningCall) -> None:
        """Give back the room of a granted call that will not begin."""
        if call.admitted:
            self.give_back(call.attempt, call.terms)

    def give_back(self, attempt: Attempt, terms: CallTerms) -> None:
        """Give back the room that was taken for one call on these terms, which will not begin."""
        self._gate(terms).running -= 1
        self._permits(terms.execution).give_back(attempt)

    def forget(self, call: RunningCall) -> None:
        """Take a call, which must be fenced, out of the line; one whose turn has come is withdrawn at its launch."""
        if call.in_line:
            call.in_line = False
            self._waiting -= 1

    def is_refused(self, execution: Execution) -> bool:
        """Whether bodies of this kind cannot begin, because too many that timed out have not returned."""
        return self._permits(execution).is_exhausted

    def next_ms(self) -> int | None:
        """Return when a rate has room for a call that waits; None where none waits for that alone."""
        times = [gate.free_ms() for gate in self._line.values() if gate.rate is not None]
        return min((at for at in times if at > self._clock()), default=None)

    def grant(self) -> list[str]:
        """Give free room to waiting calls; return the keys that have calls to begin, each once."""
        if not self._line:
            return list(self._granted)
        busy: set[Execution] = set()
        now = self._clock()
        progress = True
        while progress and self._line:
            progress = False
            for name, gate in list(self._line.items()):
                first = gate.first()
                if first is None:
                    del self._line[name]
                    continue
                execution = first.terms.execution
                if self.is_refused(execution):
                    self._hand(name, gate, first)
                    progress = True
                    continue
                if execution in busy or not gate.has_room(now):
                    continue
                if not self._acquire(first):
                    busy.add(execution)
                    continue
                gate.enter(now)
                first.admitted = True
                self._hand(name, gate, first)
                progress = True
        return list(self._granted)

    def take_granted(self, key: str) -> list[RunningCall]:
        """Return the calls of ``key`` that were granted, and those that are refused: not ``admitted``."""
        return self._granted.pop(key, [])

    def _hand(self, name: str, gate: _Gate, call: RunningCall) -> None:
        gate.pop()
        call.in_line = False
        self._waiting -= 1
        self._granted.setdefault(call.key, []).append(call)
        if gate.waiting:
            self._line.move_to_end(name)
        else:
            del self._line[name]

    def _gate(self, terms: CallTerms) -> _Gate:
        gate = self._gates.get(terms.gate)
        if gate is None:
            gate = self._gates[terms.gate] = _Gate(terms.max_concurrent, terms.rate)
        return gate

    def _acquire(self, call: RunningCall) -> bool:
        return self._permits(call.terms.execution).try_acquire(call.attempt)
