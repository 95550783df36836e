"""Everything one operator instance knows: its busy keys, what came back from workers, and whose turn it is."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents import codec
from flink_agents.agent import Agent
from flink_agents.clock import Clock, now_ms
from flink_agents.context import ContextParts
from flink_agents.durable.head import Head
from flink_agents.durable.journal.rows import CallKey, RequestRow
from flink_agents.durable.outcome import Outcome
from flink_agents.durable.store import WriteBehind
from flink_agents.errors import RejectedRecord
from flink_agents.faults import Fault, no_fault
from flink_agents.options import OperatorOptions
from flink_agents.runtime.inline import InlineRequests
from flink_agents.runtime.program import AgentProgram, ToolCallProgram
from flink_agents.runtime.side_by_side import SideBySide
from flink_agents.runtime.turn import KeyActivity, Turn, TurnParts, content_digest, reject
from flink_agents.scheduler.admission import Admission
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.call import Completion, Ending, RunningCall
from flink_agents.scheduler.call_journal import CallJournal, Writer
from flink_agents.scheduler.services import Counters, Services
from flink_agents.scheduler.timers import Alarms
from flink_agents.scheduler.workers import Workers
from flink_agents.tool_call_action import ToolCallAction
from flink_agents.tools.injection import resolve_config
from flink_agents.tools.registry import ToolRegistry

__all__ = ["REJECT_KEY_PREFIX", "JournalPort", "Subtask"]

IDLE_KEYS = 10_000
"""So many keys without requests are remembered, those answered last; state is read for the others."""

REJECT_KEY_PREFIX = "!"
"""Keys of records that have none: canonical JSON never begins with it, so no request can share such a key."""


@dataclass(frozen=True, slots=True)
class JournalPort:
    """The journal as the subtask needs it.

    ``first_attempt``: nothing of an earlier attempt can be there. ``requests_from(key, number, also)`` lists the
    recorded requests of a key from a number on, and those among ``also``; ``outcome_of`` reads a call's outcome. Both
    are called on the task thread, so they are quick.
    """

    writer: Writer
    first_attempt: bool
    requests_from: Callable[[str, int, Collection[int]], Sequence[RequestRow]]
    outcome_of: Callable[[CallKey], Outcome | None]


class Subtask:
    """The operator without Flink. Task thread only, except where ``Attempt`` says otherwise.

    The shell sets the current key, hands in a view of that key's state, and then carries out what the turn returned:
    write the state, begin the bodies, emit the records, wake the keys. ``side_by_side`` False has the built-in action
    run for every request that needs a worker, also where a shorter way is known to give the same.
    """

    def __init__(
        self,
        *,
        options: OperatorOptions,
        registry: ToolRegistry,
        workers: Workers,
        attempt: Attempt,
        counters: Counters,
        clock: Clock = now_ms,
        fault: Fault = no_fault,
        run_id: str = "",
        journal: JournalPort | None = None,
        agent: Agent | None = None,
        side_by_side: bool = True,
    ) -> None:
        self.options = options
        self.attempt = attempt
        self._run_id = run_id
        self._journal = journal
        self._workers = workers
        self._call_journal: CallJournal | None = None
        if journal is not None:
            self._call_journal = CallJournal(journal.writer, workers, attempt, clock, options.limits.fatal_attempts)
        self.unanswered = 0
        self._counters = counters
        self._clock = clock
        self._admission = Admission(workers.permits, clock)
        services = Services(
            attempt,
            self._admission,
            clock,
            counters,
            fault,
            options.limits.result,
            self._call_journal,
            self._sweep,
            workers.threads.note_stray,
            self._recorded,
        )
        action = ToolCallAction(options.tool_calls)
        config = resolve_config(options.config, os.environ)
        attempt.secrets = registry.redaction(config)
        context = ContextParts(registry, options.limits, counters, has_journal=journal is not None, config=config)
        terms = context.terms
        self._parts = TurnParts(
            options,
            services,
            ToolCallProgram(options.tool_calls, action) if agent is None else AgentProgram(agent, action),
            context,
            self._note_answered,
            InlineRequests(registry, options, services, terms) if agent is None else None,
            SideBySide(registry, options, services, terms) if agent is None and side_by_side else None,
            run_id,
            journal is not None and not journal.first_attempt,
        )
        self._unmatched: dict[str, dict[str, list[int]]] = {}
        self._busy: dict[str, KeyActivity] = {}
        self._idle: dict[str, KeyActivity] = {}
        self._inbox: dict[str, list[Completion]] = {}
        self._again: deque[str] = deque()
        self._alarms = Alarms(self._next_of)

    @property
    def has_work(self) -> bool:
        """Whether any request known to this attempt is unanswered."""
        return bool(self._busy)

    @property
    def busy_keys(self) -> int:
        """How many keys have requests that this attempt works on."""
        return len(self._busy)

    def intake(
        self, key: str, record: str | dict[str, Any], store: WriteBehind, tree: dict[str, Any] | None = None
    ) -> Turn:
        """Take one record in. ``key`` is the canonical key text, or begins with ``REJECT_KEY_PREFIX``.

        ``tree`` is the record as ``read_plain`` has read it already; the request is made of it, not of a copy.
        """
        turn = Turn()
        activity = self._busy.get(key)
        restored = 0
        if activity is None:
            activity = self._idle.pop(key, None)
            if activity is None:
                activity = KeyActivity(key, Head.load(store), self._parts)
                restored = activity.head.waiting
        try:
            if restored:
                # Restored requests that nobody woke yet come first: they arrived first.
                self._adopt(key, activity, restored)
                activity.resume(store, turn)
            self.unanswered += 1
            number, seen = self._number(key, activity.head, record)
            activity.take_in(record, store, turn, number=number, seen=seen, tree=tree)
        except RejectedRecord as error:
            self.unanswered -= 1
            self._counters.inc("rejects")
            reject(error, record, self.options, turn)
        except BaseException:
            activity.close()
            raise
        if not activity.is_idle:
            self._busy[key] = activity
        self._end_turn(key, activity, turn)
        return turn

    def wake(self, key: str, store: WriteBehind) -> Turn:
        """Go on with a key: what its workers handed back, or what was restored for it. Does nothing for an idle key."""
        turn = Turn()
        activity = self._busy.get(key)
        completions = self._inbox.pop(key, [])
        granted = self._admission.take_granted(key)
        origin = None if activity is None else activity.origin
        # A body that outlived its time-out may end while another request of its key is at work, or between two.
        if unheard := [completion for completion in completions if completion.call.origin is not origin]:
            self._end_unheard(unheard)
            completions = [completion for completion in completions if completion.call.origin is origin]
        if origin is None:
            for call in granted:
                self._admission.withdraw(call)
            granted = []
        if activity is not None:
            activity.go_on(completions, granted, store, turn)
        else:
            if key in self._idle:
                return turn
            activity = KeyActivity(key, Head.load(store), self._parts)
            if activity.is_idle:
                return turn
            self._adopt(key, activity, activity.head.waiting)
            activity.resume(store, turn)
        self._end_turn(key, activity, turn)
        return turn

    def start(self, calls: Sequence[RunningCall]) -> None:
        """Begin bodies once the turn that asked for them is written. Task thread; returns at once."""
        if self._call_journal is not None:
            self._call_journal.start(calls)
        else:
            self._workers.start(calls)

    def replay(self, key: str, store: WriteBehind) -> Turn:
        """Run the key's action again from its top on what is recorded, as after a restore. For tests."""
        turn = Turn()
        activity = self._busy.get(key)
        if activity is not None:
            activity.replay(store, turn)
            self._end_turn(key, activity, turn)
        return turn

    def due_keys(self) -> list[str]:
        """Drain what workers handed back and what became free; return the keys that need ``wake``, each once."""
        if self.attempt.failure is not None:
            raise self.attempt.failure
        self._drain()
        due = dict.fromkeys(self._inbox)
        due.update(dict.fromkeys(self._admission.grant()))
        due.update(dict.fromkeys(self._again))
        if self._alarms.next_ms() is not None:
            due.update(dict.fromkeys(self._alarms.due(self._clock())))
        self._again.clear()
        return list(due)

    def next_alarm_ms(self) -> int | None:
        """Return when the earliest timed wait ends, in milliseconds since the epoch; None while nothing is timed."""
        alarm = self._alarms.next_ms()
        if self._admission.waiting and (free := self._admission.next_ms()) is not None:
            return free if alarm is None else min(alarm, free)
        return alarm

    def close(self) -> None:
        """Drop every running action; the state stays as it is."""
        for activity in self._busy.values():
            activity.close()
        self._busy.clear()
        self._idle.clear()

    def _number(self, key: str, head: Head, record: str | dict[str, Any]) -> tuple[int | None, bool]:
        """Return the number of a record (None: the key's next one), and whether it had that before a restore.

        What the source repeats after a restore may come in another order. The rows are read at the first touch of a
        key; records that are equal take their numbers in order.
        """
        if self._journal is None or self._journal.first_attempt:
            return None, False
        unmatched = self._unmatched.get(key)
        if unmatched is None:
            unmatched = self._unmatched[key] = {}
            for row in self._journal.requests_from(key, head.next, head.gaps):
                unmatched.setdefault(row.content_digest, []).append(row.intake)
        if not unmatched:
            return None, False
        text = record if isinstance(record, str) else codec.dumps(record)
        numbers = unmatched.get(content_digest(text))
        if not numbers:
            # A new request: its number stands above all that are still to come again.
            return max([head.next, *(max(rows) + 1 for rows in unmatched.values())]), False
        number = numbers.pop(0)
        if not numbers:
            del unmatched[content_digest(text)]
        return number, True

    def _rest(self, key: str, activity: KeyActivity) -> None:
        """Keep the head of a key that has become idle: its next request need not read it from state."""
        idle = self._idle
        idle[key] = activity
        if len(idle) > IDLE_KEYS:
            del idle[next(iter(idle))]

    def _drain(self) -> None:
        completions, inbox = self.attempt.completions, self._inbox
        while completions:
            completion = completions.popleft()
            inbox.setdefault(completion.call.key, []).append(completion)

    def _sweep(self, key: str) -> list[Completion]:
        """Take what workers have handed back for a key up to now."""
        self._drain()
        return self._inbox.pop(key, [])

    def _next_of(self, key: str) -> int | None:
        activity = self._busy.get(key)
        return None if activity is None else activity.next_ms()

    def _recorded(self, call: CallKey) -> Outcome | None:
        return None if self._journal is None else self._journal.outcome_of(call)

    def _end_unheard(self, completions: Sequence[Completion]) -> None:
        """Take the ends of bodies whose request is answered: nobody hears them, but what must fail the task does."""
        for completion in completions:
            self._admission.ended(completion.call)
            if completion.call.is_stray:
                self._counters.inc("strays", -1)
            if completion.exception is not None and completion.ending is Ending.FATAL and not completion.call.fenced:
                raise completion.exception

    def _adopt(self, key: str, activity: KeyActivity, restored: int) -> None:
        self._busy[key] = activity
        self.unanswered += restored

    def _note_answered(self) -> None:
        self.unanswered -= 1

    def _end_turn(self, key: str, activity: KeyActivity, turn: Turn) -> None:
        turn.busy = not activity.is_idle
        if not turn.busy:
            self._busy.pop(key, None)
            self._rest(key, activity)
        elif (alarm_ms := activity.next_ms()) is not None:
            self._alarms.set(key, alarm_ms)
        if self._admission.waiting:
            turn.wake.extend(k for k in self._admission.grant() if k not in turn.wake)
