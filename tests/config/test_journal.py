"""Journal and calls in doubt in the YAML: what goes together, where it is refused, and what opens the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flink_agents.config.build import prepare
from flink_agents.config.loader import load
from flink_agents.config.problems import ConfigErrors
from flink_agents.durable.journal.opening import JournalSpec, JournalType
from flink_agents.options import OnInterrupt

Write = Callable[..., str]

TOOLS = """\
from flink_agents import ToolContext, tool


def pay(account: str) -> str:
    return account


def find_pay(account: str, ctx: ToolContext) -> str:
    return account


def find_order(order: str) -> str:
    return order


def find_call(name: str, arguments: dict) -> str:
    return name


def handler(name: str, arguments: dict) -> str:
    return name


@tool(on_interrupt="fail")
def once(account: str) -> str:
    return account


@tool(on_interrupt="reconcile")
def half(account: str) -> str:
    return account
"""
SECRET = "n0t-for-logs"


@pytest.fixture
def write(job: Callable[[str], str], folder: Path) -> Write:
    """Write a job with one tool entry and a journal."""
    (folder / "pay_tools.py").write_text(TOOLS)
    (folder / "tools.json").write_text('[{"name": "a"}, {"name": "b"}]')

    def made(entry: str, journal: str = "") -> str:
        return job(
            "name: j\nsource: {type: jsonl, path: requests.jsonl}\nkey_by: k\ntools:\n"
            f"  - {{{entry}}}\nsink: {{type: print}}\n{journal}\n"
        )

    return made


def errors_of(path: str) -> list[str]:
    with pytest.raises(ConfigErrors) as error:
        prepare(path)
    return [str(problem) for problem in error.value.errors]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("function: 'pay_tools:pay'", OnInterrupt.RERUN),
        ("function: 'pay_tools:pay', on_interrupt: fail", OnInterrupt.FAIL),
        ("function: 'pay_tools:pay', on_interrupt: reconcile, reconcile: 'pay_tools:find_pay'", OnInterrupt.RECONCILE),
        ("function: 'pay_tools:once'", OnInterrupt.FAIL),
        ("function: 'pay_tools:once', on_interrupt: rerun", OnInterrupt.RERUN),
        ("function: 'pay_tools:half', reconcile: 'pay_tools:find_pay'", OnInterrupt.RECONCILE),
        ("function: 'pay_tools:handler', schema: tools.json, on_interrupt: fail", OnInterrupt.FAIL),
        (
            "function: 'pay_tools:handler', schema: tools.json, on_interrupt: reconcile, "
            "reconcile: pay_tools:find_call",
            OnInterrupt.RECONCILE,
        ),
    ],
)
def test_what_a_tool_says_with_the_yaml_in_the_last_word(write: Write, entry: str, expected: OnInterrupt) -> None:
    prepared = prepare(write(entry))
    assert {spec.on_interrupt for spec in prepared.registry.specs()} == {expected}
    body = prepared.registry.get(prepared.registry.names()[0]).reconciler({"account": "a"})
    assert (body is not None) == (expected is OnInterrupt.RECONCILE)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("function: 'pay_tools:pay', on_interrupt: fail", "5:47: tools.0.on_interrupt: `on_interrupt: fail`"),
        ("function: 'pay_tools:once'", "5:16: tools.0.function: `on_interrupt: fail`"),
        (
            "function: 'pay_tools:handler', schema: tools.json, on_interrupt: fail",
            "5:71: tools.0.on_interrupt: `on_interrupt: fail`",
        ),
    ],
)
def test_without_a_journal_it_is_refused(write: Write, entry: str, expected: str) -> None:
    for journal in ("journal: none", "journal: {type: none}"):
        assert errors_of(write(entry, journal)) == [
            f"job.yaml:{expected} needs a journal, and `journal` is none; expected a journal: sqlite, or postgresql"
        ]


@pytest.mark.parametrize(
    ("entry", "place", "message"),
    [
        (
            "function: 'pay_tools:pay', reconcile: 'pay_tools:find_pay'",
            "5:44: tools.0.reconcile",
            "only used with on_interrupt: reconcile, and it says rerun",
        ),
        ("function: 'pay_tools:pay', on_interrupt: reconcile", "5:47: tools.0.on_interrupt", "needs `reconcile`"),
        ("function: 'pay_tools:half'", "5:16: tools.0.function", "needs `reconcile`"),
        (
            "function: 'pay_tools:pay', on_interrupt: reconcile, reconcile: 'pay_tools:find_py'",
            "5:69: tools.0.reconcile",
            "did you mean 'find_pay'?",
        ),
        (
            "function: 'pay_tools:pay', on_interrupt: reconcile, reconcile: 'pay_tools:find_order'",
            "5:69: tools.0.reconcile",
            "needs 'order'; it gets the tool's own parameters by name (account)",
        ),
        (
            "function: 'pay_tools:handler', schema: tools.json, on_interrupt: reconcile, "
            "reconcile: pay_tools:find_order",
            "5:93: tools.0.reconcile",
            "callable as reconcile(tool_name, arguments)",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_where_it_stands(
    write: Write, entry: str, place: str, message: str
) -> None:
    (error,) = errors_of(write(entry))
    assert error.startswith(f"job.yaml:{place}: ")
    assert message in error


def test_what_opens_the_journal(write: Write, folder: Path) -> None:
    def spec(journal: str) -> JournalSpec | None:
        return prepare(write("function: 'pay_tools:pay'", journal)).journal

    day = 24 * 60 * 60 * 1000
    assert spec("") == JournalSpec(JournalType.SQLITE, path=str(folder / "state" / "journal.db"), retention_ms=day)
    assert spec("journal: none") is None
    assert spec("journal: {type: sqlite, path: /a/j.db, retention: 1h}") == JournalSpec(
        JournalType.SQLITE, path="/a/j.db", retention_ms=day // 24
    )
    assert spec("journal: {type: postgresql, dsn: postgresql://h/d}") == JournalSpec(
        JournalType.POSTGRESQL, dsn="postgresql://h/d", retention_ms=day
    )
    assert spec("journal: {type: postgresql, dsn: {env: DSN}}") == JournalSpec(
        JournalType.POSTGRESQL, dsn_env="DSN", retention_ms=day
    )


def test_a_retention_that_is_not_below_idle_key_is_refused(write: Write) -> None:
    (error,) = errors_of(write("function: 'pay_tools:pay'", "limits: {idle_key: 1d}"))
    assert error == (
        "job.yaml:1:1: journal: keeps rows for 1d; expected a retention shorter than limits.idle_key, which is 1d"
    )
    assert prepare(write("function: 'pay_tools:pay'", "limits: {idle_key: 1h}\njournal: none")).journal is None


def test_a_place_that_cannot_be_a_journal(write: Write, folder: Path) -> None:
    (folder / "taken").write_text("")
    entry = "function: 'pay_tools:pay'"
    assert errors_of(write(entry, "journal: {type: sqlite, path: .}")) == [
        f"job.yaml:7:31: journal.path: {folder} is a folder; expected a file, or a path where one can be made"
    ]
    assert errors_of(write(entry, "journal: {type: sqlite, path: taken/j.db}")) == [
        f"job.yaml:7:31: journal.path: {folder / 'taken'} is a file; expected a folder"
    ]


def test_a_password_is_never_shown(write: Write) -> None:
    entry = "function: 'pay_tools:pay'"
    dsn = f"postgresql://u:{SECRET}@h/d"
    for journal in (
        f"journal: {{type: postgresql, dsn: '{dsn}', retention: 40d}}",
        f"journal: {{type: postgresql, dsn: ['{dsn}']}}",
        f"journal: {{type: postgresql, dsn: {{env: '{dsn}'}}}}",
        f"journal: {{type: sqlite, path: '{dsn}'}}",
        f"journal: '{dsn}'",
    ):
        assert SECRET not in "".join(errors_of(write(entry, journal)))
    config = load(write(entry, f"journal: {{type: postgresql, dsn: '{dsn}'}}"))
    assert SECRET not in repr(config)
    assert SECRET not in repr(prepare(write(entry, f"journal: {{type: postgresql, dsn: '{dsn}'}}")))
