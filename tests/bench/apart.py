"""Work in a process of its own: PyFlink keeps Java objects of the first JVM that a process had, so each gets one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

__all__ = ["apart"]

T = TypeVar("T")


def apart(work: Callable[..., T], *arguments: Any) -> T:
    """Return what ``work`` returns, or raise what it raises, in a fork of this process.

    A fork, because PyFlink is imported already; no JVM and no thread of ours may run when it is made.

    Raises:
        BrokenProcessPool: the process was ended from outside.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as process:
        return process.submit(work, *arguments).result()
