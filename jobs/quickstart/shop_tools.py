"""The tools of a small web shop, on an SQLite ledger that is made on first use in `state/` beside this file.

Each is a plain typed function. A model is shown its name, the schema made from its type hints, and its docstring; what
only concerns the reader of the code is said in comments.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

LEDGER = Path(__file__).parent / "state" / "ledger.db"

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (order_id TEXT PRIMARY KEY, item TEXT, paid_cents INTEGER, status TEXT);
CREATE TABLE IF NOT EXISTS refunds
    (refund_id TEXT PRIMARY KEY, order_id TEXT, amount_cents INTEGER, left_cents INTEGER);
INSERT OR IGNORE INTO orders VALUES
    ('A-1001', 'kettle', 4250, 'delivered'),
    ('A-1002', 'desk lamp', 2900, 'shipped'),
    ('A-1003', 'notebook, 3 pieces', 1170, 'paid');
"""

CENTS_PER_UNIT = {"EUR": 100.0, "USD": 92.0, "GBP": 118.0}


@dataclass(frozen=True)
class Order:
    """One row of the ledger."""

    order_id: str
    item: str
    paid_cents: int
    status: str


@dataclass(frozen=True)
class Refund:
    """A refund as it was paid; `left_cents` is what the order had left after it."""

    refund_id: str
    order_id: str
    amount_cents: int
    left_cents: int


class UnknownOrder(LookupError):
    """The ledger has no such order."""


class RefundRefused(ValueError):
    """The ledger does not allow this refund."""


class PrinterOffline(ConnectionError):
    """The label printer does not answer."""


@contextmanager
def ledger() -> Iterator[sqlite3.Connection]:
    """Open the ledger for one transaction, which holds the write lock; several threads may ask at once."""
    LEDGER.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(LEDGER, timeout=30, isolation_level=None)) as connection:
        for statement in filter(str.strip, ["BEGIN IMMEDIATE", *SCHEMA.split(";")]):
            connection.execute(statement)
        yield connection
        connection.execute("COMMIT")


def find_order(connection: sqlite3.Connection, order_id: str) -> Order:
    """Read one order."""
    row = connection.execute("SELECT * FROM orders WHERE order_id = ?", (order_id,)).fetchone()
    if row is None:
        message = f"no order {order_id!r} in the ledger"
        raise UnknownOrder(message)
    return Order(*row)


def lookup_order(order_id: str) -> Order:
    """Look an order up.

    Args:
        order_id: as printed on the invoice, such as A-1001.
    """
    with ledger() as connection:
        return find_order(connection, order_id)


def refund(refund_id: str, order_id: str, amount_cents: Annotated[int, Field(gt=0)]) -> Refund:
    """Pay money back for an order.

    Args:
        refund_id: chosen by the caller; the same id is the same refund and is paid once.
        order_id: the order to take it from.
        amount_cents: how much, in euro cents.
    """
    with ledger() as connection:
        # A call that a crash cut off runs again: it finds its own refund here and answers with what was paid then.
        order = find_order(connection, order_id)
        row = connection.execute("SELECT * FROM refunds WHERE refund_id = ?", (refund_id,)).fetchone()
        if row is not None:
            paid = Refund(*row)
            if (paid.order_id, paid.amount_cents) != (order_id, amount_cents):
                message = f"refund {refund_id!r} was already paid: {paid.amount_cents} cents for {paid.order_id}"
                raise RefundRefused(message)
            return paid
        query = "SELECT coalesce(sum(amount_cents), 0) FROM refunds WHERE order_id = ?"
        left = order.paid_cents - connection.execute(query, (order_id,)).fetchone()[0] - amount_cents
        if left < 0:
            message = f"{amount_cents} cents is more than order {order_id} has left"
            raise RefundRefused(message)
        connection.execute("INSERT INTO refunds VALUES (?, ?, ?, ?)", (refund_id, order_id, amount_cents, left))
        return Refund(refund_id, order_id, amount_cents, left)


async def track_parcel(order_id: str) -> dict[str, str]:
    """Ask the carrier where a parcel is.

    Args:
        order_id: the order that the parcel belongs to.
    """
    # Stands for the carrier's web service, which is slow.
    await asyncio.sleep(0.5)
    return {"order_id": order_id, "carrier": "Parcel Post", "place": "sorting centre Hanover"}


def convert(cents: int, currency: Literal["EUR", "USD", "GBP"] = "EUR") -> float:
    """Express an amount of euro cents in a currency.

    Args:
        cents: the amount.
        currency: the currency wanted; the shop's rates are fixed.
    """
    return round(cents / CENTS_PER_UNIT[currency], 2)


def print_label(order_id: str) -> None:
    """Print a shipping label.

    Args:
        order_id: the order to ship.
    """
    # Fails every time, to show what becomes of an exception.
    try:
        message = "printer-1 does not answer"
        raise TimeoutError(message)
    except TimeoutError as error:
        message = f"label for {order_id} not printed: printer offline"
        raise PrinterOffline(message) from error


def receipt(order_id: str, copies: Annotated[int, Field(ge=1, le=1000)] = 1) -> str:
    """Write the receipt of an order.

    Args:
        order_id: the order.
        copies: how often to repeat it.
    """
    # Many copies are a larger result than the job's `limits.result` allows.
    with ledger() as connection:
        order = find_order(connection, order_id)
    return f"{order.order_id}  {order.item:<30}  {order.paid_cents / 100:>8.2f} EUR\n" * copies


def list_orders(status: Literal["paid", "shipped", "delivered"]) -> Iterator[Order]:
    """List the orders with a status.

    Args:
        status: which orders.
    """
    with ledger() as connection:
        rows = connection.execute("SELECT * FROM orders WHERE status = ? ORDER BY order_id", (status,)).fetchall()
    # A mistake on purpose: a generator cannot be stored as a result. A list could.
    return (Order(*row) for row in rows)
