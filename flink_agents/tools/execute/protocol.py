"""What a provider of the execute tool is: the runtimes it supports, and one synchronous method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from flink_agents.scheduler.attempt import CancellationToken

__all__ = ["ExecuteProvider", "ExecuteRequest", "ExecuteResult"]


@dataclass(frozen=True)
class ExecuteRequest:
    """One execution that a model asked for.

    ``runtime`` is one of the provider's. ``key`` is the request's key as text that tells keys of different types apart.
    ``time_limit_ms`` is what the model asked for, not yet clamped; None where it said nothing.
    """

    runtime: str
    code: str
    key: str
    time_limit_ms: int | None = None
    stdin: str | None = None


@dataclass(frozen=True)
class ExecuteResult:
    """How an execution ended, as the model reads it.

    ``exit_code`` is negative for the signal that ended the program, None where there is none. ``truncated_bytes``
    counts what was left out of the two outputs; ``duration_ms`` is wall time.
    """

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    truncated_bytes: int = 0
    duration_ms: int = 0


class ExecuteProvider(ABC):
    """Runs code for a model. Derive from it to bring a sandbox of your own.

    A provider is pickled with the job before it is opened, so ``__init__`` only keeps options. ``open`` and ``close``
    run once for each attempt of a subtask; ``execute`` runs on many workers at once.
    """

    @property
    @abstractmethod
    def runtimes(self) -> tuple[str, ...]:
        """The runtimes that it supports, in the order in which a model is told of them. Any other is refused."""

    @abstractmethod
    def execute(self, request: ExecuteRequest, token: CancellationToken) -> ExecuteResult:
        """Run the code to its end and return how it ended; on the worker of the call, which may wait here.

        Wait only in ways that ``token`` can end: look at ``token.cancelled``, use ``token.wait``, or register a
        callback with ``token.on_cancel`` and withdraw it. Once the token is set, stop what runs and raise
        ``flink_agents.errors.Interrupted``; whatever else is raised then counts as that, too. What finished in spite
        of it may be returned. A program that fails or runs out of time is a result, not an exception. On replay of a
        finished call it is not called.

        Raises:
            Interrupted: the token was set.
            Exception: only where the provider itself is broken; the model reads ``Execute: provider failed``.
        """

    def open(self) -> None:  # noqa: B027  (a provider may need nothing)
        """Acquire what executions need; task thread. Raises ``InvalidInput`` for what this machine cannot do."""

    def close(self) -> None:  # noqa: B027
        """Stop what runs and release everything; any thread, also twice, also while ``execute`` runs elsewhere."""
