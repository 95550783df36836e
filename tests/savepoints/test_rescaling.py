"""One job at parallelism 1, then 2, then 1, with calls in flight at each change and checkpoints between."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.recovery.conftest import recorded_in
from tests.savepoints.contents import held_by, held_in

if TYPE_CHECKING:
    from tests.savepoints.conftest import Lives

pytest.importorskip("pyflink")

BACKENDS = pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
KEYS = [f"k{number}" for number in range(12)]
QUOTED = {f'"{key}"' for key in KEYS}
CHECKPOINTS = 3
ALL = {f"{round_}.{number}" for round_ in (1, 2) for number in range(len(KEYS))}


def gate(round_: int, number: int) -> int:
    """Return the life (1 to 3) in which the request of a key may end; each key has a request of each of two rounds."""
    return min(round_ + number % 3, 3)


def answered_by(life: int) -> set[str]:
    """Return the requests that are answered by the end of a life."""
    return {f"{round_}.{number}" for round_ in (1, 2) for number in range(len(KEYS)) if gate(round_, number) <= life}


def request(round_: int, number: int) -> str:
    """Return a request of key ``number`` with a quick call, one that holds for the gate of its life, and one more."""
    name = f"{round_}.{number}"
    calls: list[tuple[str, dict[str, Any]]] = [
        ("quick", {"call": f"{name}/0"}),
        ("hold", {"call": f"{name}/1", "gate": gate(round_, number)}),
        ("quick", {"call": f"{name}/2"}),
    ]
    wanted = [{"function": {"name": tool, "arguments": arguments}} for tool, arguments in calls]
    return json.dumps({"id": name, "key": KEYS[number], "tool_calls": wanted})


def holding(life: int) -> set[str]:
    """Return the requests whose action holds as life ``life`` begins: of each key the first that is not answered."""
    open_ = ALL - answered_by(life - 1)
    return {f"1.{n}" if f"1.{n}" in open_ else f"2.{n}" for n in range(len(KEYS)) if f"2.{n}" in open_}


def holds(lives: Lives, life: int) -> Counter[str]:
    """Count the bodies of ``hold`` in one life, by request."""
    began = (line.split() for line in lives.bodies())
    return Counter(call.split("/")[0] for number, tool, call in began if number == str(life) and tool == "hold")


def until_held(lives: Lives, life: int, requests: set[str]) -> None:
    """Wait until a body of ``hold`` began for each of the requests in this life."""
    lives.until(lambda: set(holds(lives, life)) >= requests)


def check_savepoint(savepoint: Path, parallelism: int, life: int) -> None:
    """Assert that each key stands in one subtask, with the live work it has by then and no more."""
    files = held_by(savepoint)
    assert len(files) == parallelism
    keys = [held.keys for held in files.values()]
    assert sum(len(some) for some in keys) == len(QUOTED), "a key's state lives in two subtasks"
    assert set.union(*keys) == QUOTED
    whole = held_in(*(savepoint / name for name in files))
    alive = {record["id"] for records in whole.requests.values() for record in records}
    assert alive == ALL - answered_by(life)
    active = holding(life + 1)
    statuses = Counter({"started": len(active), "succeeded": 2 * len(active)})
    assert Counter(whole.slots_by_status()) == +statuses


@pytest.mark.flink
@pytest.mark.rule(1, 2, 14, 29, 50, 52)
@BACKENDS
def test_case_7_each_key_in_flight_goes_on_once_in_one_subtask_and_is_pruned(lives: Lives, backend: str) -> None:
    lives.add("a.jsonl", [request(round_, number) for round_ in (1, 2) for number in range(len(KEYS))])
    savepoint = None
    for life, parallelism in ((1, 1), (2, 2), (3, 1)):
        lives.begin(lives.gated_tools(life), savepoint, parallelism=parallelism, state_backend_type=backend)
        waiting = holding(life)
        until_held(lives, life, waiting)
        lives.until_checkpoints(CHECKPOINTS)
        (lives.folder / f"gate-{life}").touch()
        lives.until_answered(len(answered_by(life)))
        begun = waiting | {f"2.{number}" for number in range(len(KEYS)) if gate(1, number) == life}
        until_held(lives, life, begun)
        lives.until_checkpoints(CHECKPOINTS)
        assert holds(lives, life) == Counter(begun), "a key in flight went on more than once"
        savepoint = lives.stop()
        check_savepoint(savepoint, parallelism, life)
    assert savepoint is not None
    assert all(held.only_heads for held in held_by(savepoint).values())
    assert recorded_in(savepoint) == frozenset()
    results = lives.results()
    assert set(results) == ALL
    for name, parts in results.items():
        assert [part["value"] for part in parts] == [f"value of {name}/{i}" for i in range(3)]
    # Every quick call was recorded long before the next stop: it ran in one life and answered in the others.
    quick = Counter(line.split()[2] for line in lives.bodies() if " quick " in line)
    assert set(quick.values()) == {1}
    assert len(quick) == 2 * len(results)
