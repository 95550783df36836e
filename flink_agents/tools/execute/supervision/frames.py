"""Messages between a TaskManager and its supervisors: a JSON header and byte strings over a stream socket."""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import Any, NamedTuple

__all__ = ["Frame", "FrameReader", "send_frame"]

_LENGTH = struct.Struct("!I")
_READ_BYTES = 1 << 16


class Frame(NamedTuple):
    """One message."""

    header: dict[str, Any]
    blobs: list[bytes]


def send_frame(link: socket.socket, header: dict[str, Any], *blobs: bytes) -> None:
    """Send one message in full. Raises ``OSError`` when the other side is gone."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    link.sendall(b"".join([_LENGTH.pack(len(text)), text, *blobs]))


class FrameReader:
    """Puts messages together from what a non-blocking socket has; ``ended`` once the other side closed."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._buffer = bytearray()
        self.ended = False

    def pull(self) -> None:
        """Take what has arrived; returns at once."""
        # Asked first: on a socket with a time-out Python waits, whatever the flags of a call say.
        while not self.ended and self._poll.poll(0):
            try:
                data = self._link.recv(_READ_BYTES)
            except OSError:
                data = b""
            self._buffer += data
            self.ended = not data

    def next(self) -> Frame | None:
        """Return the next whole message, or None."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        body = _LENGTH.size + length
        if len(self._buffer) < body:
            return None
        header = json.loads(bytes(self._buffer[_LENGTH.size : body]))
        sizes = header.pop("blobs")
        if len(self._buffer) < body + sum(sizes):
            return None
        blobs = []
        for size in sizes:
            blobs.append(bytes(self._buffer[body : body + size]))
            body += size
        del self._buffer[:body]
        return Frame(header, blobs)
