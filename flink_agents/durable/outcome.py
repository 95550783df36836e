"""The two ways a call can end for good."""

from __future__ import annotations

from dataclasses import dataclass, field

from flink_agents.failures import RecordedFailure, capture
from flink_agents.redaction import Redaction

__all__ = ["Failed", "Outcome", "Succeeded"]


# Not frozen, as each call makes one and a frozen class takes three times as long to make.
@dataclass(slots=True)
class Succeeded:
    """The body returned; ``text`` is the value as the codec wrote it."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The call failed; ``exception`` is the object itself while the process that caught it lives."""

    failure: RecordedFailure
    exception: BaseException | None = field(default=None, compare=False)

    @classmethod
    def of(cls, exception: BaseException, secrets: Redaction) -> Failed:
        """Return the failure that ``exception`` is.

        The object itself is not kept where it holds a secret: an action would see, and pass on, another text than a
        replay gives it. Any thread; never raises.
        """
        failure = capture(exception, secrets)
        tells = bool(secrets) and capture(exception) != failure
        return cls(failure, None if tells else exception)


Outcome = Succeeded | Failed
