"""The window program: against a mixed-integer program, by its promises, and the schedule of a figure."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import lil_array

from shoal.core.errors import InputError
from shoal.solve.window import Claims, Window, plan
from shoal.solve.window.branch_and_bound import in_whole_rounds
from shoal.solve.window.classes import classes
from shoal.solve.window.prices import priced
from shoal.solve.window.round_counts import Ladder, majorant, usable
from shoal.solve.window.seating import seated

MIXES = [
    (1, 2, 4, 8),
    (1, 2, 4, 8, 11, 24),
    (11, 24),
    (1, 3, 5, 7),
    (3, 5, 7),
    (4, 6, 9),
    (5, 13),
    (6, 10, 15),
    (7, 12, 30),
    (13, 29, 31),
    (16, 24, 40),
    (48, 80, 100),
]
"""Gangs that divide 256 GPUs, that fill them in few ways (11 and 24: 8 and 7 of them, and no other way), or in none."""


def instance(seed: int, most_gangs: int = 12, most_rounds: int = 6) -> tuple[Claims, int]:
    """Gangs of odd widths that want more than there is; every third instance has a gang whose pace picks up later."""
    chance = np.random.default_rng(seed)
    count, rounds = int(chance.integers(2, most_gangs + 1)), int(chance.integers(2, most_rounds + 1))
    widths = chance.choice([1, 2, 3, 5, 7], count).astype(np.int32)
    capacity = int(chance.integers(max(int(widths.max()), 4), 13))
    steps = chance.uniform(0.1, 3.0, (count, rounds)) * chance.uniform(0.2, 5.0, (count, 1))
    steps = -np.sort(-steps, axis=1)
    if seed % 3 == 0:
        steps[0] = steps[0, ::-1]
    worth = np.concatenate([np.zeros((count, 1)), np.cumsum(steps, axis=1)], axis=1) - chance.uniform(0, 9, (count, 1))
    return Claims(widths, worth, chance.uniform(0.0, 2.0 * rounds, count)), capacity


def reference(claims: Claims, capacity: int, level: float) -> float:
    """The most welfare of any schedule that leaves no gang more than the level: who runs when, as 0 or 1.

    Rounds are interchangeable: the fuller ones come first.
    """
    count, rounds = len(claims.widths), claims.rounds
    cells, choices = count * rounds, count * (rounds + 1)
    rows = lil_array((2 * rounds - 1 + 2 * count, cells + choices))
    lower, upper = np.full(rows.shape[0], -np.inf), np.zeros(rows.shape[0])
    for t in range(rounds):
        rows[t, t:cells:rounds] = claims.widths
        upper[t] = capacity
    for t in range(rounds - 1):
        rows[rounds + 2 * count + t, t:cells:rounds] = -claims.widths
        rows[rounds + 2 * count + t, t + 1 : cells : rounds] = claims.widths
    for j in range(count):
        own = cells + j * (rounds + 1) + np.arange(rounds + 1)
        rows[rounds + j, own] = 1.0
        lower[rounds + j] = upper[rounds + j] = 1.0
        rows[rounds + count + j, own] = np.arange(rounds + 1)
        rows[rounds + count + j, j * rounds : (j + 1) * rounds] = -1.0
        lower[rounds + count + j] = 0.0
    most = np.ones(cells + choices)
    most[cells:] = (np.arange(rounds + 1) >= claims.forced(level)[:, None]).ravel()
    cost = np.concatenate([np.zeros(cells), -claims.worth.ravel()])
    found = milp(
        cost,
        constraints=LinearConstraint(rows.tocsr(), lower, upper),
        bounds=Bounds(0, most),
        integrality=np.ones(len(cost), dtype=np.intp),
    )
    assert found.success, found.message
    return -float(found.fun)


def crowded(gangs: tuple[int, ...]) -> Claims:
    """300 gangs of these widths, of unlike lengths and weights, that want far more than 20 rounds of 256 GPUs."""
    chance = np.random.default_rng(sum(gangs))
    widths = chance.choice(gangs, 300).astype(np.int32)
    left = np.exp(chance.normal(3.0, 1.2, 300))
    progress = np.minimum(chance.uniform(0, 0.9, (300, 1)) + np.arange(21) / left[:, None], 1.0)
    return Claims(widths, chance.uniform(0.1, 10.0, (300, 1)) * np.log(progress + 0.01), left)


def lawful(found: Window, claims: Claims, capacity: int) -> None:
    """No round over capacity, and level, welfare and gap are those of the layout."""
    assert (claims.widths @ found.runs <= capacity).all()
    worth = claims.worth[np.arange(len(claims.widths)), found.counts].sum()
    assert found.welfare == pytest.approx(worth)
    assert claims.level(found.counts) <= found.level + 1e-9
    assert found.welfare <= found.bound
    assert 0.0 <= found.gap <= 1.0 + 1e-9


@pytest.mark.parametrize("begin", range(0, 200, 20))
def test_the_optimum_of_the_whole_program_lies_within_the_reported_gap(begin: int) -> None:
    for seed in range(begin, begin + 20):
        claims, capacity = instance(seed)
        found = plan(claims, capacity, (inf, 0.5, 0.0)[seed % 3])
        lawful(found, claims, capacity)
        best = reference(claims, capacity, found.level)
        slack = 1e-6 * (1.0 + abs(best))
        assert found.welfare - slack <= best <= found.bound + slack, seed


@pytest.mark.parametrize("gangs", MIXES)
@pytest.mark.parametrize(("price", "least"), [(0.0, None), (1.0, None), (inf, None), (inf, 0.0)])
def test_on_a_large_cluster_the_gap_is_below_a_thousandth_whether_gangs_divide_it_or_not(
    gangs: tuple[int, ...], price: float, least: float | None
) -> None:
    claims = crowded(gangs)
    found = plan(claims, 256, price, np.argsort(claims.left), least=least)
    lawful(found, claims, 256)
    assert found.gap <= 1e-3


def test_a_gang_that_must_run_in_every_round_does_though_a_better_set_of_gangs_leaves_it_out() -> None:
    # Two gangs of 5 fill the cluster and are worth more than one gang of 7, whose level needs every round.
    widths, left = np.array([5, 5, 7], dtype=np.int32), np.array([4.0, 4.0, 9.0])
    worth = np.arange(5)[None, :] * np.array([[3.0], [3.0], [1.0]])
    claims = Claims(widths, worth, left)
    assert plan(claims, 10, 0.0, least=0.0).counts.tolist() == [4, 4, 0]
    pressed = plan(claims, 10, inf, least=0.0)
    assert (pressed.counts.tolist(), pressed.level, pressed.gap) == ([0, 0, 4], 5.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_seats_go_to_gangs_for_the_most_worth_that_seats_in_unlike_rounds_allow(seed: int) -> None:
    chance = np.random.default_rng(seed)
    count, rounds = int(chance.integers(2, 9)), int(chance.integers(2, 7))
    seats, steps = chance.integers(0, count + 1, (rounds, 1)), -np.sort(-chance.uniform(0.1, 3.0, (count, rounds)))
    worth = np.concatenate([np.zeros((count, 1)), np.cumsum(steps, axis=1)], axis=1)
    claims = Claims(np.full(count, 3, dtype=np.int32), worth, np.zeros(count))
    nothing = np.zeros(count, dtype=np.int32)
    found = seated(Ladder(claims, 3 * count), seats, np.array([3]), nothing, np.arange(count))
    assert (found.runs.sum(axis=0) <= seats[:, 0]).all()
    # Who sits where, in parts, is a flow, and worth is concave: the program has an optimum in whole numbers.
    cells = count * rounds
    own, there = np.kron(np.eye(count), np.ones(rounds)), np.kron(np.ones(count), np.eye(rounds))
    best = linprog(
        np.concatenate([np.zeros(cells), -steps.ravel()]),
        A_ub=np.hstack([there, np.zeros((rounds, cells))]),
        b_ub=seats[:, 0],
        A_eq=np.hstack([own, -own]),
        b_eq=np.zeros(count),
        bounds=(0, 1),
    )
    assert best.fun is not None
    assert worth[np.arange(count), found.counts].sum() == pytest.approx(-best.fun)


@pytest.mark.parametrize("seed", range(20))
def test_prices_prove_the_bound_of_all_patterns_of_seats_and_branching_that_of_whole_rounds(seed: int) -> None:
    claims, capacity = instance(seed)
    ladder = Ladder(claims, usable(claims.widths, capacity))
    forced = claims.forced(float(np.quantile(claims.left, 0.8)))
    widths, of = np.unique(claims.widths, return_inverse=True)
    program = classes(ladder, of, forced, capacity)
    found = priced(program, 1.0, 1e-9)
    each = [range(int(most) + 1) for most in program.most]
    patterns = np.array([p for p in product(*each) if np.dot(p, widths) <= capacity])
    sizes = [len(steps) for steps in program.steps]
    spent = np.hstack([-patterns.T, np.repeat(np.eye(len(widths)), sizes, axis=1)])
    parts, whole = (
        linprog(
            np.concatenate([np.zeros(len(patterns)), *(-steps for steps in program.steps)]),
            A_ub=np.vstack([spent, np.r_[np.ones(len(patterns)), np.zeros(sum(sizes))]]),
            b_ub=np.r_[-program.forced, claims.rounds],
            bounds=[(0, None)] * len(patterns) + [(0, 1)] * sum(sizes),
            integrality=np.r_[np.full(len(patterns), whole), np.zeros(sum(sizes))],
        )
        for whole in (0, 1)
    )
    if not whole.success:
        # No plan covers what is forced; a bound may be anything, and to a plan of a higher level it is not applied.
        return
    assert parts.fun is not None
    assert found.bound == pytest.approx(program.base - parts.fun, abs=1e-6)
    assert (found.patterns @ widths <= capacity).all()
    assert found.shares.sum() == pytest.approx(claims.rounds)
    assert whole.fun is not None
    best = program.base - whole.fun
    branched = in_whole_rounds(program, found, best)
    assert branched is not None
    assert best - 1e-9 <= branched[0] <= best + 2e-6 * (found.bound - program.base) + 1e-9
    assert (branched[1] @ widths <= capacity).all()


def test_a_gap_of_nothing_is_the_optimum() -> None:
    closed = 0
    for seed in range(12):
        claims, capacity = instance(seed, most_gangs=6, most_rounds=3)
        found = plan(claims, capacity, inf)
        if found.gap == 0.0:
            closed += 1
            assert found.welfare == pytest.approx(reference(claims, capacity, found.level))
    assert closed >= 3


def test_the_schedule_of_shockwaves_figure_15c_comes_out_of_the_program() -> None:
    # 4 GPUs; serial times 12, 8 and 6 on up to 3, 2 and 2 GPUs, shares of a job on one GPU each: lanes of 4, 4 and 3
    # rounds. Shortest first, except that A's lanes have no round to lose of 7 from round 3 on.
    lanes = {"A": (3, 4.0), "B": (2, 4.0), "C": (2, 3.0)}
    names = [name for name, (many, _) in lanes.items() for _ in range(many)]
    left = np.array([lanes[name][1] for name in names])
    worth = np.minimum(np.arange(8)[None, :], left[:, None])
    claims = Claims(np.ones(7, dtype=np.int32), worth, left)
    found = plan(claims, 4, inf, np.array([5, 6, 3, 4, 0, 1, 2]))
    rounds = ["".join(sorted(np.array(names)[found.runs[:, t]])) for t in range(7)]
    assert rounds == ["BBCC", "BBCC", "BBCC", "AAAB", "AAAB", "AAA", "AAA"]
    assert found.gap == 0.0


def test_an_infinite_price_brings_the_level_down_first_and_no_price_leaves_it() -> None:
    # One GPU, a window of 4. The long gang's rounds are worth little; 3 for it and 1 for the other leave 3 to each.
    worth = np.array([[0.0, 1, 2, 3, 4], [0, 10, 20, 30, 40]])
    claims = Claims(np.ones(2, dtype=np.int32), worth, np.array([6, 4.0]))
    assert plan(claims, 1, 0.0, least=0.0).counts.tolist() == [0, 4]
    assert plan(claims, 1, inf, least=0.0).counts.tolist() == [3, 1]
    # Three rounds less of level cost 27 of welfare: below 9 a round nothing is given for them.
    assert plan(claims, 1, 8.9, least=0.0).counts.tolist() == [0, 4]
    assert plan(claims, 1, 9.1, least=0.0).counts.tolist() == [3, 1]
    assert plan(claims, 1, inf, least=4.0).counts.tolist() == [2, 2]
    # Together they need 10 rounds of one GPU: 6 are left whatever is done, so no level is worth anything.
    assert plan(claims, 1, inf).counts.tolist() == [0, 4]


def test_early_puts_the_order_before_welfare_and_what_the_level_forces_before_both() -> None:
    # One GPU, a window of 4: welfare wants the first gang in all rounds, the order the second, then the third.
    left = np.array([6.0, 2.0, 2.0])
    worth = np.minimum(np.arange(5)[None, :], left[:, None]) * np.array([[1.5], [2.0], [1.0]])
    claims, order = Claims(np.ones(3, dtype=np.int32), worth, left), np.array([1, 2, 0])
    by_welfare = [[0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert plan(claims, 1, 0.0, order).runs.astype(int).tolist() == by_welfare
    assert plan(claims, 1, inf, order, least=5.0, early=True).runs.astype(int).tolist() == by_welfare
    assert plan(claims, 1, inf, order, least=0.0, early=True).counts.tolist() == [4, 0, 0]
    dear = Claims(claims.widths, worth * np.array([[9.0], [1.0], [1.0]]), left)
    assert plan(dear, 2, 0.0, order).counts.tolist() == [4, 2, 2]
    assert plan(dear, 2, 0.0, order).runs[0].all()
    early = plan(dear, 2, 0.0, order, least=6.0, early=True)
    assert early.runs.astype(int).tolist() == [[0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert early.gap == pytest.approx(27.0 / 60.0)  # two of four rounds worth 13.5 each, of 54 + 4 + 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.7, inf]), st.booleans())
def test_every_plan_is_lawful_and_leaves_no_gpu_idle_that_anyone_could_use(
    seed: int, price: float, early: bool
) -> None:
    claims, capacity = instance(seed)
    order = np.random.default_rng(seed).permutation(len(claims.widths))
    found = plan(claims, capacity, price, order, early=early)
    lawful(found, claims, capacity)
    if early:
        for t in range(claims.rounds):
            free = capacity - int(claims.widths @ found.runs[:, t])
            assert not ((claims.widths <= free) & ~found.runs[:, t] & (found.counts < claims.rounds)).any()


def test_a_gang_wider_than_the_cluster_gets_nothing_and_delays_no_other_job() -> None:
    claims = Claims(np.array([9, 2], dtype=np.int32), np.array([[1.0, 5, 9], [0, 1, 2]]), np.array([50.0, 2]))
    found = plan(claims, 4, inf, np.array([0, 1]))
    assert found.counts.tolist() == [0, 2]
    assert (found.level, found.welfare, found.gap) == (0.0, 3.0, 0.0)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=8))
def test_the_majorant_is_concave_above_and_least(steps: list[float]) -> None:
    worth = np.concatenate([[0.0], np.cumsum(steps)])
    above = majorant(worth[None, :])[0]
    places = np.arange(len(worth))
    chords = [
        max(
            (worth[a] * (b - n) + worth[b] * (n - a)) / (b - a) if b > a else worth[n]
            for a in places[: n + 1]
            for b in places[n:]
        )
        for n in places
    ]
    assert above == pytest.approx(chords, abs=1e-7)


@pytest.mark.parametrize(
    ("widths", "capacity", "filled"), [((4, 4, 4), 10, 8), ((4,), 10, 4), ((3, 5), 7, 5), ((3, 3, 2), 8, 8), ((), 5, 0)]
)
def test_usable_is_the_most_gangs_fill_side_by_side(widths: tuple[int, ...], capacity: int, filled: int) -> None:
    assert usable(np.array(widths, dtype=np.int32), capacity) == filled


@pytest.mark.parametrize(
    ("widths", "worth", "left", "field"),
    [
        ([0], [[0.0, 1.0]], [1.0], "widths"),
        ([1], [[1.0, 0.0]], [1.0], "worth"),
        ([1], [[0.0, np.nan]], [1.0], "worth"),
        ([1], [[0.0, 1.0]], [-1.0], "left"),
        ([1, 1], [[0.0, 1.0]], [1.0], "worth"),
    ],
)
def test_claims_that_make_no_sense_are_refused(
    widths: list[int], worth: list[list[float]], left: list[float], field: str
) -> None:
    with pytest.raises(InputError) as refused:
        Claims(np.array(widths, dtype=np.int32), np.array(worth), np.array(left))
    assert refused.value.field == field
