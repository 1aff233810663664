"""Who is to train: orders with a number, of which the latest counts, and the places they are read from.

An order names the workers of a job from then on. Whoever gives orders counts them up, gives each worker a number of its
own for the life of the job, and never names a worker again that an order has left out: it may be gone. Nothing here
needs torch, and asking for the latest order never waits.
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
"""Order numbers travel beside gradients in single precision, which counts so far without a gap."""

ORDERS_VARIABLE = "SHOAL_ORDERS"
_KEY = "orders"
_LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Order:
    """The workers of a job from a generation on; a worker's rank is its place among them."""

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
        """As it stands in an orders file."""
        return json.dumps({"generation": self.generation, "members": self.members})

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> "Order":
        """Read back what ``to_json`` wrote; an error that names what is wrong where it is something else."""
        try:
            told = json.loads(text)
        except ValueError as error:
            raise InputError(
                "order", text[:80], f"is not JSON ({error}); write one order, whole", where=where
            ) from None
        if not isinstance(told, dict) or set(told) != {"generation", "members"}:
            raise InputError("order", told, 'must be {"generation": NUMBER, "members": [NUMBER, …]}', where=where)
        members = told["members"]
        if not isinstance(members, list) or not all(type(number) is int for number in [told["generation"], *members]):
            raise InputError("order", told, "generation and members are whole numbers", where=where)
        return cls(told["generation"], tuple(members))


class OrderSource(Protocol):
    """Where a worker reads what its job was told."""

    def latest(self) -> Order | None:
        """The newest order so far; None before the first."""
        ...


class FileOrders:
    """Orders in a file that whoever gives them replaces as a whole: what a node's agent tells a job."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text: bytes | None = None
        self._latest: Order | None = None

    def latest(self) -> Order | None:
        """The newest order so far. A file that holds no order is an error at first; later the last one stays."""
        # Always read: a file replaced twice within a tick of the file system's clock can look as it did before.
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
            told = Order.from_json(text, str(self._path))
        except InputError as error:
            if self._latest is None:
                raise
            _LOG.warning("an order that cannot be read is not followed: %s", error)
            return self._latest
        return told if self._latest is None or told.generation > self._latest.generation else self._latest


def write_order(path: Path, order: Order) -> None:
    """Replace an orders file; a reader sees the old order or the new one, never a part."""
    replace_file(path, order.to_json().encode())


class Store(Protocol):
    """What orders need of a store that workers share, such as torch's."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these are there."""
        ...

    def get(self, key: str) -> bytes:
        """The value of one that is there."""
        ...

    def set(self, key: str, value: str) -> None:
        """Put or replace a value."""
        ...


class StoreOrders:
    """Orders in the job's own store: for whoever drives a job without an agent.

    A thread with a connection of its own looks for them, so that a training step never asks over the network.
    """

    def __init__(self, connect: Callable[[], Store]) -> None:
        self._latest: Order | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(connect,), name="shoal-orders", daemon=True)
        self._thread.start()

    def latest(self) -> Order | None:
        """The newest order so far."""
        return self._latest

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def _look(self, connect: Callable[[], Store]) -> None:
        store = connect()
        while not self._ended.wait(_LOOK_SECONDS):
            if store.check([_KEY]):
                told = Order.from_json(store.get(_KEY), "the job's store")
                if self._latest is None or told.generation > self._latest.generation:
                    self._latest = told


def give_order(store: Store, order: Order) -> None:
    """Tell everybody who reads ``StoreOrders`` of this store."""
    store.set(_KEY, order.to_json())


@dataclass(frozen=True, slots=True)
class FixedOrders:
    """One order, for ever: a gang that is never resized."""

    order: Order

    def latest(self) -> Order:
        """That order."""
        return self.order


def orders_from(environ: Mapping[str, str]) -> OrderSource:
    """The orders that a node's agent writes for this job; where there is none, that the ranks stay as they are."""
    path = environ.get(ORDERS_VARIABLE)
    if path:
        return FileOrders(Path(path))
    return FixedOrders(Order(1, tuple(range(max(1, whole_number(environ, "WORLD_SIZE", 1))))))


def whole_number(environ: Mapping[str, str], variable: str, otherwise: int | None = None) -> int:
    """A variable that must hold a whole number from 0; it may be missing where there is a value for that."""
    value = environ.get(variable)
    if value is None and otherwise is not None:
        return otherwise
    if value is None or not value.isdecimal():
        hint = "must be a whole number from 0; whoever starts a worker sets it"
        raise InputError(variable, value, hint)
    return int(value)
