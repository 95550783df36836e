"""What the tests of timed waits share: journals or none, actions written for the test, and looks at one moment."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flink_agents.clock import monotonic_ms, now_ms
from flink_agents.context import ActionContext
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.durable.journal.writer import JournalWriter
from flink_agents.events import ToolRequestEvent, ToolResponseEvent
from flink_agents.runtime import subtask as subtask_module
from flink_agents.runtime.subtask import JournalPort, Subtask
from flink_agents.scheduler.attempt import Attempt
from flink_agents.scheduler.workers import Workers
from flink_agents.testing import ControlledTool, Harness, HeldCall, StepWorkers

WAIT_S = 30.0
Scenario = Callable[[ActionContext], Awaitable[Any]]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    """Return an empty journal."""
    journal = SqliteJournal(tmp_path / "journal.db")
    yield journal
    journal.close()


@pytest.fixture(params=[False, True], ids=["state", "journal"])
def maybe_journal(request: pytest.FixtureRequest) -> SqliteJournal | None:
    """Run the test twice: on state alone, and with a journal."""
    return request.getfixturevalue("journal") if request.param else None


class At:
    """Fault that does something at a passing of a point, in place of a crash; once, when armed with ``do``."""

    def __init__(self, point: str) -> None:
        self._point = point
        self.do: Callable[[], None] | None = None

    def __call__(self, point: str) -> None:
        if point == self._point and self.do is not None:
            do, self.do = self.do, None
            do()


@pytest.fixture
def between_sweep_and_finish() -> At:
    """Return a fault that acts after everything was cancelled and before the last look at it."""
    return At("before:expired")


class Live:
    """The bodies of a controlled tool that belong to the harness's present attempt."""

    def __init__(self, tool: ControlledTool, harness: Harness) -> None:
        self._tool = tool
        self._harness = harness

    def __getitem__(self, index: int) -> HeldCall:
        return self.all[index]

    def __len__(self) -> int:
        return len(self.all)

    @property
    def all(self) -> list[HeldCall]:
        return [held for held in self._tool.running if held.call.attempt is self._harness.attempt]


@pytest.fixture
def live() -> type[Live]:
    """Return :class:`Live`."""
    return Live


@pytest.fixture
def as_action(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], list[Any]]:
    """Return a function that puts a coroutine in place of the built-in action; gives the list of what it returned."""

    def install(scenario: Scenario) -> list[Any]:
        returned: list[Any] = []

        class Action:
            def __init__(self, _options: Any) -> None:
                pass

            async def __call__(self, event: ToolRequestEvent, ctx: ActionContext) -> ToolResponseEvent:
                returned.append(await scenario(ctx))
                return ToolResponseEvent(event.request_id, event.key, (), event.metadata)

        monkeypatch.setattr(subtask_module, "ToolCallAction", Action)
        return returned

    return install


class ThreadWorkers(Workers):
    """The real workers, with what the harness asks of its own."""

    def step(self) -> bool:
        """Do nothing: bodies run by themselves."""
        return False

    def drop(self) -> None:
        """Do nothing: bodies of a dead attempt end by themselves."""

    def close(self) -> None:
        """Do nothing: threads never end."""


class ThreadedHarness(Harness):
    """The harness on real threads, a real event loop, the wall clock and the journal's own writer thread."""

    def __init__(self, tools: Any, *, journal: SqliteJournal | None = None, **options: Any) -> None:
        self.rung = threading.Event()
        self._journal_writer = None if journal is None else JournalWriter(journal)
        super().__init__(tools, journal=journal, **options)

    @property
    def clock_ms(self) -> int:
        """The wall clock."""
        return now_ms()

    @clock_ms.setter
    def clock_ms(self, _: int) -> None:
        """Ignore: nobody sets it."""

    def until(self, condition: Callable[[], bool]) -> None:
        """Serve what is due until the condition holds; fails once there was no further response for long."""
        answered, end_ms = -1, 0.0
        while True:
            self.rung.clear()
            self.run()
            if condition():
                return
            if len(self._out["responses"]) > answered:
                answered, end_ms = len(self._out["responses"]), monotonic_ms() + WAIT_S * 1000
            assert monotonic_ms() < end_ms, "the condition did not come true"
            alarm_ms = self.subtask.next_alarm_ms()
            # A condition may come true without a ring.
            self.rung.wait(0.01 if alarm_ms is None else min(0.01, max(0.0, (alarm_ms - now_ms()) / 1000)))

    def close(self) -> None:
        """Let the journal's thread finish what it has; it never ends."""
        super().close()
        if self._journal_writer is not None:
            assert self._journal_writer.wait(WAIT_S)

    def _open(self) -> tuple[Attempt, Subtask]:
        if isinstance(self.workers, StepWorkers):
            self.workers = ThreadWorkers(self.options.workers, self._fault)  # type: ignore[assignment]
        attempt, subtask = super()._open()
        attempt.notify = self.rung.set
        return attempt, subtask

    def _port(self, attempt: Attempt) -> JournalPort | None:
        if self._journal_writer is None:
            return None
        journal = self._journal_writer.journal
        return JournalPort(
            self._journal_writer,
            journal.open_attempt(self._run_id, attempt.id, 0, 1),
            partial(journal.requests_from, self._run_id),
            journal.outcome_of,
        )


@pytest.fixture
def threaded() -> Iterator[Callable[..., ThreadedHarness]]:
    """Return a function that makes a harness on real threads."""
    made: list[ThreadedHarness] = []

    def make(*tools: Any, **options: Any) -> ThreadedHarness:
        made.append(ThreadedHarness(list(tools), **options))
        return made[-1]

    yield make
    for harness in made:
        harness.close()
