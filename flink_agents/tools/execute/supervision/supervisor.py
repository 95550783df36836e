"""One supervisor: runs one command, or one session of many calls, and ends the whole tree below it.

It answers over its link and believes nothing else: the link's end is the death of the TaskManager.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
import traceback
from typing import Any

from flink_agents.tools.execute.supervision.capture import Capture
from flink_agents.tools.execute.supervision.frames import Frame, FrameReader, send_frame
from flink_agents.tools.execute.supervision.linux import leave_network
from flink_agents.tools.execute.supervision.tree import CannotStart, Tree, Wakeup

__all__ = ["READY_S", "supervise"]

READY_S = 60.0
"""How long the program of a session may take until it is ready for its first call."""

_ASK = struct.Struct("!iii")
_TOLD = struct.Struct("!ii")
_FOREVER_S = 3600.0


def supervise(link: socket.socket) -> None:
    """Serve one link to its end. Raises nothing: what goes wrong here is told to the TaskManager."""
    supervisor = _Supervisor(link)
    try:
        supervisor.serve()
    except CannotStart as failure:
        supervisor.tell({"failure": str(failure)})
    except OSError:
        # The TaskManager is gone; nobody is left to tell.
        supervisor.tree.kill()
    except BaseException:
        supervisor.tell({"failure": f"the supervisor failed: {traceback.format_exc(limit=-3)}"})
    finally:
        supervisor.tree.kill()


class _Supervisor:
    """The state of one supervisor; a single thread."""

    def __init__(self, link: socket.socket) -> None:
        self._wakeup = Wakeup()
        self.tree = Tree(self._wakeup)
        self._link = link
        self._frames = FrameReader(link)
        self._captures: list[Capture] = []
        self._killed: set[int] = set()
        self._calls: list[Frame] = []
        self._asking = bytearray()
        self._ask_end = self._told_end = -1
        self._told = bytearray()
        self._ready = False
        self._stopped = False
        signal.signal(signal.SIGTERM, self._stop)

    def serve(self) -> None:
        """Read what to do, and do it."""
        self.tell({"pid": os.getpid()})
        while not self._calls and not self._is_over:
            self._wait(_FOREVER_S)
        if self._is_over:
            return
        first = self._calls.pop(0)
        kind = first.header["kind"]
        if kind == "run":
            self._run(first)
        elif kind == "session":
            self._session(first)
        else:
            self._probe()

    def tell(self, header: dict[str, Any], *blobs: bytes) -> None:
        """Answer; a TaskManager that is gone hears nothing."""
        with contextlib.suppress(OSError):
            send_frame(self._link, header, *blobs)

    def _stop(self, *_: Any) -> None:
        self._stopped = True

    @property
    def _is_over(self) -> bool:
        return self._stopped or self._frames.ended

    def _probe(self) -> None:
        try:
            leave_network()
        except OSError as error:
            self.tell({"failure": str(error.strerror or error)})
        else:
            self.tell({"ready": True})

    def _start(self, ask: dict[str, Any], stdin: int, extra: list[int]) -> None:
        self._captures = [Capture(ask["output"]), Capture(ask["output"])]
        fds = [stdin, *(capture.write_end for capture in self._captures), *extra]
        self.tree.start(ask["argv"], ask["cwd"], ask["env"], fds, ask["limits"])
        for capture in self._captures:
            capture.close_write_end()

    def _run(self, frame: Frame) -> None:
        ask = frame.header
        stdin = os.open(os.devnull, os.O_RDONLY)
        if frame.blobs:
            os.close(stdin)
            stdin = os.memfd_create("stdin")
            with open(os.dup(stdin), "wb") as file:
                file.write(frame.blobs[0])
            os.lseek(stdin, 0, os.SEEK_SET)
        began = time.monotonic()
        self._start(ask, stdin, [])
        os.close(stdin)
        timed_out = self._watch(1, began, ask)
        self._end(1, began, timed_out, None)

    def _watch(self, number: int, began: float, ask: dict[str, Any]) -> bool:
        """Wait for the end of call ``number`` of this supervisor; return whether its time ran out.

        A kill that was asked for, or the end of the TaskManager, is an end as well. At the time limit the tree is asked
        to terminate, and has the grace for that.
        """
        limit = began + ask["time_limit_ms"] / 1000
        while True:
            self.tree.reap()
            if self._has_ended(number):
                return False
            left = limit - time.monotonic()
            if left <= 0:
                break
            self._wait(left)
        self.tree.send(signal.SIGTERM)
        limit = time.monotonic() + ask["grace_ms"] / 1000
        while self.tree.reap() and not self._is_killed(number):
            left = limit - time.monotonic()
            if left <= 0:
                break
            self._wait(left)
        return True

    def _is_killed(self, number: int) -> bool:
        return self._is_over or number in self._killed

    def _has_ended(self, number: int) -> bool:
        return self.tree.status is not None or self._is_killed(number) or self._answered(number) is not None

    def _end(self, number: int, began: float, timed_out: bool, exit_code: int | None) -> None:
        """End the tree and tell how call ``number`` ended."""
        killed = self.tree.status is None and not timed_out and self._is_killed(number)
        left = not self.tree.kill()
        duration_ms = round((time.monotonic() - began) * 1000)
        if left:
            self.tell({"failure": "processes were left that could not be killed"})
        elif killed or (timed_out and self._is_killed(number)):
            self.tell({"killed": True})
        else:
            code = self.tree.status if exit_code is None else exit_code
            self._tell_result({"exit_code": code, "timed_out": timed_out, "duration_ms": duration_ms, "ended": True})

    def _tell_result(self, result: dict[str, Any]) -> None:
        blobs: list[bytes] = []
        left_out = []
        for capture in self._captures:
            capture.pull()
            head, tail, left = capture.take()
            blobs += [head, tail]
            left_out.append(left)
        self.tell({**result, "left_out": left_out}, *blobs)

    def _session(self, frame: Frame) -> None:
        ask = frame.header
        asked, self._ask_end = os.pipe()
        self._told_end, told = os.pipe()
        for end in (self._ask_end, self._told_end):
            os.set_blocking(end, False)
        stdin = os.open(os.devnull, os.O_RDONLY)
        self._start(ask, stdin, [asked, told])
        for fd in (stdin, asked, told):
            os.close(fd)
        idle_s = ask["idle_ms"] / 1000
        until = time.monotonic() + idle_s
        while not self._is_over:
            self.tree.reap()
            if self._calls:
                if not self._call(self._calls.pop(0), ask):
                    return
                until = time.monotonic() + idle_s
            left = until - time.monotonic()
            if self.tree.status is not None or left <= 0:
                return
            self._wait(left)

    def _call(self, frame: Frame, ask: dict[str, Any]) -> bool:
        """Run one call of a session; return whether the session goes on."""
        number = frame.header["number"]
        self._await_ready(number)
        # What came between the calls is nobody's; what a program wrote that did not even start tells why.
        for capture in self._captures if self._ready else ():
            capture.pull()
            capture.take()
        self.tell({"begun": number})
        began = time.monotonic()
        if ask["limits"].get("call_cpu_s") is not None:
            self.tree.allow_cpu(ask["limits"]["call_cpu_s"])
        code, stdin = frame.blobs[0], frame.blobs[1] if len(frame.blobs) > 1 else None
        self._asking += _ASK.pack(number, len(code), -1 if stdin is None else len(stdin)) + code + (stdin or b"")
        timed_out = self._watch(number, began, {**frame.header, "grace_ms": ask["grace_ms"]})
        exit_code = self._answered(number)
        if timed_out or exit_code is None:
            self._end(number, began, timed_out, None)
            return False
        duration_ms = round((time.monotonic() - began) * 1000)
        self._tell_result({"exit_code": exit_code, "timed_out": False, "duration_ms": duration_ms, "ended": False})
        return True

    def _await_ready(self, number: int) -> None:
        """Wait until the session's program is ready, which is not the call's time; or until call ``number`` is over."""
        limit = time.monotonic() + READY_S
        while not self._ready and not self._has_ended(number):
            left = limit - time.monotonic()
            if left <= 0:
                raise CannotStart("the program of the session does not become ready")
            self._wait(left)
            self.tree.reap()
            self._ready = self._answered(0) is not None

    def _answered(self, number: int) -> int | None:
        """Return the exit code that the session's program told for call ``number``."""
        for place in range(0, len(self._told) - _TOLD.size + 1, _TOLD.size):
            told, code = _TOLD.unpack_from(self._told, place)
            if told == number:
                return int(code)
        return None

    def _wait(self, seconds: float) -> None:
        """Wait until something happens, then take note of it."""
        reads: list[Any] = [self._link, self._wakeup.fd]
        reads += [capture.read_end for capture in self._captures if not capture.ended]
        if self._told_end >= 0:
            reads.append(self._told_end)
        writes = [self._ask_end] if self._asking else []
        select.select(reads, writes, [], min(seconds, _FOREVER_S))
        self._wakeup.clear()
        for capture in self._captures:
            capture.pull()
        self._talk()
        self._frames.pull()
        while (frame := self._frames.next()) is not None:
            if "kill" in frame.header:
                self._killed.add(frame.header["kill"])
            else:
                self._calls.append(frame)

    def _talk(self) -> None:
        """Hand on what the session's program is to be asked, and read what it told."""
        if self._asking:
            try:
                del self._asking[: os.write(self._ask_end, self._asking)]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                # The program is gone or closed its end; its exit or the time limit says which.
                self._asking.clear()
        if self._told_end < 0:
            return
        try:
            data = os.read(self._told_end, 4096)
        except BlockingIOError:
            return
        if data:
            # Calls come one by one: what was told for earlier ones is of no use any more.
            self._told = (self._told + data)[-64 * _TOLD.size :]
        else:
            os.close(self._told_end)
            self._told_end = -1
