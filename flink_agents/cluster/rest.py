"""Asks a Flink cluster over its REST interface: how a job is, why it failed, how often it restarted, and to stop it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

from flink_agents.cluster.causes import Cause, root_cause
from flink_agents.cluster.hints import hint
from flink_agents.errors import ClusterFault, JobNotFound

__all__ = ["TERMINAL", "FlinkRest", "JobReport"]

# The watermark behind the last record, as Flink writes it.
END_OF_INPUT = str(2**63 - 1)

TERMINAL = frozenset({"FINISHED", "FAILED", "CANCELED"})
"""Job states after which nothing changes any more."""


@dataclass(frozen=True)
class JobReport:
    """A job at one moment; times in milliseconds since 1970, ``ended_ms`` is None while it runs.

    ``tasks``: how many subtasks are in which state; ``at_its_end``: all subtasks of some vertex have come to their own
    end while the job still runs.
    """

    job_id: str
    name: str
    state: str
    started_ms: int
    ended_ms: int | None
    vertices: tuple[str, ...]
    tasks: Mapping[str, int] = field(default_factory=dict)
    at_its_end: bool = False

    @property
    def ended(self) -> bool:
        """True once nothing changes any more."""
        return self.state in TERMINAL

    @property
    def at_work(self) -> bool:
        """True while every subtask is open and takes records, or has come to its own end."""
        return bool(self.tasks) and set(self.tasks) <= {"RUNNING", "FINISHED"}


class FlinkRest:
    """One cluster's REST interface. Safe to use from several threads.

    Every method raises :class:`ClusterFault` when the cluster cannot be reached or refuses, and
    :class:`JobNotFound` for a job id it does not know.
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        self.address = address.rstrip("/")
        # A proxy meant for the internet must not come between two processes of one machine or one network.
        self._client = httpx.Client(base_url=self.address, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> FlinkRest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def overview(self) -> Mapping[str, Any]:
        """Return the cluster's ``taskmanagers``, ``slots-total``, ``slots-available`` and ``flink-version``."""
        overview: Mapping[str, Any] = self._get("/overview")
        return overview

    def taskmanagers(self) -> frozenset[str]:
        """Return the ids of the TaskManagers that are registered, and that have said which slots they have."""
        managers = self._get("/taskmanagers")["taskmanagers"]
        return frozenset(manager["id"] for manager in managers if manager["slotsNumber"])

    def parameters(self, job_id: str) -> Mapping[str, str]:
        """Return the job's global parameters."""
        given = self._get(f"/jobs/{job_id}/config").get("execution-config", {}).get("user-config", {})
        return {str(name): str(value) for name, value in given.items()}

    def job(self, job_id: str) -> JobReport:
        """Return how the job is now."""
        body = self._get(f"/jobs/{job_id}")
        ended = body["end-time"]
        return JobReport(
            job_id=body["jid"],
            name=body["name"],
            state=body["state"],
            started_ms=body["start-time"],
            ended_ms=ended if ended >= 0 else None,
            vertices=tuple(vertex["id"] for vertex in body["vertices"]),
            tasks=Counter(state for vertex in body["vertices"] for state in _states(vertex)),
            at_its_end=body["state"] == "RUNNING" and any({*_states(v)} == {"FINISHED"} for v in body["vertices"]),
        )

    def wait(self, job_id: str, *, timeout_s: float, states: frozenset[str] = TERMINAL) -> JobReport:
        """Return the job's report once it is in one of ``states``; for tests and commands that only wait.

        Raises:
            ClusterFault: after ``timeout_s`` seconds, or as soon as the job ended in another state.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            report = self.job(job_id)
            if report.state in states:
                return report
            if report.ended or time.monotonic() > deadline:
                msg = f"job {job_id} is {report.state}, not {' or '.join(sorted(states))}"
                raise ClusterFault(msg)
            time.sleep(0.05)

    def restarts(self, job_id: str) -> int:
        """Return how often the job was restarted, exactly, also after it ended.

        The job is one pipelined region, so a restart gives every subtask a new attempt; the highest attempt number is
        the number of restarts. (Flink's own ``numRestarts`` metric is a sample that can be seconds old.)
        """
        attempts = [
            subtask["attempt"]
            for vertex in self.job(job_id).vertices
            for subtask in self._get(f"/jobs/{job_id}/vertices/{vertex}")["subtasks"]
        ]
        return max(attempts, default=0)

    def input_ended(self, job_id: str) -> bool:
        """Return whether the end of the input has reached an operator, which then works off what is left.

        The sources do not tell: they run until a last checkpoint has completed. The watermark does, some hundred
        milliseconds late.
        """
        return any(
            watermark["value"] == END_OF_INPUT
            for vertex in self.job(job_id).vertices
            for watermark in self._get(f"/jobs/{job_id}/vertices/{vertex}/watermarks")
        )

    def completed_checkpoints(self, job_id: str) -> int:
        """Return how many checkpoints (savepoints included) completed."""
        return int(self._checkpoints(job_id).get("counts", {}).get("completed", 0))

    def complete_last_checkpoint(self, job_id: str) -> None:
        """Ask for a checkpoint now, if none is on its way: what the tasks of a job at its end wait for.

        Flink asks once, at the end of the input. A task that ends at that moment declines, and the others then wait for
        the next one of the job's interval, however long that is. Returns at once.
        """
        if self._checkpoints(job_id).get("counts", {}).get("in_progress", 0) == 0:
            answer = self._send("POST", f"/jobs/{job_id}/checkpoints", json={})
            # The job may have ended since.
            if answer.status_code != httpx.codes.NOT_FOUND:
                _checked(answer)

    def latest_checkpoint(self, job_id: str) -> str | None:
        """Return the path of the newest completed checkpoint, or None before the first."""
        latest = (self._checkpoints(job_id).get("latest") or {}).get("completed")
        return latest["external_path"] if latest else None

    def stopped_with(self, job_id: str) -> str | None:
        """Return the path of the savepoint that ended the job, or None if none did."""
        known = self._checkpoints(job_id)
        latest = (known.get("latest") or {}).get("savepoint")
        types = {each["id"]: each.get("checkpoint_type") for each in known.get("history", [])}
        return latest["external_path"] if latest and types.get(latest["id"]) == "SYNC_SAVEPOINT" else None

    def failure(self, job_id: str) -> Cause | None:
        """Return the cause of the newest failure of the job, whether or not it recovered; None if it never failed."""
        trace = self.failure_trace(job_id)
        return None if trace is None else root_cause(trace)

    def failure_trace(self, job_id: str) -> str | None:
        """Return Flink's whole stack trace of the job's newest failure, None if it never failed."""
        newest = self._newest_failure(job_id)
        return str(newest["stacktrace"]) if newest else None

    def failure_text(self, job_id: str) -> str:
        """Return the newest failure's text, for messages."""
        cause = self.failure(job_id)
        return "Flink reported no cause" if cause is None else cause.text

    def failed_on(self, job_id: str, pattern: re.Pattern[str]) -> str | None:
        """Return the id of the TaskManager of the job's newest failure, None if its trace is not like ``pattern``."""
        newest = self._newest_failure(job_id)
        return newest.get("taskManagerId") if pattern.search(newest.get("stacktrace", "")) else None

    def counters(self, job_id: str, names: frozenset[str]) -> dict[str, int]:
        """Return the sums over all subtasks of the metrics whose last name part is in ``names``.

        A sample for progress displays: some hundred milliseconds old, and counted anew after a restart.
        """
        sums: dict[str, int] = {}
        for vertex in self.job(job_id).vertices:
            path = f"/jobs/{job_id}/vertices/{vertex}/subtasks/metrics"
            wanted = [m["id"] for m in self._get(path) if m["id"].rsplit(".", 1)[-1] in names]
            if not wanted:
                continue
            for metric in self._get(path, get=",".join(wanted), agg="sum"):
                name = metric["id"].rsplit(".", 1)[-1]
                sums[name] = sums.get(name, 0) + int(metric["sum"])
        return sums

    def cancel(self, job_id: str) -> None:
        """Ask for the job's end without a savepoint; returns at once. Nothing happens to a job that has ended."""
        answer = self._send("PATCH", f"/jobs/{job_id}", params={"mode": "cancel"})
        if answer.status_code != httpx.codes.CONFLICT:
            _checked(answer)

    def stop_with_savepoint(self, job_id: str, directory: str, *, drain: bool = False, timeout_s: float = 600.0) -> str:
        """Stop the job with a savepoint below ``directory`` and return the savepoint's path.

        ``drain`` lets the job finish its work first, as at the end of bounded input.

        Raises:
            ClusterFault: if the savepoint failed (the job then goes on or restarts) or took more than ``timeout_s``.
        """
        trigger = self.begin_stop(job_id, directory, drain=drain)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            savepoint = self.savepoint(job_id, trigger)
            if savepoint is not None:
                return savepoint
            time.sleep(0.1)
        msg = f"the savepoint of job {job_id} was not complete after {timeout_s:g} s"
        raise ClusterFault(msg)

    def begin_stop(self, job_id: str, directory: str, *, drain: bool = False) -> str:
        """Ask for a stop with a savepoint and return an id to ask :meth:`savepoint` for."""
        body = {"targetDirectory": directory, "drain": drain}
        return str(_checked(self._send("POST", f"/jobs/{job_id}/stop", json=body)).json()["request-id"])

    def savepoint(self, job_id: str, trigger: str) -> str | None:
        """Return the path of a savepoint that was asked for, or None while it is not complete.

        Raises:
            ClusterFault: if the savepoint failed.
        """
        answer = self._get(f"/jobs/{job_id}/savepoints/{trigger}")
        if answer["status"]["id"] != "COMPLETED":
            return None
        operation = answer["operation"]
        if "location" in operation:
            return str(operation["location"])
        trace = operation.get("failure-cause", {}).get("stack-trace", "")
        advice = hint(trace)
        msg = f"the savepoint of job {job_id} failed: {root_cause(trace).summary}" + (f"\n{advice}" if advice else "")
        raise ClusterFault(msg)

    def _newest_failure(self, job_id: str) -> Mapping[str, Any]:
        history = self._get(f"/jobs/{job_id}/exceptions").get("exceptionHistory", {}).get("entries", [])
        return history[0] if history else {}

    def _checkpoints(self, job_id: str) -> Any:
        return self._get(f"/jobs/{job_id}/checkpoints")

    def _get(self, path: str, **params: str) -> Any:
        return _checked(self._send("GET", path, params=params)).json()

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            msg = f"the Flink cluster at {self.address} does not answer: {str(error) or type(error).__name__}"
            raise ClusterFault(msg) from error


def _states(vertex: Mapping[str, Any]) -> Iterator[str]:
    for state, count in vertex["tasks"].items():
        yield from [state] * count


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_success:
        return answer
    try:
        errors = answer.json().get("errors", [])
    except ValueError:
        errors = []
    # Flink puts a Java stack trace into the last error; its first line is the sentence.
    said = "; ".join(str(text).splitlines()[0] for text in errors if text) or answer.reason_phrase
    if answer.status_code == httpx.codes.NOT_FOUND and "job" in said.lower():
        msg = f"the Flink cluster at {answer.url.scheme}://{answer.url.netloc.decode()} does not know this job: {said}"
        raise JobNotFound(msg)
    if answer.status_code == httpx.codes.BAD_REQUEST and "(jobid)" in said:
        given = answer.url.path.split("/")[2]
        msg = f"{given!r} is no job id: Flink's have 32 hexadecimal digits, as `submit` prints them"
        raise JobNotFound(msg)
    msg = f"the Flink cluster refused {answer.request.method} {answer.url.path}: {answer.status_code} {said}"
    raise ClusterFault(msg)
