"""Who a slot belongs to: compared before a recorded outcome is reused, so that no call gets another call's result."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Identity"]


# Not frozen: that would make its construction, once a call, three times as slow.
@dataclass(slots=True)
class Identity:
    """Identity of one slot within its action.

    ``index`` is the slot's place in the action, ``position`` the call's place in its request (-1 where the call comes
    from no request), ``digest`` the SHA-256 of the canonical JSON of the arguments as they were asked.
    """

    index: int
    kind: str
    name: str
    position: int
    digest: str

    def __str__(self) -> str:
        return f"slot {self.index}: {self.kind} {self.name!r}, call {self.position}, arguments {self.digest[:12]}"
