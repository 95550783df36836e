from __future__ import annotations

from itertools import islice

from flink_agents.chaos.plan import BLOCK, Moment, chosen, strikes


def test_a_seed_gives_the_same_kills_each_time() -> None:
    assert list(islice(strikes(7), 30)) == list(islice(strikes(7), 30))
    assert list(islice(strikes(7), 30)) != list(islice(strikes(8), 30))


def test_every_moment_comes_in_each_block_and_the_first_follows_nothing() -> None:
    planned = list(islice(strikes(3), 5 * len(BLOCK)))
    assert planned[0].moment is Moment.WORK
    for start in range(len(BLOCK), len(planned), len(BLOCK)):
        assert {strike.moment for strike in planned[start : start + len(BLOCK)]} == set(Moment)
    assert [strike.number for strike in planned] == list(range(1, len(planned) + 1))


def test_every_taskmanager_may_be_hit() -> None:
    hit = {chosen(strike, [3, 1, 2]) for strike in islice(strikes(1), 60)}
    assert hit == {1, 2, 3}
