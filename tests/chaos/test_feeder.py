from __future__ import annotations

from pathlib import Path

from flink_agents.chaos.feeder import Feeder, due


def test_records_are_spread_over_what_remains() -> None:
    left, carried, moved = 100, 0.0, []
    for tick in range(40):
        now, carried = due(left, 10.0 - tick * 0.25, 0.25, carried)
        left -= now
        moved.append(now)
    assert left == 0
    assert set(moved) <= {2, 3}


def test_a_run_that_takes_longer_never_runs_dry_at_once() -> None:
    left, carried = 100, 0.0
    for _ in range(100):
        now, carried = due(left, 10.0, 0.25, carried)
        left -= now
    assert 0 < left < 20


def test_all_that_is_left_goes_in_at_the_end(tmp_path: Path) -> None:
    records = [f"record {i}" for i in range(50)]
    feeder = Feeder(records, tmp_path, kills=2, per_kill_s=1000.0)
    feeder.start()
    feeder.finish()
    files = sorted(file for file in tmp_path.iterdir() if not file.name.startswith("."))
    assert [line for file in files for line in file.read_text().splitlines()] == records
    assert feeder.left == 0
