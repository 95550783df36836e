"""Every class of the error tree keeps its code, survives pickling and survives being recorded."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from flink_agents import codec, errors
from flink_agents.failures import KINDS, RecordedFailure, capture

CLASSES: list[Any] = [getattr(errors, name) for name in errors.__all__]

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "RejectedRecord": ("the key is null", "session.id"),
    "InvalidArguments": ("amount: not a number", {"type": "object"}),
    "NestedGather": (2,),
}


def made(cls: Any) -> BaseException:
    error: BaseException = cls(*ARGUMENTS.get(cls.__name__, ("what happened",)))
    return error


def same(left: BaseException, right: BaseException) -> bool:
    return type(left) is type(right) and str(left) == str(right) and vars(left) == vars(right)


def test_all_is_every_class_of_the_module() -> None:
    defined = {
        name for name, item in vars(errors).items() if isinstance(item, type) and item.__module__ == errors.__name__
    }
    assert defined == set(errors.__all__)


def test_codes_are_unique_and_stable_words() -> None:
    codes = [cls.code for cls in CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(code.replace("_", "").isalpha() and code.islower() for code in codes)


def test_kinds_of_call_errors_are_the_kinds_of_results() -> None:
    kinds = {cls.kind for cls in CLASSES if issubclass(cls, errors.CallError)}
    assert kinds == KINDS


def test_two_roots() -> None:
    for cls in CLASSES:
        user, control = issubclass(cls, errors.FlinkAgentsError), issubclass(cls, errors.ControlFlow)
        assert user != control
        assert issubclass(cls, Exception) == user


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_pickle_round_trip(cls: Any) -> None:
    error = made(cls)
    assert same(pickle.loads(pickle.dumps(error)), error)


@pytest.mark.rule(21)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_record_round_trip(cls: Any) -> None:
    error = made(cls)
    text = codec.dumps(capture(error).to_json())
    assert same(RecordedFailure.from_json(codec.loads(text)).rebuild(), error)
