"""What a job has to answer to given records, known before it runs: neither answers nor rejects are up to chance."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flink_agents import codec
from flink_agents.errors import RejectedRecord
from flink_agents.events import ToolRequestEvent, reject_json
from flink_agents.records import parse_request

__all__ = ["Expectations", "Expected", "answered", "asked", "expectations", "read_records"]

Calls = tuple[tuple[int, str, str], ...]


@dataclass(frozen=True)
class Expected:
    """One answer to come: key and call ids as canonical text. ``request_id`` is None where the job makes one up."""

    key: str
    request_id: str | None
    calls: Calls


@dataclass(frozen=True)
class Expectations:
    """All answers and all rejects to come, each as often as it must."""

    answers: Counter[Expected]
    rejects: Counter[str]

    @property
    def total(self) -> int:
        """How many lines come out."""
        return self.answers.total() + self.rejects.total()


def read_records(path: Path) -> Iterator[str]:
    """Yield the lines that the job's source would read: of a file, or of all files below a folder.

    Raises:
        OSError: if something cannot be read.
    """
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    for file in files:
        if file != path and any(part[0] in "._" for part in file.relative_to(path).parts):
            continue
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                yield line.rstrip("\n")


def expectations(records: Iterable[str], key_by: str, limit: int) -> Expectations:
    """Return what must come out for these records; ``limit`` is a record's largest size in bytes."""
    answers: Counter[Expected] = Counter()
    rejects: Counter[str] = Counter()
    for record in records:
        try:
            request = parse_request(record, key_by, 1, limit)
            again = parse_request(record, key_by, 2, limit)
        except RejectedRecord as error:
            rejects[reject_json(error.reason, error.field, record)] += 1
        else:
            given = request.request_id if request.request_id == again.request_id else None
            answers[Expected(codec.canonical(request.key), given, asked(request))] += 1
    return Expectations(answers, rejects)


def asked(request: ToolRequestEvent) -> Calls:
    """Return a request's calls in their order: position, tool, call id."""
    return tuple((call.position, call.tool, codec.canonical(call.call_id)) for call in request.calls)


def answered(response: Mapping[str, Any]) -> Calls:
    """Return a response's calls in the order of its results."""
    return tuple(
        (result["position"], result["tool"], codec.canonical(result["call_id"])) for result in response["results"]
    )
