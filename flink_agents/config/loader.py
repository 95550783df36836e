"""From a job YAML's path to a :class:`JobConfig`, or to everything that is wrong with it at once."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flink_agents.config import overrides as override
from flink_agents.config.document import Document, YamlPath, child
from flink_agents.config.fields import FOLDER
from flink_agents.config.keys import known_data
from flink_agents.config.messages import report_invalid, yaml_path
from flink_agents.config.problems import ConfigError, ConfigErrors, Place, nearest
from flink_agents.config.schema import JobConfig
from flink_agents.config.unavailable import refuse_unavailable
from flink_agents.config.variables import substitute
from flink_agents.config.yaml_text import compose, fill

__all__ = ["Loaded", "load", "read"]

MAX_FILE = 1 << 20


@dataclass
class Loaded:
    """What came out of a file: its data with places and errors, and the config if there was no error.

    ``data`` holds only keys that this version knows; ``settled`` are the paths in it that an error already covers.
    """

    document: Document
    config: JobConfig | None = None
    data: Any = None
    settled: frozenset[YamlPath] = frozenset()


def load(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> JobConfig:
    """Return the job described by the YAML at ``path``.

    Imports no user code and looks at no other file; see :mod:`flink_agents.config.build` for that. ``overrides`` are
    ``a.b=c`` texts, ``environ`` (default: this process's) is where ``${VAR}`` comes from. Any thread.

    Raises:
        ConfigErrors: with every error of the file, in the order of the file.
    """
    loaded = read(path, overrides, environ)
    if loaded.config is None:
        raise ConfigErrors(loaded.document.errors)
    return loaded.config


def read(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Loaded:
    """Like :func:`load`, but return what is known when there are errors, so that other checks can add theirs."""
    file = Path(os.path.abspath(path))
    document = Document(file, os.fspath(path))
    loaded = Loaded(document)
    text = _text(document)
    node = compose(text, document) if text is not None else None
    if document.errors:
        return loaded
    document.data = fill(document, node) if node is not None else None
    if not isinstance(document.data, dict):
        if not document.errors:
            expected = "a mapping with `name`, `source`, `key_by`, `tools` and `sink`"
            document.report((), "is empty" if document.data is None else "is not a job", expected)
        return loaded
    defaults = {name: field.default for name, field in JobConfig.model_fields.items()}
    for text in overrides:
        override.apply(document, text, defaults)
    # A value that an error was already reported for is not complained about a second time.
    settled = {path for path in document.values if path and _refused(document, path)}
    settled |= substitute(document, os.environ if environ is None else environ)
    settled |= refuse_unavailable(document)
    loaded.data = known_data(document, JobConfig, settled)
    loaded.settled = frozenset(settled)
    _validate(loaded)
    return loaded


def _refused(document: Document, path: YamlPath) -> bool:
    shown = ".".join(map(str, path))
    return any(error.path == shown and error.place == document.values[path] for error in document.errors)


def _validate(loaded: Loaded) -> None:
    document, data = loaded.document, loaded.data
    config, problems = _try(data, document)
    suspects = {yaml_path(data, problem["loc"])[0] for problem in problems} & document.texts.keys()
    if suspects:
        # `name: ${BUILD}` is a number for YAML and text for the field: what passes as text was meant as text.
        _, still_wrong = _try(_with_texts(data, document, suspects), document)
        healed = suspects - {yaml_path(data, problem["loc"])[0] for problem in still_wrong}
        data = loaded.data = _with_texts(data, document, healed)
        config, problems = _try(data, document)
    report_invalid(document, data, problems, loaded.settled)
    if config is not None and not document.errors:
        config._document = document
        loaded.config = config


def _try(data: Any, document: Document) -> tuple[JobConfig | None, Sequence[Mapping[str, Any]]]:
    try:
        return JobConfig.model_validate(data, context={FOLDER: document.file.parent}), ()
    except ValidationError as error:
        return None, error.errors(include_url=False, include_input=False)


def _with_texts(data: Any, document: Document, paths: Collection[YamlPath]) -> Any:
    data = deepcopy(data)
    for path in paths:
        parent = data
        for step in path[:-1]:
            parent = child(parent, step)
        if child(parent, path[-1]) is not None:
            parent[path[-1]] = document.texts[path]
    return data


def _text(document: Document) -> str | None:
    file = document.file
    problem, expected, hint = "", "a job YAML file", None
    try:
        if file.stat().st_size > MAX_FILE:
            problem = "is larger than 1 MiB"
        else:
            return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        problem = "no such file"
        folder = file.parent
        hint = nearest(file.name, (entry.name for entry in folder.iterdir())) if folder.is_dir() else None
    except NotADirectoryError:
        problem = "no such file"
    except IsADirectoryError:
        problem = "is a folder"
        hint = str(Path(document.shown) / "job.yaml") if (file / "job.yaml").is_file() else None
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        place = Place(document.shown, line, column)
        document.errors.append(ConfigError(place, "", "is not UTF-8 text here", "a file saved as UTF-8"))
        return None
    except (OSError, ValueError) as error:
        problem = f"cannot be read ({getattr(error, 'strerror', None) or error})"
    document.errors.append(ConfigError(Place(document.shown), "", problem, expected, hint))
    return None
