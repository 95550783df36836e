"""The provider that runs nothing: for a job whose model is not to execute code, with the tool still declared."""

from __future__ import annotations

from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.tools.execute.keeper import ProviderBroken
from flink_agents.tools.execute.protocol import ExecuteProvider, ExecuteRequest, ExecuteResult

__all__ = ["NoExecution"]


class NoExecution(ExecuteProvider):
    """Supports no runtime: every call is refused, and says so."""

    @property
    def runtimes(self) -> tuple[str, ...]:
        """None at all."""
        return ()

    def execute(self, request: ExecuteRequest, token: CancellationToken) -> ExecuteResult:
        """Refuse; the tool never comes so far."""
        raise ProviderBroken("this provider executes nothing")
