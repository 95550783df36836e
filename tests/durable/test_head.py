"""The head of a key: numbers in order of arrival, and in any order after a restore with a journal."""

from __future__ import annotations

import itertools

import pytest

from flink_agents.durable.head import Head
from flink_agents.durable.store import StateName, WriteBehind
from flink_agents.errors import StateFormat
from flink_agents.testing import InMemoryBackend


def stored(head: Head) -> tuple[str | None, Head]:
    """Return the head's text and the head that is read from it."""
    backend = InMemoryBackend()
    view = WriteBehind(backend)
    head.save(view)
    view.flush()
    return backend.get(StateName.HEAD, ""), Head.load(WriteBehind(backend))


def test_requests_are_numbered_and_answered_in_order_of_arrival() -> None:
    head = Head()
    assert [head.take() for _ in range(3)] == [1, 2, 3]
    assert (head.first, head.waiting) == (1, 3)
    head.active = 1
    head.answer()
    assert head == Head(next=4, answered=1)
    assert (head.first, head.waiting) == (2, 2)
    assert head.take(4) == 4
    assert (head.queue, head.gaps) == (None, [])
    text, again = stored(head)
    assert text == '{"v":1,"next":5,"answered":1,"active":null}'
    assert again == head


def test_the_active_request_is_stored() -> None:
    text, again = stored(Head(next=3, answered=1, active=2))
    assert text == '{"v":1,"next":3,"answered":1,"active":2}'
    assert again == Head(next=3, answered=1, active=2)


def test_requests_that_come_again_in_another_order_keep_their_numbers_and_wait_in_that_order() -> None:
    head = Head(next=3, answered=1)
    assert head.take(5) == 5
    assert (head.queue, head.gaps, head.next) == ([2, 5], [3, 4], 6)
    assert head.take(4) == 4
    assert head.take() == 6
    assert (head.queue, head.gaps, head.next, head.waiting, head.first) == ([2, 5, 4, 6], [3], 7, 4, 2)
    text, again = stored(head)
    assert text == '{"v":1,"next":7,"answered":1,"active":null,"queue":[2,5,4,6],"gaps":[3]}'
    assert again == head
    answered = []
    while head.queue is not None:
        answered.append(head.first)
        head.answer()
    assert answered == [2, 5, 4, 6]
    # The number that has not come again yet is passed over only when nothing waits.
    assert (head.answered, head.gaps, head.waiting) == (6, [3], 0)
    assert head.take(3) == 3
    assert head == Head(next=7, answered=6, queue=[3])
    head.answer()
    assert head == Head(next=7, answered=6)
    assert head.take() == 7


def test_the_highest_number_answered_never_goes_back() -> None:
    head = Head()
    for recorded in (3, 1, 2):
        head.take(recorded)
    seen = []
    for _ in range(2):
        head.answer()
        seen.append(head.answered)
    assert seen == [3, 3]


@pytest.mark.parametrize("order", list(itertools.permutations(range(1, 5))))
def test_any_order_gives_every_number_once(order: tuple[int, ...]) -> None:
    head = Head()
    assert [head.take(recorded) for recorded in order] == list(order)
    answered = []
    for _ in order:
        _, head = stored(head)
        answered.append(head.first)
        head.answer()
    assert answered == list(order)
    assert head == Head(next=5, answered=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"v":2,"next":1}', "head has format version 2, this release reads 1"),
        ('{"v":1,"next":1,"answered":0}', "head cannot be read from state: KeyError('active')"),
    ],
)
def test_what_is_wrong_with_a_head_is_said(text: str, message: str) -> None:
    backend = InMemoryBackend()
    backend.put(StateName.HEAD, "", text)
    with pytest.raises(StateFormat) as raised:
        Head.load(WriteBehind(backend))
    assert str(raised.value) == message
