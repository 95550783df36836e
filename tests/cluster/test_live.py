"""What became of a submitted job is asked of its JobManager, whose answers these are, shortened."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flink_agents.cluster.live import refuse_vanished, settle
from flink_agents.cluster.runs import Ending, Run, create_run, read_run
from flink_agents.cluster.snapshots import MAGIC, newest
from flink_agents.errors import CannotRestore, RunRefused

JOB_ID = "c" * 32


class JobManager(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        found = self.answers.get(self.path)
        body = json.dumps(found if found is not None else {"errors": [f"Job {JOB_ID} not found"]}).encode()
        self.send_response(200 if found is not None else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), JobManager) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def run(tmp_path: Path, address: str) -> Run:
    made = create_run(tmp_path, "job", "digest")
    made.submitted(JOB_ID, "digest", {}, address)
    return made


def answer(state: str, **checkpoints: Any) -> None:
    job = {"jid": JOB_ID, "name": "job", "state": state, "start-time": 1000, "end-time": 3500, "vertices": []}
    JobManager.answers = {
        f"/jobs/{JOB_ID}": job,
        f"/jobs/{JOB_ID}/checkpoints": {"counts": {"completed": 7}, **checkpoints},
    }


def note(_text: str) -> None:
    pass


@pytest.mark.parametrize(
    ("state", "how"), [("FINISHED", Ending.FINISHED), ("FAILED", Ending.FAILED), ("CANCELED", Ending.STOPPED)]
)
def test_an_end_is_noted(run: Run, state: str, how: Ending) -> None:
    answer(state, latest={"completed": {"external_path": "file:/kept/chk-7"}})
    settle(run, note)
    record = read_run(run.folder).record
    assert (record.how, record.totals.checkpoints, record.totals.wall_s) == (how, 7, 2.5)
    # Flink removes the checkpoints of a job that finished.
    assert record.checkpoint == (None if how is Ending.FINISHED else "/kept/chk-7")


def test_a_stop_by_another_command_is_one(run: Run, tmp_path: Path) -> None:
    savepoint = {"id": 9, "external_path": f"file:{tmp_path / 'savepoint'}"}
    answer("FINISHED", latest={"savepoint": savepoint}, history=[{"id": 9, "checkpoint_type": "SYNC_SAVEPOINT"}])
    settle(run, note)
    assert (run.record.how, run.record.checkpoint) == (Ending.STOPPED, str(tmp_path / "savepoint"))


def test_a_live_job_is_left_alone(run: Run) -> None:
    answer("RUNNING")
    with pytest.raises(RunRefused, match=f"flink-agents stop {JOB_ID} --jobmanager 127"):
        settle(run, note)
    assert run.record.how is None


def test_a_job_that_nobody_knows_any_more_was_cut_off(run: Run) -> None:
    JobManager.answers = {}
    told: list[str] = []
    settle(run, told.append)
    assert run.record.how is None
    assert len(told) == 1
    assert "counts as cut off" in told[0]
    refuse_vanished(run)
    run.statistics.mkdir()
    (run.statistics / "part-a-0.jsonl").write_text('{"response": 1}\n', encoding="utf-8")
    with pytest.raises(CannotRestore, match="has answered requests and has no checkpoint"):
        refuse_vanished(run)


def test_a_savepoint_outside_of_the_run_is_found_and_carries_its_record(run: Run, tmp_path: Path) -> None:
    savepoint = tmp_path / "elsewhere" / "savepoint-c"
    savepoint.mkdir(parents=True)
    (savepoint / "_metadata").write_bytes(MAGIC.to_bytes(4, "big") + (4).to_bytes(4, "big") + (9).to_bytes(8, "big"))
    run.ended(Ending.STOPPED, str(savepoint))
    assert read_run(savepoint).record == run.record
    found = newest(run)
    assert found is not None
    assert (found.folder, found.savepoint) == (savepoint, True)
