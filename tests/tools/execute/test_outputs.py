"""What is kept of an output, and how it is shown."""

from __future__ import annotations

import os

import pytest

from flink_agents.tools.execute.outputs import output_text
from flink_agents.tools.execute.supervision.capture import Capture


def captured(limit: int, *pieces: bytes) -> tuple[bytes, bytes, int]:
    capture = Capture(limit)
    try:
        for piece in pieces:
            os.write(capture.write_end, piece)
            capture.pull()
        return capture.take()
    finally:
        capture.close()


@pytest.mark.rule(70)
def test_what_fits_is_kept_whole() -> None:
    assert output_text(*captured(10, b"01234", b"56789")) == ("0123456789", 0)
    assert output_text(*captured(10)) == ("", 0)


@pytest.mark.rule(70)
def test_of_more_the_beginning_and_the_end_are_kept() -> None:
    head, tail, left_out = captured(10, b"01234567", b"89", b"abcdefghijk", b"x" * 50_000, b"vwxyz")
    assert (head, tail) == (b"01234", b"vwxyz")
    assert output_text(head, tail, left_out) == ("01234\n[... 50016 bytes left out ...]\nvwxyz", 50016)


def test_taking_begins_anew() -> None:
    capture = Capture(4)
    os.write(capture.write_end, b"abcdef")
    capture.pull()
    assert capture.take() == (b"ab", b"ef", 2)
    assert capture.take() == (b"", b"", 0)
    capture.close()


@pytest.mark.rule(70)
def test_bytes_that_are_no_text_are_escaped() -> None:
    assert output_text(b"a\xff\xfe\x00z", b"", 0) == ("a\\xff\\xfe\x00z", 0)
    assert output_text(b"\xed\xa0\x80", b"", 0)[0] == "\\xed\\xa0\\x80"


@pytest.mark.rule(70)
@pytest.mark.parametrize("sign", ["é", "€", "😀"])
def test_a_character_that_was_cut_is_left_out_and_counted(sign: str) -> None:
    raw = sign.encode()
    for cut in range(1, len(raw)):
        text, left_out = output_text(b"ab" + raw[:cut], raw[cut:] + b"yz", 100)
        assert text == f"ab\n[... {100 + len(raw)} bytes left out ...]\nyz"
        assert left_out == 100 + len(raw)
    whole, left_out = output_text(b"ab" + raw, raw + b"yz", 100)
    assert (whole, left_out) == (f"ab{sign}\n[... 100 bytes left out ...]\n{sign}yz", 100)
