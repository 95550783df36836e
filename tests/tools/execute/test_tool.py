"""The tool between model and provider: what is refused, what reaches the provider, how each end is told."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import current_tool_context
from flink_agents.errors import Interrupted, InvalidInput, Uncapturable
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.testing import Harness, tool_request
from flink_agents.tools.execute import (
    ExecuteProvider,
    ExecuteRequest,
    ExecuteResult,
    ExecuteTool,
    LocalProcess,
    NoExecution,
)

Answer = Callable[[ExecuteRequest, CancellationToken], Any]


class Scripted(ExecuteProvider):
    """Does what the test says, and keeps what it was asked."""

    def __init__(self, answer: Answer | None = None, runtimes: Any = ("b", "a")) -> None:
        self._answer = answer or (lambda request, token: ExecuteResult(0, request.code))
        self._runtimes = runtimes
        self.asked: list[ExecuteRequest] = []

    @property
    def runtimes(self) -> tuple[str, ...]:
        found: tuple[str, ...] = self._runtimes
        return found

    def execute(self, request: ExecuteRequest, token: CancellationToken) -> ExecuteResult:
        self.asked.append(request)
        result: ExecuteResult = self._answer(request, token)
        return result


def raising(error: BaseException, *, cancels: bool = False) -> Answer:
    def answer(request: ExecuteRequest, token: CancellationToken) -> Any:
        if cancels:
            token.cancel()
        raise error

    return answer


def results(provider: ExecuteProvider, *arguments: dict[str, Any], key: Any = "k") -> list[dict[str, Any]]:
    with Harness([ExecuteTool(provider)]) as harness:
        harness.send(tool_request(key, *(("execute", given) for given in arguments)))
        harness.run()
        return harness.results()


def failure(provider: ExecuteProvider, **arguments: Any) -> dict[str, Any]:
    (result,) = results(provider, {"runtime": "a", "code": "x", **arguments})
    assert result["status"] == "failed"
    error: dict[str, Any] = result["error"]
    return error


def test_the_result_is_what_a_model_reads() -> None:
    told = ExecuteResult(3, "out", "err", True, 5, 7)
    (result,) = results(Scripted(lambda request, token: told), {"runtime": "a", "code": "x"})
    assert result["value"] == {
        "exit_code": 3,
        "stdout": "out",
        "stderr": "err",
        "timed_out": True,
        "truncated_bytes": 5,
        "duration_ms": 7,
    }


def test_what_the_model_sent_reaches_the_provider() -> None:
    provider = Scripted()
    sent = {"runtime": "b", "code": "x", "time_limit_s": "1.5", "stdin": "in"}
    results(provider, sent, key="1")
    results(provider, {"runtime": "a", "code": ""}, key=1)
    assert provider.asked == [ExecuteRequest("b", "x", '"1"', 1500, "in"), ExecuteRequest("a", "", "1")]


@pytest.mark.rule(63)
def test_another_runtime_is_refused_without_the_provider() -> None:
    provider = Scripted()
    error = failure(provider, runtime="ruby")
    assert provider.asked == []
    assert error["kind"] == "invalid_arguments"
    assert "runtime: 'ruby' is not supported; supported are b, a" in error["message"]
    assert error["expected"]["properties"]["runtime"]["enum"] == ["b", "a"]


@pytest.mark.rule(63)
@pytest.mark.parametrize("runtimes", [["a"], "a", {"a"}, ("a", 1), None])
def test_runtimes_are_a_tuple_of_texts(runtimes: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a tuple of texts"):
        ExecuteTool(Scripted(runtimes=runtimes))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"time_limit_s": 0}, "time_limit_s"),
        ({"time_limit_s": "soon"}, "time_limit_s"),
        ({"code": 1}, "code"),
        ({"shell": True}, "shell"),
        ({"runtime": None}, "runtime"),
    ],
)
def test_wrong_arguments_name_their_field(wrong: dict[str, Any], field: str) -> None:
    provider = Scripted()
    error = failure(provider, **wrong)
    assert (error["kind"], provider.asked) == ("invalid_arguments", [])
    assert f"- {field}: " in error["message"]


@pytest.mark.rule(65)
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("boom"), "Execute: provider failed: boom"),
        (ValueError(), "Execute: provider failed: ValueError"),
        (SystemExit(), "Execute: provider failed: SystemExit"),
        (KeyboardInterrupt("stop"), "Execute: provider failed: stop"),
    ],
)
def test_a_broken_provider(error: BaseException, told: str) -> None:
    found = failure(Scripted(raising(error)))
    assert (found["kind"], found["type"], found["message"]) == ("tool_error", "ProviderFailed", told)


@pytest.mark.rule(65)
def test_a_provider_that_returns_something_else_is_broken() -> None:
    told = "Execute: provider failed: it returned dict instead of an ExecuteResult"
    assert failure(Scripted(lambda request, token: {}))["message"] == told


@pytest.mark.rule(65)
@pytest.mark.parametrize("error", [Interrupted("by owner"), asyncio.CancelledError()])
def test_a_cancellation(error: BaseException) -> None:
    assert failure(Scripted(raising(error, cancels=True)))["message"] == "Execute: cancelled"


@pytest.mark.rule(31)
def test_a_cancellation_that_nobody_asked_for_is_a_failed_call() -> None:
    assert failure(Scripted(raising(asyncio.CancelledError())))["message"] == "Execute: cancelled"


class Fatal(Uncapturable):
    pass


@pytest.mark.rule(65)
@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("kind", [MemoryError, Fatal])
def test_a_fatal_error_propagates_as_itself(kind: type[BaseException], cancels: bool) -> None:
    error = kind("no more")
    with pytest.raises(kind) as raised:
        results(Scripted(raising(error, cancels=cancels)), {"runtime": "a", "code": "x"})
    assert raised.value is error


@pytest.mark.rule(64)
@pytest.mark.parametrize("error", [RuntimeError("sandbox lost"), ConnectionResetError(), SystemExit(1)])
def test_whatever_a_sandbox_answers_to_its_cancellation_is_one(error: BaseException) -> None:
    tokens = []

    def answer(request: ExecuteRequest, token: CancellationToken) -> Any:
        tokens.append(token)
        token.cancel()
        raise error

    assert failure(Scripted(answer))["message"] == "Execute: cancelled"
    assert tokens[0].cancelled


@pytest.mark.rule(64)
@pytest.mark.rule(27)
def test_an_interruption_records_nothing_whatever_the_sandbox_answers() -> None:
    provider = Scripted()
    with Harness([ExecuteTool(provider)]) as harness:

        def answer(request: ExecuteRequest, token: CancellationToken) -> Any:
            if len(provider.asked) == 1:
                harness.interrupt()
                assert token.cancelled
                raise RuntimeError("sandbox lost")
            return ExecuteResult(0, "again")

        provider._answer = answer
        harness.send(tool_request("k", ("execute", {"runtime": "a", "code": "x"})))
        harness.run()
        assert harness.responses == []
        harness.crash()
        harness.run()
        assert harness.results()[0]["value"]["stdout"] == "again"


@pytest.mark.rule(32)
def test_what_finished_in_spite_of_the_cancellation_keeps_its_result() -> None:
    def answer(request: ExecuteRequest, token: CancellationToken) -> Any:
        token.cancel()
        return ExecuteResult(0, "done")

    assert results(Scripted(answer), {"runtime": "a", "code": "x"})[0]["value"]["stdout"] == "done"


@pytest.mark.rule(64)
def test_the_provider_runs_on_the_worker_of_its_call() -> None:
    contexts = []

    def answer(request: ExecuteRequest, token: CancellationToken) -> Any:
        contexts.append((current_tool_context().token is token, current_tool_context().tool))
        return ExecuteResult(0)

    results(Scripted(answer), {"runtime": "a", "code": "x"})
    assert contexts == [(True, "execute")]
    assert ExecuteTool(Scripted()).spec.execution.value == "thread"
    with pytest.raises(InvalidInput, match="only be thread"):
        ExecuteTool(Scripted(), execution="inline")


@pytest.mark.rule(69)
def test_the_provider_of_nothing_says_so() -> None:
    error = failure(NoExecution(), runtime="shell")
    assert error["kind"] == "invalid_arguments"
    assert "'shell' is not supported; supported are none: this tool executes nothing" in error["message"]
    assert NoExecution().runtimes == ()
    assert "Runtimes: none." in ExecuteTool(NoExecution()).spec.description


def test_a_tool_travels_with_its_options() -> None:
    tool = ExecuteTool(LocalProcess(["shell"]), name="sh", description="Runs.", max_concurrent=2, timeout="5s")
    again = pickle.loads(pickle.dumps(tool))
    assert again.spec == tool.spec
    assert (again.spec.name, again.spec.description, again.spec.max_concurrent) == ("sh", "Runs.", 2)
    assert again.provider.runtimes == ("shell",)
    assert again.provider.options == tool.provider.options  # type: ignore[attr-defined]


def test_open_and_close_reach_the_provider() -> None:
    seen = []

    class Opened(Scripted):
        def open(self) -> None:
            seen.append("open")

        def close(self) -> None:
            seen.append("close")

    tool = ExecuteTool(Opened())
    tool.open()
    tool.close()
    assert seen == ["open", "close"]
