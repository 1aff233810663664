"""Worker orders: numbered lists of the workers of an elastic job, and the places they are read from.

Each order replaces the previous one. Order numbers increase; a worker's number is unique in its job; a worker that an
order left out is never named again. This module needs no torch, and reading the latest order never blocks.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.core.errors import InputError
from shoal.wire.files import replace_file

_LOG = logging.getLogger("shoal.trainer")

MOST_GENERATIONS = 2**24
"""Largest order number: numbers travel beside gradients in single precision, which is exact up to here."""

ORDERS_VARIABLE = "SHOAL_ORDERS"
_KEY = "orders"
_LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Order:
    """The workers of a job from a generation on; a worker's rank is its index among ``members``."""

    generation: int
    members: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.generation <= MOST_GENERATIONS:
            raise InputError("generation", self.generation, f"count orders from 1 to {MOST_GENERATIONS:,}")
        if not self.members:
            raise InputError("members", self.members, "name at least one worker; to end a job, stop its workers")
        if len(set(self.members)) < len(self.members) or min(self.members) < 0:
            raise InputError("members", self.members, "name each worker once, by a number from 0")

    def to_json(self) -> str:
        """JSON form, as in an orders file."""
        return json.dumps({"generation": self.generation, "members": self.members})

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> "Order":
        """Parse the JSON form; raises ``InputError`` naming ``where`` and what is wrong."""
        try:
            order = json.loads(text)
        except ValueError as error:
            raise InputError(
                "order", text[:80], f"is not JSON ({error}); write one order, whole", where=where
            ) from None
        if not isinstance(order, dict) or set(order) != {"generation", "members"}:
            raise InputError("order", order, 'must be {"generation": NUMBER, "members": [NUMBER, …]}', where=where)
        members = order["members"]
        if not isinstance(members, list) or not all(type(number) is int for number in [order["generation"], *members]):
            raise InputError("order", order, "generation and members are whole numbers", where=where)
        return cls(order["generation"], tuple(members))


class OrderSource(Protocol):
    """A source of worker orders."""

    def latest(self) -> Order | None:
        """The newest order; None before the first."""
        ...


class FileOrders:
    """Orders in a file that the node's agent replaces as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text: bytes | None = None
        self._latest: Order | None = None

    def latest(self) -> Order | None:
        """The newest order; an unreadable file raises ``InputError`` at first, later the last order stays."""
        # Always read: a file replaced twice within a tick of the file system's clock keeps its modification time.
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return self._latest
        if text != self._text:
            self._text = text
            self._latest = self._newer(text)
        return self._latest

    def _newer(self, text: bytes) -> Order | None:
        try:
            order = Order.from_json(text, str(self._path))
        except InputError as error:
            if self._latest is None:
                raise
            _LOG.warning("an unreadable order is ignored: %s", error)
            return self._latest
        return order if self._latest is None or order.generation > self._latest.generation else self._latest


def write_order(path: Path, order: Order) -> None:
    """Replace an orders file atomically."""
    replace_file(path, order.to_json().encode())


class Store(Protocol):
    """The methods of a shared key-value store, such as torch's, that orders need."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys exist."""
        ...

    def get(self, key: str) -> bytes:
        """Value of an existing key."""
        ...

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        ...


class StoreOrders:
    """Orders in the job's key-value store, for jobs without an agent.

    A thread with its own connection polls the store, so that a training step makes no network request.
    """

    def __init__(self, connect: Callable[[], Store]) -> None:
        self._latest: Order | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(connect,), name="shoal-orders", daemon=True)
        self._thread.start()

    def latest(self) -> Order | None:
        """The newest order."""
        return self._latest

    def close(self) -> None:
        """Stop polling."""
        self._ended.set()
        self._thread.join()

    def _look(self, connect: Callable[[], Store]) -> None:
        store = connect()
        while not self._ended.wait(_LOOK_SECONDS):
            if store.check([_KEY]):
                order = Order.from_json(store.get(_KEY), "the job's store")
                if self._latest is None or order.generation > self._latest.generation:
                    self._latest = order


def give_order(store: Store, order: Order) -> None:
    """Publish an order to all readers of this store's `StoreOrders`."""
    store.set(_KEY, order.to_json())


@dataclass(frozen=True, slots=True)
class FixedOrders:
    """A single order for a gang that is never resized."""

    order: Order

    def latest(self) -> Order:
        """The order."""
        return self.order


def orders_from(environ: Mapping[str, str]) -> OrderSource:
    """The source of this job's orders: the agent's file, or a fixed order of all ranks without an agent."""
    path = environ.get(ORDERS_VARIABLE)
    if path:
        return FileOrders(Path(path))
    return FixedOrders(Order(1, tuple(range(max(1, whole_number(environ, "WORLD_SIZE", 1))))))


def whole_number(environ: Mapping[str, str], variable: str, otherwise: int | None = None) -> int:
    """Value of a variable that must be a whole number from 0; ``otherwise`` if it is missing."""
    value = environ.get(variable)
    if value is None and otherwise is not None:
        return otherwise
    if value is None or not value.isdecimal():
        hint = "must be a whole number from 0; the process that starts a worker sets it"
        raise InputError(variable, value, hint)
    return int(value)
