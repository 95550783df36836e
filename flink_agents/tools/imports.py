"""From ``module:attribute`` to the object it names, with every way this can fail told in full."""

from __future__ import annotations

import builtins
import importlib
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from flink_agents.errors import InvalidInput
from flink_agents.tools.refusal import nearest

__all__ = ["resolve", "resolve_exception"]


def resolve(reference: str, search_path: Sequence[str | Path] = ()) -> Any:
    """Import and return what ``reference`` names, as ``package.module:attribute.of.it``.

    ``search_path`` are folders to look in first. They stay on ``sys.path``: the module's own imports need them, also
    those that it makes when a tool runs. A module of the same name that another job loaded from another folder is
    imported anew if its text differs, so that one job never runs another's code.

    Raises:
        InvalidInput: if the reference is malformed, the module is not found or fails while it is imported, or the
            attribute does not exist; the message has the nearest name, or the failure with its file and line.
    """
    module_name, colon, path = reference.partition(":")
    steps = path.split(".")
    if not colon or not all(part.isidentifier() for part in [*module_name.split("."), *steps]):
        msg = f"{reference!r} is not of the form 'module:function'"
        raise InvalidInput(msg)
    _put_first(search_path)
    module = _import(reference, module_name, search_path)
    value: Any = module
    for step in steps:
        try:
            value = getattr(value, step)
        except AttributeError as error:
            known = [name for name in dir(value) if not name.startswith("_")]
            meant = nearest(step, known)
            holder = f"module {module_name!r}" if value is module else f"{value!r} of {module_name!r}"
            msg = f"{reference!r}: {holder} has no {step!r}" + (f"; did you mean {meant!r}?" if meant else "")
            raise InvalidInput(msg) from error
    return value


def resolve_exception(reference: str, search_path: Sequence[str | Path] = ()) -> type[BaseException]:
    """Return the exception class of a ``reference``: ``TimeoutError``, ``package.Name`` or ``package:Outer.Name``.

    Raises:
        InvalidInput: as ``resolve`` does, and for a name without a dot that is no built-in one's, or for what is no
            exception class.
    """
    if not reference.isidentifier():
        module, _, name = reference.rpartition(".")
        found = resolve(reference if ":" in reference else f"{module}:{name}", search_path)
    else:
        found = getattr(builtins, reference, None)
        if found is None:
            known = [name for name, value in vars(builtins).items() if _is_exception(value)]
            meant = nearest(reference, known)
            msg = f"{reference!r} is no built-in exception, and names no module" + (
                f"; did you mean {meant!r}?" if meant else ""
            )
            raise InvalidInput(msg)
    if not _is_exception(found):
        msg = f"{reference!r} is no exception class"
        raise InvalidInput(msg)
    return cast("type[BaseException]", found)


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _put_first(search_path: Iterable[str | Path]) -> None:
    for folder in reversed([str(folder) for folder in search_path]):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def _import(reference: str, name: str, search_path: Sequence[str | Path]) -> ModuleType:
    _forget_namesake(name, search_path)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            looked = ", ".join(str(folder) for folder in search_path) or "the Python path"
            meant = nearest(name, _modules_in(search_path))
            msg = f"{reference!r}: there is no module {error.name!r} in {looked} or among the installed packages"
            raise InvalidInput(msg + (f"; did you mean {meant!r}?" if meant else "")) from error
        raise InvalidInput(_failed_import(reference, name, error)) from error
    except (Exception, SystemExit) as error:
        # SystemExit too: a script without a main guard would otherwise end the command without a word.
        raise InvalidInput(_failed_import(reference, name, error)) from error


def _failed_import(reference: str, name: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
    else:
        # The import machinery's own frames say nothing about the user's module.
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
        place = f"{frames[-1].filename}:{frames[-1].lineno}"
    return f"{reference!r}: importing {name!r} failed at {place}: {type(error).__name__}: {error}"


def _modules_in(search_path: Iterable[str | Path]) -> list[str]:
    return [file.stem for folder in search_path for file in Path(folder).glob("*.py")]


def _forget_namesake(name: str, search_path: Iterable[str | Path]) -> None:
    loaded = sys.modules.get(name)
    ours = _source_in(name, search_path)
    theirs = getattr(loaded, "__file__", None)
    if ours is None or theirs is None or _same_text(Path(theirs), ours):
        return
    top = name.partition(".")[0]
    for other in [known for known in sys.modules if known == top or known.startswith(f"{top}.")]:
        del sys.modules[other]


def _source_in(name: str, search_path: Iterable[str | Path]) -> Path | None:
    relative = Path(*name.split("."))
    for folder in search_path:
        for candidate in (Path(folder) / relative / "__init__.py", Path(folder) / relative.with_suffix(".py")):
            if candidate.is_file():
                return candidate
    return None


def _same_text(theirs: Path, ours: Path) -> bool:
    if theirs == ours:
        return True
    try:
        return theirs.read_bytes() == ours.read_bytes()
    except OSError:
        # The folder of an earlier attempt is gone; what it held can no longer be compared.
        return False
