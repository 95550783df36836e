"""The JVM that PyFlink builds jobs in: its py4j gateway, which belongs to this process and is gone with it.

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
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from flink_agents.cluster.java import choose_java, jvm_environment
from flink_agents.cluster.jvm import class_path, jvm_arguments, write_configuration
from flink_agents.cluster.libpython import require_shared_library
from flink_agents.cluster.quiet import quiet_imports
from flink_agents.errors import ClusterFault, JvmDied

__all__ = ["Gateway", "java_sentence", "preload"]

GATEWAY = "org.apache.flink.client.python.PythonGatewayServer"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0

# Of Flink's option for JVM arguments, the two that are about the JVM we start.
JVM_OPTIONS = ("env.java.opts.all", "env.java.opts.taskmanager")


class Gateway:
    """One JVM, one at a time in a process. A context manager, or call :meth:`start` and :meth:`close`.

    Args:
        folder: where logs and temporary files go; made if missing.
        options: Flink options, of which ``env.java.opts.all`` is for the JVM.
        on_output: called for each line that the JVM prints, on a thread of its own.
        keep_open: file descriptors that the JVM is to hold as long as it lives.
    """

    _running: ClassVar[Gateway | None] = None

    def __init__(
        self,
        folder: Path,
        *,
        options: Mapping[str, str] | None = None,
        on_output: Callable[[str], None] | None = None,
        keep_open: Sequence[int] = (),
    ) -> None:
        self.folder = folder.absolute()
        self.options = dict(options or {})
        self.log_file = self.folder / "flink.log"
        self.error_file = self.folder / "jvm.log"
        self._on_output = on_output or (lambda line: None)
        self._keep_open = tuple(keep_open)
        self._process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        self._scratch: Path | None = None

    def __enter__(self) -> Gateway:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def scratch(self) -> Path:
        """A folder for temporary files, which goes with the JVM."""
        if self._scratch is None:
            msg = "Flink's JVM is not running"
            raise ClusterFault(msg)
        return self._scratch

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        if self._process is None:
            msg = "Flink's JVM is not running"
            raise ClusterFault(msg)
        return self._process.pid

    def start(self) -> None:
        """Start the JVM and connect PyFlink to it. Call :meth:`close` also when it fails.

        Raises:
            ClusterFault: if there is no usable Java, another such JVM runs for this process, or it does not come up.
        """
        if Gateway._running is not None:
            msg = "an embedded cluster already runs in this process; close it first, or submit the job to it"
            raise ClusterFault(msg)
        Gateway._running = self
        self.folder.mkdir(parents=True, exist_ok=True)
        self._scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=self.folder))
        conf = self._scratch / "conf"
        write_configuration(conf, {})
        require_shared_library()
        java = choose_java(os.environ)
        connection = self._scratch / "gateway"
        environ = jvm_environment(os.environ, Path(sys.executable), java, conf)
        environ["_PYFLINK_CONN_INFO_PATH"] = str(connection)
        chosen = [word for name in JVM_OPTIONS for word in self.options.get(name, "").split()]
        command = [
            str(java.executable),
            *jvm_arguments(self.folder, self.log_file, conf, chosen),
            "-cp",
            class_path(),
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

    def environment(self, options: Mapping[str, str], address: str) -> Any:
        """Return a ``StreamExecutionEnvironment`` whose jobs go to the cluster at the URL, in PyFlink's thread mode.

        ``env.execute_async(name)`` submits and returns at once; the job id is ``get_job_id()`` of what it returns.
        """
        with quiet_imports():
            from pyflink.datastream import StreamExecutionEnvironment
            from pyflink.java_gateway import get_gateway

        jvm = get_gateway().jvm
        host, _, port = address.rpartition("//")[2].rpartition(":")
        configuration = jvm.org.apache.flink.configuration.Configuration()
        own = {
            "execution.target": "remote",
            "rest.address": host,
            "rest.port": port,
            "python.execution-mode": "thread",
            # Asked on this machine only; which Python a TaskManager takes is decided by its PATH.
            "python.client.executable": sys.executable,
        }
        for name, value in {**options, **own}.items():
            configuration.setString(name, value)
        return StreamExecutionEnvironment(jvm.StreamExecutionEnvironment(configuration))

    def submit(self, name: str, options: Mapping[str, str], build: Callable[[Any], None], address: str) -> str:
        """Make an environment, let ``build`` put a topology on it, submit it as job ``name``, return the job id.

        Raises:
            ClusterFault: if Flink refuses the job or an option; a job that fails later is seen over REST.
        """
        with quiet_imports():
            from py4j.protocol import Py4JError

        try:
            env = self.environment(options, address)
            build(env)
            return str(env.execute_async(name).get_job_id())
        except Py4JError as error:
            self.check_alive()
            msg = f"Flink refused the job: {java_sentence(error)}"
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
        """Stop the JVM and all that runs in it; safe to call again, and after a start that failed.

        Waits at most some seconds, then kills; with ``at_once`` kills.
        """
        if Gateway._running is self:
            Gateway._running = None
            _forget_gateway()
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

    def _pump_output(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            return
        with process.stdout as lines:
            for line in lines:
                self._on_output(line.decode("utf-8", errors="replace").rstrip("\r\n"))


def preload() -> None:
    """Import what PyFlink imports only when the first operator is added to a stream."""
    with quiet_imports():
        from pyflink.fn_execution import flink_fn_execution_pb2  # noqa: F401


def java_sentence(error: Exception) -> str:
    """Return the innermost message of a Java exception that py4j brought over."""
    from flink_agents.cluster.causes import root_cause

    text = str(error)
    trace = text.split("\n: ", 1)[-1]
    return root_cause(trace).summary


def _forget_gateway() -> None:
    """Let the next JVM of this process connect PyFlink anew."""
    java_gateway: Any = sys.modules.get("pyflink.java_gateway")
    gateway = getattr(java_gateway, "_gateway", None)
    if java_gateway is None or gateway is None:
        return
    java_gateway._gateway = None
    # Java objects are still referred to here. Said to be connected, each would call for its release when collected.
    gateway._gateway_client.is_connected = False
    gateway.close(keep_callback_server=False, close_callback_server_connections=True)
