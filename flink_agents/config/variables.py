"""``${VAR}`` and ``${VAR:-default}`` in the values of a job YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flink_agents.config.document import Document, YamlPath
from flink_agents.config.problems import nearest
from flink_agents.config.yaml_text import VARIABLE, scalar

__all__ = ["substitute"]


def substitute(document: Document, environ: Mapping[str, str]) -> set[YamlPath]:
    """Put the environment's values into ``document``; report what is unset and return those values' paths.

    A value is only ever text or, unquoted, a number or truth value: what a variable holds is never parsed as YAML.
    """
    unset: set[YamlPath] = set()
    for path, template in list(document.templates.items()):
        missing: list[str] = []

        def value_of(match: re.Match[str], path: YamlPath = path, missing: list[str] = missing) -> str:
            name, default = match["name"], match["default"]
            if match["broken"]:
                missing.append(match["broken"])
                document.report(
                    path, "a variable that cannot be read", "${NAME} or ${NAME:-default}; a literal ${ is written $${"
                )
                return ""
            if name is None:
                return "${"
            if default is None and name not in environ:
                missing.append(name)
                document.report(
                    path,
                    f"the environment variable {name} is not set",
                    f"it to be set, or a default: ${{{name}:-...}}",
                    nearest(name, environ),
                )
                return ""
            # As in a shell, `:-` also stands in for an empty value.
            return environ.get(name, "") if default is None else environ.get(name) or default

        text = VARIABLE.sub(value_of, template.text)
        if missing:
            unset.add(path)
            continue
        document.texts[path] = text
        document.hidden.add(path)
        # An empty value is empty text, not "nothing": the error then says what is empty.
        document.put(path, scalar(text) if template.plain and text else text)
    return unset
