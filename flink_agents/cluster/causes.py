"""Finds, in a Java stack trace of Flink, the sentence that a Python user needs to read first."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Cause", "root_cause"]

PYTHON = re.compile(r"^(?:Caused by: )?pemja\.core\.PythonException: (?:<class '([^']+)'>: )?(.*)", re.DOTALL)
JAVA_FRAME = re.compile(r"^\s*(?:at [\w.$/<>]+\(|\.\.\. \d+ more|Suppressed: )")
PYTHON_FRAME = re.compile(r"^\s*at (\S.*)\((\S+\.py):(\d+)\)\s*$")
CAUSED_BY = "Caused by: "

# Java classes that only wrap what happened; their own text says nothing to a user.
WRAPPERS = re.compile(
    r"^(?:org\.apache\.flink\.util\.SerializedThrowable|java\.lang\.reflect\.InvocationTargetException"
    r"|java\.util\.concurrent\.(?:CompletionException|ExecutionException)|java\.lang\.RuntimeException)(?:: |$)"
)

RESTORING = re.compile(
    r"Exception while creating StreamOperatorStateContext|StateMigrationException|Failed to rollback to checkpoint"
    r"|Could not restore|Failed when trying to restore"
)


@dataclass(frozen=True)
class Cause:
    """Why a job failed. ``python`` is true if Python code raised it; ``text`` may have several lines, no Java in it.

    ``restoring``: it failed while it read the state of a checkpoint or savepoint.
    """

    python: bool
    summary: str
    text: str
    restoring: bool = False


def root_cause(stack_trace: str) -> Cause:
    """Return the innermost cause of a Java stack trace, the Python exception if there is one.

    A message that is itself a Python traceback is kept whole; the Java frames around it are left out.
    """
    blocks = _blocks(stack_trace)
    for head, frames in reversed(blocks):
        found = PYTHON.match(head)
        if found:
            return _python_cause(found[1], found[2].strip(), frames)
    heads = [_unwrapped(head) for head, _ in blocks]
    # Flink says which option it could not read in one exception, and why in another inside it.
    telling = [head for head in heads if "Could not parse value" in head] or [head for head in reversed(heads) if head]
    said = next(iter(telling), stack_trace.strip() or "no cause was reported")
    restoring = RESTORING.search(stack_trace) is not None
    return Cause(python=False, summary=said.splitlines()[0], text=said, restoring=restoring)


def _blocks(stack_trace: str) -> list[tuple[str, list[str]]]:
    """Cut a stack trace into (message, frames), one for each exception of the chain."""
    blocks: list[tuple[list[str], list[str]]] = []
    for line in stack_trace.splitlines():
        if not blocks or line.startswith(CAUSED_BY):
            blocks.append(([line], []))
        elif JAVA_FRAME.match(line) or PYTHON_FRAME.match(line):
            blocks[-1][1].append(line)
        elif not blocks[-1][1]:
            blocks[-1][0].append(line)
    return [("\n".join(head), frames) for head, frames in blocks]


def _python_cause(kind: str | None, message: str, frames: list[str]) -> Cause:
    name = (kind or "").removeprefix("builtins.")
    traced = message.find("Traceback (most recent call last):")
    if traced >= 0:
        # The operator put the whole traceback into the message; what stands before it is its own sentence.
        lead, trace = message[:traced].strip(), message[traced:].strip()
        last = next((line for line in reversed(trace.splitlines()) if line and not line[0].isspace()), trace)
        return Cause(python=True, summary=last, text=f"{lead}\n{trace}" if lead else trace)
    summary = f"{name}: {message}" if name and message else name or message
    calls = []
    for frame in frames:
        found = PYTHON_FRAME.match(frame)
        # pemja writes <module path>.<function>(<file>:<line>), innermost first; PyFlink's own frames are noise.
        if found and "/pyflink/" not in found[1]:
            module, _, function = found[1].rpartition(".")
            calls.append(f'  File "{module}.py", line {found[3]}, in {function}')
    trace_lines = ["Traceback (most recent call last):", *reversed(calls)] if calls else []
    return Cause(
        python=True, summary=summary.splitlines()[0] if summary else "", text="\n".join([*trace_lines, summary])
    )


def _unwrapped(head: str) -> str:
    text = head.removeprefix(CAUSED_BY)
    while True:
        shorter = WRAPPERS.sub("", text, count=1)
        if shorter == text:
            return text.strip()
        text = shorter
