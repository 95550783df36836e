"""A Flink cluster inside one JVM that belongs to this process: started for a job, gone with the process.

The JVM is PyFlink's py4j gateway. Our own ``MiniCluster`` is started in it and jobs are submitted over its REST
interface, rather than leaving both to a local environment: that one is gone the moment the job ends, and with it the
job's exceptions, restarts and checkpoint counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from flink_agents.cluster.gateway import Gateway, java_sentence, preload
from flink_agents.cluster.rest import FlinkRest
from flink_agents.errors import ClusterFault

__all__ = ["EmbeddedCluster"]


class EmbeddedCluster:
    """One JVM with one MiniCluster. One at a time in a process; its jobs may run side by side or one after the other.

    Args:
        folder: where logs and temporary files go; made if missing.
        slots: parallel subtasks that fit at once, over all jobs.
        options: Flink options of the cluster (memory, ports, ``env.java.opts.all`` for the JVM).
        on_output: called for each line that the JVM prints, Python tools' ``print`` included; on a thread of its own.
        keep_open: file descriptors that the JVM is to hold as long as it lives.

    Use it as a context manager, or call :meth:`start` and :meth:`close`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        slots: int,
        options: Mapping[str, str] | None = None,
        on_output: Callable[[str], None] | None = None,
        keep_open: Sequence[int] = (),
    ) -> None:
        self.folder = folder.absolute()
        self.slots = slots
        self.options = dict(options or {})
        self._gateway = Gateway(folder, options=options, on_output=on_output, keep_open=keep_open)
        self.log_file = self._gateway.log_file
        self.error_file = self._gateway.error_file
        self._rest: FlinkRest | None = None

    def __enter__(self) -> EmbeddedCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def rest(self) -> FlinkRest:
        """The running cluster's REST interface."""
        if self._rest is None:
            msg = "the embedded cluster is not running"
            raise ClusterFault(msg)
        return self._rest

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return self._gateway.pid

    def start(self) -> EmbeddedCluster:
        """Start JVM and cluster; returns when jobs can be submitted (2 to 3 seconds).

        Raises:
            ClusterFault: if there is no usable Java, another cluster runs in this process, a port is taken, or the JVM
                does not come up; the message has the reason the JVM gave.
        """
        try:
            self._gateway.start()
            # Half of the time until a job runs is imports of PyFlink's libraries: done while Java starts the cluster.
            with ThreadPoolExecutor(1, thread_name_prefix="flink-start") as starter:
                starting = starter.submit(self._start_cluster)
                preload()
                starting.result()
        except BaseException:
            self.close()
            raise
        return self

    def environment(self, options: Mapping[str, str]) -> Any:
        """Return a ``StreamExecutionEnvironment`` whose jobs run on this cluster, in PyFlink's thread mode.

        ``env.execute_async(name)`` submits and returns at once; the job id is ``get_job_id()`` of what it returns.
        """
        return self._gateway.environment(self._with_python(options), self.rest.address)

    def submit(self, name: str, options: Mapping[str, str], build: Callable[[Any], None]) -> str:
        """Make an environment, let ``build`` put a topology on it, submit it as job ``name``, return the job id.

        Raises:
            ClusterFault: if Flink refuses the job or an option; a job that fails later is seen over REST.
        """
        return self._gateway.submit(name, self._with_python(options), build, self.rest.address)

    def check_alive(self) -> None:
        """Return if the JVM lives.

        Raises:
            JvmDied: with how it ended and where its last words are.
        """
        self._gateway.check_alive()

    def close(self, *, at_once: bool = False) -> None:
        """Stop the JVM and all jobs in it, running tools included; safe to call again.

        Checkpoints and committed output stay. Waits at most some seconds, then kills; with ``at_once`` kills.
        """
        if self._rest is not None:
            self._rest.close()
            self._rest = None
        self._gateway.close(at_once=at_once)

    def _with_python(self, options: Mapping[str, str]) -> dict[str, str]:
        # The PATH already leads there; the full name also holds where the folder has no command named `python`.
        return {**options, "python.executable": sys.executable}

    def _start_cluster(self) -> None:
        # Runs beside imports of the main thread, so nothing here may be imported for the first time.
        from py4j.protocol import Py4JError
        from pyflink.java_gateway import get_gateway

        jvm = get_gateway().jvm
        configuration = jvm.org.apache.flink.configuration.Configuration()
        for name, value in self._cluster_options().items():
            configuration.setString(name, value)
        minicluster = jvm.org.apache.flink.runtime.minicluster
        settings = (
            minicluster.MiniClusterConfiguration.Builder()
            .setConfiguration(configuration)
            .setNumTaskManagers(1)
            .setNumSlotsPerTaskManager(self.slots)
            .build()
        )
        try:
            cluster = minicluster.MiniCluster(settings)
            cluster.start()
            address = cluster.getRestAddress().get().toString()
        except Py4JError as error:
            self.check_alive()
            msg = f"the embedded Flink cluster did not start: {java_sentence(error)} (log: {self.log_file})"
            raise ClusterFault(msg) from error
        self._rest = FlinkRest(address)

    def _cluster_options(self) -> dict[str, str]:
        # Only this machine may talk to it, and the port is whatever is free, so that clusters never collide.
        defaults = {
            "rest.address": "localhost",
            "rest.bind-address": "127.0.0.1",
            "rest.bind-port": self.options.get("rest.port", "0"),
            "jobmanager.bind-host": "127.0.0.1",
            # The answers are cached this long, which is also how late the end of a job is seen; 3 s as shipped.
            "web.refresh-interval": "100",
            "metrics.fetcher.update-interval": "500",
            "web.exception-history-size": "100",
            "taskmanager.memory.managed.size": "128m",
        }
        own = {
            "io.tmp.dirs": str(self._gateway.scratch),
            "web.upload.dir": str(self._gateway.scratch),
            "web.submit.enable": "false",
        }
        return {**defaults, **self.options, **own}
