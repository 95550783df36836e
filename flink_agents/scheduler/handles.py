"""What an action awaits: a handle on one durable call, and a gather over several."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar, cast

from flink_agents import codec
from flink_agents.codec.json_text import dumps_exact
from flink_agents.durable.outcome import Failed, Outcome
from flink_agents.durable.slots import Slot
from flink_agents.errors import CallError, HandleMisuse, NestedGather
from flink_agents.scheduler.call import Prepared

__all__ = ["AsyncFuture", "CallOutcome", "DurableFuture", "GatherFuture", "Wait"]

T = TypeVar("T")


class HandleState(Enum):
    """A handle's life: cold until awaited or gathered, then reserved, then settled or closed."""

    COLD = "cold"
    RESERVED = "reserved"
    SETTLED = "settled"
    CLOSED = "closed"


class CallOutcome:
    """How a call ended, live or replayed. Equal live and replayed, because values went through the codec first."""

    __slots__ = ("_value", "attempts", "duration_ms", "outcome", "replayed")

    def __init__(self, outcome: Outcome, attempts: int, duration_ms: int, replayed: bool) -> None:
        self.outcome = outcome
        self.attempts = attempts
        self.duration_ms = duration_ms
        self.replayed = replayed
        self._value: Any = _UNREAD

    @property
    def succeeded(self) -> bool:
        """Whether the body returned a value."""
        return not isinstance(self.outcome, Failed)

    @property
    def exception(self) -> BaseException | None:
        """The call's own exception: live the same object, on replay one that the same ``except`` clauses catch."""
        if not isinstance(self.outcome, Failed):
            return None
        return self.outcome.exception or self.outcome.failure.rebuild()

    def result(self) -> Any:
        """Return the value, or raise the call's own exception."""
        if isinstance(self.outcome, Failed):
            raise self.outcome.exception or self.outcome.failure.rebuild()
        if self._value is _UNREAD:
            self._value = codec.decode(self.outcome.text)
        return self._value


_UNREAD = object()


@dataclass(slots=True, eq=False)
class Wait:
    """What a coroutine hands to the driver when it awaits: the calls it waits for, and how many may run at once."""

    handles: Sequence[DurableFuture]
    max_in_flight: int
    cursor: int = 0
    in_flight: int = 0

    @property
    def is_over(self) -> bool:
        """Whether every call is settled."""
        return self.in_flight == 0 and self.cursor == len(self.handles)


class AsyncFuture(Generic[T]):
    """Something an action can await. Created cold: nothing is reserved or started before it is awaited or gathered."""

    __slots__ = ()

    def __await__(self) -> Generator[Wait, None, T]:
        """Suspend the action until the result is there."""
        raise NotImplementedError


class DurableFuture(AsyncFuture[Any]):
    """A handle on one durable call. Task thread only. Awaiting it twice gives the cached outcome.

    ``kind``, ``name``, ``position`` and ``arguments`` make its identity; ``call_id`` is what the request calls it. The
    digest is computed when it is asked for, so nothing may change ``arguments``.
    """

    __slots__ = ("_digest", "arguments", "call_id", "kind", "name", "outcome", "position", "slot", "state")

    def __init__(self, kind: str, name: str, position: int, arguments: Any, call_id: Any = None) -> None:
        self.kind = kind
        self.name = name
        self.position = position
        self.arguments = arguments
        self.call_id = call_id
        self.state = HandleState.COLD
        self.slot: Slot | None = None
        self.outcome: CallOutcome | None = None
        self._digest: str | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical JSON of the arguments as asked.

        A record may hold JSON that nests deeper than the codec carries. The call is refused when it is prepared, but
        that refusal is recorded in a slot as well, which needs an identity: then it is that of the text.
        """
        if self._digest is None:
            try:
                self._digest = codec.digest(self.arguments)
            except CallError:
                # In a list, so that no call which can run has the same: arguments are an object.
                self._digest = codec.digest([dumps_exact(self.arguments, sort_keys=True)])
        return self._digest

    def prepare(self) -> Prepared:
        """Return what can be run for this call, once its slot is reserved. Task thread; not for a finished call.

        What it raises is the call's own failure.
        """
        raise NotImplementedError

    def body_here(self) -> Callable[[], Any] | None:
        """Return a body that may run on the task thread itself; None where ``prepare`` has to say where it runs."""
        return None

    def __await__(self) -> Generator[Wait, None, Any]:
        """Return the call's value, or raise its own exception."""
        return (yield from self.settled()).result()

    def settled(self) -> Generator[Wait, None, CallOutcome]:
        """Suspend until the call has an outcome, and return that."""
        if self.state is HandleState.CLOSED:
            msg = f"the handle of {self.name!r} was closed before it had an outcome"
            raise HandleMisuse(msg)
        if self.outcome is None:
            yield Wait((self,), 1)
        if self.outcome is None:
            msg = f"the handle of {self.name!r} was resumed without an outcome"
            raise HandleMisuse(msg)
        return self.outcome

    def settle(self, outcome: CallOutcome) -> None:
        """Set the outcome; called by the driver when the slot is terminal."""
        self.outcome = outcome
        self.state = HandleState.SETTLED

    def close(self) -> None:
        """Release the handle on any way out of its wait; a settled one keeps its outcome."""
        if self.state is not HandleState.SETTLED:
            self.state = HandleState.CLOSED


class GatherFuture(AsyncFuture[list[CallOutcome]]):
    """A wait for several calls. Gives their outcomes in the order of the arguments; one failure disturbs no other."""

    __slots__ = ("_handles", "_max_in_flight")

    def __init__(self, handles: Sequence[AsyncFuture[Any]], max_in_flight: int) -> None:
        if max_in_flight < 1:
            msg = f"max_in_flight must be at least 1, not {max_in_flight}"
            raise HandleMisuse(msg)
        for position, handle in enumerate(handles):
            if not isinstance(handle, DurableFuture):
                if isinstance(handle, GatherFuture):
                    raise NestedGather(position)
                msg = f"gather takes handles; argument {position} is {type(handle).__name__}"
                raise HandleMisuse(msg)
        self._handles = cast("Sequence[DurableFuture]", handles)
        self._max_in_flight = max_in_flight

    def __await__(self) -> Generator[Wait, None, list[CallOutcome]]:
        """Return the outcomes in input order."""
        pending = [handle for handle in dict.fromkeys(self._handles) if handle.outcome is None]
        try:
            if pending:
                yield Wait(pending, self._max_in_flight)
            return [_outcome(handle) for handle in self._handles]
        finally:
            for handle in pending:
                if handle.outcome is None:
                    handle.close()


def _outcome(handle: DurableFuture) -> CallOutcome:
    if handle.outcome is None:
        msg = f"the handle of {handle.name!r} was closed before it had an outcome"
        raise HandleMisuse(msg)
    return handle.outcome
