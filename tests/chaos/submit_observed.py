"""Submits the job of a YAML to a cluster as chaos does, from a process of its own: a process has one gateway."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from flink_agents.chaos.observed import submit_observed
from flink_agents.chaos.own_job import WorkFolder, own_job
from flink_agents.cluster.journals import register_run
from flink_agents.cluster.runs import create_run
from flink_agents.config.build import prepare
from flink_agents.runtime.observation import Observation


def main(job: str, folder: str, address: str) -> None:
    work = WorkFolder(Path(folder))
    own = own_job(prepare(job), work)
    work.source.mkdir(parents=True, exist_ok=True)
    work.executions.mkdir(parents=True, exist_ok=True)
    run = create_run(work.runs, own.config.name, "")
    register_run(own, run, goes_on=False, is_ours=True)
    job_id = submit_observed(own, run, address, Observation(str(work.executions)))
    sys.stdout.write(json.dumps({"job_id": job_id, "run_id": run.run_id, "run": str(run.folder)}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
