"""What a chaos run shows: each guarantee checked against logs, outputs and journal. Decides only, reads nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from flink_agents import codec
from flink_agents.chaos.execution import Event, Kill
from flink_agents.chaos.expectations import Calls, Expectations, answered
from flink_agents.durable.journal.rows import CallRow
from flink_agents.durable.outcome import Outcome, Succeeded
from flink_agents.runtime.observation import outcome_digest

__all__ = ["Check", "Evidence", "Result", "Verdict", "judge"]

SHOWN = 10

Name = tuple[str, str | None]


class Result(str, Enum):
    """How a run ends."""

    HOLDS = "holds"
    BROKEN = "broken"
    NOT_PROVEN = "not proven"


@dataclass(frozen=True)
class Evidence:
    """What a run left behind. ``in_state``: requests and slots in the last savepoint, None where none was taken.

    ``responses`` are parsed lines, ``rejects`` lines as they are, ``orphans`` processes that outlived the cluster.
    """

    expected: Expectations
    responses: Sequence[Mapping[str, Any]]
    rejects: Sequence[str]
    events: Sequence[Event]
    rows: Sequence[CallRow]
    in_state: int | None
    orphans: Sequence[str]


@dataclass(frozen=True)
class Check:
    """One guarantee: what was looked at, how often it was broken, and the first of those cases."""

    name: str
    looked_at: int
    broken: int
    shown: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return self.broken == 0


@dataclass(frozen=True)
class Verdict:
    """All checks, and the kills against those that were asked for."""

    checks: tuple[Check, ...]
    kills: tuple[Kill, ...]
    asked: int

    @property
    def counted(self) -> int:
        """How many kills could have broken something."""
        return sum(kill.counted for kill in self.kills)

    @property
    def result(self) -> Result:
        """What the run has shown."""
        if not all(check.holds for check in self.checks):
            return Result.BROKEN
        return Result.HOLDS if self.counted >= self.asked else Result.NOT_PROVEN


def judge(evidence: Evidence, kills: Sequence[Kill], asked: int) -> Verdict:
    """Return the verdict on what a run left behind."""
    responses, expected = evidence.responses, evidence.expected
    results = sum(len(response["results"]) for response in responses)
    bodies = sum(event.kind == "begin" for event in evidence.events)
    outcomes = {event.call for event in evidence.events if event.kind == "commit"}
    leftover = (
        ["no savepoint could be taken at the end"]
        if evidence.in_state is None
        else [f"{evidence.in_state} requests or slots are in the state after the last answer"] * (evidence.in_state > 0)
    )
    checks = (
        _check("each request is answered once", expected.answers.total(), _wrong_counts(responses, expected)),
        _check("results stand in the order of the calls", len(responses), _out_of_order(responses, expected)),
        _check("rejects are exact", expected.rejects.total(), _wrong_rejects(evidence.rejects, expected)),
        _check("no recorded call runs again", bodies, _run_again(evidence.events)),
        _check("the first outcome stands", len(outcomes), _replaced(evidence.events, evidence.rows)),
        _check("responses carry what the journal recorded", results, _unlike(responses, evidence.rows)),
        _check("the state is back to its baseline", 1, leftover),
        _check("no process is left", 1, evidence.orphans),
    )
    return Verdict(checks, tuple(kills), asked)


def _check(name: str, looked_at: int, problems: Iterable[str]) -> Check:
    found = list(problems)
    return Check(name, looked_at, len(found), tuple(found[:SHOWN]))


def _names(responses: Iterable[Mapping[str, Any]], expected: Expectations) -> Iterator[tuple[Name, Mapping[str, Any]]]:
    """Yield each response under the name that its request is expected by."""
    given = {(each.key, each.request_id) for each in expected.answers}
    for response in responses:
        key = codec.canonical(response["key"])
        made_up = (key, response["request_id"]) not in given
        yield (key, None if made_up else response["request_id"]), response


def _wrong_counts(responses: Sequence[Mapping[str, Any]], expected: Expectations) -> Iterator[str]:
    wanted: Counter[Name] = Counter()
    for each, times in expected.answers.items():
        wanted[each.key, each.request_id] += times
    got: Counter[Name] = Counter()
    made_up: Counter[str] = Counter()
    for name, response in _names(responses, expected):
        got[name] += 1
        if name[1] is None:
            made_up[f"{name[0]}, {response['request_id']}"] += 1
    for name in wanted.keys() | got.keys():
        if got[name] != wanted[name]:
            yield f"request {_shown(name)}: {got[name]} answers, {wanted[name]} expected"
    for text, times in made_up.items():
        if times > 1:
            yield f"request {text}: answered {times} times"


def _out_of_order(responses: Sequence[Mapping[str, Any]], expected: Expectations) -> Iterator[str]:
    wanted: defaultdict[Name, set[Calls]] = defaultdict(set)
    for each in expected.answers:
        wanted[each.key, each.request_id].add(each.calls)
    for name, response in _names(responses, expected):
        if name in wanted and answered(response) not in wanted[name]:
            yield f"request {_shown(name)}: results are {answered(response)}, asked was {sorted(wanted[name])[0]}"


def _wrong_rejects(rejects: Sequence[str], expected: Expectations) -> Iterator[str]:
    got = Counter(rejects)
    for line in got.keys() | expected.rejects.keys():
        if got[line] != expected.rejects[line]:
            yield f"{got[line]} times, {expected.rejects[line]} expected: {line[:200]}"


def _run_again(events: Sequence[Event]) -> Iterator[str]:
    """Find bodies that began although the look-up before them was asked after their outcome was recorded.

    The log has the moment at which the answer to the record came, so the record was there before; a body without a
    look-up counts as one that was looked up when it began.
    """
    recorded: dict[str, int] = {}
    for event in events:
        if event.kind in ("commit", "found"):
            recorded[event.call] = min(event.at, recorded.get(event.call, event.at))
    looked: dict[tuple[str, str], int] = {}
    for event in sorted(events, key=lambda each: each.at):
        if event.kind == "look":
            looked[event.call, event.attempt] = event.at
        elif event.kind == "begin" and event.call in recorded:
            at = looked.get((event.call, event.attempt))
            late_ns = (event.at if at is None else at) - recorded[event.call]
            if late_ns > 0:
                how = "began without a look-up" if at is None else "was looked up and began all the same"
                yield f"call {event.call[:12]} {how}, {late_ns / 1e6:.0f} ms after its outcome was recorded"


def _replaced(events: Sequence[Event], rows: Sequence[CallRow]) -> Iterator[str]:
    first: dict[str, Event] = {}
    told: set[str] = set()
    for event in sorted(events, key=lambda each: each.at):
        if event.kind not in ("commit", "found") or event.call in told:
            continue
        stands = first.setdefault(event.call, event)
        if (event.by, event.value) != (stands.by, stands.value):
            told.add(event.call)
            yield (
                f"call {event.call[:12]}: attempt {event.attempt[:8]} went on with the outcome of {event.by[:8]}, "
                f"that of {stands.by[:8]} was first"
            )
    recorded = {row.call.idempotency_key: row for row in rows}
    for call, known in first.items():
        row = recorded.get(call)
        if call in told:
            continue
        if row is None or row.outcome is None:
            yield f"call {call[:12]}: an outcome was said to be recorded, and the journal has none"
        elif (row.attempt_id, outcome_digest(row.outcome)) != (known.by, known.value):
            of, first_of = row.attempt_id[:8], known.by[:8]
            yield f"call {call[:12]}: the journal has the outcome of {of}, that of {first_of} was first"


def _unlike(responses: Sequence[Mapping[str, Any]], rows: Sequence[CallRow]) -> Iterator[str]:
    recorded: defaultdict[tuple[str, str | None, int], set[str]] = defaultdict(set)
    for row in rows:
        if row.outcome is not None:
            recorded[row.call.key, row.request_id, row.call.index].add(_carried(row.outcome))
    for response in responses:
        key = codec.canonical(response["key"])
        for result in response["results"]:
            known = recorded.get((key, response["request_id"], result["position"]), set())
            shown = codec.canonical(
                {"error" if "error" in result else "value": result.get("error", result.get("value"))}
            )
            if shown not in known:
                what = "another outcome" if known else "no outcome"
                yield f"request {key}, {response['request_id']}, call {result['position']}: the journal has {what}"


def _carried(outcome: Outcome) -> str:
    if isinstance(outcome, Succeeded):
        return codec.canonical({"value": codec.loads(orjson.dumps(codec.to_json(outcome.text)))})
    return codec.canonical({"error": outcome.failure.error()})


def _shown(name: Name) -> str:
    return f"{name[0]}, {name[1] or 'without an id'}"
