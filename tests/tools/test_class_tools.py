"""The methods of a class as tools of one instance, and how that instance lives."""

from __future__ import annotations

import pickle
import sys
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flink_agents import NOT_STARTED, ClassDeclaration, ToolContext, tool
from flink_agents.errors import FrameworkFault, InvalidArguments, InvalidInput
from flink_agents.options import Execution, OnInterrupt
from flink_agents.testing import Harness, tool_request
from flink_agents.tools.class_tools import ClassTool, class_tools
from flink_agents.tools.registry import build_registry


class Accounts:
    """Balances, held by one instance."""

    made: ClassVar[list[Accounts]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.balances: dict[str, int] = {}
        self.life: list[str] = []

    def open(self) -> None:
        self.life.append("open")

    def close(self) -> None:
        self.life.append("close")

    @tool(max_concurrent=1, on_interrupt="fail")
    def deposit(self, account: str, cents: int) -> int:
        """Put money in.

        Args:
            account: whose.
            cents: how much.
        """
        self.balances[account] = self.balances.get(account, 0) + cents
        return self.balances[account]

    @tool(name="balance_of")
    async def balance(self, account: str, ctx: ToolContext) -> list[Any]:
        """Look."""
        return [ctx.tool, self.balances.get(account, 0)]

    def not_marked(self, untyped) -> None:  # type: ignore[no-untyped-def]
        """Be no tool, since others are marked."""


class Plain:
    """Marks nothing, so that every public method is a tool."""

    def first(self) -> str:
        return "first"

    @staticmethod
    def fixed(number: int) -> int:
        return number

    @classmethod
    def named(cls, text: str) -> str:
        return f"{cls.__name__} {text}"

    def open(self) -> None: ...

    def _private(self) -> None: ...

    @property
    def value(self) -> int:
        msg = "a property is looked at by nobody"
        raise AssertionError(msg)


class Derived(Plain):
    def first(self) -> str:
        return "overridden"

    def second(self) -> str:
        return "second"


@pytest.fixture(autouse=True)
def _forget() -> None:
    Accounts.made.clear()


def by_name(cls: Any, **options: Any) -> dict[str, ClassTool]:
    return {made.spec.name: made for made in class_tools(cls, **options)}


def test_marked_methods_are_tools_with_their_schema_and_options() -> None:
    tools = by_name(Accounts)
    assert list(tools) == ["deposit", "balance_of"]
    deposit, balance = tools["deposit"].spec, tools["balance_of"].spec
    assert (deposit.description, deposit.max_concurrent, deposit.on_interrupt) == ("Put money in.", 1, OnInterrupt.FAIL)
    assert list(deposit.parameters["properties"]) == ["account", "cents"]
    assert deposit.parameters["properties"]["cents"]["description"] == "how much."
    assert (deposit.execution, balance.execution) == (Execution.THREAD, Execution.ASYNC)
    assert list(balance.parameters["properties"]) == ["account"]
    # Schemas are shown and checked where no instance must be made.
    assert Accounts.made == []


def test_without_marks_all_public_methods_are_tools() -> None:
    assert list(by_name(Plain)) == ["first", "fixed", "named"]
    tools = by_name(Derived)
    assert list(tools) == ["first", "fixed", "named", "second"]
    assert tools["first"].prepare({})() == "overridden"
    assert tools["fixed"].prepare({"number": "5"})() == 5
    assert tools["named"].prepare({"text": "x"})() == "Derived x"


def test_marks_on_both_sides_of_staticmethod() -> None:
    class Marked:
        @tool
        @staticmethod
        def above(number: int) -> int:
            return number

        @staticmethod
        @tool(name="under")
        def below(number: int) -> int:
            return number + 1

        @classmethod
        @tool
        def of_class(cls, number: int) -> int:
            return number + 2

        def other(self) -> None: ...

    tools = by_name(Marked)
    assert [tools[name].prepare({"number": 1})() for name in tools] == [1, 2, 3]
    assert list(tools) == ["above", "under", "of_class"]


def test_options_of_the_declaration_hold_for_every_method() -> None:
    registry = build_registry([ClassDeclaration(Accounts, timeout="5s", on_interrupt="rerun")])
    assert [(spec.timeout_ms, spec.on_interrupt) for spec in registry.specs()] == 2 * [(5_000, OnInterrupt.RERUN)]


def test_where_bodies_run_is_said_for_plain_methods_only() -> None:
    for execution in ("thread", Execution.INLINE):
        specs = build_registry([ClassDeclaration(Accounts, execution=execution)]).specs()
        assert [spec.execution for spec in specs] == [Execution(execution), Execution.ASYNC]
    with pytest.raises(InvalidInput, match="execution 'async' needs an async def"):
        build_registry([ClassDeclaration(Accounts, execution="async")])


def test_all_methods_share_one_instance_opened_once_and_closed_once() -> None:
    registry = build_registry([ClassDeclaration(Accounts)])
    registry.open()
    (instance,) = Accounts.made
    assert registry.get("deposit").prepare({"account": "a", "cents": 5})() == 5
    assert registry.get("deposit").prepare({"account": "a", "cents": 5})() == 10
    assert instance.life == ["open"]
    registry.close()
    registry.close()
    assert instance.life == ["open", "close"]
    assert Accounts.made == [instance]


def test_arguments_are_checked_without_an_instance() -> None:
    with pytest.raises(InvalidArguments, match="cents: required"):
        by_name(Accounts)["deposit"].prepare({"account": "a"})
    assert Accounts.made == []


def test_the_instance_is_closed_when_its_last_body_has_ended() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Accounts):
        @tool
        def wait(self) -> list[str]:
            begun.set()
            go_on.wait(20)
            return list(self.life)

    registry = build_registry([ClassDeclaration(Slow)])
    registry.open()
    seen: list[Any] = []
    body = registry.get("wait").prepare({})
    later = registry.get("deposit").prepare({"account": "a", "cents": 1})
    thread = threading.Thread(target=lambda: seen.append(body()))
    thread.start()
    assert begun.wait(20)
    registry.close()
    (instance,) = Accounts.made
    assert instance.life == ["open"]
    # Nothing is recorded for what would begin now: the next attempt has its own instance.
    with pytest.raises(FrameworkFault, match="began after its operator was closed"):
        later()
    go_on.set()
    thread.join(20)
    assert seen == [["open"]]
    assert instance.life == ["open", "close"]


def test_a_registry_closed_before_it_was_opened_makes_no_instance() -> None:
    registry = build_registry([ClassDeclaration(Accounts)])
    registry.close()
    registry.open()
    assert Accounts.made == []


def test_where_one_does_not_open_those_before_it_are_closed() -> None:
    class Broken:
        def open(self) -> None:
            msg = "no connection"
            raise ConnectionError(msg)

        def ask(self) -> None: ...

    registry = build_registry([ClassDeclaration(Accounts), ClassDeclaration(Broken)])
    with pytest.raises(ConnectionError, match="no connection"):
        registry.open()
    assert Accounts.made[0].life == ["open", "close"]


def test_what_close_raises_is_told_and_keeps_no_other_from_closing(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck:
        def ask(self) -> None: ...

        def close(self) -> None:
            msg = "will not"
            raise OSError(msg)

    registry = build_registry([ClassDeclaration(Stuck), ClassDeclaration(Accounts)])
    registry.open()
    registry.close()
    assert Accounts.made[0].life == ["open", "close"]
    assert "will not" in caplog.text


def test_a_method_may_be_the_reconciler_of_another() -> None:
    class Payments:
        def __init__(self) -> None:
            self.paid: dict[str, int] = {}

        def _find(self, ctx: ToolContext, cents: int) -> Any:
            return self.paid.get("x", NOT_STARTED)

        @tool(on_interrupt="reconcile", reconcile=_find)
        def pay(self, cents: int) -> int:
            self.paid["x"] = cents
            return cents

    made = by_name(Payments)["pay"]
    made.prepare({"cents": 5})()
    reconcile = made.reconciler({"cents": 5})
    assert reconcile is not None
    assert made.spec.on_interrupt is OnInterrupt.RECONCILE
    assert by_name(Payments, on_interrupt="rerun")["pay"].reconciler({"cents": 5}) is None


def test_by_reference_from_the_job_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = "class Shop:\n    def stock(self, item: str) -> int:\n        return 7\n"
    (tmp_path / "class_under_test.py").write_text(source, encoding="utf-8")
    declared = pickle.loads(pickle.dumps(ClassDeclaration("class_under_test:Shop", rate="1/s")))
    registry = build_registry([declared], [tmp_path])
    assert registry.get("stock").prepare({"item": "kettle"})() == 7
    del sys.modules["class_under_test"]


class NeedsArguments:
    def __init__(self, url: str) -> None: ...

    def ask(self) -> None: ...


class Abstract(ABC):
    @abstractmethod
    def ask(self) -> None: ...


class Empty:
    limit = 5

    def open(self) -> None: ...


class AsyncOpen:
    async def open(self) -> None: ...

    def ask(self) -> None: ...


class OpenWithArguments:
    def open(self, url: str) -> None: ...

    def ask(self) -> None: ...


class OpenAsTool:
    @tool
    def open(self, url: str) -> None: ...


class Untyped:
    def ask(self, it) -> None: ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (NeedsArguments, "must be makeable without arguments (missing a required argument: 'url')"),
        (Abstract, "is abstract"),
        (Empty, "has no public method that could be a tool"),
        (AsyncOpen, "open must be a plain method, because it runs on Flink's task thread"),
        (OpenWithArguments, "open is called without arguments"),
        (OpenAsTool, "open begins or ends the instance's life"),
        (Untyped, "parameter 'it' has no type"),
        (Accounts.deposit, "must be a class, not <function"),
        ("no_such_module:Shop", "there is no module 'no_such_module'"),
    ],
)
def test_what_is_refused_where_it_is_declared(cls: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        build_registry([ClassDeclaration(cls)])
    assert message in str(refused.value)


def test_an_instance_does_not_travel() -> None:
    with pytest.raises(TypeError, match="a ClassDeclaration is what travels"):
        pickle.dumps(by_name(Accounts)["deposit"])


def test_in_the_harness() -> None:
    with Harness([ClassDeclaration(Accounts, on_interrupt="rerun")]) as harness:
        calls: tuple[Any, ...] = ("deposit", {"account": "a", "cents": 5}), ("balance_of", {"account": "a"})
        harness.send(tool_request("k", *calls[:1]), tool_request("k", *calls[1:]))
        harness.run()
        assert [result["value"] for result in harness.results()] == [5, ["balance_of", 5]]
    assert len(Accounts.made) == 1
