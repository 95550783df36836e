"""One key, one wake-up: take a request in, or go on where the key waits. The file to read first.

A turn works on a write-behind view of the key's state and returns what is left to do: records to emit, bodies to begin,
keys to wake. The shell around it (the Flink operator, or the test harness) does that in a fixed order: first it writes
the state, then it begins the bodies, then it emits. So nothing acts on a state that could not be written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents import codec
from flink_agents.action import ToolCallAction
from flink_agents.context import ActionContext
from flink_agents.durable.head import Head
from flink_agents.durable.journal.rows import RequestRow
from flink_agents.durable.slot_log import SlotLog
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import RejectedRecord, StateFormat
from flink_agents.events import ToolRequestEvent, ToolResponseEvent, reject_json
from flink_agents.options import OperatorOptions
from flink_agents.records import parse_request, parse_stored
from flink_agents.scheduler.call import Completion, RunningCall
from flink_agents.scheduler.run import ActionRun, RunStatus, Services
from flink_agents.scheduler.tool_context import Origin

__all__ = ["KeyActivity", "Turn", "TurnParts", "content_digest"]

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
    action: ToolCallAction
    context: ActionContext
    on_answered: Callable[[], None]
    run_id: str = ""
    look_up: bool = False


class KeyActivity:
    """A busy key in this attempt: its head, its running action. Task thread only.

    Lives from the moment a request of the key is taken in, or its restored requests are found, until none is left.
    """

    __slots__ = ("_parts", "_request", "_run", "_started_ms", "head", "key")

    def __init__(self, key: str, head: Head, parts: TurnParts) -> None:
        self.key = key
        self.head = head
        self._parts = parts
        self._request: ToolRequestEvent | None = None
        self._run: ActionRun | None = None
        self._started_ms = 0

    @property
    def is_idle(self) -> bool:
        """Whether every request of the key is answered."""
        return self.head.waiting == 0

    def take_in(
        self, record: str | dict[str, Any], store: WriteBehind, turn: Turn, *, number: int | None, seen: bool
    ) -> None:
        """Store a request under its number, before anything else happens for it.

        ``number`` None gives it the key's next one; ``seen`` says that it had the number before a restore.

        Raises:
            RejectedRecord: if the record is no request; nothing is stored then.
        """
        head, options = self.head, self._parts.options
        intake = head.next if number is None else number
        request = parse_request(record, options.key_by, intake, options.limits.record)
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

    def resume(self, store: WriteBehind, turn: Turn) -> None:
        """Run the restored requests of the key: the active one from its top, its recorded slots answer at once."""
        self._next_request(store, restored=True)
        self._finish(store, turn)

    def go_on(
        self, completions: Sequence[Completion], granted: Sequence[RunningCall], store: WriteBehind, turn: Turn
    ) -> None:
        """Record bodies that ended, begin calls that a worker is free for, and let the action go on."""
        run = self._run
        if run is not None:
            if granted:
                run.launch(granted)
            if completions:
                run.deliver(completions)
        elif self.head.waiting:
            self._next_request(store, restored=False)
        self._finish(store, turn)

    def replay(self, store: WriteBehind, turn: Turn) -> None:
        """Run the active action again from its top on what is recorded; bodies that run go on. For tests."""
        if self._run is not None and self._request is not None:
            self._run.log.sync(store)
            store.flush()
            self._run.log = SlotLog(self._run.origin.intake, self._parts.options.tool_calls.on_mismatch)
            self._run.log.restore(store)
            self._run.begin(self._parts.action(self._request, self._parts.context))
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
            request = parse_stored(stored["r"], options.key_by, intake)
        except (ValueError, KeyError, TypeError, RejectedRecord) as error:
            msg = f"request {intake} of key {self.key} cannot be read from state: {error}"
            raise StateFormat(msg) from error
        self._begin(request, intake, store, seen=True, restored=restored)

    def _request_row(self, request: ToolRequestEvent, intake: int, text: str) -> RequestRow:
        return RequestRow(self._parts.run_id, self.key, intake, request.request_id, content_digest(text))

    def _begin(self, request: ToolRequestEvent, intake: int, store: WriteBehind, *, seen: bool, restored: bool) -> None:
        """Start the action. ``seen``: an earlier attempt may have begun it; ``restored``: so may have this state's."""
        parts = self._parts
        self.head.active = intake
        self._request = request
        self._started_ms = parts.services.clock()
        log = SlotLog(intake, parts.options.tool_calls.on_mismatch)
        if restored:
            log.restore(store)
        origin = Origin(parts.run_id, request.key, self.key, request.request_id, intake, look_up=seen and parts.look_up)
        self._run = ActionRun(origin, log, parts.services)
        self._run.begin(parts.action(request, parts.context))

    def _finish(self, store: WriteBehind, turn: Turn) -> None:
        """Answer what is done, begin the next requests, write the difference."""
        answered = 0
        while self._run is not None and self._run.status is RunStatus.DONE:
            self._answer(self._run, store, turn)
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

    def _answer(self, run: ActionRun, store: WriteBehind, turn: Turn) -> None:
        services = self._parts.services
        response = run.result
        if not isinstance(response, ToolResponseEvent):
            msg = f"the action of key {self.key} returned {type(response).__name__}, not a ToolResponseEvent"
            raise StateFormat(msg)
        services.fault("before:emitted")
        turn.responses.append(response.to_json())
        if self._parts.options.statistics:
            turn.statistics.append(_statistics(response, run.reran))
        services.fault("after:emitted")
        services.fault("before:cleaned")
        run.log.clear()
        run.log.sync(store)
        intake = run.origin.intake
        store.remove(StateName.REQUESTS, str(intake))
        self.head.answer()
        if services.journal is not None:
            services.journal.answered(self._parts.run_id, self.key, intake)
        self._run = self._request = None
        services.counters.inc("responses")
        services.counters.latency("request_ms", services.clock() - self._started_ms)
        services.fault("after:cleaned")
        self._parts.on_answered()


def content_digest(text: str) -> str:
    """Return what tells a request from another one with the same id when a source repeats it after a restore."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _statistics(response: ToolResponseEvent, reran: int) -> str:
    succeeded = timed_out = replayed = 0
    for result in response.results:
        succeeded += result.error is None
        replayed += result.replayed
        timed_out += result.error is not None and result.error["kind"] == "timeout"
    calls = len(response.results)
    return (
        f'{{"request":1,"response":1,"reject":0,"calls":{calls},"succeeded":{succeeded},"failed":{calls - succeeded},'
        f'"timed_out":{timed_out},"replayed":{replayed},"reran":{reran}}}'
    )


REJECT_STATISTICS = (
    '{"request":0,"response":0,"reject":1,"calls":0,"succeeded":0,"failed":0,"timed_out":0,"replayed":0,"reran":0}'
)


def reject(error: RejectedRecord, record: Any, options: OperatorOptions, turn: Turn) -> None:
    """Send a record that is no request to the rejects output."""
    turn.rejects.append(reject_json(error.reason, error.field, record))
    if options.statistics:
        turn.statistics.append(REJECT_STATISTICS)
