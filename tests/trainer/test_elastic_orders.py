"""Orders, and the places they are read from."""

import time
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.trainer.elastic.orders import (
    MOST_GENERATIONS,
    FileOrders,
    Order,
    StoreOrders,
    give_order,
    orders_from,
    write_order,
)


class Shelf:
    """A store in this process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def get(self, key: str) -> bytes:
        return self._values[key]

    def set(self, key: str, value: str) -> None:
        self._values[key] = value.encode()


@pytest.mark.parametrize(
    ("generation", "members", "field"),
    [
        pytest.param(0, (0,), "generation", id="orders are counted from 1"),
        pytest.param(MOST_GENERATIONS + 1, (0,), "generation", id="a number that single precision would blur"),
        pytest.param(1, (), "members", id="nobody"),
        pytest.param(1, (2, 2), "members", id="a worker twice"),
        pytest.param(1, (-1,), "members", id="a negative number"),
    ],
)
def test_an_order_that_makes_no_sense_names_what_is_wrong(
    generation: int, members: tuple[int, ...], field: str
) -> None:
    with pytest.raises(InputError) as refused:
        Order(generation, members)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"generation": 1}', '{"generation": "1", "members": [0]}', '{"generation": 1, "members": 2}'],
)
def test_a_file_that_holds_no_order_is_refused_with_its_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "orders").write_text(text)
    with pytest.raises(InputError, match="orders"):
        FileOrders(tmp_path / "orders").latest()


def test_a_replaced_file_is_read_again_and_only_a_newer_order_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    orders = FileOrders(path)
    assert orders.latest() is None
    for told, heard in [(2, 2), (5, 5), (4, 5), (6, 6)]:
        write_order(path, Order(told, (0, told)))
        assert orders.latest() == Order(heard, (0, heard))
    path.write_text("torn")
    assert orders.latest() == Order(6, (0, 6))
    path.unlink()
    assert orders.latest() == Order(6, (0, 6))
    assert list(tmp_path.iterdir()) == []


def test_orders_in_a_store_are_read_in_the_background() -> None:
    shelf = Shelf()
    orders = StoreOrders(lambda: shelf)
    try:
        assert orders.latest() is None
        give_order(shelf, Order(3, (0, 1)))
        deadline = time.monotonic() + 30
        while orders.latest() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert orders.latest() == Order(3, (0, 1))
    finally:
        orders.close()


def test_without_an_orders_file_the_ranks_stay_as_they_are(tmp_path: Path) -> None:
    assert orders_from({}).latest() == Order(1, (0,))
    assert orders_from({"WORLD_SIZE": "3"}).latest() == Order(1, (0, 1, 2))
    write_order(tmp_path / "orders", Order(4, (7,)))
    assert orders_from({"SHOAL_ORDERS": str(tmp_path / "orders")}).latest() == Order(4, (7,))
