"""Time shares carried out in rounds: received time follows the shares, pairs exclude, wide gangs get their turn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from shoal.mechanism.rounds import NOBODY, Cells, cells_of, exchanged, next_round
from shoal.solve.prices import equal_share_speed, max_min

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

ROUNDS = 60
POINTS = 0.02


def alone(shares: object, gangs: object = None) -> Cells:
    """The cells of jobs that never share GPUs."""
    table = np.array(shares, dtype=np.float64)
    widths = np.ones(len(table), dtype=np.int32) if gangs is None else np.array(gangs, dtype=np.int32)
    return cells_of(table, widths, np.zeros((0, 2), dtype=np.intp), np.zeros((0, table.shape[1])))


def play(cells: Cells, capacity: object, jobs: int, rounds: int, *, idle: bool = False) -> Floats:
    """Rounds received by each cell after each round; every round keeps within capacity and runs nobody twice."""
    room = np.array(capacity, dtype=np.intp)
    received, sits = np.zeros(len(cells)), np.zeros(len(cells), dtype=bool)
    history = []
    for t in range(rounds):
        chosen = next_round(cells, cells.share * t - received, 1.0, room, jobs, sits=sits, idle=idle)
        picked = np.unique(chosen[chosen >= 0])
        members = np.concatenate([cells.first[picked], cells.second[picked]])
        members = members[members >= 0]
        assert len(set(members.tolist())) == len(members)
        assert sorted(members.tolist()) == np.flatnonzero(chosen >= 0).tolist()
        assert (np.bincount(cells.kind[picked], cells.gang[picked], len(room)) <= room).all()
        received[picked] += 1
        sits = np.isin(np.arange(len(cells)), picked)
        history.append(received.copy())
    return np.array(history)


def fair_shares(seed: int, widest: int = 1) -> tuple[Floats, Ints, Ints]:
    """Max-min fair shares of random jobs on random GPUs, their gangs and the capacity."""
    chance = np.random.default_rng(seed)
    kinds = int(chance.integers(1, 5))
    capacity = chance.integers(widest, widest + 12, kinds)
    jobs = int(capacity.sum() * chance.uniform(0.5, 2.5) / max(1.0, widest / 3)) + 1
    speeds = chance.uniform(1.0, 10.0, (jobs, kinds)) * chance.uniform(0.5, 2.0, kinds)
    gangs = chance.integers(1, widest + 1, jobs)
    room, width = capacity.astype(np.float64), gangs.astype(np.float64)
    weights = equal_share_speed(speeds, room) * chance.choice([1.0, 1.0, 2.0, 5.0], jobs) / width
    return max_min(speeds, width, room, weights).X, gangs, capacity


def check_follows(seed: int) -> None:
    shares, gangs, capacity = fair_shares(seed)
    cells = alone(shares, gangs)
    history = play(cells, capacity, len(shares), ROUNDS + 30)
    for rounds in range(ROUNDS, ROUNDS + 31):
        assert history[rounds - 1] / rounds == pytest.approx(cells.share, abs=POINTS), (seed, rounds)


@pytest.mark.parametrize("seed", range(20))
def test_single_gpu_jobs_are_within_two_points_of_their_shares_after_60_rounds(seed: int) -> None:
    check_follows(seed)


@settings(max_examples=25, deadline=None)
@given(st.integers(100, 100_000))
def test_received_time_follows_any_fair_shares(seed: int) -> None:
    check_follows(seed)


def check_nobody_starves(seed: int) -> None:
    """Whole gangs cannot always be packed to the shares, so a wide job may get less, but never next to nothing."""
    shares, gangs, capacity = fair_shares(seed, widest=8)
    cells = alone(shares, gangs)
    history = play(cells, capacity, len(shares), 200)
    total, had = cells.totals(cells.share, len(shares)), cells.totals(history[-1], len(shares)) / 200
    served = np.flatnonzero(total > 0.02)
    assert (had[served] >= total[served] / 3 - POINTS).all(), (seed, gangs[served], total[served], had[served])
    for job in served.tolist():
        turns = np.flatnonzero(np.diff(history[:, cells.first == job].sum(axis=1), prepend=0.0))
        waits = np.diff(np.concatenate([[-1], turns, [200]]))
        assert waits.max() <= 8.0 / total[job] + 4, (seed, job, int(gangs[job]), float(total[job]))


@pytest.mark.parametrize("seed", range(20))
def test_no_job_with_a_share_starves_wide_ones_included(seed: int) -> None:
    check_nobody_starves(seed)


@settings(max_examples=25, deadline=None)
@given(st.integers(100, 100_000))
def test_nobody_starves_whatever_the_gangs(seed: int) -> None:
    check_nobody_starves(seed)


def test_a_large_share_does_not_wait_for_fifty_small_ones() -> None:
    # By share over fraction received all fifty would run before the first had its second turn.
    shares = [[0.5]] + [[0.01]] * 50
    history = play(alone(shares), [1], 51, ROUNDS)
    assert history[-1][0] == ROUNDS / 2
    assert history[9][0] == 5


def test_a_wide_job_alternates_with_the_narrow_ones() -> None:
    # Eight GPUs: the wide job takes all of them every other round, in between eight narrow jobs run side by side.
    history = play(alone([[0.5]] * 9, [8] + [1] * 8), [8], 9, 10)
    assert history[-1].tolist() == [5.0] * 9


def test_a_job_owed_two_rounds_goes_before_everybody_and_the_smallest_part_of_a_share_first() -> None:
    # Owed 2.1 rounds at a share of 0.2 is ten rounds without a turn; 2.5 at 0.9 is not three.
    cells = alone([[0.2], [0.9], [0.9], [0.9], [0.9]], [4, 1, 1, 1, 1])
    debt = np.array([2.1, 2.5, 2.5, 1.9, 1.9])
    assert next_round(cells, debt, 1.0, np.array([4]), 5).tolist() == [0, NOBODY, NOBODY, NOBODY, NOBODY]
    debt[0] = 1.9
    assert next_round(cells, debt, 1.0, np.array([4]), 5).tolist() == [NOBODY, 1, 2, 3, 4]


def test_a_pair_excludes_every_other_combination_of_its_members() -> None:
    # a and b together for half of the time, each alone for a quarter; two rounds in four together, one each alone.
    shares, pairs = np.array([[0.25], [0.25]]), np.array([[0, 1]])
    cells = cells_of(shares, np.ones(2, dtype=np.int32), pairs, np.array([[0.5]]))
    history = play(cells, [1], 2, 8)
    assert history[-1].tolist() == [2.0, 2.0, 4.0]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_pairs_and_gangs_of_any_shape_never_collide(data: st.DataObject) -> None:
    jobs, kinds = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 3))
    fraction = st.floats(0.0, 0.4).map(lambda x: x if x > 0.02 else 0.0)
    gangs = np.array(data.draw(st.lists(st.sampled_from([1, 1, 2, 4]), min_size=jobs, max_size=jobs)), dtype=np.int32)
    mates = [(i, j) for i in range(jobs) for j in range(i + 1, jobs) if gangs[i] == gangs[j]][:10]
    single = np.array(data.draw(st.lists(fraction, min_size=jobs * kinds, max_size=jobs * kinds))).reshape(jobs, kinds)
    both = np.array(data.draw(st.lists(fraction, min_size=len(mates) * kinds, max_size=len(mates) * kinds)))
    pairs = np.array(mates, dtype=np.intp).reshape(-1, 2)
    cells = cells_of(single, gangs, pairs, both.reshape(len(mates), kinds))
    play(cells, data.draw(st.lists(st.integers(1, 6), min_size=kinds, max_size=kinds)), jobs, 12)


def test_among_equals_whoever_sits_there_stays() -> None:
    cells = alone([[0.5], [0.5]])
    for sitting in (0, 1):
        sits = np.arange(2) == sitting
        chosen = next_round(cells, np.zeros(2), 1.0, np.array([1]), 2, sits=sits)
        assert np.flatnonzero(chosen >= 0).tolist() == [sitting]


def test_gpus_stay_idle_only_where_that_is_asked_for() -> None:
    cells = alone([[0.5]])
    assert play(cells, [1], 1, 20, idle=True)[-1].tolist() == [10.0]
    assert play(cells, [1], 1, 20, idle=False)[-1].tolist() == [20.0]


def test_a_job_with_all_its_time_on_two_kinds_never_misses_a_turn() -> None:
    # Two jobs swap two unequal GPUs every round; one that missed a round could never make it up.
    history = play(alone([[0.5, 0.5], [0.5, 0.5]]), [1, 1], 2, ROUNDS)
    assert history[-1].tolist() == [30.0] * 4


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 100_000))
def test_exchanging_ends_at_an_assignment_of_the_largest_worth(seed: int) -> None:
    chance = np.random.default_rng(seed)
    rows, kinds = int(chance.integers(1, 9)), int(chance.integers(1, 4))
    seats = chance.integers(0, 4, kinds)
    offered = chance.random((rows, kinds)) < 0.7
    worth = np.where(offered, chance.normal(size=(rows, kinds)), -np.inf)
    row, kind = np.nonzero(offered)
    found = exchanged(row, kind, worth[row, kind], np.full(rows, NOBODY), seats.tolist())
    taken = found[found >= 0]
    assert (row[taken] == np.flatnonzero(found >= 0)).all()
    assert (np.bincount(kind[taken], minlength=kinds) <= seats).all()
    # Seat by seat, with a place to stay out for every row.
    table = np.hstack([np.repeat(worth, seats, axis=1), np.zeros((rows, rows))])
    best = np.where(np.isfinite(table), table, -1e9)
    at = linear_sum_assignment(best, maximize=True)
    assert worth[row, kind][taken].sum() == pytest.approx(best[at].sum(), abs=1e-6)
