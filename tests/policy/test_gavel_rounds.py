"""Time shares carried out in rounds: received time follows the shares, pairs exclude, wide gangs get their turn."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from shoal.core.arrays import Floats, Indices
from shoal.policy.gavel.rounds import NONE, Cells, FreeNodes, cells_of, exchanged, next_round
from shoal.policy.gavel.tuning import TUNING
from shoal.solve.prices import equal_share_speed, max_min

WINDOW = TUNING.window
POINTS = 0.02


def alone(shares: object, gangs: object = None) -> Cells:
    """The cells of jobs that never share GPUs."""
    table = np.array(shares, dtype=np.float64)
    widths = np.ones(len(table), dtype=np.int32) if gangs is None else np.array(gangs, dtype=np.int32)
    return cells_of(table, widths, np.zeros((0, 2), dtype=np.intp), np.zeros((0, table.shape[1])))


def play(
    cells: Cells,
    capacity: object,
    jobs: int,
    rounds: int,
    *,
    idle: bool = False,
    nodes: Sequence[Sequence[int]] = (),
) -> Floats:
    """Rounds received by each cell before the first and after each; all keep within capacity and run nobody twice."""
    room = np.array(capacity, dtype=np.intp)
    received, sits = np.zeros(len(cells)), np.zeros(len(cells), dtype=bool)
    history = [received.copy()]
    answers: list[Indices] = []
    for t in range(rounds):
        begin = max(t - WINDOW + 1, 0)
        owed, lately = cells.share * t - received, cells.share * (t - begin) - (received - history[begin])
        again = answers[t - WINDOW] if t >= WINDOW else None
        chosen = next_round(
            cells, owed, lately, 1.0, room, jobs, runs_now=sits, idle=idle, nodes=nodes, window_ago=again
        )
        answers.append(chosen)
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


def fair_shares(seed: int, widest: int = 1) -> tuple[Floats, Indices, Indices]:
    """Max-min fair shares of random jobs on random GPUs, their gangs and the capacity."""
    chance = np.random.default_rng(seed)
    kinds = int(chance.integers(1, 7))
    capacity = chance.integers(widest, widest + 12, kinds)
    jobs = int(capacity.sum() * chance.uniform(0.5, 2.5) / max(1.0, widest / 3)) + 1
    speeds = chance.uniform(1.0, 10.0, (jobs, kinds)) * chance.uniform(0.5, 2.0, kinds)
    gangs = chance.integers(1, widest + 1, jobs)
    room, width = capacity.astype(np.float64), gangs.astype(np.float64)
    weights = equal_share_speed(speeds, room) * chance.choice([1.0, 1.0, 2.0, 5.0], jobs) / width
    return max_min(speeds, width, room, weights).X, gangs, capacity


def tight_shares(seed: int) -> tuple[Floats, Indices, Indices]:
    """Shares that leave no GPU a moment free, on few GPUs, many jobs with all or nearly all of their time."""
    chance = np.random.default_rng(seed)
    kinds = int(chance.integers(1, 5))
    capacity = chance.integers(1, 4, kinds)
    spare = int(chance.integers(0, 6))
    jobs, whole = int(capacity.sum()) + spare, np.append(capacity, spare).astype(np.float64)
    table = chance.exponential(size=(jobs, kinds + 1)) ** chance.uniform(0.5, 3.0) + 1e-9
    for _ in range(2000):  # Sinkhorn's scaling: rows come to 1, columns to the GPUs, the last one is waiting
        table *= whole / np.maximum(table.sum(axis=0), 1e-9)
        table /= table.sum(axis=1, keepdims=True)
    shares = table[:, :-1]
    return np.where(shares > 0.002, shares, 0.0), np.ones(jobs, dtype=np.intp), capacity


def loose_shares(seed: int) -> tuple[Floats, Indices, Indices]:
    """Shares of any size that leave GPUs free, as the cost policies' do."""
    chance = np.random.default_rng(seed)
    kinds = int(chance.integers(1, 7))
    capacity = chance.integers(1, 9, kinds)
    jobs = int(capacity.sum() * chance.uniform(1.0, 3.0)) + 1
    shares = chance.dirichlet(np.full(kinds, 0.5), jobs) * chance.uniform(size=(jobs, 1)) ** chance.uniform(0.3, 3.0)
    shares *= np.minimum(1.0, capacity / np.maximum(shares.sum(axis=0), 1e-9))
    return np.where(shares > 0.005, shares, 0.0), np.ones(jobs, dtype=np.intp), capacity


def packable_shares(seed: int) -> tuple[Floats, Indices, Indices]:
    """Shares of gangs that can be carried out: a mixture of a few rounds, each packed with whatever fits."""
    chance = np.random.default_rng(seed)
    kinds = int(chance.integers(1, 4))
    capacity = chance.integers(4, 13, kinds)
    jobs = int(capacity.sum() * chance.uniform(0.4, 1.2)) + 2
    wide = chance.integers(2, min(int(capacity.min()), 8) + 1, jobs)
    gangs = np.where(chance.uniform(size=jobs) < 0.4, wide, 1)
    shares = np.zeros((jobs, kinds))
    for part in chance.dirichlet(np.ones(int(chance.integers(2, 9)))):
        free = capacity.copy()
        for job in chance.permutation(jobs).tolist():
            room = np.flatnonzero(free >= gangs[job])
            if len(room):
                kind = int(chance.choice(room))
                shares[job, kind] += part
                free[kind] -= gangs[job]
    return shares, gangs, capacity


def windows(history: Floats, share: Floats) -> Floats:
    """By beginning: the fraction of ``WINDOW`` rounds in a row that was received beyond the share."""
    beyond: Floats = (history[WINDOW:] - history[:-WINDOW]) / WINDOW - share
    return beyond


SHARES = {"fair": (fair_shares, False), "tight": (tight_shares, False), "loose": (loose_shares, True)}


def check_follows(name: str, seed: int) -> None:
    make, idle = SHARES[name]
    shares, gangs, capacity = make(seed)
    cells = alone(shares, gangs)
    history = play(cells, capacity, len(shares), 200, idle=idle)
    # Kind by kind two points are not reached for every tight set: three of 1,000 were 2.01 to 2.21 off at first.
    within = 1.1 * POINTS if name == "tight" else POINTS
    assert np.abs(windows(history, cells.share)).max() <= within, (name, seed)
    by_job = np.stack([cells.totals(row, len(shares)) for row in history])
    assert np.abs(windows(by_job, cells.totals(cells.share, len(shares)))).max() <= POINTS, (name, seed)
    assert history[-1] / 200 == pytest.approx(cells.share, abs=POINTS)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", SHARES)
def test_any_60_rounds_in_a_row_are_within_two_points_of_the_shares_of_single_gpu_jobs(name: str, seed: int) -> None:
    check_follows(name, seed)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(SHARES)), st.integers(100, 100_000))
def test_received_time_follows_any_shares(name: str, seed: int) -> None:
    check_follows(name, seed)


def test_shares_of_every_size_are_exact_in_the_long_run() -> None:
    # 60 rounds of 1/7 are 8.57: a timetable of 60 rounds repeated for ever would give 8 or 9, a point off.
    history = play(alone([[1 / 7]] * 4 + [[3 / 7]]), [1], 5, 700)
    assert history[-1] == pytest.approx(np.array([100, 100, 100, 100, 300]), abs=1)


@pytest.mark.parametrize("seed", range(12))
def test_single_gpu_jobs_are_at_most_two_points_short_among_gangs_that_can_be_packed(seed: int) -> None:
    shares, gangs, capacity = packable_shares(seed)
    cells = alone(shares, gangs)
    received = play(cells, capacity, len(shares), 200)
    by_job = np.stack([cells.totals(row, len(shares)) for row in received])
    short = -windows(by_job, cells.totals(cells.share, len(shares)))
    assert short[:, gangs == 1].max(initial=0.0) <= POINTS, seed
    assert short[:, gangs > 1].max(initial=0.0) <= 1.5 * POINTS, seed


def test_a_job_that_would_be_too_short_gets_the_round_of_a_window_ago_instead() -> None:
    # The first is owed far more in all, but the second would be 1.4 rounds short of what was due to it lately.
    cells = alone([[0.5], [0.5]])
    owed, lately, sits = np.array([60.0, 0.9]), np.array([0.1, 0.9]), np.array([True, False])
    freely = next_round(cells, owed, lately, 1.0, np.array([1]), 2, runs_now=sits)
    assert np.flatnonzero(freely >= 0).tolist() == [0]
    again = np.array([NONE, 1])
    assert (
        next_round(cells, owed, lately, 1.0, np.array([1]), 2, runs_now=sits, window_ago=again).tolist()
        == again.tolist()
    )


def test_where_gangs_cannot_be_packed_to_the_shares_the_loss_is_spread() -> None:
    """No order of service keeps single-GPU jobs within 2 points here unless the gang starves.

    Two jobs with all the time of a GPU each, a gang with half the time of three, four GPUs: the shares keep every
    limit, but whenever the gang runs one of the two must wait. If it gets a fraction x of the time, one of the two
    loses x/2 at least.
    """
    had = play(alone([[1.0], [1.0], [0.5]], [1, 1, 3]), [4], 3, 240)[-1] / 240
    assert had[2] >= 0.2
    assert had[:2].min() >= 1.0 - had[2] / 2 - POINTS


def check_nobody_starves(seed: int) -> None:
    """Whole gangs cannot always be packed to the shares, so a wide job may get less, but never next to nothing."""
    shares, gangs, capacity = fair_shares(seed, widest=8)
    cells = alone(shares, gangs)
    history = play(cells, capacity, len(shares), 200)[1:]
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
def test_no_job_starves_whatever_the_gangs(seed: int) -> None:
    check_nobody_starves(seed)


def test_a_large_share_does_not_wait_for_fifty_small_ones() -> None:
    # By share over fraction received all fifty would run before the first had its second turn.
    shares = [[0.5]] + [[0.01]] * 50
    history = play(alone(shares), [1], 51, WINDOW)
    assert history[-1][0] == WINDOW / 2
    assert history[10][0] == 5


def test_a_wide_job_alternates_with_the_narrow_ones() -> None:
    # Eight GPUs: the wide job takes all of them every other round, in between eight narrow jobs run side by side.
    history = play(alone([[0.5]] * 9, [8] + [1] * 8), [8], 9, 10)
    assert history[-1].tolist() == [5.0] * 9


def test_a_gang_owed_half_of_its_time_goes_before_everybody_and_the_one_owed_the_most_of_it_first() -> None:
    # Owed 6.1 rounds of 60 at a share of 0.2 is more than half of what was due; of 0.9 it would take 27.
    cells = alone([[0.2], [0.4], [0.9], [0.9], [0.9], [0.9]], [4, 4, 1, 1, 1, 1])
    debt = np.array([6.1, 11.9, 12.0, 12.0, 12.0, 12.0])
    room = np.array([4])
    assert np.flatnonzero(next_round(cells, debt, debt, 1.0, room, 6) >= 0).tolist() == [0]
    debt[1] = 12.1  # 30.25 rounds of its share; the first is owed 30.5 of its own
    assert np.flatnonzero(next_round(cells, debt, debt, 1.0, room, 6) >= 0).tolist() == [0]
    debt[0] = 5.9
    assert np.flatnonzero(next_round(cells, debt, debt, 1.0, room, 6) >= 0).tolist() == [1]
    debt[1] = 11.9
    assert np.flatnonzero(next_round(cells, debt, debt, 1.0, room, 6) >= 0).tolist() == [2, 3, 4, 5]


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


def test_time_on_one_node_goes_round_among_gangs_that_want_it() -> None:
    # Three gangs of three on two nodes of four, nine GPUs wanted where eight are: two run at a time, one on each node.
    # A fourth of two GPUs sits on what is left over, one here and one there.
    shares, gangs = np.array([[2 / 3]] * 3 + [[1.0]]), np.array([3, 3, 3, 2], dtype=np.int32)
    near = np.array([[2 / 3]] * 3 + [[0.0]])
    cells = cells_of(shares, gangs, np.zeros((0, 2), dtype=np.intp), np.zeros((0, 1)), near)
    assert cells.consolidated.tolist() == [False, True, True, True]
    history = play(cells, [8], 4, WINDOW, nodes=[[4, 4]])
    assert history[-1].tolist() == [60.0, 40.0, 40.0, 40.0]


def test_no_more_run_on_one_node_than_nodes_seat() -> None:
    # Nodes of 4, 4 and 2: two gangs of three, however many want it; the third, apart, has the four GPUs left.
    shares, gangs = np.full((3, 1), 1.0), np.full(3, 3, dtype=np.int32)
    cells = cells_of(shares, gangs, np.zeros((0, 2), dtype=np.intp), np.zeros((0, 1)), np.full((3, 1), 2 / 3))
    history = play(cells, [10], 3, WINDOW, nodes=[[4, 4, 2]])
    near = np.diff(history[:, cells.consolidated].sum(axis=1))
    assert near.max() <= 2
    assert history[-1] == pytest.approx(np.array([20.0] * 3 + [40.0] * 3), abs=1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 8), max_size=12), st.lists(st.integers(1, 8), max_size=30))
def test_a_gang_takes_the_first_of_the_tightest_nodes(sizes: list[int], gangs: list[int]) -> None:
    nodes, free = FreeNodes(sizes), list(sizes)
    for gang in gangs:
        tightest = min((at for at, gpus in enumerate(free) if gpus >= gang), key=free.__getitem__, default=NONE)
        assert nodes.take(gang) == tightest
        if tightest != NONE:
            free[tightest] -= gang


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 100_000))
def test_a_cell_is_found_by_its_job_and_kind_where_the_job_is_alone(seed: int) -> None:
    chance = np.random.default_rng(seed)
    jobs, kinds = int(chance.integers(1, 7)), int(chance.integers(1, 4))
    table = np.where(chance.random((jobs, kinds)) < 0.6, 0.5, 0.0)
    near = np.where(chance.random((jobs, kinds)) < 0.5, table, 0.0) * chance.choice([0.5, 1.0], (jobs, kinds))
    pairs = np.array([[0, 1]] if jobs > 1 else [], dtype=np.intp).reshape(-1, 2)
    cells = cells_of(table, np.ones(jobs, dtype=np.int32), pairs, np.full((len(pairs), kinds), 0.1), near)
    job, kind = (side.ravel() for side in np.indices((jobs + 1, kinds)))
    job -= 1  # with −1, a job that no cell knows
    for whole in (False, True):
        found = cells.alone(job, kind, np.full(len(job), whole))
        anyhow = cells.alone_anyhow(job, kind)
        for i, (j, k) in enumerate(zip(job.tolist(), kind.tolist(), strict=True)):
            own = (cells.first == j) & (cells.kind == k) & (cells.second < 0)
            assert anyhow[i] == next(iter(np.flatnonzero(own)), NONE)
            assert found[i] == next(iter(np.flatnonzero(own & (cells.consolidated == whole))), NONE)


def test_among_equals_whoever_sits_there_stays() -> None:
    cells = alone([[0.5], [0.5]])
    for sitting in (0, 1):
        sits = np.arange(2) == sitting
        chosen = next_round(cells, np.zeros(2), np.zeros(2), 1.0, np.array([1]), 2, runs_now=sits)
        assert np.flatnonzero(chosen >= 0).tolist() == [sitting]


def test_gpus_stay_idle_only_where_that_is_asked_for() -> None:
    cells = alone([[0.5]])
    assert play(cells, [1], 1, 20, idle=True)[-1].tolist() == [10.0]
    assert play(cells, [1], 1, 20, idle=False)[-1].tolist() == [20.0]


def test_a_job_with_all_its_time_on_two_kinds_never_misses_a_turn() -> None:
    # Two jobs swap two unequal GPUs every round; one that missed a round could never make it up.
    history = play(alone([[0.5, 0.5], [0.5, 0.5]]), [1, 1], 2, WINDOW)
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
    found = exchanged(row, kind, worth[row, kind], np.full(rows, NONE), seats.tolist())
    taken = found[found >= 0]
    assert (row[taken] == np.flatnonzero(found >= 0)).all()
    assert (np.bincount(kind[taken], minlength=kinds) <= seats).all()
    # Seat by seat, with a place to stay out for every row.
    table = np.hstack([np.repeat(worth, seats, axis=1), np.zeros((rows, rows))])
    best = np.where(np.isfinite(table), table, -1e9)
    at = linear_sum_assignment(best, maximize=True)
    assert worth[row, kind][taken].sum() == pytest.approx(best[at].sum(), abs=1e-6)
