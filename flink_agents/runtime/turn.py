"""One key, one wake-up: take a request in, or go on where the key waits. The file to read first.

A turn works on a write-behind view of the key's state and returns what is left to do: records to emit, bodies to begin,
keys to wake. The shell around it (the Flink operator, or the test harness) does that in a fixed order: first it writes
the state, then it begins the bodies, then it emits. So nothing acts on a state that could not be written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from flink_agents import codec
from flink_agents.context import ActionContext, ContextParts
from flink_agents.durable.head import Head
from flink_agents.durable.journal.rows import RequestRow
from flink_agents.durable.memory import KeyMemory
from flink_agents.durable.slot_log import SlotLog
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import RejectedRecord, StateFormat
from flink_agents.events import ToolRequestEvent, reject_json
from flink_agents.options import OperatorOptions
from flink_agents.runtime.inline import InlineRequests
from flink_agents.runtime.program import Program, Request
from flink_agents.runtime.side_by_side import SideBySide, SideBySideRun
from flink_agents.scheduler.call import Completion, RunningCall
from flink_agents.scheduler.run import ActionRun, RunStatus
from flink_agents.scheduler.services import Services
from flink_agents.scheduler.tool_context import Origin

__all__ = ["KeyActivity", "Turn", "TurnParts", "content_digest"]

_OVER = (RunStatus.DONE, RunStatus.FAILED)

REQUESTS_PER_TURN = 64
"""A key with a long queue of requests that need no worker gives the task thread back after so many."""


class Turn:
    """What a turn leaves to do, in this order once its state is written: ``start``, emit, ``wake``.

    ``responses``, ``rejects`` and ``statistics`` are JSON lines; ``wake`` are keys that need a turn of their own now;
    ``busy`` says whether the key still has requests.
    """

    __slots__ = ("busy", "rejects", "responses", "start", "statistics", "wake")

    def __init__(self) -> None:
        self.responses: list[str] = []
        self.rejects: list[str] = []
        self.statistics: list[str] = []
        self.start: list[RunningCall] = []
        self.wake: list[str] = []
        self.busy = False


@dataclass(frozen=True, slots=True)
class TurnParts:
    """What the turns of one subtask share."""

    options: OperatorOptions
    services: Services
    program: Program
    context: ContextParts
    on_answered: Callable[[], None]
    inline: InlineRequests | None = None
    side_by_side: SideBySide | None = None
    run_id: str = ""
    look_up: bool = False


class KeyActivity:
    """A busy key in this attempt: its head, its running action. Task thread only.

    Lives from the moment a request of the key is taken in, or its restored requests are found, until none is left.
    """

    __slots__ = ("_memory", "_parts", "_request", "_run", "_started_ms", "_store", "head", "key")

    def __init__(self, key: str, head: Head, parts: TurnParts) -> None:
        self.key = key
        self.head = head
        self._parts = parts
        self._request: Request | None = None
        self._memory: KeyMemory | None = None
        self._store: WriteBehind | None = None
        self._run: ActionRun | SideBySideRun | None = None
        self._started_ms = 0

    @property
    def is_idle(self) -> bool:
        """Whether every request of the key is answered."""
        return self.head.waiting == 0

    @property
    def origin(self) -> Origin | None:
        """Whose calls the key's bodies are now: of the request at work, or None while the next one waits for a turn."""
        return None if self._run is None else self._run.origin

    def take_in(
        self,
        record: str | dict[str, Any],
        store: WriteBehind,
        turn: Turn,
        *,
        number: int | None,
        seen: bool,
        tree: dict[str, Any] | None = None,
    ) -> None:
        """Store a request under its number, before anything else happens for it.

        ``number`` None gives it the key's next one; ``seen`` says that it had the number before a restore; ``tree`` is
        the record where it was read already.

        Raises:
            RejectedRecord: if the record is no request; nothing is stored then.
        """
        head, options = self.head, self._parts.options
        intake = head.next if number is None else number
        if tree is None:
            request = self._parts.program.read(record, options.key_by, intake, options.limits.record)
        else:
            request = self._parts.program.read_stored(tree, options.key_by, intake)
        if number is None and not head.waiting and self._answer_here(request, intake, store, turn):
            return
        self._store = store
        text = record if isinstance(record, str) else codec.dumps(record)
        head.take(number)
        store.insert(StateName.REQUESTS, str(intake), f'{{"v":1,"r":{text}}}')
        journal = self._parts.services.journal
        if journal is not None and not seen:
            journal.put_request(self._request_row(request, intake, text))
        self._parts.services.counters.inc("requests")
        if head.waiting == 1:
            self._begin(request, intake, store, seen=seen, restored=False)
            self._finish(store, turn)
        else:
            head.save(store)

    def _answer_here(self, request: Request, intake: int, store: WriteBehind, turn: Turn) -> bool:
        """Answer a request that needs no worker, if it is one: it is over before anything could have to be stored."""
        parts = self._parts
        if parts.inline is None or not isinstance(request, ToolRequestEvent):
            return False
        counters, began_ns = parts.services.counters, perf_counter_ns()
        answer = parts.inline.answer(request, parts.run_id, self.key, intake)
        if answer is None:
            return False
        head = self.head
        head.take()
        head.answer()
        head.save(store)
        turn.responses += answer.lines
        if parts.options.statistics:
            turn.statistics.append(answer.to_statistics())
        counters.inc("requests")
        counters.inc("responses")
        counters.latency("request_ms", (perf_counter_ns() - began_ns) // 1_000_000)
        parts.on_answered()
        return True

    def resume(self, store: WriteBehind, turn: Turn) -> None:
        """Run the restored requests of the key: the active one from its top, its recorded slots answer at once."""
        self._store = store
        self._next_request(store, restored=True)
        self._finish(store, turn)

    def go_on(
        self, completions: Sequence[Completion], granted: Sequence[RunningCall], store: WriteBehind, turn: Turn
    ) -> None:
        """Record bodies that ended, begin calls that a worker is free for, and let the action go on."""
        self._store = store
        run = self._run
        if run is not None:
            # First what has ended: a deadline that passes in this turn finds it recorded.
            if completions:
                run.deliver(completions)
            if granted:
                run.launch(granted)
            now = self._parts.services.clock()
            while (due := run.next_ms()) is not None and due <= now:
                run.expire(now)
        else:
            # After so many answers in one turn, the next request waits for this one.
            self._next_request(store, restored=False)
        self._finish(store, turn)

    def next_ms(self) -> int | None:
        """Return when the running action wants a turn of its own, in milliseconds since the epoch."""
        return None if self._run is None else self._run.next_ms()

    def replay(self, store: WriteBehind, turn: Turn) -> None:
        """Run the active action again from its top on what is recorded; bodies that run go on. For tests."""
        run, program = self._run, self._parts.program
        if isinstance(run, ActionRun) and self._request is not None and run.status is RunStatus.RUNNING:
            self._store = store
            run.log.sync(store)
            store.flush()
            run.log = SlotLog(run.origin.intake, program.on_mismatch)
            run.log.restore(store)
            run.begin(program.run(self._request, self._context(run)))
            self._finish(store, turn)

    def close(self) -> None:
        """Drop the running action; the state stays as it is."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def _next_request(self, store: WriteBehind, *, restored: bool) -> None:
        intake = self.head.first
        text = store.get(StateName.REQUESTS, str(intake))
        if text is None:
            msg = f"request {intake} of key {self.key} is missing from state"
            raise StateFormat(msg)
        options = self._parts.options
        try:
            stored = codec.loads(text)
            if stored["v"] != 1:
                msg = f"request {intake} of key {self.key} has format version {stored['v']}, this release reads 1"
                raise StateFormat(msg)
            request = self._parts.program.read_stored(stored["r"], options.key_by, intake)
        except (ValueError, KeyError, TypeError, RejectedRecord) as error:
            msg = f"request {intake} of key {self.key} cannot be read from state: {error}"
            raise StateFormat(msg) from error
        self._begin(request, intake, store, seen=True, restored=restored)

    def _request_row(self, request: Request, intake: int, text: str) -> RequestRow:
        return RequestRow(self._parts.run_id, self.key, intake, request.request_id, content_digest(text))

    def _begin(self, request: Request, intake: int, store: WriteBehind, *, seen: bool, restored: bool) -> None:
        """Start the action. ``seen``: an earlier attempt may have begun it; ``restored``: so may have this state's."""
        parts = self._parts
        self.head.active = intake
        self._request = request
        self._started_ms = parts.services.clock()
        origin = Origin(parts.run_id, request.key, self.key, request.request_id, intake, look_up=seen and parts.look_up)
        if parts.side_by_side is not None and not restored and not origin.look_up:
            self._run = parts.side_by_side.begin(request, origin) if isinstance(request, ToolRequestEvent) else None
            if self._run is not None:
                return
        log = SlotLog(intake, parts.program.on_mismatch)
        if restored:
            log.restore(store)
        self._run = run = ActionRun(origin, log, parts.services, guarded=parts.program.guarded)
        run.begin(parts.program.run(request, self._context(run)))

    def _context(self, run: ActionRun) -> ActionContext:
        self._memory = KeyMemory(self._remembered, self._remembered_paths)
        return ActionContext(self._parts.context, run, self._memory)

    def _remembered(self, path: str) -> str | None:
        # The view of the turn in which the action asks; it is the only one that is current.
        return None if self._store is None else self._store.get(StateName.MEMORY, path)

    def _remembered_paths(self) -> list[str]:
        return [] if self._store is None else self._store.fields(StateName.MEMORY)

    def _finish(self, store: WriteBehind, turn: Turn) -> None:
        """Answer what is done, begin the next requests, write the difference."""
        answered = 0
        while self._run is not None and self._request is not None and self._run.status in _OVER:
            self._answer(self._run, self._request, store, turn)
            answered += 1
            if not self.head.waiting:
                break
            if answered >= REQUESTS_PER_TURN:
                turn.wake.append(self.key)
                break
            self._next_request(store, restored=False)
        run = self._run
        if run is not None:
            if run.started:
                turn.start += run.started
                run.started.clear()
            run.log.sync(store)
        self.head.save(store)

    def _answer(self, run: ActionRun | SideBySideRun, request: Request, store: WriteBehind, turn: Turn) -> None:
        services, memory = self._parts.services, self._memory
        answer = run.answer() if isinstance(run, SideBySideRun) else self._parts.program.answer(request, run)
        services.fault("before:emitted")
        turn.responses += answer.lines
        if self._parts.options.statistics:
            turn.statistics.append(answer.to_statistics())
        if memory is not None and run.status is RunStatus.DONE:
            memory.flush(store)
        services.fault("after:emitted")
        services.fault("before:cleaned")
        run.log.clear()
        run.log.sync(store)
        intake = run.origin.intake
        self.head.answer()
        if self.head.waiting:
            store.remove(StateName.REQUESTS, str(intake))
        else:
            store.remove_only(StateName.REQUESTS, str(intake))
        if services.journal is not None:
            services.journal.answered(self._parts.run_id, self.key, intake)
        self._run = self._request = self._memory = None
        services.counters.inc("responses")
        services.counters.latency("request_ms", services.clock() - self._started_ms)
        services.fault("after:cleaned")
        self._parts.on_answered()


def content_digest(text: str) -> str:
    """Return what tells a request from another one with the same id when a source repeats it after a restore."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


REJECT_STATISTICS = (
    '{"request":0,"response":0,"reject":1,"calls":0,"succeeded":0,"failed":0,"timed_out":0,"replayed":0,"reran":0}'
)


def reject(error: RejectedRecord, record: Any, options: OperatorOptions, turn: Turn) -> None:
    """Send a record that is no request to the rejects output."""
    turn.rejects.append(reject_json(error.reason, error.field, record))
    if options.statistics:
        turn.statistics.append(REJECT_STATISTICS)
