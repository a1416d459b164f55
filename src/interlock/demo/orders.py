"""The shop's database: its orders, the refunds it paid, and a record of every call that ran."""

import csv
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

_SCHEMA = """
create table if not exists orders (
    order_id text primary key, customer text not null, item text not null,
    amount_cents integer not null, status text not null
);
create table if not exists refunds (
    order_id text primary key references orders, amount_cents integer not null, key text not null unique,
    refunded_at text not null default current_timestamp
);
create table if not exists executions (
    id integer primary key, name text not null, worker integer not null,
    started_at text not null default current_timestamp
);
"""


class RefundRefusedError(Exception):
    """The shop does not pay this refund; the message says why and what it would pay."""


@dataclass(frozen=True)
class Order:
    """One order. amount: what the customer paid for it, to the cent."""

    order_id: str
    customer: str
    item: str
    amount: float
    status: str


@dataclass(frozen=True)
class Refund:
    """Money that went back to a customer."""

    order_id: str
    amount: float


@dataclass(frozen=True)
class Execution:
    """How often one model call or tool body ran. workers: the processes it ran in, by their ids."""

    name: str
    times: int
    workers: tuple[int, ...]


class Orders:
    """The database in one file. Every method opens it anew, so that any thread and any process may call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        """Make the tables and fill in the orders that come with the package. What is there already stays."""
        source = files("interlock.demo").joinpath("orders.csv").read_text(encoding="utf-8")
        rows = [{**row, "cents": _cents(float(row["amount"]))} for row in csv.DictReader(source.splitlines())]
        with self._open() as database:
            database.executescript(_SCHEMA)
            database.executemany(
                "insert or ignore into orders values (:order_id, :customer, :item, :cents, :status)", rows
            )

    def find(self, order_id: str) -> Order | None:
        """The order, or None when there is none with this number."""
        with self._open() as database:
            row = database.execute(
                "select order_id, customer, item, amount_cents, status from orders where order_id = ?", (order_id,)
            ).fetchone()
        return Order(row[0], row[1], row[2], row[3] / 100, row[4]) if row else None

    def refund(self, order_id: str, amount: float, key: str) -> None:
        """Pay money back for an order: once, and at most what it cost. Raises RefundRefusedError.

        key: of the request. One that was paid already is not paid again, and nothing is wrong with it.
        """
        cents = _cents(amount)
        with self._open() as database:
            database.execute("begin immediate")
            if database.execute("select 1 from refunds where key = ?", (key,)).fetchone():
                return
            price = database.execute("select amount_cents from orders where order_id = ?", (order_id,)).fetchone()
            paid = database.execute("select amount_cents from refunds where order_id = ?", (order_id,)).fetchone()
            if problem := _problem(order_id, amount, price and price[0], paid and paid[0]):
                raise RefundRefusedError(problem)
            database.execute(
                "insert into refunds (order_id, amount_cents, key) values (?, ?, ?)", (order_id, cents, key)
            )
            database.execute("update orders set status = 'refunded' where order_id = ?", (order_id,))

    def refunds(self) -> list[Refund]:
        """What was paid back, by order."""
        with self._open() as database:
            rows = database.execute("select order_id, amount_cents from refunds order by order_id").fetchall()
        return [Refund(order_id, cents / 100) for order_id, cents in rows]

    def record(self, name: str) -> None:
        """Write down that a model call or a tool body begins to run in this process."""
        with self._open() as database:
            database.execute("insert into executions (name, worker) values (?, ?)", (name, os.getpid()))

    def executions(self) -> list[Execution]:
        """How often each call ran, in the order in which they first did."""
        with self._open() as database:
            rows = database.execute("select name, worker from executions order by id").fetchall()
        workers: dict[str, list[int]] = {}
        for name, worker in rows:
            workers.setdefault(name, []).append(worker)
        return [Execution(name, len(ids), tuple(dict.fromkeys(ids))) for name, ids in workers.items()]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=10)) as database, database:
            yield database


def _problem(order_id: str, amount: float, price: int | None, paid: int | None) -> str | None:
    if price is None:
        return f"There is no order {order_id!r}."
    if paid is not None:
        return f"Order {order_id} was refunded already, with {paid / 100:.2f}. An order is refunded once."
    if abs(_cents(amount) - amount * 100) > 1e-6 or amount <= 0:
        return f"{amount} cannot be paid. Give an amount above zero in whole cents."
    if _cents(amount) > price:
        return f"Order {order_id} cost {price / 100:.2f}; a refund of {amount:.2f} is more than that."
    return None


def _cents(amount: float) -> int:
    return round(amount * 100)
