"""What of a stream is kept: its beginning and its end, within a bound, while the rest is counted."""

from __future__ import annotations

import contextlib
import os

__all__ = ["Capture"]

_READ_BYTES = 1 << 16


class Capture:
    """Reads one pipe. ``limit`` is in bytes: half of it for the beginning, the rest for the end."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.ended = False

    def close_write_end(self) -> None:
        """Leave the pipe to those who write to it."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def pull(self) -> None:
        """Take what lies in the pipe; returns at once."""
        # One look is bounded, or a process that writes without end would keep its supervisor here.
        for _ in range(64):
            if self.ended:
                return
            try:
                data = os.read(self.read_end, _READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            self.ended = not data
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit + _READ_BYTES:
            del self._tail[: len(self._tail) - self._tail_limit]

    def take(self) -> tuple[bytes, bytes, int]:
        """Return beginning, end and how many bytes between them were left out; then begin anew."""
        tail = bytes(self._tail[-self._tail_limit :]) if self._tail_limit else b""
        taken = bytes(self._head), tail, self._total - len(self._head) - len(tail)
        self._head, self._tail, self._total = bytearray(), bytearray(), 0
        return taken

    def close(self) -> None:
        """Close both ends."""
        self.close_write_end()
        with contextlib.suppress(OSError):
            os.close(self.read_end)
