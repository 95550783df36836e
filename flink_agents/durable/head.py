"""The head of a key: which requests it has taken in and answered; all that stays when a key is idle."""

from __future__ import annotations

from dataclasses import dataclass

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
    """

    next: int = 1
    answered: int = 0
    active: int | None = None
    stored: bool = False

    @property
    def waiting(self) -> int:
        """How many requests are stored and not answered."""
        return self.next - 1 - self.answered

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
            return cls(record["next"], record["answered"], record["active"], stored=True)
        except (ValueError, KeyError, TypeError) as error:
            msg = f"head cannot be read from state: {error!r}"
            raise StateFormat(msg) from error

    def save(self, store: WriteBehind) -> None:
        """Write the head at the end of a turn."""
        active = "null" if self.active is None else self.active
        store.put(
            StateName.HEAD,
            "",
            f'{{"v":{HEAD_VERSION},"next":{self.next},"answered":{self.answered},"active":{active}}}',
        )
