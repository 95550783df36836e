"""The keyed operator: hands records and wake-ups to the subtask and carries out what each turn returns."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Iterator, Sequence
from threading import Thread
from typing import Any

from pyflink.common import Types
from pyflink.datastream import OutputTag
from pyflink.datastream.functions import KeyedProcessFunction

from flink_agents.agent import AgentSource, resolve_agent
from flink_agents.clock import monotonic_ms, now_ms
from flink_agents.durable.journal.opening import JournalSpec
from flink_agents.durable.store import WriteBehind
from flink_agents.errors import Interrupted, InvalidInput, ProcessModeRefused
from flink_agents.faults import Fault, engine_part, no_fault
from flink_agents.options import OperatorOptions
from flink_agents.records import read_plain
from flink_agents.runtime.deployment import check_version, module_folders
from flink_agents.runtime.flink_state import RESTORED_BY, FlinkStore, KeyContext
from flink_agents.runtime.job_parameters import RUN_ID_PARAMETER, VERSION_PARAMETER, job_parameter
from flink_agents.runtime.journal import TaskJournal, open_journal_of
from flink_agents.runtime.metrics import FlinkCounters
from flink_agents.runtime.observation import CHAOS_PARAMETER, Observer
from flink_agents.runtime.process import process_workers, tune_interpreter
from flink_agents.runtime.subtask import Subtask
from flink_agents.runtime.turn import Turn
from flink_agents.runtime.wakeup import Wakeups, open_wakeups
from flink_agents.scheduler.attempt import Attempt
from flink_agents.tools.interruption import needing_journal
from flink_agents.tools.registry import ToolRegistry, build_registry

__all__ = ["END_OF_INPUT", "REJECTS", "STATISTICS", "ToolCallOperator"]

_log = logging.getLogger(__name__)

END_OF_INPUT = 2**63 - 2**40
"""Event time of the timer that the end of a bounded input fires; leaves 2^40 steps below Flink's largest time."""

REJECTS = OutputTag("flink-agents-rejects", Types.STRING())
STATISTICS = OutputTag("flink-agents-statistics", Types.STRING())

_SERVE_MS = 5.0
_HOLD_MS = 2.0
_ENOUGH = 64
_NO_THREAD_MODE = (
    "tool calls need PyFlink's thread mode, and this operator runs in process mode, where Flink loses timers on "
    "recovery: set python.execution-mode: thread"
)


class ToolCallOperator(KeyedProcessFunction):  # type: ignore[misc]  # pyflink has no types
    """Runs the tool calls of each record and emits one response for each; keyed by the canonical key text.

    Pickled on the client, opened on the TaskManager: ``tools`` is what ``build_registry`` accepts and ``agent`` what
    ``resolve_agent`` does, and both are resolved at open. Every method runs on the task thread and none blocks it: a
    wait for room is bounded by ``limits.intake_wait_ms``, and the drain at the end of input runs the task's mails while
    it waits. After a restore each restored key is woken; nothing depends on ``close()``, which Flink does not call when
    a task fails.

    ``run_id`` names the life of the job's state; where it is None, the job parameter ``flink-agents.run-id`` does, and
    without that (and a journal) a name drawn here, which lasts as long as this submission.
    """

    def __init__(
        self,
        options: OperatorOptions,
        tools: Sequence[Any],
        fault: Fault = no_fault,
        journal: JournalSpec | None = None,
        run_id: str | None = None,
        agent: AgentSource | None = None,
    ) -> None:
        self._options = options
        self._tools = tuple(tools)
        self._agent = agent
        self._fault = fault
        self._journal_spec = journal
        self._run_id = run_id
        self._drawn_id = secrets.token_hex(8)
        self._registry: ToolRegistry | None = None

    def open(self, runtime_context: Any) -> None:
        """Build this attempt, list the restored keys and arrange that each is woken.

        Raises:
            ProcessModeRefused: outside thread mode.
            ClusterFault: the job was submitted by another release, or its modules have not arrived.
            InvalidInput: a tool cannot be imported or declared here, or needs a journal.
            JournalError: the journal cannot be used here; the message names the fix.
        """
        if not hasattr(runtime_context, "_runtime_context"):
            raise ProcessModeRefused(_NO_THREAD_MODE)
        self._fault("before:open")
        options = self._options
        tune_interpreter()
        check_version(job_parameter(runtime_context, VERSION_PARAMETER) or "")
        folders = module_folders(options.module_path)
        sys.path.extend(entry for entry in folders if entry not in sys.path)
        self._attempt = Attempt()
        self._counters = FlinkCounters(runtime_context.get_metrics_group())
        self._workers = process_workers(options.workers, engine_part(self._fault))
        self._workers.serve(self._attempt)
        agent = None if self._agent is None else resolve_agent(self._agent, folders)
        registry = build_registry([*self._tools, *(() if agent is None else agent.tools())], folders)
        run_id = self._run_id or job_parameter(runtime_context, RUN_ID_PARAMETER)
        self._journal = self._open_journal(runtime_context, registry, run_id)
        port = None if self._journal is None else self._journal.port
        watched = job_parameter(runtime_context, CHAOS_PARAMETER)
        self._observer = None if watched is None else Observer(watched, self._attempt)
        self._subtask = Subtask(
            options=options,
            registry=registry,
            workers=self._workers,
            clock=now_ms,
            attempt=self._attempt,
            counters=self._counters,
            fault=engine_part(self._fault),
            run_id=run_id or self._drawn_id,
            journal=port if self._observer is None else self._observer.port(port),
            agent=agent,
        )
        self._store = FlinkStore(runtime_context, options.limits.idle_key_ms)
        self._keys = KeyContext(runtime_context)
        self._due: dict[str, None] = {}
        self._touched = False
        self._is_armed = False
        self._left_ms = self._served_ms = 0.0
        self._wakeups: Wakeups = open_wakeups(runtime_context, self._keys, self._attempt)
        self._registry = registry
        # Flink does not call close() when a task fails. On a thread of its own: closing may take its time.
        self._attempt.on_interrupt(Thread(target=registry.close, name="flink-agents-close", daemon=True).start)
        registry.open()
        self._open_restored()
        _log.info("attempt %s opened: wake-up by %s", self._attempt.id, self._wakeups.mode)
        self._fault("after:open")

    def close(self) -> None:
        """Close the tools. What they hold is let go once the last of their bodies has ended."""
        if self._registry is not None:
            self._registry.close()

    def process_element(self, record: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Take a record in, begin what can begin, and wait a bounded time for room where too much is unanswered."""
        if self._attempt.interrupted:
            raise Interrupted(f"attempt {self._attempt.id} is over")
        if not self._touched:
            self._touch(ctx.get_current_key())
        holds = self._are_records_close()
        # The key selector made the key of this very record; asking Flink for it would cross into Java twice.
        key, tree = read_plain(record, self._options.key_by, self._options.limits.record) or (None, None)
        if key is None:
            key = self._keys.current()
        view = WriteBehind(self._store)
        turn = self._subtask.intake(key, record, view, tree)
        if turn.busy:
            self._keys.remember(key)
        if turn.busy or turn.start or turn.rejects or turn.statistics or turn.wake:
            yield from self._carry_out(turn, view)
        else:
            view.flush()
            yield from turn.responses
        if self._due or (holds and self._has_enough()):
            yield from self._serve()
        if self._has_work or not self._is_armed or self._counters.flush_if_due():
            self._after_turn(holds=holds)
        if self._subtask.unanswered > self._options.limits.live_requests:
            yield from self._wait_for_room(key)
        self._left_ms = monotonic_ms()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """Serve what is due; at the end of input, until nothing is left. Called by mails, polls and Flink's timers.

        A timer may fire after the end of the attempt; it then does nothing.
        """
        if self._attempt.interrupted and timestamp < END_OF_INPUT:
            return
        try:
            if timestamp >= END_OF_INPUT:
                self._fault("before:drain")
                yield from self._drain(timestamp)
                self._fault("after:drain")
            else:
                self._fault("before:timer")
                holds = self._are_records_close()
                yield from self._serve()
                self._after_turn(holds=holds)
                self._fault("after:timer")
        except GeneratorExit:
            raise
        except BaseException as failure:  # it may be on its way through Java, which would hide it
            self._wakeups.fail(failure)
            raise

    def _open_journal(self, runtime_context: Any, registry: ToolRegistry, run_id: str | None) -> TaskJournal | None:
        if self._journal_spec is None:
            unsafe = needing_journal(registry.specs())
            if unsafe:
                msg = f"tool {unsafe[0].name!r}: on_interrupt: {unsafe[0].on_interrupt.value} needs a journal"
                raise InvalidInput(msg)
            return None
        # What PyFlink's own context offers for this calls methods that Flink 2 does not have.
        java = runtime_context._runtime_context
        task = java.getTaskInfo()
        return open_journal_of(
            self._journal_spec,
            run_id or "",
            self._attempt,
            subtask=task.getIndexOfThisSubtask(),
            parallelism=task.getNumberOfParallelSubtasks(),
            owner=f"Flink job {java.getJobInfo().getJobId().toString()}",
        )

    def _open_restored(self) -> None:
        restored = self._keys.restored(RESTORED_BY)
        if not restored:
            return
        self._due.update(dict.fromkeys(restored))
        self._keys.select(restored[0])
        # The timer that an earlier attempt set may have gone to another subtask.
        self._register_end_of_input()
        self._wakeups.again()
        self._after_turn()
        _log.info("attempt %s has %d restored keys to wake", self._attempt.id, len(restored))

    def _touch(self, key: str) -> None:
        self._keys.check(key)
        self._register_end_of_input()

    def _register_end_of_input(self) -> None:
        self._touched = True
        self._keys.timers.register_event_time_timer(END_OF_INPUT)

    def _serve(self) -> Iterator[Any]:
        """Give each due key its turn, for a few milliseconds; the rest comes after records and barriers that wait."""
        due = self._due
        self._wakeups.put_off(_SERVE_MS)
        due.update(dict.fromkeys(self._subtask.due_keys()))
        until = monotonic_ms() + _SERVE_MS
        while due:
            key = next(iter(due))
            del due[key]
            self._keys.select(key)
            view = WriteBehind(self._store)
            turn = self._subtask.wake(key, view)
            if turn.busy:
                self._keys.remember(key)
            else:
                self._keys.forget(key)
            yield from self._carry_out(turn, view)
            if due and monotonic_ms() > until:
                self._wakeups.again()
                return

    def _carry_out(self, turn: Turn, view: WriteBehind) -> Iterator[Any]:
        # Persist, act, emit: a body never runs and a record never leaves for a state that could not be written.
        view.flush()
        if turn.start:
            if self._observer is not None:
                self._observer.watch(turn.start)
            self._subtask.start(turn.start)
        yield from turn.responses
        for reject in turn.rejects:
            yield REJECTS, reject
        for line in turn.statistics:
            yield STATISTICS, line
        if turn.wake:
            self._due.update(dict.fromkeys(turn.wake))

    def _are_records_close(self) -> bool:
        """Whether records follow closely: each looks at what workers handed back, as a mail costs as much as a turn."""
        return monotonic_ms() - self._left_ms < _HOLD_MS

    def _has_enough(self) -> bool:
        """Whether to look at what workers handed back: the calls of a request that end together take one turn then."""
        handed = len(self._attempt.completions)
        if not handed:
            return False
        now = monotonic_ms()
        if handed < _ENOUGH and now - self._served_ms < _HOLD_MS:
            return False
        self._served_ms = now
        return True

    def _after_turn(self, *, holds: bool = False) -> None:
        """Arrange the next call. ``holds``: the next record is about to come, so nothing else needs to call for now."""
        counters = self._counters
        if self._journal is not None:
            self._journal.report(counters)
        counters.flush_if_due()
        has_work, due_ms = self._has_work, counters.due_ms
        # With nothing under way, only what was counted since the last flush wants to be called back for.
        self._is_armed = due_ms is not None and not has_work
        self._wakeups.after_turn(
            has_work=has_work,
            alarm_ms=self._subtask.next_alarm_ms(),
            flush_ms=due_ms,
            hold_ms=monotonic_ms() + _HOLD_MS if holds and has_work else None,
        )

    @property
    def _has_work(self) -> bool:
        return bool(self._due) or self._subtask.has_work

    def _wait_for_room(self, key: str) -> Iterator[Any]:
        limits = self._options.limits
        until = monotonic_ms() + limits.intake_wait_ms
        while self._subtask.unanswered > limits.live_requests:
            left = until - monotonic_ms()
            if left <= 0 or self._attempt.interrupted:
                break
            # A few keys never hand back as much: what one of them has ended must not wait for more.
            self._wakeups.wait_here(min(left, _HOLD_MS), min(_ENOUGH, self._subtask.busy_keys))
            yield from self._serve()
        self._keys.select(key)
        self._after_turn(holds=True)

    def _drain(self, timestamp: int) -> Iterator[Any]:
        while True:
            yield from self._serve()
            self._after_turn()
            if not self._has_work:
                self._counters.flush()
                return
            if self._attempt.interrupted:
                raise Interrupted(f"attempt {self._attempt.id} is over")
            self._wakeups.wait(None)
            if self._wakeups.rearm_drain(timestamp):
                yield from self._serve()
                return
