"""Tools of every kind: on a thread, on the event loop, on the task thread, and one whose calls are not repeated."""

from __future__ import annotations


def look(name: str) -> str:
    """Look."""
    return f"seen {name}"


async def fetch(name: str) -> dict[str, str]:
    """Fetch."""
    return {"name": name}


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def pay(cents: int) -> str:
    """Pay, unless the sum is one that is never paid."""
    if cents % 7 == 0:
        msg = f"{cents} cents are not paid"
        raise ValueError(msg)
    return f"{cents} paid"
