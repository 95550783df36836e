"""The benchmark command works, on a size at which its numbers mean nothing; and how it counts."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).with_name("run.py")


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(COMMAND), *words], capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.flink
def test_a_tiny_cell_gives_a_table_and_json(tmp_path: Path) -> None:
    pytest.importorskip("pyflink")
    written = tmp_path / "results.json"
    done = bench("--cells", "inline", "--scale", "0.01", "--repeat", "1", "--json", str(written))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ours / pass-through" in done.stdout
    body = json.loads(written.read_text(encoding="utf-8"))
    assert body["machine"]["cores"] >= 1
    measure = body["cells"]["inline"]["measures"][0]
    assert (measure["name"], measure["target"], len(measure["samples"])) == ("ours / pass-through", ">= 0.5", 1)


def test_an_unknown_cell_is_refused_with_the_names_there_are() -> None:
    pytest.importorskip("pyflink")
    done = bench("--cells", "inlined")
    assert done.returncode == 2
    assert "no cell inlined; there are inline, " in done.stderr


def test_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(COMMAND.parents[2]))
    from tests.bench.results import Target, measured, percentile

    measure = measured("m", [3.0, math.nan, 1.0, 2.0], "s", target=Target(2.0))
    assert (measure.value, measure.reached) == (2.0, True)
    assert measure.to_json()["samples"] == [3.0, None, 1.0, 2.0]
    assert measured("m", [math.nan], "", target=Target(1.0, at_least=True)).reached is None
    assert [percentile(range(1, 101), share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]


def test_the_cell_about_arguments_measures_objects_of_a_kilobyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(COMMAND.parents[2]))
    from flink_agents import FunctionTool
    from tests.bench.arguments import ORDER, SIZE, passage_us, place_order

    assert len(json.dumps(ORDER)) == SIZE
    made = FunctionTool(place_order)
    assert len(passage_us(made, ORDER, 3)) == len(passage_us(made, json.dumps(ORDER), 3)) == 3
