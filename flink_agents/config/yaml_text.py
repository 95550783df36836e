"""YAML text to a :class:`Document`: plain data only, duplicate keys found, places kept, ``${VAR}`` left for later."""

from __future__ import annotations

import math
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from flink_agents.config.document import Document, Template, YamlPath, shown_path
from flink_agents.config.problems import ConfigError, Place

__all__ = ["VARIABLE", "compose", "fill", "scalar"]

VARIABLE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}\n]*))?\}|(?P<broken>\$\{[^}\s]*\}?)"
)
"""``$${`` (a literal ``${``), ``${NAME}``, ``${NAME:-default}``, or something that starts like one and is none."""

# A variable inside `{path: ${DIR}/in}` would end the mapping for a YAML parser. While it parses, the characters of a
# variable are therefore replaced one for one by private-use characters, so that every position stays true.
SHIFT = 0xE000
HIDDEN = re.compile("[\ue000-\ue07f]+")
MASKED = re.compile(r"\$?\$\{[^}\n]*\}")

PREFIX = "tag:yaml.org,2002:"
MAX_NODES = 20_000
MAX_DEPTH = 50


def compose(text: str, document: Document) -> Node | None:
    """Return the node tree of ``text``; on a syntax error report it to ``document`` and return None."""
    parser = YAML(typ="safe", pure=True)
    try:
        node: Node | None = parser.compose(_mask(text))
    except ReaderError as error:
        line, column = _line_and_column(text, error.position)
        _syntax(document, "a character that YAML does not allow", line, column)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        _syntax(document, _plain_words(_unmask(str(error.problem or error.context))), line, column)
    except YAMLError as error:
        _syntax(document, _unmask(str(error).splitlines()[0]), 1, 1)
    except (RecursionError, ValueError):
        _syntax(document, "nested too deeply or not readable as YAML", 1, 1)
    else:
        return node
    return None


def fill(document: Document, node: Node, path: YamlPath = (), origin: str | None = None) -> Any:
    """Return the plain data of ``node`` and note the places of everything in it under ``path``.

    ``origin`` stands for file, line and column where the text is not the file's (a ``--set``).
    """
    try:
        return _Filler(document, origin).value(node, path, ())
    except _TooMuch:
        document.report(path, "too many or too deeply nested values for a job YAML")
        return None


class _TooMuch(Exception):
    """Ends the reading: what aliases multiply must not be walked to its end just to be refused."""


class _Filler:
    def __init__(self, document: Document, origin: str | None) -> None:
        self.document = document
        self.origin = origin
        self.nodes = 0

    def value(self, node: Node, path: YamlPath, parents: tuple[int, ...]) -> Any:
        self.document.values[path] = self.place(node)
        self.nodes += 1
        # Aliases repeat what they name: a few lines can stand for millions of values, or for themselves.
        if id(node) in parents:
            return self.refuse(path, "an alias that contains itself")
        if self.nodes > MAX_NODES or len(parents) > MAX_DEPTH:
            raise _TooMuch
        if isinstance(node, MappingNode):
            return self.mapping(node, path, (*parents, id(node)))
        if isinstance(node, SequenceNode):
            return [self.value(item, (*path, i), (*parents, id(node))) for i, item in enumerate(node.value)]
        return self.scalar(node, path) if isinstance(node, ScalarNode) else None

    def mapping(self, node: MappingNode, path: YamlPath, parents: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        self.collect(node, path, parents, result)
        return result

    def collect(self, node: MappingNode, path: YamlPath, parents: tuple[int, ...], result: dict[str, Any]) -> None:
        """Add the keys of ``node`` that ``result`` does not have: a key written out beats one taken over by ``<<``."""
        own: dict[str, Place] = {}
        merged: list[MappingNode] = []
        for key_node, value_node in node.value:
            if str(key_node.tag) == f"{PREFIX}merge":
                merged += self.merge_sources(value_node, (*path, "<<"))
                continue
            if not isinstance(key_node, ScalarNode):
                self.error((*path, "?"), self.place(key_node), "a key must be text")
                continue
            key = _unmask(key_node.value)
            here = (*path, key)
            place = self.place(key_node)
            if key in own:
                self.error(here, place, f"the key `{key}` is written twice; the first one is at {own[key].text}")
                continue
            own[key] = place
            if key not in result:
                self.document.keys[here] = place
                result[key] = self.value(value_node, here, parents)
                if isinstance(value_node, ScalarNode) and value_node.style is None and value_node.value == "":
                    # What is empty starts, for the parser, where the next thing does.
                    self.document.values[here] = place
        for source in merged:
            if id(source) not in parents:
                self.collect(source, path, (*parents, id(source)), result)

    def merge_sources(self, node: Node, path: YamlPath) -> list[MappingNode]:
        sources = node.value if isinstance(node, SequenceNode) else [node]
        wrong = [source for source in sources if not isinstance(source, MappingNode)]
        for source in wrong:
            self.error(path, self.place(source), "`<<` can only take over the keys of a mapping")
        return [source for source in sources if isinstance(source, MappingNode)]

    def scalar(self, node: ScalarNode, path: YamlPath) -> Any:
        tag = str(node.tag or f"{PREFIX}str")
        plain = node.style is None
        text = _unmask(node.value)
        if not tag.startswith(PREFIX):
            return self.refuse(path, f"the YAML tag `{tag}` is not known here", "a plain value")
        if VARIABLE.search(text):
            self.document.templates[path] = Template(text, plain)
            return text
        if tag[len(PREFIX) :] in {"str", "timestamp"} or not plain:
            return text
        return scalar(text)

    def place(self, node: Node) -> Place:
        if self.origin is not None:
            return Place(self.origin)
        return Place(self.document.shown, node.start_mark.line + 1, node.start_mark.column + 1)

    def refuse(self, path: YamlPath, message: str, expected: str | None = None) -> None:
        self.document.report(path, message, expected)

    def error(self, path: YamlPath, place: Place, message: str) -> None:
        self.document.errors.append(ConfigError(place, shown_path(path), message))


def scalar(text: str) -> str | int | float | bool | None:
    """Return what an unquoted YAML 1.2 scalar stands for: a number, a truth value, nothing, or the text itself."""
    if text in {"", "~", "null", "Null", "NULL"}:
        return None
    if text in {"true", "True", "TRUE", "false", "False", "FALSE"}:
        return text.lower() == "true"
    if re.fullmatch(r"[-+]?[0-9]{1,30}", text):
        return int(text)
    if re.fullmatch(r"0o[0-7]{1,30}|0x[0-9a-fA-F]{1,30}", text):
        return int(text, 0)
    if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text) and math.isfinite(float(text)):
        return float(text)
    return text


def _mask(text: str) -> str:
    return MASKED.sub(lambda match: "".join(chr(SHIFT + ord(c)) if ord(c) < 0x80 else c for c in match.group()), text)


def _unmask(text: str) -> str:
    return HIDDEN.sub(lambda match: "".join(chr(ord(c) - SHIFT) for c in match.group()), text)


def _syntax(document: Document, message: str, line: int, column: int) -> None:
    document.errors.append(ConfigError(Place(document.shown, line, column), "", f"not valid YAML: {message}"))


def _plain_words(problem: str) -> str:
    if "'\\t'" in problem:
        return "a tab; indent and separate with spaces"
    if problem.startswith("mapping values are not allowed"):
        return "a ':' where no key can stand; indent the line like its neighbours, or quote a value that holds ': '"
    if problem == "but found another document":
        return "a second document (`---`); a job is one document"
    return problem


def _line_and_column(text: str, position: int) -> tuple[int, int]:
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
