"""Drives ``turn`` without Flink: send records, run, take checkpoints, crash, restore, look at what came out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from flink_agents.agent import AgentSource, resolve_agent
from flink_agents.durable.journal.protocol import Journal
from flink_agents.durable.journal.rows import RunRow
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import RejectedRecord
from flink_agents.faults import Fault, no_fault
from flink_agents.options import Limits, OperatorOptions, ToolCallOptions, WorkerOptions
from flink_agents.records import request_key
from flink_agents.runtime.subtask import REJECT_KEY_PREFIX, JournalPort, Subtask
from flink_agents.runtime.turn import Turn
from flink_agents.scheduler.attempt import Attempt
from flink_agents.testing.faults import PlannedCrash
from flink_agents.testing.journal import StepWriter
from flink_agents.testing.store import InMemoryBackend
from flink_agents.testing.workers import StepWorkers
from flink_agents.tools.registry import build_registry

__all__ = ["CountingCounters", "Harness"]

Record = str | dict[str, Any]


class CountingCounters:
    """Counters in a dict: ``counts["requests"]``; ``latencies`` keeps every duration by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.latencies: dict[str, list[float]] = {}

    def inc(self, name: str, n: int = 1) -> None:
        """Add ``n`` to the counter."""
        self.counts[name] += n

    def latency(self, name: str, ms: float) -> None:
        """Keep the duration."""
        self.latencies.setdefault(name, []).append(ms)


class Harness:
    """One subtask of the operator on in-memory state, driven by the test on one thread.

    Args:
        tools: functions, ``Tool`` objects, declarations or ``"module:function"`` strings, as for ``tool_calls``.
        key_by: the field that holds the key; a dotted path is allowed.
        tool_calls, workers, limits: the options of the operator.
        always_replay: run the action again from its top after every turn, so that replay is exercised at every wait.
        fault: called at every fault point; a ``PlannedCrash`` raised there is answered by ``crash()``.
        journal: keeps outcomes between checkpoints; ``run_id`` names the run in it.
        config: what tools are given by ``inject``, as in the job YAML.
        side_by_side: whether requests may take the shorter way past the built-in action that gives the same.
        agent: an ``Agent`` whose actions take the records, instead of the built-in action.

    Outputs behave like exactly-once sinks: a crash takes back what was emitted after the last checkpoint, and sends the
    records again that arrived after it. ``clock_ms`` is the time the engine sees; ``advance`` moves it.
    """

    def __init__(
        self,
        tools: Sequence[Any],
        *,
        key_by: str = "key",
        tool_calls: ToolCallOptions | None = None,
        workers: WorkerOptions | None = None,
        limits: Limits | None = None,
        always_replay: bool = False,
        fault: Fault = no_fault,
        journal: Journal | None = None,
        run_id: str = "run",
        agent: AgentSource | None = None,
        config: dict[str, Any] | None = None,
        side_by_side: bool = True,
    ) -> None:
        self.options = OperatorOptions(
            key_by=key_by,
            tool_calls=tool_calls or ToolCallOptions(),
            workers=workers or WorkerOptions(),
            limits=limits or Limits(),
            statistics=True,
            config=config or {},
        )
        self.backend = InMemoryBackend()
        self.counters = CountingCounters()
        self.clock_ms = 0
        self.crashes = 0
        self.workers = StepWorkers(self.options.workers, fault)
        self._agent = None if agent is None else resolve_agent(agent)
        self._tools = tools
        self._always_replay = always_replay
        # What runs without an action has no top to be run from.
        self._side_by_side = side_by_side and not always_replay
        self._fault = fault
        self._out: dict[str, list[str]] = {"responses": [], "rejects": [], "statistics": []}
        self._committed = dict.fromkeys(self._out, 0)
        self._snapshot = self.backend.snapshot()
        self._since_checkpoint: list[Record] = []
        self._run_id = run_id
        self.writer = None if journal is None else StepWriter(journal)
        if journal is not None and journal.find_run(run_id) is None:
            journal.create_run(RunRow(run_id, "harness", 0))
        self.attempt, self.subtask = self._open()

    @property
    def responses(self) -> list[dict[str, Any]]:
        """What reached the responses output, decoded, in order."""
        return [json.loads(line) for line in self._out["responses"]]

    @property
    def rejects(self) -> list[dict[str, Any]]:
        """What reached the rejects output, decoded, in order."""
        return [json.loads(line) for line in self._out["rejects"]]

    @property
    def statistics(self) -> dict[str, int]:
        """The sums of the statistics records."""
        sums: Counter[str] = Counter()
        for line in self._out["statistics"]:
            sums.update(json.loads(line))
        return dict(sums)

    def results(self) -> list[dict[str, Any]]:
        """Return the results of every response, one after the other."""
        return [result for response in self.responses for result in response["results"]]

    def send(self, *records: Record) -> None:
        """Let records arrive, in this order. Nothing runs in workers until ``run``."""
        for record in records:
            self._since_checkpoint.append(record)
            self._guarded(lambda record=record: self._take_in(record))  # type: ignore[misc]

    def run(self) -> None:
        """Run bodies and turns until nothing is left but calls that the test holds."""
        while self._guarded(self._settle_once) or self._guarded(self.workers.step) or self._commit():
            pass

    def advance(self, ms: int) -> None:
        """Move the clock and run what became due."""
        self.clock_ms += ms
        self.run()

    def interrupt(self) -> None:
        """Ask every running body to stop, as the attempt watch does when the job is cancelled or the task fails."""
        self.attempt.interrupt()

    def checkpoint(self) -> None:
        """Complete a checkpoint: state, outputs and the position in the input are safe from here on."""
        self._snapshot = self.backend.snapshot()
        self._committed = {name: len(lines) for name, lines in self._out.items()}
        self._since_checkpoint.clear()

    def crash(self, *, tools: Sequence[Any] | None = None, reverse_input: bool = False) -> None:
        """Kill the subtask and restore the last checkpoint, with other ``tools`` if given (a changed deployment).

        ``reverse_input`` sends the records that arrived after the checkpoint in the other order, as a source of several
        splits may.
        """
        self.crashes += 1
        self.attempt.interrupt()
        self.subtask.close()
        self._registry.close()
        self.workers.drop()
        if self.writer is not None:
            self.writer.drop()
        self.backend.restore(self._snapshot)
        for name, length in self._committed.items():
            del self._out[name][length:]
        self._tools = self._tools if tools is None else tools
        self.attempt, self.subtask = self._open()
        self._guarded(self._wake_restored)
        again, self._since_checkpoint = self._since_checkpoint, []
        self.send(*(reversed(again) if reverse_input else again))

    def slots(self, key: Any) -> dict[str, dict[str, Any]]:
        """Return the stored slots of a key, decoded, by ``intake/index``."""
        return {field: json.loads(text) for field, text in self._entries(key, StateName.SLOTS).items()}

    def head(self, key: Any) -> dict[str, Any] | None:
        """Return the stored head of a key, decoded."""
        text = self._entries(key, StateName.HEAD).get("")
        return None if text is None else json.loads(text)

    def pending_requests(self, key: Any) -> list[int]:
        """Return the intake numbers of the requests of a key that are stored and not answered."""
        return sorted(int(field) for field in self._entries(key, StateName.REQUESTS))

    def close(self) -> None:
        """Release the event loop, drop running actions and close the tools."""
        self.subtask.close()
        self._registry.close()
        self.workers.close()

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _entries(self, key: Any, name: StateName) -> dict[str, str]:
        return self.backend.entries(request_key({"key": key}, "key"), name)

    def _open(self) -> tuple[Attempt, Subtask]:
        attempt = Attempt()
        self.workers.serve(attempt)
        self._registry = build_registry([*self._tools, *(() if self._agent is None else self._agent.tools())])
        self._registry.open()
        subtask = Subtask(
            options=self.options,
            registry=self._registry,
            workers=self.workers,
            attempt=attempt,
            counters=self.counters,
            clock=lambda: self.clock_ms,
            fault=self._fault,
            run_id=self._run_id,
            journal=self._port(attempt),
            agent=self._agent,
            side_by_side=self._side_by_side,
        )
        return attempt, subtask

    def _port(self, attempt: Attempt) -> JournalPort | None:
        if self.writer is None:
            return None
        journal = self.writer.journal
        return JournalPort(
            self.writer,
            journal.open_attempt(self._run_id, attempt.id, 0, 1),
            lambda key, number, also: journal.requests_from(self._run_id, key, number, also),
            journal.outcome_of,
        )

    def _commit(self) -> bool:
        return self.writer is not None and self.writer.step()

    def _guarded(self, step: Callable[[], Any]) -> bool:
        try:
            return bool(step())
        except PlannedCrash:
            self.crash()
            return True

    def _take_in(self, record: Record) -> None:
        try:
            key = request_key(record, self.options.key_by)
        except RejectedRecord:
            key = REJECT_KEY_PREFIX
        self._turn(key, lambda store: self.subtask.intake(key, record, store))

    def _wake_restored(self) -> None:
        for key in self.backend.all_keys():
            if self.backend.entries(key, StateName.REQUESTS):
                self._wake(key)

    def _settle_once(self) -> bool:
        due = self.subtask.due_keys()
        for key in due:
            self._wake(key)
        return bool(due)

    def _wake(self, key: str) -> None:
        self._turn(key, lambda store: self.subtask.wake(key, store))

    def _turn(self, key: str, decide: Callable[[WriteBehind], Turn]) -> None:
        """Carry out a turn in the order that the operator uses: persist, act, emit, wake."""
        self.backend.current_key = key
        store = WriteBehind(self.backend)
        turn = decide(store)
        if self._always_replay and turn.busy:
            again = self.subtask.replay(key, store)
            turn.responses += again.responses
            turn.statistics += again.statistics
            turn.start += again.start
            turn.wake += again.wake
        store.flush()
        self.subtask.start(turn.start)
        self._out["responses"] += turn.responses
        self._out["rejects"] += turn.rejects
        self._out["statistics"] += turn.statistics
        for other in dict.fromkeys(turn.wake):
            self._wake(other)
