"""``on_interrupt`` and ``reconcile``: who has the last word, what goes together, what a reconciler is called with."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flink_agents import (
    NOT_STARTED,
    FunctionDeclaration,
    FunctionTool,
    OnInterrupt,
    SchemaDeclaration,
    SchemaTool,
    ToolContext,
    tool,
)
from flink_agents.durable.journal.sqlite import SqliteJournal
from flink_agents.errors import InvalidArguments, InvalidInput
from flink_agents.options import WorkerOptions
from flink_agents.testing import Harness, tool_request
from flink_agents.tools.interruption import needing_journal
from flink_agents.tools.registry import build_registry


def pay(account: str, cents: int = 1) -> str:
    """Pay."""
    return f"paid {cents} to {account}"


def find(account: str) -> Any:
    """Look whether it was paid."""
    return f"found for {account}"


def find_other(account: str) -> Any:
    """Look elsewhere."""
    return f"found elsewhere for {account}"


@tool(on_interrupt="reconcile", reconcile=find)
def careful(account: str) -> str:
    """Pay with care."""
    return account


@tool(on_interrupt="fail")
def once(account: str) -> str:
    """Pay at most once."""
    return account


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    """This module's name, so that it can be referred to."""
    import sys

    monkeypatch.setitem(sys.modules, "interruption_tools", sys.modules[__name__])
    return "interruption_tools"


def test_the_default_is_to_run_again() -> None:
    made = FunctionTool(pay)
    assert made.spec.on_interrupt is OnInterrupt.RERUN
    assert made.reconciler({"account": "a"}) is None


def test_the_decorator_says_it_and_a_declaration_overrides_it(module: str) -> None:
    assert FunctionTool(once).spec.on_interrupt is OnInterrupt.FAIL
    assert FunctionTool(careful).spec.on_interrupt is OnInterrupt.RECONCILE
    for declared, expected in [
        (FunctionDeclaration(careful), OnInterrupt.RECONCILE),
        (FunctionDeclaration(careful, on_interrupt="rerun"), OnInterrupt.RERUN),
        (FunctionDeclaration(careful, on_interrupt="fail"), OnInterrupt.FAIL),
        (FunctionDeclaration(once, on_interrupt="reconcile", reconcile=find), OnInterrupt.RECONCILE),
        (FunctionDeclaration(FunctionTool(careful), on_interrupt="fail"), OnInterrupt.FAIL),
        (FunctionDeclaration(FunctionTool(pay), on_interrupt="fail"), OnInterrupt.FAIL),
    ]:
        (spec,) = build_registry([declared]).specs()
        assert spec.on_interrupt is expected
    given = FunctionDeclaration(careful, reconcile=f"{module}:find_other")
    body = build_registry([given]).get("careful").reconciler({"account": "a"})
    assert body is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reconcile": find}, "reconcile is only used with on_interrupt: reconcile, and it says rerun"),
        ({"reconcile": find, "on_interrupt": "fail"}, "only used with on_interrupt: reconcile, and it says fail"),
        ({"on_interrupt": "reconcile"}, "needs `reconcile`"),
        ({"on_interrupt": "retry"}, "on_interrupt must be one of rerun, fail, reconcile, not 'retry'"),
        ({"on_interrupt": "reconcile", "reconcile": 5}, "reconcile must be a function, not 5"),
        ({"on_interrupt": "reconcile", "reconcile": "no_such_module:f"}, "there is no module 'no_such_module'"),
        ({"on_interrupt": "reconcile", "reconcile": "json:lods"}, "did you mean 'loads'"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    makes: list[Callable[[], Any]] = [
        lambda: FunctionTool(pay, **options),
        lambda: FunctionTool(tool(**options)(lambda_like())),
        lambda: FunctionTool(pay).override(**options),
        lambda: build_registry([SchemaDeclaration(({"name": "a"}, {"name": "b"}), handler, **options)]),
    ]
    for make in makes:
        with pytest.raises(InvalidInput) as refused:
            make()
        assert message in str(refused.value)


def lambda_like() -> Callable[..., Any]:
    def fresh(account: str) -> str:
        """Be marked anew by each test."""
        return account

    return fresh


def handler(name: str, arguments: dict[str, Any]) -> Any:
    """Serve declared tools."""
    return [name, arguments]


def test_a_reconciler_that_needs_what_the_tool_does_not_have_is_refused() -> None:
    def astray(order: str) -> None: ...

    def by_place(account: str, /) -> None: ...

    for wrong, name in ((astray, "order"), (by_place, "account")):
        with pytest.raises(InvalidInput, match=f"needs '{name}'; it gets the tool's own parameters by name"):
            FunctionTool(pay, on_interrupt="reconcile", reconcile=wrong)
    with pytest.raises(InvalidInput, match=r"callable as reconcile\(tool_name, arguments\)"):
        SchemaTool({"name": "a"}, handler, on_interrupt="reconcile", reconcile=by_place)


def test_it_takes_by_name_what_it_needs_of_the_validated_arguments() -> None:
    asked: list[Any] = []

    def all_of_it(**arguments: Any) -> None:
        asked.append(arguments)

    def with_default(cents: int, note: str = "none") -> None:
        asked.append((cents, note))

    def untyped(account) -> None:  # type: ignore[no-untyped-def]
        asked.append(account)

    for reconcile in (all_of_it, with_default, untyped):
        body = FunctionTool(pay, on_interrupt="reconcile", reconcile=reconcile).reconciler(
            {"account": "a", "cents": "5"}
        )
        assert body is not None
        with Harness([lambda_like()]) as harness:
            in_call(harness, body)
    assert asked == [{"account": "a", "cents": 5}, (5, "none"), "a"]
    with pytest.raises(InvalidArguments):
        FunctionTool(pay, on_interrupt="reconcile", reconcile=untyped).reconciler({"cents": 5})


def in_call(harness: Harness, body: Callable[[], Any]) -> None:
    """Run a reconciler's body where there is a context."""

    def here() -> None:
        """Run it."""
        body()

    harness._tools = [here]
    harness.crash()
    harness.send(tool_request("k", ("here", {})))
    harness.run()
    assert harness.results()[-1]["status"] == "succeeded", harness.results()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    opened = SqliteJournal(tmp_path / "journal.db")
    yield opened
    opened.close()


def decided(answer: str) -> Any:
    """Return, raise or decline."""
    if answer == "raises":
        raise LookupError("it failed")
    return "it took effect" if answer == "value" else NOT_STARTED


EXPECTED = {"value": "it took effect", "raises": "it failed", "not started": "ran"}


@pytest.mark.rule(15, 16)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("tool_is_async", [False, True], ids=["on a thread", "on the loop"])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["no checkpoint", "checkpoint"])
@pytest.mark.parametrize("answer", list(EXPECTED))
def test_a_reconciler_of_either_kind_decides(
    journal: SqliteJournal, answer: str, checkpointed: bool, tool_is_async: bool, asynchronous: bool
) -> None:
    asked: list[Any] = []

    def look(n: int, ctx: ToolContext) -> Any:
        asked.append((n, ctx.tool, ctx.idempotency_key))
        return decided(answer)

    async def look_async(ctx: ToolContext, n: int) -> Any:
        await asyncio.sleep(0)
        return look(n, ctx)

    def body(n: int) -> str:
        """Do it."""
        return "ran"

    async def body_async(n: int) -> str:
        """Do it on the loop."""
        return "ran"

    made = FunctionTool(
        body_async if tool_is_async else body,
        name="it",
        on_interrupt="reconcile",
        reconcile=look_async if asynchronous else look,
    )
    workers = WorkerOptions(threads=1, async_limit=1)
    with Harness([pickle_like(made)], journal=journal, workers=workers) as harness:
        harness.send(tool_request("k", ("it", {"n": 1})))
        # Its started row is committed, its body is cut off.
        harness._commit()
        if checkpointed:
            harness.checkpoint()
        harness.crash()
        harness.run()
        (result,) = harness.results()
        assert (result.get("value") or result["error"]["message"]) == EXPECTED[answer]
        assert [(n, name) for n, name, _ in asked] == [(1, "it")]
        assert result["attempts"] == (2 if answer == "not started" else 1)
        assert harness.statistics["reran"] == (1 if answer == "not started" and checkpointed else 0)
        # Every worker is free again.
        assert (harness.workers.threads.used, harness.workers.coroutines.used) == (0, 0)


def pickle_like(made: FunctionTool) -> FunctionTool:
    """Return the tool as it is after its journey: without what cannot be pickled."""
    made.__dict__ = dict(made.__getstate__())
    return made


@pytest.mark.rule(15)
def test_declared_tools_have_one_reconciler(journal: SqliteJournal, module: str) -> None:
    declared = SchemaDeclaration(
        ({"name": "a"}, {"name": "b"}), handler, on_interrupt="reconcile", reconcile=f"{module}:find_call"
    )
    with Harness([declared], journal=journal) as harness:
        harness.send(tool_request("k", ("a", {"n": 1}), ("b", {"n": 2})))
        harness._commit()
        harness.crash()
        harness.run()
        assert [result["value"] for result in harness.results()] == [["found", "a", {"n": 1}], ["found", "b", {"n": 2}]]


def find_call(name: str, arguments: dict[str, Any], ctx: ToolContext) -> Any:
    """Look whether a declared tool's call took effect."""
    assert ctx.tool == name
    return ["found", name, arguments]


def test_tools_survive_pickling_with_their_reconciler() -> None:
    copied = [pickle.loads(pickle.dumps(found)) for found in (FunctionTool(once), SchemaTool({"name": "a"}, print))]
    assert [found.spec.on_interrupt for found in copied] == [OnInterrupt.FAIL, OnInterrupt.RERUN]


def test_the_marker_is_itself_after_pickling() -> None:
    assert pickle.loads(pickle.dumps(NOT_STARTED)) is NOT_STARTED


def test_which_tools_need_a_journal() -> None:
    specs = build_registry([pay, careful, once]).specs()
    assert [spec.name for spec in needing_journal(specs)] == ["careful", "once"]
