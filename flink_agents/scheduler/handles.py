"""What an action awaits: a handle on one durable call, on what is made of its result, or on several calls."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from flink_agents import codec
from flink_agents.codec.json_text import dumps_exact
from flink_agents.durable.outcome import Failed, Outcome, Succeeded
from flink_agents.durable.slots import Slot
from flink_agents.errors import CallError, HandleMisuse, NestedGather
from flink_agents.scheduler.prepared import Prepared

__all__ = [
    "AsyncFuture",
    "CallOutcome",
    "CompletedFuture",
    "DurableFuture",
    "GatherFuture",
    "HandleState",
    "MappedFuture",
    "SleepFuture",
    "Wait",
    "arguments_digest",
]

T = TypeVar("T")
U = TypeVar("U")


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


class _MappedOutcome(CallOutcome):
    """What a mapping made of a call's outcome; its failure is the mapping's own where that raised."""

    __slots__ = ("_raised",)

    def __init__(self, underlying: CallOutcome, value: Any, raised: BaseException | None) -> None:
        super().__init__(underlying.outcome, underlying.attempts, underlying.duration_ms, underlying.replayed)
        self._value = value
        self._raised = raised

    @property
    def succeeded(self) -> bool:
        return self._raised is None

    @property
    def exception(self) -> BaseException | None:
        return self._raised

    def result(self) -> Any:
        if self._raised is not None:
            raise self._raised
        return self._value


@dataclass(slots=True, eq=False)
class Wait:
    """What a coroutine hands to the driver when it awaits: the calls it waits for, and how many may run at once.

    ``timeout_ms`` bounds the whole wait; ``until_ms`` is the absolute time that it ends at, once the wait has begun.
    """

    handles: Sequence[DurableFuture]
    max_in_flight: int
    timeout_ms: int | None = None
    cursor: int = 0
    in_flight: int = 0
    until_ms: int | None = None
    is_expired: bool = False

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

    @property
    def call(self) -> DurableFuture | None:
        """The one durable call behind this handle; None where there is none."""
        return None

    def outcome_of(self) -> CallOutcome:
        """Return how it ended. Only once its call, if it has one, has an outcome."""
        raise NotImplementedError

    def map(self, mapping: Callable[[T], U]) -> MappedFuture[U]:
        """Return a handle on what ``mapping`` makes of the result: the same call and slot.

        What is recorded is the call's own value. ``mapping`` runs on the task thread, so it must be quick, and again on
        every replay, so it must be pure; what it raises is raised by the new handle.
        """
        return MappedFuture(self, mapping)

    def mapped(self, call: DurableFuture, value: Any) -> Any:
        """Return what this handle makes of ``value`` as the result of ``call``, the call behind it."""
        return value

    def cancel(self) -> None:
        """Give the handle up: its call will not begin. Does nothing once it has an outcome."""


class DurableFuture(AsyncFuture[Any]):
    """A handle on one durable call. Task thread only. Awaiting it twice gives the cached outcome.

    ``kind``, ``name``, ``position`` and ``arguments`` make its identity; ``call_id`` is what the request calls it. The
    digest is computed when it is asked for, so nothing may change ``arguments``.
    """

    __slots__ = ("_digest", "arguments", "call_id", "kind", "name", "outcome", "owner", "position", "slot", "state")

    def __init__(self, kind: str, name: str, position: int, arguments: Any, call_id: Any = None) -> None:
        self.kind = kind
        self.name = name
        self.position = position
        self.arguments = arguments
        self.call_id = call_id
        self.state = HandleState.COLD
        self.slot: Slot | None = None
        self.outcome: CallOutcome | None = None
        self.owner: object | None = None
        self._digest: str | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical JSON of the arguments as asked."""
        if self._digest is None:
            self._digest = arguments_digest(self.arguments)
        return self._digest

    @property
    def submits(self) -> bool:
        """Whether preparing it is user code that may do something, and must not run for a call that has ended."""
        return False

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

    @property
    def call(self) -> DurableFuture | None:
        """The call itself."""
        return self

    def outcome_of(self) -> CallOutcome:
        """Return how the call ended.

        Raises:
            HandleMisuse: if the handle was closed before that.
        """
        if self.outcome is None:
            msg = f"the handle of {self.name!r} was closed before it had an outcome"
            raise HandleMisuse(msg)
        return self.outcome

    def cancel(self) -> None:
        """Give the handle up: a call that has not been awaited will never begin."""
        self.close()

    def check_usable(self, owner: object) -> None:
        """Look whether an action may wait for this handle.

        Raises:
            HandleMisuse: if it was cancelled, belongs to another request, or was kept from an earlier life of this one.
        """
        if self.state is HandleState.CLOSED:
            msg = f"the handle of {self.name!r} was cancelled, or closed with its gather, before it had an outcome"
        elif self.owner is not owner and self.owner is not None:
            msg = f"the handle of {self.name!r} belongs to another request: each action makes its own handles"
        elif self.state is HandleState.RESERVED:
            msg = f"the handle of {self.name!r} was kept from an earlier run of the action: make it anew in each run"
        else:
            return
        raise HandleMisuse(msg)

    def settle(self, outcome: CallOutcome) -> None:
        """Set the outcome; called by the driver when the slot is terminal."""
        self.outcome = outcome
        self.state = HandleState.SETTLED

    def close(self) -> None:
        """Release the handle on any way out of its wait; a settled one keeps its outcome."""
        if self.state is not HandleState.SETTLED:
            self.state = HandleState.CLOSED


def arguments_digest(arguments: Any) -> str:
    """Return the SHA-256 of the canonical JSON of a call's arguments as asked. Any thread; pure.

    A record may hold JSON that nests deeper than the codec carries. The call is refused when it is prepared, but that
    refusal is recorded in a slot as well, which needs an identity: then it is that of the text.
    """
    try:
        return codec.digest(arguments)
    except CallError:
        # In a list, so that no call which can run has the same: arguments are an object.
        return codec.digest([dumps_exact(arguments, sort_keys=True)])


class SleepFuture(DurableFuture):
    """A wait until a time that is recorded when the sleep begins, so that a failover does not make it longer."""

    __slots__ = ("sleep_ms",)

    def __init__(self, sleep_ms: int) -> None:
        super().__init__("sleep", "sleep", -1, {"ms": sleep_ms})
        self.sleep_ms = sleep_ms


class CompletedFuture(AsyncFuture[T]):
    """A result that is there already; takes no slot."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[Wait, None, T]:
        """Return the value."""
        yield from ()
        return self._value

    def outcome_of(self) -> CallOutcome:
        """Return the value as the outcome of a call that took nothing."""
        return _MappedOutcome(CallOutcome(_NOTHING, 0, 0, False), self._value, None)


class MappedFuture(AsyncFuture[U]):
    """What a function makes of another handle's result: the same call, the same slot. The function runs once a life."""

    __slots__ = ("_inner", "_mapped", "_mapping")

    def __init__(self, inner: AsyncFuture[Any], mapping: Callable[[Any], U]) -> None:
        if isinstance(inner, GatherFuture):
            msg = "a gather gives a list of outcomes: await it and map that"
            raise HandleMisuse(msg)
        self._inner = inner
        self._mapping = mapping
        self._mapped: CallOutcome | None = None

    @property
    def call(self) -> DurableFuture | None:
        """The call behind the mapped handle."""
        return self._inner.call

    def __await__(self) -> Generator[Wait, None, U]:
        """Return the mapped value, or raise the call's own exception or the mapping's."""
        call = self.call
        if call is not None:
            yield from call.settled()
        value: U = self.outcome_of().result()
        return value

    def outcome_of(self) -> CallOutcome:
        """Return the call's outcome with the mapping's value; a failed call is not mapped."""
        if self._mapped is None:
            self._mapped = self._map(self._inner.outcome_of())
        return self._mapped

    def mapped(self, call: DurableFuture, value: Any) -> Any:
        """Return the mapping's value; raises what the mapping raises."""
        return self._mapping(self._inner.mapped(call, value))

    def _map(self, underlying: CallOutcome) -> CallOutcome:
        if not underlying.succeeded:
            return underlying
        try:
            return _MappedOutcome(underlying, self._mapping(underlying.result()), None)
        except Exception as raised:
            return _MappedOutcome(underlying, None, raised)

    def cancel(self) -> None:
        """Give the call up."""
        self._inner.cancel()


class GatherFuture(AsyncFuture[list[CallOutcome]]):
    """A wait for several calls. Gives their outcomes in the order of the arguments; one failure disturbs no other.

    With ``timeout_ms``, calls that finished in time keep their outcome, those that ran are failed with ``CallTimeout``,
    and those that never began have the outcome ``NotStarted``, of which nothing is recorded.
    """

    __slots__ = ("_handles", "_max_in_flight", "_timeout_ms")

    def __init__(self, handles: Sequence[Any], max_in_flight: int, timeout_ms: int | None = None) -> None:
        if type(max_in_flight) is not int or max_in_flight < 1:
            msg = f"max_in_flight must be a whole number of at least 1, not {max_in_flight!r}"
            raise HandleMisuse(msg)
        for position, handle in enumerate(handles):
            if not isinstance(handle, AsyncFuture):
                msg = f"gather takes handles; argument {position} is {type(handle).__name__}"
                raise HandleMisuse(msg)
            if isinstance(handle, GatherFuture):
                raise NestedGather(position)
        self._handles: Sequence[AsyncFuture[Any]] = handles
        self._max_in_flight = max_in_flight
        self._timeout_ms = timeout_ms

    def __await__(self) -> Generator[Wait, None, list[CallOutcome]]:
        """Return the outcomes in input order."""
        calls = dict.fromkeys([handle.call for handle in self._handles])
        pending = [call for call in calls if call is not None and call.outcome is None]
        try:
            if pending:
                yield Wait(pending, self._max_in_flight, self._timeout_ms)
            return [handle.outcome_of() for handle in self._handles]
        finally:
            for call in pending:
                if call.outcome is None:
                    call.close()

    def cancel(self) -> None:
        """Give every participant up."""
        for handle in self._handles:
            handle.cancel()


_NOTHING = Succeeded("null")
