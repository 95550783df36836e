"""What can go wrong between this process and a Flink cluster, as errors that say what to do next."""

from __future__ import annotations

from flink_agents.errors import FlinkAgentsError

__all__ = ["ClusterFault", "JobNotFound", "JvmDied"]


class ClusterFault(FlinkAgentsError):
    """Raised when a cluster cannot be started, reached or understood."""

    code = "cluster"


class JobNotFound(ClusterFault):
    """Raised for a job id that the cluster does not know."""

    code = "job_not_found"


class JvmDied(ClusterFault):
    """Raised when the embedded cluster's JVM ended although nobody stopped it."""

    code = "jvm_died"
