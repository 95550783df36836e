"""What is wrong with a job YAML, and where: the errors of ``config``, all of them carried by one exception."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flink_agents.errors import InvalidInput

__all__ = ["ConfigError", "ConfigErrors", "Place", "nearest", "one_of"]


@dataclass(frozen=True)
class Place:
    """Where something was written: a file with line and column (from 1), or the ``--set`` that brought it."""

    file: str
    line: int | None = None
    column: int | None = None

    @property
    def text(self) -> str:
        """``file:line:column``, as editors and terminals understand it."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


@dataclass(frozen=True)
class ConfigError:
    """One thing that is wrong. ``path`` is the field (``tools.0.name``), empty for the file as a whole."""

    place: Place
    path: str
    message: str
    expected: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        # A `--set` has said already which field it is about.
        named = not self.path or self.place.text == f"--set {self.path}"
        where = f"{self.place.text}: " if named else f"{self.place.text}: {self.path}: "
        rest = f"; expected {self.expected}" if self.expected else ""
        text = f"{where}{self.message}{rest}" + (f"; did you mean '{self.hint}'?" if self.hint else "")
        # One line each, and no control characters of a file on the terminal.
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)

    def to_json(self) -> dict[str, str | int | None]:
        """Return the error as a flat JSON object, for ``--json``."""
        return {
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "path": self.path,
            "message": self.message,
            "expected": self.expected,
            "did_you_mean": self.hint,
            "text": str(self),
        }


class ConfigErrors(InvalidInput):
    """Raised with everything that is wrong with a job YAML, in the order it is written there."""

    code = "invalid_config"

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        ordered = sorted(errors, key=lambda e: (e.place.file, e.place.line or 0, e.place.column or 0))
        self.errors: tuple[ConfigError, ...] = tuple(dict.fromkeys(ordered))
        super().__init__("\n".join(str(error) for error in self.errors))

    def __reduce__(self) -> tuple[type[ConfigErrors], tuple[tuple[ConfigError, ...]]]:
        return type(self), (self.errors,)


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that ``word`` was probably meant to be, or None."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    # Close matching is quadratic in the length; nobody mistypes a key of a thousand letters.
    found = difflib.get_close_matches(word[:100].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def one_of(choices: Sequence[str], last: str = "or") -> str:
    """Return the choices as a phrase: ``'a', 'b' or 'c'``."""
    quoted = [f"'{choice}'" for choice in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"
