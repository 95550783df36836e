"""A job's way to the cluster of a chaos run: like any submission, with its bodies watched."""

from __future__ import annotations

import secrets
from typing import Any

from flink_agents.cluster.gateway import Gateway, preload
from flink_agents.cluster.resume import settings
from flink_agents.cluster.runs import Run, digest
from flink_agents.config.build import PreparedJob
from flink_agents.job import FIXED_JOB_ID, build, flink_options, ship
from flink_agents.runtime.observation import CHAOS_PARAMETER, Observation

__all__ = ["submit_observed"]


def submit_observed(own: PreparedJob, run: Run, address: str, observation: Observation) -> str:
    """Submit a job to the cluster at ``address``, its bodies noted and stretched; return the job's id at once.

    Raises:
        ClusterFault: if Flink refuses the job.
        InvalidInput: if what the job brings along cannot be read.
    """
    config = own.config
    job_id = secrets.token_hex(16)
    options = flink_options(config, run)
    options[FIXED_JOB_ID] = job_id
    run.submitted(job_id, digest(config.model_dump_json()), settings(config), address)
    with Gateway(run.logs, options=config.flink.options) as gateway:
        preload()

        def topology(env: Any) -> None:
            build(env, ship(env, own, gateway.scratch), run)
            execution = env.get_config()
            watched = {CHAOS_PARAMETER: observation.to_text()}
            execution.set_global_job_parameters({**execution.get_global_job_parameters(), **watched})

        gateway.submit(config.name, options, topology, f"http://{address}")
    return job_id
