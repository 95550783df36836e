"""From what a supervisor kept of the outputs to the result that a model reads."""

from __future__ import annotations

from typing import Any

from flink_agents.tools.execute.protocol import ExecuteResult
from flink_agents.tools.execute.supervision.frames import Frame

__all__ = ["output_text", "result_of"]

_LONGEST_CHARACTER = 4


def output_text(head: bytes, tail: bytes, left_out: int) -> tuple[str, int]:
    """Return one output as text, and how many bytes of it are not in there.

    Bytes that are no UTF-8 are shown as ``\\xff``. Where something was left out, a marker says how much.
    """
    if left_out == 0:
        return (head + tail).decode("utf-8", "backslashreplace"), 0
    head_cut, tail_cut = _partial_end(head), _partial_start(tail)
    left_out += head_cut + tail_cut
    begin, end = head[: len(head) - head_cut], tail[tail_cut:]
    marker = f"\n[... {left_out} bytes left out ...]\n"
    return marker.join(part.decode("utf-8", "backslashreplace") for part in (begin, end)), left_out


def _partial_end(data: bytes) -> int:
    """Return how many bytes at the end begin a character that was cut."""
    for count in range(1, min(_LONGEST_CHARACTER, len(data) + 1)):
        byte = data[-count]
        if byte & 0xC0 == 0x80:
            continue
        needed = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return count if needed > count else 0
    return 0


def _partial_start(data: bytes) -> int:
    """Return how many bytes at the beginning end a character that was cut."""
    count = 0
    while count < min(_LONGEST_CHARACTER - 1, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count


def result_of(frame: Frame, note: str = "") -> ExecuteResult:
    """Return the result that a supervisor told; ``note`` is added to the error output, on a line of its own."""
    told: dict[str, Any] = frame.header
    stdout, out_left = output_text(frame.blobs[0], frame.blobs[1], told["left_out"][0])
    stderr, err_left = output_text(frame.blobs[2], frame.blobs[3], told["left_out"][1])
    if note:
        stderr += ("\n" if stderr and not stderr.endswith("\n") else "") + note + "\n"
    return ExecuteResult(
        exit_code=told["exit_code"],
        stdout=stdout,
        stderr=stderr,
        timed_out=told["timed_out"],
        truncated_bytes=out_left + err_left,
        duration_ms=told["duration_ms"],
    )
