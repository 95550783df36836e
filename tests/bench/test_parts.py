"""The parts that benchmarks count with, without a cluster."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyflink")


@pytest.fixture(autouse=True)
def _repository_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def rates_of(name: str, *pairs: tuple[float, float]) -> Any:
    from tests.bench.rates import Rates, Spent

    return Rates(name, (100, 1100), [(Spent(a, a / 2, a), Spent(b, b / 2, b)) for a, b in pairs])


def test_a_rate_is_marginal_and_what_starting_costs_is_in_none() -> None:
    rates = rates_of("ours", (5.0, 7.0), (1.0, 2.0))
    assert rates.each() == [500.0, 1000.0]
    assert rates.each("cpu_s") == [1000.0, 2000.0]
    assert rates.micros() == [2000.0, 1000.0]
    assert rates.measure("4 calls").note == "1333 us a request, 4 calls"


def test_noise_is_no_rate() -> None:
    rates = rates_of("ours", (2.0, 1.0))
    assert math.isnan(rates.each()[0])
    assert math.isnan(rates.measure().value)


def test_a_ratio_is_of_what_was_taken_in_the_same_turn() -> None:
    from tests.bench.rates import ratio
    from tests.bench.results import Target

    measure = ratio("r", rates_of("a", (1, 2), (1, 3)), rates_of("b", (1, 3), (1, 2)), target=Target(2))
    assert measure.samples == (2.0, 0.5)
    assert measure.reached


class Counting:
    """In the place of jobs: each takes a second and a millisecond a request."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []

    def __call__(self, bench: Any, name: str, count: int, **options: Any) -> Any:
        from tests.bench.rates import Spent

        self.taken.append((name, count))
        return Spent(1 + count / 1000, 0, 0)


def test_variants_are_measured_in_turns_every_second_in_the_other_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.bench import rates
    from tests.bench.cell import Bench, NoCluster

    counting = Counting()
    monkeypatch.setattr(rates, "spent", counting)
    bench = Bench(NoCluster(), Path(), repeat=2, scale=0.5, backend="hashmap", say=print)
    found = rates.marginal(bench, [rates.Variant(name, {}) for name in "ab"], 200, 1000)
    one, other = [("a", 100), ("a", 500)], [("b", 100), ("b", 500)]
    assert counting.taken == [("a (warm-up)", 100), ("b (warm-up)", 100), *one, *other, *other, *one]
    assert [round(each) for each in found["a"].each()] == [1000, 1000]


def test_the_queue_waits_behind_its_first_request() -> None:
    from tests.bench.state import gated

    asked = [json.loads(line) for line in gated(3, keys=1, gate_ms=500)]
    waits = [{json.loads(call["function"]["arguments"])["ms"] for call in request["tool_calls"]} for request in asked]
    assert waits == [{500}, {0}, {0}]
    assert {request["key"] for request in asked} == {"k0"}


def test_the_peer_gets_as_many_calls_on_as_many_keys() -> None:
    from tests.bench.peer import peer_lines
    from tests.bench.rates import CALLS, KEYS

    lines = [json.loads(line) for line in peer_lines(KEYS + 1)]
    assert len({line["key"] for line in lines}) == KEYS
    assert {len(line["calls"]) for line in lines} == {CALLS}


def test_an_environment_that_is_there_is_taken_as_it_is(tmp_path: Path) -> None:
    from tests.bench.peer import PINNED, environment

    (tmp_path / "installed.txt").write_text("\n".join(PINNED), encoding="utf-8")
    assert environment(tmp_path) == tmp_path / "bin" / "python"
    assert not (tmp_path / "bin").exists()


def test_what_a_process_takes_is_read_of_this_one() -> None:
    from tests.bench.cluster import cpu_s, peak_mib, resident_mib

    used = sum(os.times()[:2])
    assert used - 0.1 <= cpu_s(os.getpid()) <= sum(os.times()[:2]) + 0.1
    assert 0 < resident_mib(os.getpid()) <= peak_mib(os.getpid())


def test_the_switch_interval_is_another_only_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    from flink_agents.runtime.process import SWITCH_INTERVAL_VARIABLE
    from tests.bench.interpreter import switching_every

    monkeypatch.delenv(SWITCH_INTERVAL_VARIABLE, raising=False)
    with switching_every(0.00005):
        assert float(os.environ[SWITCH_INTERVAL_VARIABLE]) == 0.00005
        with switching_every(0.005):
            pass
        assert float(os.environ[SWITCH_INTERVAL_VARIABLE]) == 0.00005
    assert SWITCH_INTERVAL_VARIABLE not in os.environ


def test_work_apart_is_done_in_another_process() -> None:
    from tests.bench.apart import apart

    assert apart(os.getpid) != os.getpid()
    with pytest.raises(ZeroDivisionError):
        apart(divmod, 1, 0)


def test_a_cell_that_fails_is_told_and_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from tests.bench import run
    from tests.bench.cell import Cell
    from tests.bench.results import Measure

    def fails(bench: Any) -> list[Measure]:
        raise LookupError("nothing there")

    def works(bench: Any) -> list[Measure]:
        return [Measure("size", bench.count(50), "lines", (), None, f"{bench.repeat} times")]

    cells = {cell.name: cell for cell in (Cell("bad", "", fails, options=None), Cell("good", "", works, options=None))}
    monkeypatch.setattr(run, "CELLS", cells)
    # Functions of a test are not found by name in another process.
    monkeypatch.setattr(run, "apart", lambda work, *arguments: work(*arguments))
    written = tmp_path / "results.json"
    with pytest.raises(SystemExit) as ended:
        run.main(["--cells", "bad,good", "--quick", "--json", str(written)])
    assert ended.value.code == 1
    assert "bad failed: LookupError: nothing there" in capsys.readouterr().out
    body = json.loads(written.read_text(encoding="utf-8"))
    assert body["failed"] == {"bad": "LookupError: nothing there"}
    (measure,) = body["cells"]["good"]["measures"]
    assert (measure["value"], measure["note"]) == (5, "1 times")


def test_every_cell_has_a_name_and_a_line_of_help() -> None:
    from tests.bench.run import CELLS, MODULES

    assert len(CELLS) == sum(len(module.CELLS) for module in MODULES)
    assert all(cell.about and cell.repeat >= 1 for cell in CELLS.values())
    assert sys.modules["tests.bench.run"].QUICK < 1
