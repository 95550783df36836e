"""Which run a command works on, from what the last one's record says and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flink_agents.cluster.resume import FIXED, Wish, compare, refuse_changes, resumes, settings
from flink_agents.cluster.runs import Ending, RunRecord
from flink_agents.config.schema import JobConfig
from flink_agents.errors import RunRefused


def record(how: Ending | None) -> RunRecord:
    return RunRecord("20260101T000000Z-00000000", "job", "0" * 32, "", "2026-01-01T00:00:00.000+00:00", how=how)


NEW, GOES_ON, REFUSED = False, True, None

DECISIONS = [
    # how the last run ended, whether it has state, then for each wish: plain, --resume, --fresh
    ("no run", False, NEW, REFUSED, NEW),
    (Ending.FINISHED, False, NEW, REFUSED, NEW),
    (Ending.FINISHED, True, NEW, REFUSED, NEW),
    (Ending.STOPPED, True, REFUSED, GOES_ON, NEW),
    (Ending.STOPPED, False, REFUSED, GOES_ON, NEW),
    (Ending.CUT_OFF, True, REFUSED, GOES_ON, NEW),
    (Ending.CUT_OFF, False, REFUSED, GOES_ON, NEW),
    (None, True, REFUSED, GOES_ON, NEW),
    (None, False, REFUSED, GOES_ON, NEW),
    (Ending.FAILED, True, REFUSED, GOES_ON, NEW),
    (Ending.FAILED, False, NEW, GOES_ON, NEW),
]


@pytest.mark.parametrize(("how", "has_state", "plain", "resume", "fresh"), DECISIONS)
def test_every_decision(how: Any, has_state: bool, plain: Any, resume: Any, fresh: Any) -> None:
    last = None if how == "no run" else record(how)
    for wish, expected in ((Wish.PLAIN, plain), (Wish.RESUME, resume), (Wish.FRESH, fresh)):
        if expected is REFUSED:
            with pytest.raises(RunRefused):
                resumes("job", last, has_state, wish)
        else:
            assert resumes("job", last, has_state, wish) is expected


@pytest.mark.parametrize(
    ("how", "said"), [(Ending.STOPPED, "was stopped"), (None, "was cut off"), (Ending.FAILED, "failed")]
)
def test_a_refusal_says_why_and_names_both_ways_on(how: Ending | None, said: str) -> None:
    with pytest.raises(RunRefused, match=rf"'job', 20260101T000000Z-00000000, {said} .*--resume.*--fresh"):
        resumes("job", record(how), True, Wish.PLAIN)


@pytest.mark.parametrize(("last", "said"), [(None, "no run of job"), (record(Ending.FINISHED), "finished")])
def test_nothing_to_resume_says_why(last: RunRecord | None, said: str) -> None:
    with pytest.raises(RunRefused, match=f"nothing to resume: .*{said}.*leave --resume out"):
        resumes("job", last, True, Wish.RESUME)


def config(**changes: Any) -> JobConfig:
    content = {
        "name": "job",
        "source": {"type": "jsonl", "path": "in.jsonl"},
        "key_by": "key",
        "tools": [{"function": "module:name"}],
        "sink": {"type": "jsonl", "path": "out"},
        **changes,
    }
    return JobConfig.model_validate(content)


def test_nothing_changed() -> None:
    changes = compare(settings(config()), settings(config()), savepoint=False)
    assert (changes.fatal, changes.noted) == ((), ())


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"key_by": "id"}, "key_by"),
        ({"source": {"type": "jsonl", "path": "other.jsonl"}}, "source.path"),
        ({"source": {"type": "jsonl", "path": "in.jsonl", "follow": True}}, "source.follow"),
        ({"sink": {"type": "print"}}, "sink.type"),
        ({"rejects": {"type": "print"}}, "rejects.type"),
        ({"flink": {"state_backend": "rocksdb"}}, "flink.state_backend"),
    ],
)
def test_what_the_state_depends_on_may_not_change(changes: dict[str, Any], name: str) -> None:
    found = compare(settings(config()), settings(config(**changes)), savepoint=False)
    (fatal,) = found.fatal
    assert fatal.startswith(f"{name} was ")
    assert FIXED[name] in fatal
    with pytest.raises(RunRefused, match=f"run 1 cannot go on .*\n  {name} was"):
        refuse_changes("1", found.fatal)


def test_another_state_backend_reads_a_savepoint() -> None:
    before, now = settings(config()), settings(config(flink={"state_backend": "rocksdb"}))
    changes = compare(before, now, savepoint=True)
    assert (changes.fatal, changes.noted) == ((), ('flink.state_backend was "hashmap" and is "rocksdb"',))


def test_tools_mode_and_limits_may_change_and_are_named() -> None:
    now = config(
        tools=[{"function": "module:other"}], tool_calls={"mode": "sequential"}, flink={"options": {"a.key": "secret"}}
    )
    changes = compare(settings(config()), settings(now), savepoint=False)
    assert changes.fatal == ()
    assert set(changes.noted) == {"tools", 'tool_calls.mode was "parallel" and is "sequential"', "flink.options"}
    refuse_changes("1", changes.fatal)


def test_a_field_of_another_release_is_no_change() -> None:
    before = settings(config())
    del before["key_by"]
    changes = compare(before, settings(config(key_by="id")), savepoint=False)
    assert (changes.fatal, changes.noted) == ((), ())


def test_nothing_secret_is_kept(tmp_path: Path) -> None:
    kept = settings(config(flink={"options": {"s3.secret-key": "hush"}}))
    assert "hush" not in json.dumps(kept)
