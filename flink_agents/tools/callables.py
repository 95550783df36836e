"""What kind of callable a tool was made from."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["is_async"]


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling ``function`` gives a coroutine: ``async def``, also under partials and as ``__call__``."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(type(inner), "__call__", None))  # noqa: B004
