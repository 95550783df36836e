"""Values layer: any exception at all as a bounded record, and back to something the same ``except`` clauses catch."""

from __future__ import annotations

import builtins
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

from flink_agents import codec
from flink_agents.errors import CallError, InvalidArguments, RecordedError, StateFormat
from flink_agents.redaction import NO_SECRETS, Redaction

__all__ = ["RecordedFailure", "capture"]

MESSAGE_LIMIT = 4 * 1024
TRACE_LIMIT = 16 * 1024
LINKED_TRACE_LIMIT = 4 * 1024
TRACE_FRAMES = 40
ARGUMENTS_LIMIT = 8 * 1024
EXPECTED_LIMIT = 64 * 1024
NAME_LIMIT = 500
CHAIN_DEPTH = 8
MAX_MEMBERS = 16
# Chains fork: a cause, a context and the members of a group each have chains of their own.
MAX_RECORDS = 32

# Exception groups came with Python 3.11.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)

KINDS = frozenset(
    (
        "tool_error",
        "invalid_arguments",
        "unknown_tool",
        "injection",
        "timeout",
        "not_started",
        "in_doubt",
        "fatal",
        "too_large",
        "unserializable",
    )
)


@dataclass(frozen=True)
class RecordedFailure:
    """What is kept of an exception. All texts are bounded; a marker in them says how much was cut.

    ``args`` (a list) and ``state`` (attributes) are value texts of the codec, None where it cannot carry them.
    ``bases`` are the import paths of the exception classes in its method resolution order, its own first, as far as
    they can be imported. ``context_is_cause`` stands for a context that is the very object of the cause. ``group`` is
    the message of an exception group, ``members`` are its exceptions. What chain and members had beyond the bounds is
    stood for by a last link that says how many were left out.
    """

    kind: str
    type_name: str
    module: str
    qualname: str
    message: str
    trace: str = ""
    args: str | None = None
    state: str | None = None
    bases: tuple[str, ...] = ()
    cause: RecordedFailure | None = None
    context: RecordedFailure | None = None
    context_is_cause: bool = False
    suppress: bool = False
    group: str | None = None
    members: tuple[RecordedFailure, ...] = ()
    expected: Any = None

    def error(self) -> dict[str, Any]:
        """Return ``{"kind", "type", "message", "expected"?}`` as the response carries it; the message is not empty."""
        error = {"kind": self.kind, "type": self.type_name, "message": self.message or self.type_name}
        if self.expected is not None:
            error["expected"] = self.expected
        return error

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object without the fields that have their default; savepoint format 1."""
        record: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is not MISSING and value == field.default:
                continue
            if isinstance(value, RecordedFailure):
                value = value.to_json()
            elif field.name == "members":
                value = [member.to_json() for member in value]
            elif field.name == "bases":
                value = list(value)
            record[field.name] = value
        return record

    @classmethod
    def from_json(cls, record: Any) -> RecordedFailure:
        """Return the failure that ``to_json`` wrote.

        Raises:
            StateFormat: for an object of another shape.
        """
        try:
            values = dict(record)
            for name in ("cause", "context"):
                if name in values:
                    values[name] = cls.from_json(values[name])
            values["members"] = tuple([cls.from_json(member) for member in values.get("members", ())])
            values["bases"] = tuple(values.get("bases", ()))
            return cls(**values)
        except (TypeError, ValueError) as error:
            message = f"a stored failure cannot be read: {error}"
            raise StateFormat(message) from error

    def rebuild(self) -> BaseException:
        """Return an exception that every clause which caught the original catches; ``str``, type name, chain are equal.

        It is of the original class, made without its constructor, where that class can be imported and ``str`` comes
        out equal. Else its class is made up with the same name and derives from ``RecordedError`` and every importable
        base of the original. (Where the original was no ``Exception``, it derives from its bases only: an ``except
        Exception`` must not catch now what it let pass then.) Attributes come back as far as the codec carries them.
        There is no traceback; its text is in ``trace``. Imports the modules of recorded classes. Any thread.
        """
        error = self._of_own_class() or self._of_made_up_class()
        cause = None if self.cause is None else self.cause.rebuild()
        context = None if self.context is None else self.context.rebuild()
        # Past the class: a frozen one refuses its own attributes.
        object.__setattr__(error, "__cause__", cause)
        object.__setattr__(error, "__context__", cause if self.context_is_cause else context)
        object.__setattr__(error, "__suppress_context__", self.suppress)
        return error

    def _of_own_class(self) -> BaseException | None:
        own = f"{self.module}:{self.qualname}"
        cls = _exception_class(own) if own in self.bases else None
        return None if cls is None else self._instance(cls)

    def _of_made_up_class(self) -> BaseException:
        found = [cls for cls in map(_exception_class, self.bases) if cls is not None]
        nearest: list[type[BaseException]] = []
        for cls in found:
            if not any(issubclass(nearer, cls) for nearer in nearest):
                nearest.append(cls)
        is_exception = not found or any(issubclass(cls, Exception) for cls in found)
        # Some classes do not combine, or refuse to be derived from: then less of them, at last what is always there.
        builtin = [cls for cls in found if cls.__module__ == "builtins"]
        for bases in (nearest, *([cls] for cls in (*nearest[:1], *builtin))):
            known = any(issubclass(cls, RecordedError) for cls in bases)
            try:
                cls = _named_subclass(self, bases if known or not is_exception else [RecordedError, *bases])
            except Exception:
                continue
            error = self._instance(cls)
            if error is not None:
                return error
        return RecordedError(self.message)

    def _instance(self, cls: type[BaseException]) -> BaseException | None:
        """Return an instance of ``cls`` with the recorded content, or None if that does not give the same text.

        Neither constructor nor attribute hooks of the class run: only those of the built-in class it rests on.
        """
        solid = _solid_base(cls)
        try:
            if self.group is not None and _GROUP is not None and issubclass(cls, _GROUP):
                error = _GROUP.__new__(cls, self.group, [member.rebuild() for member in self.members])
            else:
                args = [self.message] if self.args is None else codec.decode(self.args)
                error = solid.__new__(cls, *args)
                try:
                    solid.__init__(error, *args)
                except TypeError:
                    # A built-in class that needs more than a message stays as it was made: it is still what is caught.
                    if self.args is not None:
                        raise
            state = {} if self.state is None else codec.decode(self.state)
            if issubclass(cls, InvalidArguments):
                state["expected"] = self.expected
            for name, value in state.items():
                object.__setattr__(error, name, value)
        except Exception:
            return None
        return error if _message(error) == self.message else None


def _exception_class(path: str) -> type[BaseException] | None:
    try:
        cls = codec.imported(path)
    except LookupError:
        return None
    return cls if issubclass(cls, BaseException) else None


def _solid_base(cls: type[BaseException]) -> type[BaseException]:
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _named_subclass(failure: RecordedFailure, bases: list[type[BaseException]]) -> type[BaseException]:
    message = failure.message
    body = {"__module__": failure.module, "__qualname__": failure.qualname, "__str__": lambda _: message}
    return type(failure.type_name, tuple(bases), body)


def capture(exc: BaseException, secrets: Redaction = NO_SECRETS) -> RecordedFailure:
    """Return the bounded record of any exception, with its chain. Any thread; never raises, whatever the class does.

    ``kind`` is that of a ``CallError`` and ``tool_error`` for everything else, also for a TimeoutError that a tool
    raised itself. Texts are recorded without the ``secrets``; arguments and attributes that hold one are left out.
    """
    try:
        return _Recorder(secrets).record(exc, 0)
    except Exception as error:
        # A class that breaks even the reading of its name and chain: its kind of failure is all that is left to keep.
        return _bare(exc, f"not recorded in full: {type(error).__name__}", secrets)


def _bare(exc: BaseException, why: str, secrets: Redaction) -> RecordedFailure:
    try:
        solid = _solid_base(type(exc)).__name__
        message = _message(exc, secrets)
    except Exception:
        # Not even its bases can be read (a metaclass may do that); what C knows of a class cannot be overridden.
        solid = "Exception" if issubclass(type(exc), Exception) else "BaseException"
        message = "an exception that cannot be read"
    return RecordedFailure("tool_error", solid, "", "", f"{message} [{why}]", bases=(f"builtins:{solid}",))


class _Recorder:
    """Records one exception with its chain, within the bounds."""

    def __init__(self, secrets: Redaction) -> None:
        self._secrets = secrets
        self._records_left = MAX_RECORDS
        self._open: set[int] = set()

    def record(self, exc: BaseException, depth: int) -> RecordedFailure:
        self._records_left -= 1
        self._open.add(id(exc))
        cls = type(exc)
        secrets = self._secrets
        message = _message(exc, secrets)
        args, state = _content(exc, secrets)
        cause, context = exc.__cause__, exc.__context__
        group = None
        members: list[RecordedFailure] = []
        if _GROUP is not None and isinstance(exc, _GROUP):
            group, args = codec.cut(secrets.text(str(exc.message)), MESSAGE_LIMIT), None
            members = self._members(exc.exceptions, depth)
        failure = RecordedFailure(
            kind=exc.kind if isinstance(exc, CallError) and exc.kind in KINDS else "tool_error",
            type_name=codec.cut(cls.__name__, NAME_LIMIT),
            module=codec.cut(str(cls.__module__), NAME_LIMIT),
            qualname=codec.cut(cls.__qualname__, NAME_LIMIT),
            message=message,
            trace=_trace(exc, message, LINKED_TRACE_LIMIT if depth else TRACE_LIMIT, secrets),
            args=args,
            state=state,
            bases=tuple(_importable_bases(cls)),
            cause=self._link(cause, depth),
            context=None if context is cause else self._link(context, depth),
            context_is_cause=context is not None and context is cause,
            suppress=exc.__suppress_context__,
            group=group,
            members=tuple(members),
            expected=_expected(exc),
        )
        self._open.discard(id(exc))
        return failure

    def _link(self, exc: BaseException | None, depth: int) -> RecordedFailure | None:
        if exc is None or id(exc) in self._open:
            return None
        if depth + 1 >= CHAIN_DEPTH or self._records_left <= 0:
            return _left_out(_chain_length(exc))
        return self.record(exc, depth + 1)

    def _members(self, exceptions: tuple[BaseException, ...], depth: int) -> list[RecordedFailure]:
        members: list[RecordedFailure] = []
        for member in exceptions[:MAX_MEMBERS]:
            if depth + 1 >= CHAIN_DEPTH or self._records_left <= 0:
                break
            members.append(self.record(member, depth + 1))
        left = len(exceptions) - len(members)
        return [*members, _left_out(left)] if left else members


def _left_out(count: int) -> RecordedFailure:
    message = f"[{count} more exceptions left out]"
    path = (RecordedError.__module__, RecordedError.__qualname__)
    return RecordedFailure("tool_error", RecordedError.__name__, *path, message, bases=(":".join(path),))


def _chain_length(exc: BaseException | None) -> int:
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        exc = exc.__cause__ or exc.__context__
    return len(seen)


def _message(exc: BaseException, secrets: Redaction = NO_SECRETS) -> str:
    try:
        text = str(exc)
    except BaseException as error:  # whatever a user's __str__ raises, the failure must be recorded
        text = f"<{type(exc).__name__}, whose str() raises {type(error).__name__}>"
    # Before it is cut: half a secret is one too.
    return codec.cut(secrets.text(text), MESSAGE_LIMIT)


def _trace(exc: BaseException, message: str, limit: int, secrets: Redaction) -> str:
    frames = 0
    step = exc.__traceback__
    while step is not None:
        frames, step = frames + 1, step.tb_next
    try:
        stack = traceback.extract_tb(exc.__traceback__, limit=-TRACE_FRAMES)
        roots = _import_roots()
        for frame in stack:
            # Its source line is read by now.
            frame.filename = _shown_file(frame.filename, roots)
        lines = secrets.text("".join(stack.format()))
    except Exception as error:
        lines = f"  <traceback cannot be written: {type(error).__name__}>\n"
    skipped = f"  [{frames - TRACE_FRAMES} frames left out]\n" if frames > TRACE_FRAMES else ""
    last = codec.cut(f"{type(exc).__name__}: {message}", limit // 4)
    return codec.cut(skipped + lines, limit - limit // 4) + last


def _import_roots() -> list[str]:
    """Return what modules are imported from, the innermost first."""
    # An editable installation need not be on the path.
    found = {os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep}
    for entry in map(str, sys.path):
        if os.path.isabs(entry):
            found.add(entry.rstrip(os.sep) + os.sep)
    found.discard(os.sep)
    return sorted(found, key=len, reverse=True)


def _shown_file(file: str, roots: list[str]) -> str:
    """Return the file as its module is named: where code is installed is nothing to keep, or to show to others."""
    if not os.path.isabs(file):
        return file
    return next((file[len(root) :] for root in roots if file.startswith(root)), os.path.basename(file))


def _content(exc: BaseException, secrets: Redaction) -> tuple[str | None, str | None]:
    """Return arguments and attributes as value texts; the built-in class knows which of its fields are neither."""
    try:
        reduced: Any = _solid_base(type(exc)).__reduce__(exc)
        args = list(reduced[1])
        state = dict(reduced[2] or {}) if len(reduced) > 2 else {}
    except Exception:
        return None, None
    if isinstance(exc, InvalidArguments):
        state.pop("expected", None)
    kept = {}
    room = ARGUMENTS_LIMIT
    for name, value in state.items():
        text = _encoded(value, room)
        if text is not None and not secrets.is_in(text):
            room -= len(text)
            kept[name] = value
    text = _encoded(args, ARGUMENTS_LIMIT)
    if text is not None and secrets.is_in(text):
        text = None
    return text, _encoded(kept, 2 * ARGUMENTS_LIMIT) if kept else None


def _encoded(value: Any, limit: int) -> str | None:
    try:
        return codec.encode(value, limit)
    except Exception:
        return None


def _importable_bases(cls: type[BaseException]) -> Iterator[str]:
    for base in cls.__mro__:
        path = codec.import_path(base) if issubclass(base, BaseException) else None
        if path is not None and len(path) <= NAME_LIMIT:
            yield path


def _expected(exc: BaseException) -> Any:
    expected = exc.expected if isinstance(exc, InvalidArguments) else None
    if expected is None:
        return None
    try:
        return codec.loads(codec.encode_plain(expected, EXPECTED_LIMIT))
    except CallError as error:
        return {"$comment": f"the schema is left out: {error}"}
