"""Clearing prices of pools, against demand counted row by row."""

import numpy as np
import pytest

from shoal.solve.pool_prices import PoolOptions, clearing_prices


def _draw(seed: int, rows: int, pools: int) -> tuple[list[PoolOptions], list[int]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(pools):
        row = np.sort(rng.integers(rows, size=3 * rows))
        units = rng.integers(1, 9, len(row)).astype(float)
        found.append(
            PoolOptions(row, units ** rng.uniform(0.3, 1.0, len(row)) * rng.uniform(0.5, 2.0, len(row)), units)
        )
    return found, rng.integers(0, 2 * rows, pools).tolist()


def _asked(options: list[PoolOptions], prices: list[float], rows: int, pool: int) -> float:
    """Units of ``pool`` in the best choices at these prices; a row whose best is elsewhere or nothing asks for none."""
    total = 0.0
    for row in range(rows):
        choices = [(0.0, -1, 0.0)]
        for k, own in enumerate(options):
            choices += [
                (worth - prices[k] * units, -1 if k != pool else 1, units)
                for at, worth, units in zip(own.row.tolist(), own.worth.tolist(), own.units.tolist(), strict=True)
                if at == row
            ]
        _, here, units = max(choices, key=lambda choice: choice[0])
        total += units if here > 0 else 0.0
    return total


@pytest.mark.parametrize("rows", [1, 5, 40, 200])
@pytest.mark.parametrize("seed", range(6))
def test_the_price_of_a_single_pool_is_the_lowest_at_which_demand_fits(rows: int, seed: int) -> None:
    options, capacity = _draw(seed, rows, 1)
    (price,) = clearing_prices(options, rows, capacity, 10.0, 0.0).tolist()
    assert _asked(options, [price], rows, 0) <= capacity[0]
    assert price == 0.0 or _asked(options, [price * (1.0 - 1e-9)], rows, 0) > capacity[0]


@pytest.mark.parametrize("rows", [5, 60])
@pytest.mark.parametrize("seed", range(4))
def test_the_last_of_several_pools_fits_at_its_price_beside_the_others(rows: int, seed: int) -> None:
    options, capacity = _draw(seed, rows, 3)
    prices = clearing_prices(options, rows, capacity, 10.0, 0.0).tolist()
    assert _asked(options, prices, rows, 2) <= capacity[2]


def _rigid(seed: int, rows: int, pools: int) -> list[PoolOptions]:
    """Rows of two options of as many units each, all of a row in one pool; some thresholds are equal."""
    rng = np.random.default_rng(seed)
    pool, units = rng.integers(pools, size=rows), rng.choice([1.0, 2.0, 4.0, 8.0], rows)
    worth = np.stack([units * rng.choice([0.25, 0.5, 1.0 / 3.0, rng.random()], rows) for _ in range(2)], axis=1)
    return [
        PoolOptions(own.repeat(2), worth[own].ravel(), units[own].repeat(2))
        for own in ((pool == k).nonzero()[0] for k in range(pools))
    ]


@pytest.mark.parametrize("rows", [3, 40, 300])
@pytest.mark.parametrize("seed", range(6))
def test_rigid_rows_have_the_price_that_elastic_ones_have_to_the_last_bit(rows: int, seed: int) -> None:
    (rigid,) = _rigid(seed, rows, 1)
    capacity = max(1, int(rigid.units[::2].sum()) // 3)
    # A row that may have one unit or two, of next to no worth, asks for nothing at the clearing price.
    elastic = PoolOptions(
        np.append(rigid.row, [rows, rows]), np.append(rigid.worth, [1e-30, 1e-30]), np.append(rigid.units, [1.0, 2.0])
    )
    found = clearing_prices([rigid], rows, [capacity], 10.0, 0.0)
    assert found.tolist() == clearing_prices([elastic], rows + 1, [capacity], 10.0, 0.0).tolist()
    assert _asked([rigid], found.tolist(), rows, 0) <= capacity


@pytest.mark.parametrize("seed", range(4))
def test_pools_that_no_row_can_choose_between_have_the_prices_they_have_alone(seed: int) -> None:
    options, capacity = _rigid(seed, 90, 3), [7, 40, 25]
    prices = clearing_prices(options, 90, capacity, 10.0, 0.0).tolist()
    alone = [clearing_prices([own], 90, [units], 10.0, 0.0)[0] for own, units in zip(options, capacity, strict=True)]
    assert prices == alone


def test_pools_without_options_are_free() -> None:
    none = PoolOptions(np.zeros(0, dtype=np.intp), np.zeros(0), np.zeros(0))
    assert clearing_prices([none, none], 3, [0, 4], 1.0, 0.0).tolist() == [0.0, 0.0]
