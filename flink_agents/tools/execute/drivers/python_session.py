"""Stand-alone: the program of a Python session. Runs each call's code in the same module, whose names survive.

A call is three integers (number, bytes of code, bytes of standard input or -1) and the two texts; its end is two
integers, number and exit code. Number 0 says that the program is ready.
"""

from __future__ import annotations

import ast
import io
import linecache
import os
import struct
import sys
import traceback
import types
from typing import Any, BinaryIO

ASK = struct.Struct("!iii")
TOLD = struct.Struct("!ii")


def main() -> None:
    """Serve calls until there are no more."""
    asks, tells = 3, 4
    for fd in (asks, tells):
        os.set_inheritable(fd, False)
    own = os.getpid()
    outputs = [os.dup(fd) for fd in (1, 2)]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [""]
    sys.path[0] = ""
    stream = os.fdopen(asks, "rb")
    os.write(tells, TOLD.pack(0, 0))
    while (call := _read(stream)) is not None:
        number, code, stdin = call
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8", errors="backslashreplace")
        sys.stdout, sys.stderr = (_writer(kept, fd) for fd, kept in enumerate(outputs, start=1))
        exit_code = _run(code, module.__dict__, f"<call {number}>")
        if os.getpid() != own:
            # A copy that the code made and that came back here: calls are not its business.
            os._exit(0)
        for output in (sys.stdout, sys.stderr):
            try:
                output.flush()
            except Exception:  # the code closed it, or put something else in its place
                continue
        os.write(tells, TOLD.pack(number, exit_code))


def _writer(kept: int, fd: int) -> io.TextIOWrapper:
    """Return an output of one call, whatever the one before did to its own. Unbuffered: a time-out loses nothing."""
    os.dup2(kept, fd)
    raw: Any = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def _read(stream: BinaryIO) -> tuple[int, str, bytes] | None:
    head = stream.read(ASK.size)
    if len(head) < ASK.size:
        return None
    number, code_bytes, stdin_bytes = ASK.unpack(head)
    code = stream.read(code_bytes).decode("utf-8", "surrogatepass")
    return number, code, stream.read(stdin_bytes) if stdin_bytes > 0 else b""


def _run(code: str, names: dict[str, Any], name: str) -> int:
    """Run the code; the value of an expression at its end is shown, as in an interactive session."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        tree = ast.parse(code, name)
    except Exception as error:
        _show(error.with_traceback(None))
        return 1
    try:
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            del tree.body[-1]
        exec(compile(tree, name, "exec", dont_inherit=True), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), names)
            if value is not None:
                names["_"] = value
                sys.stdout.write(f"{value!r}\n")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return int(ended.code or 0) & 0xFF
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except BaseException as error:
        _show(error)
        return 1
    return 0


def _show(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        traceback.print_exception(type(error), error, trace)
    except Exception:  # its own text cannot be made
        sys.stderr.write(f"{type(error).__name__}\n")


if __name__ == "__main__":
    main()
