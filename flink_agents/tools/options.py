"""How the calls of a tool are run, as one place says it: the decorator, a declaration, or the job YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, TypeAlias, cast

from typing_extensions import TypedDict

from flink_agents.options import Execution, Injection, OnInterrupt, Rate
from flink_agents.retry import RetryPolicy
from flink_agents.tools.base import ToolSpec
from flink_agents.tools.interruption import Interruption, Reconciler

__all__ = ["CallOptions", "Duration", "Inject", "OptionKeywords", "Retry", "stated_by"]

Duration: TypeAlias = "str | timedelta"
"""``"200ms"``, ``"5s"``, ``"10m"``, ``"2h"``, ``"1d"``, or a timedelta of whole milliseconds; never a bare number."""

Retry: TypeAlias = "RetryPolicy | Mapping[str, Any]"
"""A policy, or what the job YAML says: ``{"attempts": 3, "initial": "200ms", "on": ["httpx.TransportError"]}``."""


Inject: TypeAlias = "Mapping[str, Injection | Mapping[str, str]]"
"""Parameters that the job gives: ``{"tenant": {"from": "config", "key": "tenant"}}``."""


class OptionKeywords(TypedDict, total=False):
    """The options as keywords; see ``tool`` for what each says."""

    execution: Execution | str | None
    max_concurrent: int | None
    on_interrupt: OnInterrupt | str | None
    reconcile: Reconciler | None
    timeout: Duration | None
    deadline: Duration | None
    retry: Retry | None
    rate: Rate | str | None
    inject: Inject | None


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """The options as values; None is nothing said. Picklable where what it is given is; checked by ``specify``."""

    execution: Execution | str | None = None
    max_concurrent: int | None = None
    on_interrupt: OnInterrupt | str | None = None
    reconcile: Reconciler | None = None
    timeout: Duration | None = None
    deadline: Duration | None = None
    retry: Retry | None = None
    rate: Rate | str | None = None
    inject: Inject | None = None

    @property
    def interruption(self) -> Interruption:
        """What is said about calls that were cut off."""
        return Interruption(self.on_interrupt, self.reconcile)

    @property
    def says_something(self) -> bool:
        """Whether any option is given."""
        return any(value is not None for value in self.keywords().values())

    def keywords(self) -> OptionKeywords:
        """Return the options as keywords of ``FunctionTool`` and ``SchemaTool``."""
        return cast("OptionKeywords", {field.name: getattr(self, field.name) for field in fields(CallOptions)})

    def over(self, weaker: CallOptions) -> CallOptions:
        """Return what holds of two places: option by option this one's word, else the weaker's.

        ``retry`` is one option. ``on_interrupt`` and ``reconcile`` go together: see ``choose_interruption``. ``inject``
        is merged parameter by parameter: none that the author hid comes into a model's hands by what a job says.
        """
        mine, theirs = self.keywords(), weaker.keywords()
        said = {name: value for name, value in mine.items() if value is not None}
        if isinstance(self.inject, Mapping) and isinstance(weaker.inject, Mapping):
            said["inject"] = {**weaker.inject, **self.inject}
        return CallOptions(**cast("OptionKeywords", {**theirs, **said}))


def stated_by(spec: ToolSpec) -> CallOptions:
    """Return the options that a ready tool has, but for those about interruption."""
    return CallOptions(
        execution=spec.execution,
        max_concurrent=spec.max_concurrent,
        timeout=None if spec.timeout_ms is None else timedelta(milliseconds=spec.timeout_ms),
        deadline=None if spec.deadline_ms is None else timedelta(milliseconds=spec.deadline_ms),
        retry=spec.retry,
        rate=spec.rate,
        inject=spec.inject or None,
    )
