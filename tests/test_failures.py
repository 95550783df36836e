"""Any exception at all can be recorded, and what comes back is caught by the same clauses."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from flink_agents import codec
from flink_agents.errors import (
    CallTimeout,
    InDoubt,
    InvalidArguments,
    RecordedError,
    StateFormat,
    TooLarge,
    UnknownTool,
)
from flink_agents.failures import CHAIN_DEPTH, MAX_MEMBERS, RecordedFailure, capture

GROUP: Any = getattr(builtins, "ExceptionGroup", None)
BASE_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)
needs_groups = pytest.mark.skipif(GROUP is None, reason="exception groups came with Python 3.11")


class TwoArguments(ValueError):
    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{detail} ({code})")
        self.code = code
        self.detail = detail


class OwnText(LookupError):
    def __init__(self, order: str, *, shop: str) -> None:
        super().__init__()
        self.order = order
        self.shop = shop

    def __str__(self) -> str:
        return f"no order {self.order} in {self.shop}"


class HoldsLock(RuntimeError):
    def __init__(self, lock: Any) -> None:
        super().__init__("locked", lock)
        self.lock = lock


class TextFromLock(RuntimeError):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __str__(self) -> str:
        return f"locked: {self.lock.locked()}"


class BrokenText(RuntimeError):
    def __str__(self) -> str:
        raise KeyError("no text")


class Strict(Exception):
    def __new__(cls, *, required: int) -> Strict:
        return super().__new__(cls)

    def __init__(self, *, required: int) -> None:
        super().__init__(f"required {required}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError("no attributes")

    def __init_subclass__(cls, *, token: str = "") -> None:
        if token != "secret":
            raise TypeError("no subclasses")


class Stop(BaseException):
    pass


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def again(error: BaseException) -> BaseException:
    """Record, store as text, read, rebuild: what a replay in another process does."""
    text = codec.dumps(capture(error).to_json())
    return RecordedFailure.from_json(codec.loads(text)).rebuild()


def same(live: BaseException | None, replayed: BaseException | None) -> None:
    if live is None or replayed is None:
        assert live is replayed
        return
    assert type(replayed).__name__ == type(live).__name__
    assert str(replayed) == str(live)
    for base in type(live).__mro__:
        if issubclass(base, BaseException) and codec.import_path(base):
            assert isinstance(replayed, base)
    assert isinstance(replayed, Exception) == isinstance(live, Exception)
    assert replayed.__suppress_context__ == live.__suppress_context__
    same(live.__cause__, replayed.__cause__)
    same(live.__context__, replayed.__context__)


def json_decode_error() -> BaseException:
    try:
        json.loads("[1, 2")
    except ValueError as error:
        return error
    raise AssertionError


def file_not_found() -> BaseException:
    try:
        Path("/nowhere/at all").read_bytes()
    except OSError as error:
        return error
    raise AssertionError


def unicode_error() -> BaseException:
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        return error
    raise AssertionError


def import_error() -> BaseException:
    try:
        import nowhere_at_all  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        return error
    raise AssertionError


IMPORTABLE = [
    ValueError("plain"),
    ValueError(),
    KeyError("key"),
    KeyError(("a", 1)),
    TwoArguments(7, "broken"),
    OwnText("A-1", shop="main"),
    HoldsLock(threading.Lock()),
    Strict(required=3),
    Stop("stop"),
    SystemExit(3),
    KeyboardInterrupt(),
    StopIteration(4),
    TimeoutError("too slow"),
    PermissionError(13, "denied", "/etc/shadow"),
    AttributeError("nothing", name="x", obj=None),
    json_decode_error(),
    file_not_found(),
    unicode_error(),
    import_error(),
    UnknownTool("no tool x"),
    InvalidArguments("amount: not a number", {"type": "object"}),
    CallTimeout("after 5 s"),
]


@pytest.mark.rule(21)
@pytest.mark.parametrize("error", IMPORTABLE, ids=lambda error: type(error).__name__)
def test_importable_class_comes_back_itself(error: BaseException) -> None:
    live = raised(error)
    replayed = again(live)
    same(live, replayed)
    if not isinstance(error, (HoldsLock,)):
        assert type(replayed) is type(live)


def test_attributes_come_back() -> None:
    replayed = again(TwoArguments(7, "broken"))
    assert isinstance(replayed, TwoArguments)
    assert (replayed.code, replayed.detail, replayed.args) == (7, "broken", ("broken (7)",))
    missing = again(file_not_found())
    assert isinstance(missing, FileNotFoundError)
    assert (missing.errno, missing.filename) == (2, "/nowhere/at all")


def test_expected_schema_comes_back() -> None:
    replayed = again(InvalidArguments("bad", {"type": "object"}))
    assert isinstance(replayed, InvalidArguments)
    assert replayed.expected == {"type": "object"}
    assert capture(replayed).error() == {
        "kind": "invalid_arguments",
        "type": "InvalidArguments",
        "message": "bad",
        "expected": {"type": "object"},
    }


@pytest.mark.rule(21)
def test_case_24_lock_inside() -> None:
    live = raised(HoldsLock(threading.Lock()))
    replayed = again(live)
    same(live, replayed)
    text = raised(TextFromLock())
    same(text, again(text))
    assert isinstance(again(text), RecordedError)


@pytest.mark.rule(21)
def test_case_24_class_made_inside_the_tool() -> None:
    class Refused(TwoArguments, LookupError):
        pass

    live = raised(Refused(1, "inside"))
    replayed: Any = again(live)
    same(live, replayed)
    for base in (RecordedError, TwoArguments, LookupError):
        assert isinstance(replayed, base)
    assert replayed.code == 1
    same(replayed, again(replayed))


@pytest.mark.rule(21)
def test_case_24_chain() -> None:
    def tool() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise TwoArguments(2, "second")  # noqa: B904 - the context is the point
        except TwoArguments as error:
            raise OwnText("A", shop="b") from error

    with pytest.raises(OwnText) as caught:
        tool()
    replayed = again(caught.value)
    same(caught.value, replayed)
    assert replayed.__context__ is replayed.__cause__
    assert isinstance(replayed.__cause__, TwoArguments)
    assert isinstance(replayed.__cause__.__context__, KeyError)


@needs_groups
@pytest.mark.rule(21)
def test_case_24_group() -> None:
    class Local(ValueError):
        pass

    live = raised(GROUP("several", [KeyError("a"), GROUP("inner", [Local("b"), OSError(2, "c")])]))
    replayed: Any = again(live)
    same(live, replayed)
    assert type(replayed) is GROUP
    assert str(replayed.exceptions[1].exceptions[0]) == "b"
    assert isinstance(replayed.subgroup(OSError).exceptions[0].exceptions[0], FileNotFoundError)
    base = raised(BASE_GROUP("with a stop", [Stop("x"), ValueError("y")]))
    same(base, again(base))


@needs_groups
def test_wide_group_is_cut_with_a_marker() -> None:
    live = GROUP("many", [ValueError(str(index)) for index in range(1000)])
    replayed: Any = again(live)
    same(live, replayed)
    assert len(replayed.exceptions) == MAX_MEMBERS + 1
    assert str(replayed.exceptions[-1]) == f"[{1000 - MAX_MEMBERS} more exceptions left out]"


@pytest.mark.rule(21)
def test_case_24_system_exit() -> None:
    replayed = again(SystemExit(4))
    assert type(replayed) is SystemExit
    assert replayed.code == 4


@pytest.mark.rule(21)
def test_class_that_is_no_exception_stays_none() -> None:
    class Local(BaseException):
        pass

    class LocalExit(SystemExit):
        pass

    for live in (Local("x"), LocalExit(5)):
        replayed = again(live)
        same(live, replayed)
        assert not isinstance(replayed, Exception)


@pytest.mark.rule(21)
def test_class_that_is_gone_is_caught_by_its_base() -> None:
    record = capture(raised(TwoArguments(9, "gone"))).to_json()
    record.update(module="gone_module", qualname="Gone", type_name="Gone")
    record["bases"] = ["gone_module:Gone", *record["bases"][1:]]
    replayed = RecordedFailure.from_json(record).rebuild()
    assert isinstance(replayed, ValueError)
    assert isinstance(replayed, RecordedError)
    assert (type(replayed).__name__, type(replayed).__module__, str(replayed)) == ("Gone", "gone_module", "gone (9)")


@pytest.mark.rule(21)
def test_text_that_raises() -> None:
    failure = capture(raised(BrokenText("x")))
    assert failure.message == "<BrokenText, whose str() raises KeyError>"
    assert failure.error()["type"] == "BrokenText"
    assert isinstance(failure.rebuild(), RuntimeError)


def test_class_that_breaks_its_own_reading() -> None:
    odd: Any = type("Odd", (TooLarge,), {"kind": []})  # unhashable, where a name is looked up
    failure = capture(odd("odd"))
    assert failure.message == "odd [not recorded in full: TypeError]"
    assert isinstance(failure.rebuild(), Exception)


class UnreadableClass(type):
    def __getattribute__(cls, name: str) -> Any:
        if name.startswith("__") and name != "__dict__":
            raise RuntimeError(name)
        return super().__getattribute__(name)


@pytest.mark.rule(21)
def test_class_whose_metaclass_refuses_every_look() -> None:
    class Hidden(Exception, metaclass=UnreadableClass):
        pass

    failure = capture(Hidden("x"))
    assert failure.type_name == "Exception"
    assert failure.message == "an exception that cannot be read [not recorded in full: RuntimeError]"
    assert isinstance(failure.rebuild(), Exception)


def test_class_that_refuses_subclasses_falls_back_to_a_builtin_base() -> None:
    class Local(Strict, token="secret"):
        def __str__(self) -> str:
            return "local text"

    replayed = again(Local(required=1))
    assert str(replayed) == "local text"
    assert type(replayed).__name__ == "Local"
    assert isinstance(replayed, RecordedError)


@pytest.mark.rule(21)
def test_long_texts_are_bounded_and_still_caught() -> None:
    live = raised(TwoArguments(1, "é" * 10_000_000))
    failure = capture(live)
    assert len(failure.message.encode()) <= 4096
    assert "bytes left out]" in failure.message
    assert len(failure.trace.encode()) <= 16 * 1024
    assert len(codec.dumps(failure.to_json())) < 64 * 1024
    replayed = failure.rebuild()
    assert isinstance(replayed, TwoArguments)
    assert str(replayed) == failure.message


def test_chain_is_bounded_with_a_marker() -> None:
    error: BaseException = ValueError("0")
    for index in range(1, 30):
        outer = ValueError(str(index))
        outer.__cause__ = error
        error = outer
    replayed: BaseException | None = again(error)
    texts = []
    while replayed is not None:
        texts.append(str(replayed))
        replayed = replayed.__cause__
    assert texts == [str(29 - index) for index in range(CHAIN_DEPTH)] + [
        f"[{30 - CHAIN_DEPTH} more exceptions left out]"
    ]


def test_chain_that_forks_is_bounded() -> None:
    def grown(depth: int) -> BaseException:
        error = ValueError("fork")
        if depth:
            error.__cause__, error.__context__ = grown(depth - 1), grown(depth - 1)
        return error

    assert len(codec.dumps(capture(grown(7)).to_json())) < 64 * 1024


def test_chain_in_a_ring() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    replayed = again(first)
    assert str(replayed.__context__) == "second"
    assert replayed.__context__ is not None
    assert replayed.__context__.__context__ is None


def test_a_trace_does_not_say_where_code_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "installed" / "some_shop"
    package.mkdir(parents=True)
    (package / "stock.py").write_text("def take(n):\n    raise KeyError(n)\n")
    (tmp_path / "elsewhere.py").write_text("def call(function):\n    function(3)\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "installed")])
    take = importlib.import_module("some_shop.stock").take
    elsewhere: dict[str, Any] = {}
    # Of no folder that modules are imported from.
    exec(compile((tmp_path / "elsewhere.py").read_text(), str(tmp_path / "elsewhere.py"), "exec"), elsewhere)
    with pytest.raises(KeyError) as caught:
        elsewhere["call"](take)
    trace = capture(caught.value).trace
    assert f'File "{os.path.join("some_shop", "stock.py")}", line 2, in take\n    raise KeyError(n)\n' in trace
    assert 'File "elsewhere.py", line 2, in call\n    function(3)\n' in trace
    assert str(tmp_path) not in trace
    with pytest.raises(LookupError) as caught_of_ours:
        codec.imported("no_such_module:Class")
    trace = capture(caught_of_ours.value).trace
    assert f'File "{os.path.join("flink_agents", "codec", "classes.py")}"' in trace


def test_deep_traceback_is_bounded() -> None:
    def down(depth: int) -> None:
        if depth == 0:
            raise ValueError("deep")
        down(depth - 1)

    with pytest.raises(ValueError, match="deep") as caught:
        down(200)
    trace = capture(caught.value).trace
    assert "frames left out]" in trace
    assert trace.endswith("ValueError: deep")
    assert len(trace) < 16 * 1024


def test_recursion_error() -> None:
    def down() -> None:
        down()

    with pytest.raises(RecursionError) as caught:
        down()
    same(caught.value, again(caught.value))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with Python 3.11")
def test_notes_come_back() -> None:
    error: Any = ValueError("noted")
    error.add_note("a note")
    assert "a note" in "".join(traceback.format_exception(again(error)))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("x"), "tool_error"),
        (TimeoutError("the tool's own"), "tool_error"),
        (UnknownTool("x"), "unknown_tool"),
        (CallTimeout("x"), "timeout"),
        (InDoubt("x"), "in_doubt"),
        (TooLarge("x"), "too_large"),
    ],
)
def test_kind(error: BaseException, kind: str) -> None:
    assert capture(error).error()["kind"] == kind


def test_message_is_never_empty() -> None:
    assert capture(ValueError()).error() == {"kind": "tool_error", "type": "ValueError", "message": "ValueError"}


def test_record_is_equal_after_json() -> None:
    failure = capture(raised(OwnText("A", shop="b")))
    assert RecordedFailure.from_json(json.loads(json.dumps(failure.to_json()))) == failure


def test_huge_schema_is_left_out_with_a_marker() -> None:
    error = capture(InvalidArguments("bad", {"enum": ["x" * 100] * 1000})).error()
    assert "the schema is left out" in error["expected"]["$comment"]


@pytest.mark.parametrize("record", [{}, {"kind": "x"}, {"unknown": 1}, [1], "x", None])
def test_damaged_record(record: Any) -> None:
    with pytest.raises(StateFormat, match="a stored failure cannot be read"):
        RecordedFailure.from_json(record)


@pytest.mark.rule(21)
def test_a_built_in_class_that_needs_more_than_a_message_is_caught_although_its_arguments_are_too_long() -> None:
    error = UnicodeDecodeError("utf-8", b"\xff" * 100_000, 0, 1, "bad")
    rebuilt = capture(error).rebuild()
    assert isinstance(rebuilt, UnicodeDecodeError)
    assert (type(rebuilt).__name__, str(rebuilt)) == ("UnicodeDecodeError", str(error))
