"""Which run a ``run`` works on: a new one, the last one, or none at all because of what became of the last one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from flink_agents.cluster.runs import Ending, RunRecord, digest
from flink_agents.config.schema import JobConfig
from flink_agents.errors import RunRefused

__all__ = ["Changes", "Wish", "compare", "resumes", "settings"]

# A resume that changes one of these would lose or repeat requests without a word, or Flink would refuse it obscurely.
FIXED = {
    "key_by": "requests of one key would stand in the state under two",
    "source.type": "where the source stands is in the state",
    "source.path": "the list of files is drawn up once, so those of another path would never be read",
    "source.follow": "which files were read is noted in another way, so some would be read twice",
    "sink.type": "what the sink has not committed yet is in the state",
    "rejects.type": "what the sink has not committed yet is in the state",
    "flink.state_backend": "another one reads savepoints only, and the newest state is a checkpoint",
}
BY_SAVEPOINT = frozenset({"flink.state_backend"})

# Shown when they changed; of everything else only a digest is kept, because options and paths may hold secrets.
SHOWN = frozenset({*FIXED, "tool_calls.mode", "flink.parallelism", "journal.type"})


class Wish(Enum):
    """What the command line asks for: nothing special, to go on with the last run, or to leave it and begin anew."""

    PLAIN = "plain"
    RESUME = "--resume"
    FRESH = "--fresh"


@dataclass(frozen=True)
class Changes:
    """What differs from the configuration that a run had: ``fatal`` forbids to resume it, ``noted`` is worth a line."""

    fatal: tuple[str, ...]
    noted: tuple[str, ...]


def resumes(job: str, last: RunRecord | None, has_state: bool, wish: Wish) -> bool:
    """Return whether the last run goes on (true) or a new one begins (false).

    Args:
        job: the job's name.
        last: the record of the last run that reached Flink. Its job is over, whatever the record says.
        has_state: whether a completed checkpoint or savepoint of it is there.
        wish: what the command line asks for.

    Raises:
        RunRefused: if the last run forbids the wish; names what is possible instead.
    """
    if wish is Wish.FRESH:
        return False
    if last is None:
        if wish is Wish.RESUME:
            raise RunRefused(f"nothing to resume: there is no run of job '{job}' yet; leave --resume out to begin one")
        return False
    how = last.how or Ending.CUT_OFF
    if how is Ending.FINISHED:
        if wish is Wish.RESUME:
            raise RunRefused(
                f"nothing to resume: the last run of job '{job}', {last.run_id}, finished; "
                "leave --resume out to begin anew"
            )
        return False
    if wish is Wish.RESUME:
        return True
    # A job that failed before anything was answered can be corrected and run again as if nothing had happened.
    if how is Ending.FAILED and not has_state:
        return False
    ended = {Ending.STOPPED: "was stopped", Ending.CUT_OFF: "was cut off", Ending.FAILED: "failed"}[how]
    raise RunRefused(
        f"the last run of job '{job}', {last.run_id}, {ended} with work unanswered: "
        "go on with it by --resume, or leave it and begin anew by --fresh (which answers every request again)"
    )


def settings(config: JobConfig) -> dict[str, str]:
    """Return a job's configuration as one text for each field; what may be secret only as a digest."""
    found: dict[str, str] = {}
    for section, content in config.model_dump(mode="json", by_alias=True).items():
        if isinstance(content, dict):
            found |= {f"{section}.{name}": _shown(f"{section}.{name}", value) for name, value in content.items()}
        else:
            found[section] = _shown(section, content)
    return found


def compare(before: Mapping[str, str], now: Mapping[str, str], *, savepoint: bool) -> Changes:
    """Return what changed between two :func:`settings`; ``savepoint``: the state to resume from is one.

    Fields that only one side knows are left out: another release may have added them.
    """
    changed = [name for name in now if name in before and before[name] != now[name]]
    fatal = [name for name in changed if name in FIXED and not (savepoint and name in BY_SAVEPOINT)]
    return Changes(
        tuple(f"{_change(name, before, now)}: {FIXED[name]}" for name in fatal),
        tuple(_described(name, before, now) for name in changed if name not in fatal),
    )


def refuse_changes(run_id: str, fatal: Iterable[str]) -> None:
    """Raise for changes that forbid to resume.

    Raises:
        RunRefused: naming each change and why it matters.
    """
    listed = "\n".join(f"  {change}" for change in fatal)
    if listed:
        raise RunRefused(
            f"run {run_id} cannot go on with this YAML:\n{listed}\nPut back what it was, or begin anew by --fresh."
        )


def _shown(name: str, value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if name in SHOWN else digest(text)[:16]


def _described(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    return _change(name, before, now) if name in SHOWN else name


def _change(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    return f"{name} was {before[name]} and is {now[name]}"
