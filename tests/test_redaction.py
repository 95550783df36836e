"""Secrets in texts, and in what is recorded of a failure."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from flink_agents import codec
from flink_agents.failures import MESSAGE_LIMIT, RecordedFailure, capture
from flink_agents.redaction import MARK, NO_SECRETS, Redaction

SECRET = 'hün"ter\\2 &x'
HIDE = Redaction([SECRET])


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def texts_of(failure: RecordedFailure) -> str:
    return json.dumps(failure.to_json(), ensure_ascii=False) + json.dumps(failure.to_json())


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        repr(SECRET)[1:-1],
        ascii(SECRET)[1:-1],
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET, safe=""),
        quote(SECRET),
        quote_plus(SECRET),
    ],
)
def test_every_form_that_texts_have_of_it(form: str) -> None:
    assert HIDE.text(f"before {form} after") == f"before {MARK} after"


def test_the_longest_goes_first() -> None:
    assert Redaction(["secret", "secret-key", "key-and"]).text("a secret-key here") == f"a {MARK} here"


def test_lines_of_a_secret_of_several_lines() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nshort\n-----END KEY-----"
    hide = Redaction([key])
    assert hide.text("bad line MIIEvQIBADANBgkqhkiG9w0!") == f"bad line {MARK}!"
    assert hide.text("a short one") == "a short one"


def test_where_nothing_is_to_be_hidden() -> None:
    for none in (NO_SECRETS, Redaction([]), Redaction(["", "abc"])):
        assert not none
        assert none.text("abc") == "abc"
        assert not none.is_in("abc")
    assert HIDE


def test_it_does_not_show_itself() -> None:
    assert SECRET not in repr(HIDE)
    assert repr(HIDE) == "Redaction(1 secrets)"


def test_a_lone_surrogate_in_a_secret() -> None:
    assert Redaction(["\ud800abcdef"]).text("x \ud800abcdef") == f"x {MARK}"


class Refused(Exception):
    def __init__(self, url: str, body: Any = None) -> None:
        super().__init__(url)
        self.url = url
        self.body = body


@pytest.mark.rule(21)
@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"no such key: {SECRET}"),
        KeyError(SECRET),
        Refused(f"https://host/?key={quote_plus(SECRET)}", {"headers": [SECRET]}),
        Refused("https://host", SECRET.encode()),
        Refused("https://host", {"held": [b"x", b"Bearer " + SECRET.encode()]}),
        UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, "bad"),
        OSError(5, "cannot", SECRET),
    ],
)
def test_nothing_that_is_recorded_of_a_failure_holds_it(error: BaseException) -> None:
    outer = RuntimeError(f"outer {SECRET}")
    outer.__cause__ = raised(error)
    outer.__context__ = raised(LookupError(SECRET))
    assert codec.encode(SECRET.encode())[-30:] not in texts_of(capture(raised(outer), HIDE))
    failure = capture(raised(outer), HIDE)
    told = texts_of(failure)
    for form in (SECRET, repr(SECRET)[1:-1], json.dumps(SECRET)[1:-1], quote_plus(SECRET), quote(SECRET)):
        assert form not in told
        assert json.dumps(form)[1:-1] not in told
    # What catches it live catches it on replay.
    assert isinstance(failure.rebuild().__cause__, type(error))
    assert str(failure.rebuild()) == f"outer {MARK}"


def test_half_a_secret_is_not_left_where_a_text_is_cut() -> None:
    secret = "0123456789abcdef" * 20
    for start in range(MESSAGE_LIMIT - 400, MESSAGE_LIMIT):
        failure = capture(ValueError("x" * start + secret), Redaction([secret]))
        assert "0123456789abcdef" not in texts_of(failure)


def test_a_group_and_its_members() -> None:
    group = pytest.importorskip("builtins").__dict__.get("ExceptionGroup")
    if group is None:
        pytest.skip("exception groups came with Python 3.11")
    failure = capture(raised(group(f"all of {SECRET}", [ValueError(SECRET), KeyError(SECRET)])), HIDE)
    assert SECRET not in texts_of(failure)
    assert failure.error()["message"].startswith(f"all of {MARK}")


def test_a_class_that_breaks_while_it_is_read() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            return SECRET

        @property
        def __cause__(self) -> Any:  # type: ignore[override]
            raise RuntimeError(SECRET)

    assert SECRET not in texts_of(capture(Broken(), HIDE))


def test_other_failures_are_recorded_as_before() -> None:
    error = raised(Refused("https://host", {"a": 1}))
    assert capture(error, HIDE) == capture(error)
