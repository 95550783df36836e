"""Keeps PyFlink's libraries from talking over a command's own output; used wherever ``pyflink`` is imported."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_imports"]


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Import ``pyflink`` in here: its dependencies' deprecation warnings are for their authors, not for users.

    Also stops py4j from setting up the root logger when a connection ends, which would print a stack trace.
    """
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
