"""Import paths of classes, as ``module:Qualified.Name``: how stored values and failures name their types."""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["import_path", "imported"]


def import_path(cls: type) -> str | None:
    """Return the path under which ``cls`` itself can be imported, or None (local, shadowed or generated classes).

    Any thread; never raises.
    """
    module_name = getattr(cls, "__module__", None)
    qualname = getattr(cls, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(qualname, str) or "<locals>" in qualname:
        return None
    found: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return f"{module_name}:{qualname}" if found is cls else None


def imported(path: str) -> type:
    """Return the class behind a path of ``import_path``, importing its module if need be.

    Raises:
        LookupError: where the module or the class does not exist, or the module fails to import; the cause is kept.
    """
    module_name, _, qualname = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualname.split("."):
            found = getattr(found, part)
    except Exception as error:
        message = f"{path} cannot be imported: {type(error).__name__}: {error}"
        raise LookupError(message) from error
    if not isinstance(found, type):
        message = f"{path} is no class"
        raise LookupError(message)
    return found
