"""Tasks dealt out to pools of unequal machines: by hand, and whoever can be somewhere is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.solve.list_scheduling import assign_in_order

INF = float("inf")


def deal(alone: list[list[float]], pools: list[int] | None = None, moving: float = 0.0) -> list[int]:
    times, count = np.array(alone), len(alone)
    here = np.array([-1] * count if pools is None else pools, dtype=np.int8)
    ones, order = np.ones(count, dtype=np.int32), np.arange(count)
    found: list[int] = assign_in_order(times, ones, np.ones(times.shape[1]), order, here, moving=moving).tolist()
    return found


def test_each_goes_where_it_is_done_first_counting_who_came_before() -> None:
    # The first is done after 10 on the fast machine. The second would be after 20 there, and after 15 on the other.
    assert deal([[10.0, 40.0], [10.0, 15.0]]) == [0, 1]
    # Here it waits for the fast one: 20 is sooner than 40.
    assert deal([[10.0, 40.0], [10.0, 40.0]]) == [0, 0]


def test_a_long_task_on_a_slow_pool_takes_as_long_as_it_does_alone_however_large_the_pool() -> None:
    # Spread over ten machines its work would be 10: but it runs on one, for 100, and the fast machine is free after 60.
    times = np.array([[30.0, 300.0], [30.0, 100.0]])
    here = np.array([-1, -1], dtype=np.int8)
    found = assign_in_order(times, np.ones(2, dtype=np.int32), np.array([1.0, 10.0]), np.arange(2), here, moving=0.0)
    assert found.tolist() == [0, 0]


def test_who_is_somewhere_leaves_only_for_more_than_that_costs() -> None:
    assert deal([[10.0, 15.0]], [1], moving=4.0) == [0]
    assert deal([[10.0, 15.0]], [1], moving=6.0) == [1]


@given(
    st.lists(st.lists(st.sampled_from([1.0, 5.0, 20.0, INF]), min_size=3, max_size=3), min_size=1, max_size=8),
    st.data(),
)
def test_no_job_is_put_into_a_pool_it_cannot_use(alone: list[list[float]], data: st.DataObject) -> None:
    pools = [data.draw(st.sampled_from([-1, *(k for k in range(3) if row[k] < INF)])) for row in alone]
    for row, pool in zip(alone, deal(alone, pools, moving=2.0), strict=True):
        assert (pool == -1) == (min(row) == INF)
        assert pool == -1 or row[pool] < INF
