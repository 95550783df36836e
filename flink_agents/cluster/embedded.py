"""A Flink cluster inside one JVM that belongs to this process: started for a job, gone with the process.

The JVM is PyFlink's py4j gateway. Our own ``MiniCluster`` is started in it and jobs are submitted over its REST
interface, rather than leaving both to a local environment: that one is gone the moment the job ends, and with it the
job's exceptions, restarts and checkpoint counts.

The JVM ends with this process, whatever ends it: it calls a watchdog object of ours over py4j, which breaks off.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from flink_agents.cluster.java import choose_java, jvm_environment
from flink_agents.cluster.libpython import require_shared_library
from flink_agents.cluster.quiet import quiet_imports
from flink_agents.cluster.rest import FlinkRest
from flink_agents.errors import ClusterFault, JvmDied

__all__ = ["EmbeddedCluster"]

GATEWAY = "org.apache.flink.client.python.PythonGatewayServer"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0

# What Flink's own start scripts open of java.base.
OPENED = (
    "lang", "net", "io", "nio", "lang.reflect", "text", "time", "util", "util.concurrent", "util.concurrent.atomic",
    "util.concurrent.locks",
)  # fmt: skip

# Of Flink's option for JVM arguments, the two that are about the JVM we start.
JVM_OPTIONS = ("env.java.opts.all", "env.java.opts.taskmanager")


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

    _running: ClassVar[EmbeddedCluster | None] = None

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
        self.log_file = self.folder / "flink.log"
        self.error_file = self.folder / "jvm.log"
        self._on_output = on_output or (lambda line: None)
        self._keep_open = tuple(keep_open)
        self._process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        self._scratch: Path | None = None
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
        if self._process is None:
            msg = "the embedded cluster is not running"
            raise ClusterFault(msg)
        return self._process.pid

    def start(self) -> EmbeddedCluster:
        """Start JVM and cluster; returns when jobs can be submitted (2 to 3 seconds).

        Raises:
            ClusterFault: if there is no usable Java, another cluster runs in this process, a port is taken, or the JVM
                does not come up; the message has the reason the JVM gave.
        """
        if EmbeddedCluster._running is not None:
            msg = "an embedded cluster already runs in this process; close it first, or submit the job to it"
            raise ClusterFault(msg)
        EmbeddedCluster._running = self
        try:
            self._start_jvm()
            # Half of the time until a job runs is imports of PyFlink's libraries: done while Java starts the cluster.
            with ThreadPoolExecutor(1, thread_name_prefix="flink-start") as starter:
                starting = starter.submit(self._start_cluster)
                _preload()
                starting.result()
        except BaseException:
            self.close()
            raise
        return self

    def environment(self, options: Mapping[str, str]) -> Any:
        """Return a ``StreamExecutionEnvironment`` whose jobs run on this cluster, in PyFlink's thread mode.

        ``env.execute_async(name)`` submits and returns at once; the job id is ``get_job_id()`` of what it returns.
        """
        with quiet_imports():
            from pyflink.datastream import StreamExecutionEnvironment
            from pyflink.java_gateway import get_gateway

        jvm = get_gateway().jvm
        host, _, port = self.rest.address.rpartition("//")[2].rpartition(":")
        configuration = jvm.org.apache.flink.configuration.Configuration()
        own = {
            "execution.target": "remote",
            "rest.address": host,
            "rest.port": port,
            "python.execution-mode": "thread",
            # The PATH already leads there; the full name also holds where the folder has no command named `python`.
            "python.executable": sys.executable,
        }
        for name, value in {**options, **own}.items():
            configuration.setString(name, value)
        return StreamExecutionEnvironment(jvm.StreamExecutionEnvironment(configuration))

    def submit(self, name: str, options: Mapping[str, str], build: Callable[[Any], None]) -> str:
        """Make an environment, let ``build`` put a topology on it, submit it as job ``name``, return the job id.

        Raises:
            ClusterFault: if Flink refuses the job or an option; a job that fails later is seen over REST.
        """
        with quiet_imports():
            from py4j.protocol import Py4JError

        try:
            env = self.environment(options)
            build(env)
            return str(env.execute_async(name).get_job_id())
        except Py4JError as error:
            self.check_alive()
            msg = f"Flink refused the job: {_java_sentence(error)}"
            raise ClusterFault(msg) from error

    def check_alive(self) -> None:
        """Return if the JVM lives.

        Raises:
            JvmDied: with how it ended and where its last words are.
        """
        code = self._process.poll() if self._process else None
        if code is None:
            return
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        reports = sorted(str(path) for path in self.folder.glob("hs_err_*.log"))
        places = ", ".join([*reports, str(self.error_file), str(self.log_file)])
        msg = f"Flink's JVM {how}. See {places}"
        raise JvmDied(msg)

    def close(self, *, at_once: bool = False) -> None:
        """Stop the JVM and all jobs in it, running tools included; safe to call again.

        Checkpoints and committed output stay. Waits at most some seconds, then kills; with ``at_once`` kills.
        """
        if EmbeddedCluster._running is self:
            EmbeddedCluster._running = None
            _forget_gateway()
        if self._rest is not None:
            self._rest.close()
            self._rest = None
        if self._process is not None:
            if self._process.poll() is None:
                if at_once:
                    self._process.kill()
                else:
                    self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stdin:
                self._process.stdin.close()
        if self._pump is not None:
            # A process that a tool left behind may still hold the other end of the pipe.
            self._pump.join(1.0)
            self._pump = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _start_jvm(self) -> None:
        with quiet_imports():
            import pyflink
        flink_home = Path(pyflink.__file__).parent
        self.folder.mkdir(parents=True, exist_ok=True)
        self._scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=self.folder))
        conf = self._scratch / "conf"
        conf.mkdir()
        (conf / "config.yaml").write_text("{}\n", encoding="utf-8")
        log_settings = resources.files("flink_agents.cluster") / "log4j.properties"
        (conf / "log4j.properties").write_text(log_settings.read_text(encoding="utf-8"), encoding="utf-8")

        require_shared_library()
        java = choose_java(os.environ)
        connection = self._scratch / "gateway"
        environ = jvm_environment(os.environ, Path(sys.executable), java, conf)
        environ["_PYFLINK_CONN_INFO_PATH"] = str(connection)
        command = [
            str(java.executable),
            *self._jvm_arguments(conf),
            "-cp",
            os.pathsep.join(_jars(flink_home)),
            GATEWAY,
        ]
        with self.error_file.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environ,
                # Ctrl-C is for the command to handle: the JVM must live on to end the job in order.
                start_new_session=True,
                pass_fds=self._keep_open,
            )
        self._pump = threading.Thread(target=self._pump_output, name="flink-output", daemon=True)
        self._pump.start()
        self._connect(connection)

    def _jvm_arguments(self, conf: Path) -> list[str]:
        chosen = [word for name in JVM_OPTIONS for word in self.options.get(name, "").split()]
        return [
            "-XX:+IgnoreUnrecognizedVMOptions",
            f"-XX:ErrorFile={str(self.folder).replace('%', '%%')}/hs_err_%p.log",
            "-XX:+DisplayVMOutputToStderr",
            "-XX:-CreateCoredumpOnCrash",
            *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED),
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
            "-Dfile.encoding=UTF-8",
            "-Dstdout.encoding=UTF-8",
            f"-Dlog.file={self.log_file}",
            # In the pattern for rolled files a % of the path itself would start a conversion.
            f"-Dlog.pattern={str(self.log_file).replace('%', '%%')}",
            f"-Dlog4j.configurationFile={conf / 'log4j.properties'}",
            *chosen,
        ]

    def _connect(self, connection: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not connection.exists():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                said = self.error_file.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
                msg = f"Flink's JVM did not start: {said or 'it gave no reason'}"
                raise ClusterFault(msg)
            time.sleep(0.01)
        port = struct.unpack("!I", connection.read_bytes()[:4])[0]
        with quiet_imports():
            from pyflink import java_gateway
        # The documented way to make PyFlink use a gateway that runs already.
        os.environ["PYFLINK_GATEWAY_PORT"] = str(port)
        try:
            java_gateway.get_gateway()
        finally:
            del os.environ["PYFLINK_GATEWAY_PORT"]

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
            msg = f"the embedded Flink cluster did not start: {_java_sentence(error)} (log: {self.log_file})"
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
            "io.tmp.dirs": str(self._scratch),
            "web.upload.dir": str(self._scratch),
            "web.submit.enable": "false",
        }
        return {**defaults, **self.options, **own}

    def _pump_output(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            return
        with process.stdout as lines:
            for line in lines:
                self._on_output(line.decode("utf-8", errors="replace").rstrip("\r\n"))


def _jars(flink_home: Path) -> list[str]:
    # flink-python is among Flink's own jars here: loaded once per job instead, the second job of a JVM fails.
    jars = [*sorted((flink_home / "lib").glob("*.jar")), *sorted((flink_home / "opt").glob("flink-python-*.jar"))]
    return [str(jar) for jar in jars]


def _preload() -> None:
    """Import what PyFlink imports only when the first operator is added to a stream."""
    with quiet_imports():
        from pyflink.fn_execution import flink_fn_execution_pb2  # noqa: F401


def _forget_gateway() -> None:
    """Let the next cluster of this process connect PyFlink anew."""
    java_gateway: Any = sys.modules.get("pyflink.java_gateway")
    gateway = getattr(java_gateway, "_gateway", None)
    if java_gateway is None or gateway is None:
        return
    java_gateway._gateway = None
    # Java objects are still referred to here. Said to be connected, each would call for its release when collected.
    gateway._gateway_client.is_connected = False
    gateway.close(keep_callback_server=False, close_callback_server_connections=True)


def _java_sentence(error: Exception) -> str:
    """Return the innermost message of a Java exception that py4j brought over."""
    from flink_agents.cluster.causes import root_cause

    text = str(error)
    trace = text.split("\n: ", 1)[-1]
    return root_cause(trace).summary
