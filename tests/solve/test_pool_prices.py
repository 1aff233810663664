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


def test_pools_without_options_are_free() -> None:
    none = PoolOptions(np.zeros(0, dtype=np.intp), np.zeros(0), np.zeros(0))
    assert clearing_prices([none, none], 3, [0, 4], 1.0, 0.0).tolist() == [0.0, 0.0]
