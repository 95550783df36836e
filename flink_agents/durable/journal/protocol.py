"""What every journal does: the border between the durable core and a database outside Flink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence

from flink_agents.durable.journal.operations import Operation, Result
from flink_agents.durable.journal.rows import CallFilter, CallKey, CallRow, Lease, RequestRow, RunRow
from flink_agents.durable.outcome import Outcome

__all__ = ["Journal"]


class Journal(ABC):
    """Outcomes, request numbers and runs, kept from their commit on whatever happens to Flink.

    Every method blocks and may be called on any thread; all but ``requests_from`` and ``outcome_of`` wait for a
    commit or for other callers, so the task thread calls them in ``open`` only. Every method raises a ``JournalError``:
    ``JournalUnavailable`` where trying again may help, another subclass where it will not. After an error nothing
    counts as recorded; whether it *is* may be unknown (a connection lost during the commit), so ask the same again.
    """

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the journal is, for messages; never with a password."""

    @abstractmethod
    def create_run(self, run: RunRow) -> None:
        """Write the run's row, before the job is submitted; a row that is there already stays as it is."""

    @abstractmethod
    def find_run(self, run_id: str) -> RunRow | None:
        """Return the run's row, or None where the journal has none."""

    @abstractmethod
    def open_attempt(self, run_id: str, attempt_id: str, subtask: int, parallelism: int) -> bool:
        """Register a task attempt; return True if nothing of an earlier attempt can be there for this subtask.

        Then look-ups may be skipped: a run that was never restored at another parallelism and never had this subtask.
        The order in which attempts are registered is what "earlier" and "later" mean in answers. Asked again with the
        same id it answers the same.

        Raises:
            RunUnknown: if the run has no row: this is not the journal that the job was submitted with.
        """

    @abstractmethod
    def apply(self, operations: Sequence[Operation]) -> list[Result]:
        """Do the whole batch in one transaction; return the answers in its order, after the commit.

        Operations on one call or request are done in their order. The same batch may be applied again.
        """

    @abstractmethod
    def requests_from(self, run_id: str, key: str, intake: int, also: Collection[int] = ()) -> list[RequestRow]:
        """Return the key's requests whose number is ``intake`` or higher, or among ``also``, by number.

        Reads on a connection of its own and never waits for a writer, so the task thread may call it.
        """

    @abstractmethod
    def outcome_of(self, call: CallKey) -> Outcome | None:
        """Return the recorded outcome of a call, None without one. Reads one row, as ``requests_from`` reads."""

    @abstractmethod
    def calls(self, wanted: CallFilter = CallFilter()) -> Iterator[CallRow]:  # noqa: B008 - a frozen value
        """List calls by run, key, request and slot, as they stood when the listing began. For one thread, then done.

        ``requests_from`` and ``outcome_of`` may wait for a listing that is not read to its end.
        """

    @abstractmethod
    def find_lease(self, run_id: str) -> Lease | None:
        """Return the run's lease, which may have run out; None where nobody took one or it was given back."""

    @abstractmethod
    def acquire_lease(self, run_id: str, owner: str, ttl_ms: int, now_ms: int) -> None:
        """Take the run for ``owner`` (as messages name it) until ``now_ms + ttl_ms``; its own lease it may take again.

        Raises:
            RunInUse: if another owner's lease still runs; says whose and for how long.
            RunUnknown: if the run has no row.
        """

    @abstractmethod
    def renew_lease(self, run_id: str, owner: str, ttl_ms: int, now_ms: int) -> None:
        """Keep a lease that ``owner`` took, also one that ran out if nobody else took it in the meantime.

        Raises:
            RunInUse: if the lease is not ``owner``'s any more.
            RunUnknown: if the run has no row.
        """

    @abstractmethod
    def release_lease(self, run_id: str, owner: str) -> None:
        """Give the lease back; nothing happens where it is not ``owner``'s."""

    @abstractmethod
    def prune(self, now_ms: int, retention_ms: int, limit: int = 500) -> int:
        """Delete the rows of at most ``limit`` requests answered ``retention_ms`` ago or longer; return how many.

        Rows of requests that are not answered never go. Of the attempts of one subtask at one parallelism all but the
        last two go, whatever their age: each is over, and stays so (``SUPERSEDED``) where it asks again all the same.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all connections. A later call opens them again."""
