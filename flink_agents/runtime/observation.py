"""What a chaos run sees of each body: look-up, start, end and recorded outcome, appended to a log for each process.

Inert without the job parameter. With it, bodies are also stretched to the call times that the run asks for, and one
guarantee may be switched off, so that the run can show that it would have noticed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from flink_agents import codec
from flink_agents.durable.journal.operations import Finish, LookUp, Operation, Start, StartAgain
from flink_agents.durable.journal.rows import CallKey, StartAnswer, StartStatus
from flink_agents.durable.outcome import Outcome, Succeeded
from flink_agents.options import Execution
from flink_agents.runtime.subtask import JournalPort
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.call import RunningCall
from flink_agents.scheduler.call_journal import Writer

__all__ = ["CHAOS_PARAMETER", "Guarantee", "Observation", "Observer", "outcome_digest"]

CHAOS_PARAMETER = "flink-agents.chaos"
"""Global job parameter of a chaos run: an ``Observation`` as JSON."""


class Guarantee(str, Enum):
    """What a chaos run can switch off.

    ``JOURNAL``: outcomes are said to be recorded and are not. ``FENCE``: the journal records, but nobody asks it before
    a body begins, and an attempt goes on with what its own body returned, whatever was recorded first.
    """

    JOURNAL = "journal"
    FENCE = "fence"


@dataclass(frozen=True)
class Observation:
    """Where the logs go, and what is done to the bodies: each takes ``shortest_ms`` to ``longest_ms`` longer."""

    folder: str
    seed: int = 0
    shortest_ms: float = 0.0
    longest_ms: float = 0.0
    broken: Guarantee | None = None

    def to_text(self) -> str:
        """Return the job parameter."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> Observation:
        """Return what ``to_text`` wrote."""
        content = orjson.loads(text)
        broken = content.pop("broken")
        return cls(**content, broken=None if broken is None else Guarantee(broken))

    def stretch_s(self, call: RunningCall) -> float:
        """Return how much longer a body takes, in seconds: the same for the same call, body and seed."""
        name = (self.seed, call.key, call.origin.request_id, call.slot_index, call.attempts)
        return random.Random(repr(name)).uniform(self.shortest_ms, self.longest_ms) / 1000


def outcome_digest(outcome: Outcome) -> str:
    """Return what two equal outcomes have in common. Any thread."""
    text = outcome.text if isinstance(outcome, Succeeded) else codec.canonical(outcome.failure.to_json())
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class _Log:
    """Appends lines to one file; any thread. What was written is there after SIGKILL."""

    def __init__(self, folder: str) -> None:
        self._file = os.open(Path(folder, f"{os.getpid()}.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, event: str, **fields: Any) -> None:
        # The monotonic clock is one for all processes of the machine.
        os.write(self._file, orjson.dumps({"t": time.monotonic_ns(), "e": event, **fields}) + b"\n")


_logs: dict[str, _Log] = {}
_opening = threading.Lock()


class Observer:
    """Watches one attempt of the operator. Made by the task thread in ``open``; its parts run on any thread."""

    def __init__(self, parameter: str, attempt: Attempt) -> None:
        self._observation = Observation.from_text(parameter)
        self._attempt_id = attempt.id
        folder = self._observation.folder
        with _opening:
            if folder not in _logs:
                _logs[folder] = _Log(folder)
            self._log = _logs[folder]
        self._log.add("open", a=self._attempt_id)

    def port(self, port: JournalPort | None) -> JournalPort | None:
        """Return the journal's port with this observer between the calls and the writer."""
        if port is None:
            return None
        return replace(port, writer=_ObservedWriter(port.writer, self._log, self._attempt_id, self._observation.broken))

    def watch(self, calls: Sequence[RunningCall]) -> None:
        """Have the bodies of these calls noted and stretched. Task thread, before they begin."""
        for call in calls:
            is_async = call.terms.execution is Execution.ASYNC
            body = self._async_body(call) if is_async else self._body(call)
            call.prepared = call.prepared.with_body(body)

    def _body(self, call: RunningCall) -> Callable[[], Any]:
        inner, log = call.prepared.body, self._log

        def body() -> Any:
            log.add("begin", c=call.row.idempotency_key, a=self._attempt_id, n=call.attempts)
            try:
                # Deaf to cancellation, as a blocking library is: what a dead attempt left behind comes back late.
                time.sleep(self._observation.stretch_s(call))
                return inner()
            finally:
                log.add("end", c=call.row.idempotency_key, a=self._attempt_id)

        return body

    def _async_body(self, call: RunningCall) -> Callable[[], Any]:
        inner, log = call.prepared.body, self._log

        async def body() -> Any:
            log.add("begin", c=call.row.idempotency_key, a=self._attempt_id, n=call.attempts)
            try:
                await asyncio.sleep(self._observation.stretch_s(call))
                return await inner()
            finally:
                log.add("end", c=call.row.idempotency_key, a=self._attempt_id)

        return body


class _ObservedWriter:
    """Notes look-ups when they are asked, and what stands when the answer comes."""

    def __init__(self, writer: Writer, log: _Log, attempt_id: str, broken: Guarantee | None) -> None:
        self._writer = writer
        self._log = log
        self._attempt_id = attempt_id
        self._broken = broken

    def submit(
        self,
        operation: Operation,
        on_done: Callable[[Any], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Pass an operation on, or answer it where a guarantee is switched off. Any thread."""
        if on_done is None or not isinstance(operation, LookUp | Start | StartAgain | Finish):
            self._writer.submit(operation, on_done, then)
        elif isinstance(operation, Finish):
            self._finish(operation, on_done, then)
        elif self._broken is not None:
            on_done(StartAnswer(StartStatus.FRESH))
        else:
            self._log.add("look", c=operation.call.idempotency_key, a=self._attempt_id)
            self._writer.submit(operation, partial(self._answered, "found", operation.call, on_done), then)

    def _finish(self, operation: Finish, on_done: Callable[[Any], None], then: Callable[[], None] | None) -> None:
        answered = partial(self._answered, "commit", operation.call, on_done)
        own = StartAnswer(
            StartStatus.TERMINAL, operation.attempts, attempt_id=operation.attempt_id, outcome=operation.outcome
        )
        if self._broken is None:
            self._writer.submit(operation, answered, then)
            return
        # Without the journal it is asked for nothing, but answers on its thread all the same.
        sent = LookUp(operation.call) if self._broken is Guarantee.JOURNAL else operation
        self._writer.submit(sent, lambda answer: answered(own if isinstance(answer, StartAnswer) else answer), then)

    def _answered(self, event: str, call: CallKey, on_done: Callable[[Any], None], answer: Any) -> None:
        if isinstance(answer, StartAnswer) and answer.outcome is not None:
            v = outcome_digest(answer.outcome)
            self._log.add(event, c=call.idempotency_key, a=self._attempt_id, by=answer.attempt_id, v=v)
        on_done(answer)
