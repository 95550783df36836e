"""The execute tool: what a model asks for goes to a provider, and what comes back is told in fixed words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import Unpack

from flink_agents import codec
from flink_agents.errors import Interrupted, InvalidArguments, InvalidInput, ProviderFailed
from flink_agents.failures import capture
from flink_agents.scheduler.call import is_fatal, is_interruption
from flink_agents.scheduler.tool_context import ToolContext
from flink_agents.tools.base import Body, Tool
from flink_agents.tools.execute.protocol import ExecuteProvider, ExecuteRequest, ExecuteResult
from flink_agents.tools.execute.waiting import CANCELLED
from flink_agents.tools.function import FunctionTool
from flink_agents.tools.imports import resolve
from flink_agents.tools.options import CallOptions, OptionKeywords
from flink_agents.tools.refusal import bounded, refusal
from flink_agents.tools.specification import own_copy

__all__ = ["ExecuteTool", "made_provider"]

_MAX_SHOWN_BYTES = 60
_DESCRIPTION = (
    "Run code and return exit_code, stdout, stderr, timed_out, truncated_bytes (how much of the outputs was left out) "
    "and duration_ms. Runtimes: {}."
)
_PARAMETERS = {
    "runtime": "what runs the code.",
    "code": "the program text.",
    "time_limit_s": "seconds after which the program is ended; a large value is lowered to what is allowed.",
    "stdin": "what the program can read from its standard input.",
}


class ExecuteTool(Tool):
    """Lets a model run code through a provider.

    Args:
        provider: who runs it. Opened and closed with the operator's attempt.
        name: what a model calls the tool.
        description: what a model reads, if not the usual text.
        options: as for ``flink_agents.tool``, except ``execution``: bodies run on worker threads.

    Raises:
        InvalidInput: for what is no provider, runtimes that are no tuple of texts, a wrong option.
    """

    def __init__(
        self,
        provider: ExecuteProvider,
        *,
        name: str | None = None,
        description: str | None = None,
        search_path: Sequence[str | Path] = (),
        **options: Unpack[OptionKeywords],
    ) -> None:
        runtimes: Any = getattr(provider, "runtimes", None)
        if not isinstance(runtimes, tuple) or not all(isinstance(runtime, str) for runtime in runtimes):
            msg = f"execute: the runtimes of {provider!r} must be a tuple of texts, not {runtimes!r}"
            raise InvalidInput(msg)
        if CallOptions(**options).execution not in (None, "thread"):
            raise InvalidInput("execute: its bodies block, so `execution` can only be thread")
        self._made_from = (provider, name, description, tuple(search_path), options)
        self.provider = provider
        self._runtimes = runtimes
        self._function = FunctionTool(
            _typed(self._execute, runtimes),
            name=name or "execute",
            description=description or _DESCRIPTION.format(", ".join(runtimes) or "none"),
            search_path=search_path,
            **options,
        )
        self.spec = self._function.spec

    def open(self) -> None:
        """Open the provider. Task thread.

        Raises:
            InvalidInput: for what this machine cannot do.
        """
        self.provider.open()

    def close(self) -> None:
        """Close the provider. Any thread; also twice."""
        self.provider.close()

    def read_injected(self, name: str, value: Any) -> Any:
        """Return ``value`` as the injected parameter ``name`` takes it, as a function tool does."""
        return self._function.read_injected(name, value)

    def prepare(self, arguments: dict[str, Any]) -> Body:
        """Validate ``arguments``. Task thread; not called on replay of a finished call.

        Raises:
            InvalidArguments: for a runtime that the provider does not have, and as a function tool does.
        """
        runtime = arguments.get("runtime")
        if isinstance(runtime, str) and runtime not in self._runtimes:
            supported = ", ".join(self._runtimes) or "none: this tool executes nothing"
            problem = f"runtime: {bounded(runtime, _MAX_SHOWN_BYTES)!r} is not supported; supported are {supported}"
            raise InvalidArguments(refusal(self.spec.name, [problem]), own_copy(self.spec.parameters))
        return self._function.prepare(arguments)

    def reconciler(self, arguments: dict[str, Any]) -> Body | None:
        """Return what decides about a call in doubt, as a function tool does. Task thread."""
        return self._function.reconciler(arguments)

    def _execute(
        self, runtime: str, code: str, ctx: ToolContext, time_limit_s: float | None = None, stdin: str | None = None
    ) -> dict[str, Any]:
        limit_ms = None if time_limit_s is None else max(1, round(time_limit_s * 1000))
        request = ExecuteRequest(runtime, code, codec.key_text(ctx.key), limit_ms, stdin)
        token = ctx.token
        try:
            result: Any = self.provider.execute(request, token)
        except BaseException as error:
            if is_fatal(error):
                raise
            # Whatever a sandbox answers to its own end: it was asked for.
            if token.cancelled or is_interruption(error, asked=True):
                raise Interrupted(CANCELLED) from error
            told = capture(error).error()["message"]
            raise ProviderFailed(f"Execute: provider failed: {told}") from error
        if not isinstance(result, ExecuteResult):
            msg = f"Execute: provider failed: it returned {type(result).__name__} instead of an ExecuteResult"
            raise ProviderFailed(msg)
        return asdict(result)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, self._made_from

    def __repr__(self) -> str:
        return f"ExecuteTool({self.spec.name!r}, {type(self.provider).__name__})"


def made_provider(
    provider: ExecuteProvider | str, arguments: Mapping[str, Any], search_path: Sequence[str | Path] = ()
) -> ExecuteProvider:
    """Return a provider, made of the class that ``module:Class`` names if it is no ready one.

    Raises:
        InvalidInput: if the class cannot be imported, does not take the arguments, or is of something else.
    """
    if not isinstance(provider, str):
        return provider
    cls = resolve(provider, search_path)
    try:
        made = cls(**arguments)
    except Exception as error:
        msg = f"{provider!r} cannot be made with {', '.join(arguments) or 'no options'}: {capture(error).message}"
        raise InvalidInput(msg) from error
    if not isinstance(made, ExecuteProvider):
        msg = f"{provider!r} is no class of an ExecuteProvider"
        raise InvalidInput(msg)
    return made


def _remade(
    provider: ExecuteProvider,
    name: str | None,
    description: str | None,
    search_path: Sequence[str | Path],
    options: OptionKeywords,
) -> ExecuteTool:
    return ExecuteTool(provider, name=name, description=description, search_path=search_path, **options)


def _typed(execute: Callable[..., Any], runtimes: tuple[str, ...]) -> Callable[..., Any]:
    """Return ``execute`` as a function whose signature has the runtimes of one provider."""

    def run(runtime: Any, code: Any, ctx: Any, time_limit_s: Any = None, stdin: Any = None) -> Any:
        return execute(runtime, code, ctx, time_limit_s, stdin)

    # A provider without runtimes has nothing to choose from; JSON Schema has no empty list of choices.
    choice: Any = Literal[runtimes] if runtimes else str
    # With the default None, the last two take null as well.
    types: dict[str, Any] = {
        "runtime": choice,
        "code": str,
        "time_limit_s": Annotated[float, Field(gt=0)],
        "stdin": str,
    }
    described = {name: Annotated[hint, Field(description=_PARAMETERS[name])] for name, hint in types.items()}
    run.__annotations__ = {**described, "ctx": ToolContext}
    run.__name__ = run.__qualname__ = "execute"
    return run
