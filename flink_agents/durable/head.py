"""The head of a key: which requests it has taken in and answered; all that stays when a key is idle."""

from __future__ import annotations

from dataclasses import dataclass, field

from flink_agents import codec
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import StateFormat

__all__ = ["Head"]

HEAD_VERSION = 1


@dataclass(slots=True)
class Head:
    """Intake numbers of one key.

    ``next`` is the number the next request gets (the first is 1), ``answered`` the highest number answered, ``active``
    the number of the request whose action runs, or None. Numbers are never used twice.

    Requests wait in the order of their numbers, so their queue is the range after ``answered`` and is not stored. After
    a restore with a journal requests keep their numbers but may arrive in another order: only then ``queue`` lists the
    waiting numbers in order of arrival, and ``gaps`` those below ``next`` whose requests have not arrived again yet.
    """

    next: int = 1
    answered: int = 0
    active: int | None = None
    queue: list[int] | None = None
    gaps: list[int] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """How many requests are stored and not answered."""
        return self.next - 1 - self.answered if self.queue is None else len(self.queue)

    @property
    def first(self) -> int:
        """The number of the request whose turn it is; only while some wait."""
        return self.answered + 1 if self.queue is None else self.queue[0]

    def take(self, recorded: int | None = None) -> int:
        """Give a request that arrives its number: ``recorded``, the one it had before a restore, or the next one."""
        intake = self.next if recorded is None else recorded
        if intake == self.next and self.queue is None:
            self.next = intake + 1
            return intake
        if self.queue is None:
            self.queue = list(range(self.answered + 1, self.next))
        if intake >= self.next:
            self.gaps.extend(range(self.next, intake))
            self.next = intake + 1
        else:
            self.gaps.remove(intake)
        self.queue.append(intake)
        return intake

    def answer(self) -> None:
        """Note that the request whose turn it is was answered."""
        self.active = None
        if self.queue is None:
            self.answered += 1
            return
        self.answered = max(self.answered, self.queue.pop(0))
        if not self.queue:
            self.queue, self.answered = None, self.next - 1

    @classmethod
    def load(cls, store: WriteBehind) -> Head:
        """Read the current key's head; a key never seen has a fresh one.

        Raises:
            StateFormat: if what is stored is no head of a version this release reads.
        """
        text = store.get(StateName.HEAD, "")
        if text is None:
            return cls()
        try:
            record = codec.loads(text)
            if record["v"] != HEAD_VERSION:
                msg = f"head has format version {record['v']}, this release reads {HEAD_VERSION}"
                raise StateFormat(msg)
            return cls(
                record["next"], record["answered"], record["active"], record.get("queue"), record.get("gaps", [])
            )
        except (ValueError, KeyError, TypeError) as error:
            msg = f"head cannot be read from state: {error!r}"
            raise StateFormat(msg) from error

    def save(self, store: WriteBehind) -> None:
        """Write the head at the end of a turn."""
        active = "null" if self.active is None else self.active
        text = f'{{"v":{HEAD_VERSION},"next":{self.next},"answered":{self.answered},"active":{active}'
        if self.queue is not None:
            text = f'{text},"queue":{codec.dumps(self.queue)}'
        if self.gaps:
            text = f'{text},"gaps":{codec.dumps(self.gaps)}'
        store.put(StateName.HEAD, "", text + "}")
