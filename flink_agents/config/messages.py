"""What pydantic found, in the words of the job YAML, without values that might be secrets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flink_agents.config.document import Document, YamlPath, child
from flink_agents.config.fields import PROBLEM
from flink_agents.config.problems import nearest, one_of

__all__ = ["describe", "report_invalid", "yaml_path"]

SECRET = re.compile(r"secret|token|passw|api_?key|access_?key|private_?key|credential|dsn\b", re.IGNORECASE)
SECRET_VALUE = re.compile(r"://[^/\s]*:[^/\s]*@")

EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "list_type": "a list",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "string_type": "text",
}

# Truth values of older YAML, which are plain text in YAML 1.2.
TRUTH = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def report_invalid(
    document: Document, data: Any, problems: Iterable[Mapping[str, Any]], settled: Collection[YamlPath]
) -> None:
    """Add pydantic's errors about ``data`` to ``document``, but for those at or below a settled path."""
    for problem in problems:
        path, at_key = yaml_path(data, problem["loc"])
        if not any(path[:length] in settled for length in range(1, len(path) + 1)):
            _report(document, data, path, problem, at_key)


def yaml_path(data: Any, loc: tuple[str | int, ...]) -> tuple[YamlPath, bool]:
    """Return the path in the YAML of a pydantic location, and whether the key itself is meant."""
    path: YamlPath = ()
    for step in loc:
        if step == "[key]":
            return path, True
        # The tags of unions are steps of pydantic's, not of the file's.
        if not (isinstance(step, str) and re.fullmatch(r"(<\w+>)+", step) and child(_at(data, path), step) is None):
            path = (*path, step)
    return path, False


def describe(document: Document, path: YamlPath, value: Any) -> str:
    """Return what stands at ``path`` as a phrase; values from the environment and secrets are not shown."""
    if _hidden(document, path, value):
        template = document.templates.get(path)
        return f"the value of '{template.text}'" if template and len(template.text) <= 60 else "a value (not shown)"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        text = value if len(value) <= 40 else f"{value[:37]}..."
        return f"text {text!r}"
    return "a list" if isinstance(value, list) else "a mapping"


def _report(document: Document, data: Any, path: YamlPath, problem: Mapping[str, Any], at_key: bool) -> None:
    kind, context = str(problem["type"]), problem.get("ctx", {})
    asked = path
    # A short form (`journal: none`) was read as a mapping that is not in the file.
    while path and isinstance(_at(data, path[:-1]), str):
        path = path[:-1]
    value = _at(data, path)
    if kind == "missing" and asked != path:
        document.report(path, f"`{value}` alone is not enough", f"a mapping with `type` and `{asked[-1]}`")
    elif kind == "missing":
        document.report(path, "is required, but missing", "`tools`, or an `agent`" if path == ("tools",) else None)
    elif kind in {"union_tag_invalid", "union_tag_not_found"}:
        _report_kind(document, path, value, context)
    elif kind == PROBLEM:
        _report_own(document, path, value, context, at_key)
    elif kind in {"literal_error", "enum"}:
        _report_choice(document, path, value, re.findall(r"'([^']*)'|(\d+)", str(context["expected"])))
    elif kind in {"greater_than_equal", "less_than_equal"}:
        bound = context.get("ge", context.get("le"))
        side = "at least" if "ge" in context else "at most"
        document.report(path, f"got {describe(document, path, value)}", f"{side} {bound}")
    elif kind == "too_short":
        document.report(path, "is empty", f"at least {context['min_length']} entry")
    else:
        # A kind that is not listed still gets pydantic's own words, which never hold the value.
        expected = EXPECTED.get(kind) or str(problem["msg"])
        hint = TRUTH.get(str(value).lower()) if kind == "bool_type" else None
        document.report(path, f"got {describe(document, path, value)}", expected, hint)


def _report_own(document: Document, path: YamlPath, value: Any, context: Mapping[str, Any], at_key: bool) -> None:
    message, expected, hint = context["problem"], context["expected"], context["hint"]
    if at_key:
        document.report(path, f"`{path[-1]}` {message}", expected, hint, key=True)
    elif _hidden(document, path, value):
        document.report(path, f"got {describe(document, path, value)}", expected)
    else:
        document.report(path, message or f"got {describe(document, path, value)}", expected, hint)


def _report_kind(document: Document, path: YamlPath, value: Any, context: Mapping[str, Any]) -> None:
    """A mapping whose kind cannot be told: `type` is missing or unknown, or a tool entry without a function."""
    kinds = re.findall(r"<(\w+)>", str(context.get("expected_tags", "")))
    is_tool = len(path) == 2 and path[0] == "tools"
    if isinstance(value, str) and path == ("journal",):
        _report_choice(document, path, value, [(kind, "") for kind in kinds])
        return
    if not isinstance(value, dict):
        key = "function" if is_tool else "type"
        document.report(path, f"got {describe(document, path, value)}", f"a mapping with `{key}`")
    elif is_tool:
        document.report((*path, "function"), "is required, but missing", "module:function")
    elif "type" not in value:
        document.report((*path, "type"), "is required, but missing", one_of(kinds) if kinds else None)
    else:
        _report_choice(document, (*path, "type"), value["type"], [(kind, "") for kind in kinds])


def _report_choice(document: Document, path: YamlPath, value: Any, found: list[tuple[str, str]]) -> None:
    words = [word for word, _ in found if word]
    expected = one_of(words) if words else " or ".join(number for _, number in found)
    shown = isinstance(value, str) and not _hidden(document, path, value)
    document.report(path, f"got {describe(document, path, value)}", expected, nearest(value, words) if shown else None)


def _hidden(document: Document, path: YamlPath, value: Any) -> bool:
    if path in document.hidden or path[:1] == ("config",) or any(SECRET.search(str(step)) for step in path):
        return True
    return isinstance(value, str) and SECRET_VALUE.search(value) is not None


def _at(data: Any, path: YamlPath) -> Any:
    for step in path:
        data = child(data, step)
    return data
