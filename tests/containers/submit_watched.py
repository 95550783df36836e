"""Runs `flink-agents` as it is, with the bodies of a submitted job watched and stretched as a chaos run does."""

from __future__ import annotations

import sys
from typing import Any

from flink_agents.cli.main import main
from flink_agents.cluster import submission
from flink_agents.runtime.observation import CHAOS_PARAMETER

module: Any = submission
plain = module.build


def watched(env: Any, *rest: Any) -> None:
    plain(env, *rest)
    execution = env.get_config()
    execution.set_global_job_parameters({**execution.get_global_job_parameters(), CHAOS_PARAMETER: observation})


if __name__ == "__main__":
    observation = sys.argv.pop(1)
    module.build = watched
    main()
