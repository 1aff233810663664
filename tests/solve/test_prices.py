"""Fair shares by prices: the papers' examples, hand-worked trees, what must always hold, and what is refused."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.solve.prices import (
    Filling,
    ShareNode,
    equal_share_speed,
    finish_time_fairness,
    hierarchical,
    isolated_speed,
    makespan,
    max_min,
)


def floats(values: object) -> Floats:
    return np.array(values, dtype=np.float64)


def test_gavels_three_jobs_on_a_v100_and_a_k80() -> None:
    # Gavel §4.1: normalised by the speed of an equal share the unique optimum is 8/11, with jobs 0 and 1 on the V100
    # for 5/11 each, and the rest of job 1 and almost all of job 2 on the K80.
    speeds, capacity = floats([[40, 10], [12, 4], [100, 50]]), floats([1, 1])
    normalised = speeds / equal_share_speed(speeds, capacity)[:, None]
    answer = max_min(normalised, np.ones(3), capacity, np.ones(3))
    assert answer.objective == pytest.approx(8 / 11, rel=1e-10)
    np.testing.assert_allclose(answer.X, floats([[5, 0], [5, 1], [1, 10]]) / 11, atol=1e-10)
    # The proof: job 1 sits on both types, which fixes the price ratio at 12:4, and both are exhausted.
    np.testing.assert_allclose(answer.stages[0].prices, [0.75, 0.25], atol=1e-9)


def test_gavels_four_equal_jobs_on_four_gpus_all_run_all_the_time_whatever_their_weights() -> None:
    # Gavel §4.3: job 1 (weight 3) saturates first, and water filling gives the other three the idle GPUs.
    answer = max_min(np.ones((4, 1)), np.ones(4), floats([4]), floats([3, 1, 1, 1]))
    np.testing.assert_allclose(answer.levels, np.ones(4), atol=1e-10)
    assert answer.objective == pytest.approx(1 / 3)


def test_a_makespan_is_the_slowest_rows_steps_over_its_level() -> None:
    # One type, 2 GPUs, steps 30 and 10 at speed 1: sharing them 3:1 would leave the first row capped at one GPU, so 30.
    answer = makespan(np.ones((2, 1)), np.ones(2), floats([2]), floats([30, 10]))
    assert 1 / answer.objective == pytest.approx(30)
    # On 1 GPU they share it 3:1 and end together after 40.
    answer = makespan(np.ones((2, 1)), np.ones(2), floats([1]), floats([30, 10]))
    assert 1 / answer.objective == pytest.approx(40)
    np.testing.assert_allclose(answer.X[:, 0], [0.75, 0.25], atol=1e-10)


def test_a_job_that_has_waited_longer_gets_more_under_finish_time_fairness() -> None:
    # Two equal rows on one GPU, 10 steps left each, 20 s each alone at half speed. The first has already spent 10 s for
    # nothing: equal ρ means (10 + 10/u)/20 = (10/v)/20 with u + v = 1, so u² + u − 1 = 0.
    answer = finish_time_fairness(
        np.ones((2, 1)), np.ones(2), floats([1]), floats([10, 10]), floats([10, 0]), floats([20, 20])
    )
    golden = (5**0.5 - 1) / 2
    np.testing.assert_allclose(answer.levels, [golden, 1 - golden], atol=1e-9)
    assert 1 / answer.objective == pytest.approx((10 / (1 - golden)) / 20)


def test_a_tree_passes_shares_on_by_weight_or_in_turn() -> None:
    # 4 GPUs, 8 equal rows. Product (weight 1, fair) has rows 0-3, research (weight 3, FIFO) rows 4-7: budgets 1 and 3.
    # Product splits 1 over four rows; research gives a whole GPU each to its first three.
    tree = ShareNode([ShareNode([0, 1, 2, 3], 1.0), ShareNode([4, 5, 6, 7], 3.0, "fifo")])
    answer = hierarchical(np.ones((8, 1)), np.ones(8), floats([4]), tree)
    np.testing.assert_allclose(answer.levels, [0.25] * 4 + [1, 1, 1, 0], atol=1e-9)
    assert answer.tau == pytest.approx(1.0)


def test_what_a_fair_node_cannot_use_goes_to_its_siblings() -> None:
    # 3 GPUs; a has one row (cap 1), b two rows, weights 2 and 1. Until a is full b has half of a; then b gets the rest.
    tree = ShareNode([ShareNode([0], 2.0), ShareNode([1, 2], 1.0)])
    answer = hierarchical(np.ones((3, 1)), np.ones(3), floats([2.5]), tree)
    np.testing.assert_allclose(answer.levels, [1, 0.75, 0.75], atol=1e-9)


def test_weights_of_rows_count_only_under_fair_nodes() -> None:
    tree = ShareNode([ShareNode([0, 1]), ShareNode([2, 3], policy="fifo")])
    answer = hierarchical(np.ones((4, 1)), np.ones(4), floats([1]), tree, floats([3, 1, 1, 9]))
    np.testing.assert_allclose(answer.levels, [0.375, 0.125, 0.5, 0], atol=1e-9)


def test_a_fifo_root_serves_its_children_one_after_the_other() -> None:
    answer = hierarchical(np.ones((3, 1)), np.ones(3), floats([1.5]), ShareNode([2, ShareNode([0, 1])], policy="fifo"))
    np.testing.assert_allclose(answer.levels, [0.25, 0.25, 1], atol=1e-9)


def test_later_stages_share_what_the_first_leaves_over() -> None:
    # Row 0 runs on type 0 only and shares it with row 1; row 2 runs on type 1 only, alone: it ends at its full speed.
    speeds = floats([[1, 0], [1, 0], [0, 5]])
    answer = max_min(speeds, np.ones(3), floats([1, 1]), np.ones(3))
    np.testing.assert_allclose(answer.levels, [0.5, 0.5, 5], atol=1e-9)
    assert answer.tau == pytest.approx(0.5)


def test_a_gang_gets_no_time_where_it_does_not_fit() -> None:
    # The gang of 4 is faster on the type with 2 machines and must not be sent there.
    answer = max_min(floats([[9, 1], [1, 1]]), floats([4, 1]), floats([2, 4]), np.ones(2))
    assert answer.X[0, 0] == 0
    assert answer.levels[0] == pytest.approx(1.0)


def test_an_earlier_allocation_is_kept_where_levels_allow() -> None:
    # Two equal rows on two equally fast single machines, half of the cluster's types each: any split is optimal.
    speeds, earlier = np.ones((2, 2)), floats([[0, 1], [1, 0]])
    answer = max_min(speeds, np.ones(2), np.ones(2), np.ones(2), prefer=earlier)
    np.testing.assert_allclose(answer.X, earlier, atol=1e-9)
    np.testing.assert_allclose(answer.levels, [1, 1], atol=1e-9)


def test_without_water_filling_idle_machines_go_to_idle_rows() -> None:
    # Row 1 cannot use type 1. The first stage stops where type 0 is exhausted at 0.5 each; type 1 is spread afterwards.
    speeds = floats([[1, 1], [1, 0], [1, 0]])
    answer = max_min(speeds, np.ones(3), floats([1, 1]), np.ones(3), water_filling=False)
    assert answer.objective == pytest.approx(0.5)
    assert answer.levels[0] == pytest.approx(1.0)


def test_nothing_asked_is_nothing_given() -> None:
    empty = max_min(np.zeros((0, 2)), np.zeros(0), np.ones(2), np.zeros(0))
    assert empty.X.shape == (0, 2)


def test_isolated_speed_is_an_nth_of_every_type_with_a_rows_time_capped() -> None:
    # Four GPUs of each type, two rows: row 0 (gang 1) would get 2 + 2 machines' time and is scaled to half its time on
    # each; row 1 (gang 8) gets 4/16 of its time on each.
    np.testing.assert_allclose(isolated_speed(floats([[4, 2], [4, 2]]), floats([1, 8]), floats([4, 4])), [3, 1.5])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: max_min(floats([[1], [0]]), np.ones(2), np.ones(1), np.ones(2)),
            "speeds: 1: this row has no usable type",
        ),
        (lambda: max_min(np.ones((1, 2)), floats([8]), floats([4, 4]), np.ones(1)), "it needs 8 of one type at once"),
        (lambda: max_min(floats([[1], [-1]]), np.ones(2), np.ones(1), np.ones(2)), "speeds: 1: this row has a speed"),
        (lambda: max_min(np.ones((1, 1)), np.ones(1), np.ones(1), np.zeros(1)), "weight: 0.0: of row 0"),
        (lambda: max_min(np.ones((1, 1)), np.zeros(1), np.ones(1), np.ones(1)), "gang: 0.0: of row 0"),
        (lambda: max_min(np.ones((1, 1)), np.ones(1), floats([-1]), np.ones(1)), "capacity: [-1.0]"),
        (lambda: max_min(np.ones((1, 2)), np.ones(1), np.ones(1), np.ones(1)), "with 1 gangs and 1 capacities"),
        (lambda: makespan(np.ones((1, 1)), np.ones(1), np.ones(1), floats([np.nan])), "steps: nan: of row 0"),
        (
            lambda: finish_time_fairness(np.ones((1, 1)), np.ones(1), np.ones(1), np.ones(1), floats([-1]), np.ones(1)),
            "elapsed: -1.0",
        ),
        (
            lambda: hierarchical(np.ones((2, 1)), np.ones(2), np.ones(1), ShareNode([0])),
            "must name each of the 2 rows once",
        ),
        (
            lambda: hierarchical(np.ones((1, 1)), np.ones(1), np.ones(1), ShareNode([0, ShareNode([])])),
            "cannot pass its share on",
        ),
        (
            lambda: hierarchical(np.ones((1, 1)), np.ones(1), np.ones(1), ShareNode([ShareNode([0], 0.0)])),
            "weight of a node",
        ),
    ],
)
def test_what_is_no_problem_is_refused_by_name(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(InputError, match=re.escape(words)):
        call()


def least_cost(speeds: Floats, prices: Floats, level: float) -> float:
    """The cheapest way to a level by trying every pair of types, idling among them."""
    points = [(0.0, 0.0), *((t, p) for t, p in zip(speeds.tolist(), prices.tolist(), strict=True) if t > 0)]
    costs = [p * level / t for t, p in points if t >= level > 0]
    costs += [
        low_price + (high_price - low_price) * (level - low) / (high - low)
        for low, low_price in points
        for high, high_price in points
        if low < level <= high
    ]
    return min(costs, default=np.inf) if level > 0 else 0.0


@st.composite
def problems(draw: st.DrawFn, *, wide: bool = True) -> tuple[Floats, Floats, Floats, Floats]:
    rows, types = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    ranges = [st.sampled_from([1.0, 2.0, 3.0]), st.floats(0.1, 10.0), st.floats(1e-3, 1e5)]
    speed = draw(st.sampled_from(ranges if wide else ranges[:2]))
    speeds = floats(draw(st.lists(st.lists(speed, min_size=types, max_size=types), min_size=rows, max_size=rows)))
    gangs = floats(draw(st.lists(st.sampled_from([1.0, 1.0, 2.0, 4.0]), min_size=rows, max_size=rows)))
    capacity = floats(draw(st.lists(st.sampled_from([0.0, 1.0, 4.0, 5.0, 1e6]), min_size=types, max_size=types)))
    capacity[0] = max(capacity[0], 4.0)
    weight = draw(st.sampled_from([st.just(1.0), st.floats(0.5, 3.0), st.floats(1e-3, 1e3)]))
    return speeds, gangs, capacity, floats(draw(st.lists(weight, min_size=rows, max_size=rows)))


def usable(speeds: Floats, gangs: Floats, capacity: Floats) -> Floats:
    return np.where(gangs[:, None] <= capacity, speeds, 0.0)


def fill_both(problem: tuple[Floats, Floats, Floats, Floats]) -> list[Filling]:
    speeds, gangs, capacity, weights = problem
    half = len(speeds) // 2
    tree = ShareNode([*range(half), ShareNode(list(range(half, len(speeds))), 2.0, "fifo")])
    return [max_min(*problem), hierarchical(speeds, gangs, capacity, tree, weights)]


@given(problems())
@settings(max_examples=60)
def test_an_answer_is_feasible_to_the_last_bit_and_proven(problem: tuple[Floats, Floats, Floats, Floats]) -> None:
    speeds, gangs, capacity, _ = problem
    for answer in fill_both(problem):
        assert (answer.X >= 0).all()
        assert (answer.X.sum(axis=1) <= 1).all()
        assert (gangs @ answer.X <= capacity).all()
        assert not answer.X[usable(speeds, gangs, capacity) == 0].any()
        assert answer.residual <= 1e-8
        assert answer.gap <= 1e-8
        assert len(answer.stages) <= len(capacity)


@given(problems())
@settings(max_examples=60)
def test_the_first_stages_prices_prove_that_nothing_more_can_be_paid_for(
    problem: tuple[Floats, Floats, Floats, Floats],
) -> None:
    speeds, gangs, capacity, weights = problem
    answer = max_min(*problem)
    if not answer.stages:
        return
    prices, able = answer.stages[0].prices, usable(speeds, gangs, capacity)
    assert prices @ capacity == pytest.approx(1.0)
    more = np.minimum(answer.tau * (1 + 1e-9) * weights, able.max(axis=1))
    cost = sum(gangs[m] * least_cost(able[m], prices, float(more[m])) for m in range(len(speeds)))
    assert cost > prices @ capacity


@given(problems())
@settings(max_examples=60)
def test_nobody_is_worse_off_than_with_an_nth_of_everything(problem: tuple[Floats, Floats, Floats, Floats]) -> None:
    speeds, gangs, capacity, _ = problem
    able = usable(speeds, gangs, capacity)
    apart = isolated_speed(able, gangs, capacity)
    answer = max_min(able, gangs, capacity, apart)
    assert answer.objective >= 1 - 1e-8


@given(problems(wide=False))
@settings(max_examples=60)
def test_nobody_can_gain_without_another_losing(problem: tuple[Floats, Floats, Floats, Floats]) -> None:
    speeds, gangs, capacity, _ = problem
    able = usable(speeds, gangs, capacity)
    scaled = able / able.max(axis=1, keepdims=True)
    rows, types = scaled.shape
    for answer in fill_both(problem):
        reach = np.zeros((rows, rows * types))
        for m in range(rows):
            reach[m, m * types : (m + 1) * types] = -scaled[m]
        reached = answer.levels / able.max(axis=1)
        best = linprog(
            reach.sum(axis=0),
            np.vstack([np.kron(np.eye(rows), np.ones(types)), np.kron(gangs, np.eye(types)), reach]),
            np.concatenate([np.ones(rows), capacity, -reached * (1 - 1e-10)]),
            bounds=[(0.0, 1.0 if able[m, j] > 0 else 0.0) for m in range(rows) for j in range(types)],
            method="highs",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        # Levels relaxed by r let the others rise by more than r, the more so the wider the speeds.
        assert best.fun is not None
        assert -best.fun <= reached.sum() + 1e-5


@given(problems(), st.integers(0, 3), st.integers(1, 5))
@settings(max_examples=60)
def test_more_machines_never_lower_the_objective(
    problem: tuple[Floats, Floats, Floats, Floats], place: int, more: int
) -> None:
    speeds, gangs, capacity, weights = problem
    larger = capacity.copy()
    larger[place % len(capacity)] += more
    before, after = max_min(*problem), max_min(speeds, gangs, larger, weights)
    assert after.objective >= before.objective * (1 - 1e-8)


@given(problems(), st.sampled_from([1e-3, 7.0, 1e4]))
@settings(max_examples=40)
def test_units_do_not_matter(problem: tuple[Floats, Floats, Floats, Floats], unit: float) -> None:
    speeds, gangs, capacity, weights = problem
    answer, scaled = max_min(*problem), max_min(speeds * unit, gangs, capacity, weights)
    np.testing.assert_allclose(scaled.levels / unit, answer.levels, rtol=1e-6, atol=1e-7 * speeds.max())
    heavier = max_min(speeds, gangs, capacity, weights * unit)
    np.testing.assert_allclose(heavier.levels, answer.levels, rtol=1e-6, atol=1e-7 * speeds.max())


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_order_does_not_matter(problem: tuple[Floats, Floats, Floats, Floats], chance: object) -> None:
    speeds, gangs, capacity, weights = problem
    order = np.arange(len(speeds))
    chance.shuffle(order)  # type: ignore[attr-defined]
    answer, shuffled = max_min(*problem), max_min(speeds[order], gangs[order], capacity, weights[order])
    fastest = usable(speeds, gangs, capacity).max(axis=1)
    assert (np.abs(shuffled.levels - answer.levels[order]) <= 1e-6 * fastest[order]).all()


@given(problems())
@settings(max_examples=40)
def test_what_is_preferred_changes_no_level_and_stays_when_preferred_again(
    problem: tuple[Floats, Floats, Floats, Floats],
) -> None:
    speeds, gangs, capacity, _ = problem
    fastest = usable(speeds, gangs, capacity).max(axis=1)
    plain = max_min(*problem)
    corner = np.eye(len(capacity))[np.arange(len(speeds)) % len(capacity)]
    near = max_min(*problem, prefer=corner)
    again = max_min(*problem, prefer=near.X)
    assert (np.abs(near.levels - plain.levels) <= 1e-7 * fastest).all()
    overlap = (gangs[:, None] * np.minimum(near.X, corner)).sum()
    assert overlap >= (gangs[:, None] * np.minimum(plain.X, corner)).sum() - 1e-6
    np.testing.assert_allclose(again.X, near.X, atol=1e-6)


@pytest.mark.parametrize(
    ("speeds", "gangs", "capacity", "weights"),
    [
        # Row 0 gains next to nothing on type 1, which is not full: several shares keep as much of the preferred ones.
        ([[9e4, 1e-3], [3e4, 6e4], [8e3, 2e4], [2, 1], [0.6, 0.6]], [1, 1, 1, 4, 4], [4, 1], [0.5, 0.5, 0.5, 2, 1]),
        # The linear program's shares overdrew a type by its tolerance and, scaled back, were discarded.
        ([[9e4, 1], [9e4, 1], [2e4, 7e4], [9e4, 1]], [4, 1, 1, 1], [4, 1], [1, 1, 1, 1]),
    ],
)
def test_an_answer_preferred_again_is_returned_unchanged(
    speeds: object, gangs: object, capacity: object, weights: object
) -> None:
    problem = floats(speeds), floats(gangs), floats(capacity), floats(weights)
    near = max_min(*problem, prefer=np.eye(2)[np.arange(len(problem[0])) % 2])
    again = max_min(*problem, prefer=near.X)
    np.testing.assert_array_equal(again.X, near.X)


@pytest.mark.parametrize("gap", [1e-15, 1e-12, 1e-9, 1e-6])
def test_speeds_that_are_all_but_equal_do_no_harm(gap: float) -> None:
    chance = np.random.default_rng(0)
    speeds = floats(1.0 + gap * chance.integers(0, 3, (40, 4)))
    answer = max_min(speeds, np.ones(40), floats([3, 4, 5, 6]), np.ones(40))
    np.testing.assert_allclose(answer.levels, 18 / 40, rtol=1e-5 if gap == 1e-6 else 1e-8)
    assert answer.residual <= 1e-8


def test_frozen_rows_that_tie_over_several_types_are_shared_out_as_they_were_counted() -> None:
    # Rows 1, 3, 4, 5, 7 and 8 freeze in the first stage with two to six ways each; the second stage trades them.
    # The type nobody can use made the same costs, summed over one type more, come out a bit differently.
    fast = [[4, 0, 3, 4, 0, 0], [0, 2, 4, 4, 0, 0], [0, 4, 2, 2, 0, 3], [2, 2, 4, 4, 0, 2], [2, 0, 4, 4, 0, 2]]
    fast += [[2, 0, 4, 4, 0, 0], [1, 4, 2, 2, 0, 3], [0, 0, 4, 4, 0, 2], [0, 2, 4, 4, 0, 0], [1, 0, 2, 2, 0, 3]]
    tree = ShareNode([ShareNode([7, 4, 5, 2], 1.0, "fifo"), ShareNode([8, 6, 9], 3.0), ShareNode([1, 3, 0], 1.0)])
    gangs, weights = floats([1, 1, 2, 2, 1, 2, 1, 1, 2, 1]), floats([1, 0.5, 0.5, 0.5, 2, 1, 2, 1, 2, 0.5])
    answer = hierarchical(floats(fast), gangs, floats([3, 2, 4, 2, 0, 2]), tree, weights)
    assert answer.residual <= 1e-9
    assert len(answer.stages) == 2


def test_many_rows_of_few_kinds_are_treated_alike() -> None:
    chance = np.random.default_rng(1)
    kinds = np.exp(chance.uniform(0, 2, (8, 4)))
    kind = chance.integers(0, 8, 600)
    answer = max_min(kinds[kind], np.ones(600), floats([40, 90, 20, 150]), np.ones(600))
    for k in range(8):
        assert np.ptp(answer.levels[kind == k]) <= 1e-8 * kinds[k].max()
    assert answer.gap <= 1e-8


@pytest.mark.parametrize("fast", [(1.076e4, 4.876e3, 7.133e3, 1e-3, 1.0), (3459.0, 10739.0, 12230.0, 1.5625e-2, 118.0)])
def test_a_stage_never_comes_to_rest_below_the_one_before_it(fast: tuple[float, ...]) -> None:
    # Row 3 must spend its idle time on type 1, a million times slower for it, to spare what row 2 needs of type 0. A
    # search that took the two ways for unlike fell below the first stage, or closed every type with rows left to raise.
    a, b, c, slow, weight = fast
    speeds = floats([[1, a], [1, b], [1, 1], [c, slow], [1, 1], [1, 1], [1, 1]])
    gangs, capacity = floats([1, 1, 4, 1, 1, 1, 1]), floats([4, 1])
    tree = ShareNode([0, 1, 2, ShareNode([3, 4, 5, 6], 2.0, "fifo")])
    answer = hierarchical(speeds, gangs, capacity, tree, floats([1, 1, weight, 1, 1, 1, 1]))
    assert max(answer.gap, answer.residual) <= 1e-8
    assert [stage.tau for stage in answer.stages] == sorted(stage.tau for stage in answer.stages)


def test_a_small_level_behind_a_large_one_is_not_lost_in_their_sum() -> None:
    # In turn: row 0 takes a whole GPU and 1e6 steps/s, row 1 the half that is left. The node's budget is the sum of
    # both, and the next larger float is worth 3e-5 of row 1.
    answer = hierarchical(floats([[1e6], [4e-6]]), np.ones(2), floats([1.5]), ShareNode([0, 1], policy="fifo"))
    np.testing.assert_allclose(answer.levels, [1e6, 2e-6], rtol=1e-9)
    assert max(answer.gap, answer.residual) <= 1e-9


def test_a_type_with_room_is_not_closed_because_the_next_float_would_overdraw_another() -> None:
    # Row 3 rises to speed 1 on type 2 and no further: row 2 holds all of type 1, a hundred-millionth faster for it.
    # Row 7, at its side and a million times lighter, then takes what is left, if that was not closed with type 1.
    fast = [[1, 1e6, 1 + 1e-8], [1e6, 1 + 1e-8, 1 + 1e-8], [1e-6, 2, 1], [1e6, 1 + 1e-8, 1], [1 + 1e-8, 1.00001, 1e6]]
    fast += [[1e6, 1e-6, 1e6], [1e6, 1, 1e-6], [1.00001, 1, 1 + 1e-8]]
    tree = ShareNode(
        [ShareNode([ShareNode([5, 4]), 6, 2], policy="fifo"), ShareNode([7, 3]), ShareNode([0, 1], policy="fifo")],
        policy="fifo",
    )
    gangs, weights = floats([4, 1, 8, 4, 1, 1, 2, 1]), floats([1, 1e3, 1, 1e3, 1e3, 1e-3, 1, 1e-3])
    answer = hierarchical(floats(fast), gangs, floats([3, 8, 6]), tree, weights)
    np.testing.assert_allclose(answer.levels, [0, 0, 2, 1, 1e6, 1e6, 1e6, 1.00001], rtol=1e-7, atol=1e-6)


def test_levels_that_fill_up_within_one_float_of_each_other_are_reported_as_blurred() -> None:
    # Row 1 fills up and row 2 begins between two neighbouring floats around 1e9: who of them is short cannot be told.
    speeds = floats([[1e9], [4e-8], [4e-8]])
    answer = hierarchical(speeds, np.ones(3), floats([2.5]), ShareNode([0, 1, 2], policy="fifo"))
    assert answer.residual > 1e-7


def test_rows_that_differ_by_a_ten_millionth_are_distinguished_without_losing_digits() -> None:
    # All frozen rows nearly tie over all types, so the second stage's game trades them against each other; a basis
    # that was inverted through a pivot of 1e-11 gave away 5e-4 of a row.
    size = [0.0041164, 338.07, 7.0425, 21.089, 16.363, 64.645, 61.006, 162.46, 10.653, 188.49]
    apart = ["00211", "22122", "02222", "12201", "00022", "00102", "21212", "00001", "12011", "10011"]
    noise = 1 + 1e-7 * floats([[int(digit) for digit in row] for row in apart])
    speeds = floats([22.6, 0.427, 1.15, 2.09, 975.0]) * floats(size)[:, None] * noise
    gangs, weights = floats([4, 2, 1, 4, 1, 2, 2, 2, 4, 4]), floats([1e-3, 1, 1e-3, 1e3, 1e3, 1e-3, 1, 1, 1, 1e3])
    answer = max_min(speeds, gangs, floats([5, 1, 6, 4, 8]), weights)
    assert max(answer.gap, answer.residual) <= 1e-8
