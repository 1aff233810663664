"""App schedulers without a cluster: the schedules of their papers, and what holds of every search."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InputError
from shoal.hpo.curve_stopping import CurveStopping, SingleJob, forecast
from shoal.hpo.halving import Hyperband, SuccessiveHalving
from shoal.hpo.registry import SEARCHERS, parse_search
from shoal.hpo.search import AppSearch, Kill, Order, Searcher, SearchPhase, Train, Trial

SEVENTHS = [1 / 7, 3 / 7, 1.0]


def played(searcher: Searcher, loss: Callable[[int, float], float], count: int) -> list[tuple[Order, ...]]:
    """The orders of a whole search, batch by batch, every trial being heard of at its next mark or its end in turn."""
    search = AppSearch.of(searcher, count)
    batches = [search.next_orders()]
    while not search.over:
        for n, trial in enumerate(search.trials):
            if search.trials[n].running:
                before = trial.losses[-1][0] if trial.losses else 0.0
                at = min([m for m in searcher.marks if before < m < trial.until], default=trial.until)
                search.record(n, at, loss(n, at))
        batches.append(search.next_orders())
    return batches


def by_number(trial: int, at: float) -> float:
    return trial / 100 + 1.0 - at


def legs(batch: Sequence[Order]) -> list[tuple[int, float, int]]:
    assert all(isinstance(order, Train) for order in batch)
    return [(order.trial, order.until, order.wider) for order in batch if isinstance(order, Train)]


# ── successive halving ────────────────────────────────────────────────────────────────────────────────────────────


def test_halving_four_trials_is_themis_example_of_phases_with_four_two_and_one_job() -> None:
    # Themis §4.3.3: phases of 4, 2 and 1 jobs with about 8, 16 and 36 iterations, the budget evenly divided.
    rungs = SuccessiveHalving().rungs(4)
    assert [rung.trials for rung in rungs] == [4, 2, 1]
    assert [rung.until for rung in rungs] == pytest.approx(SEVENTHS)
    parts = [rungs[0].until, rungs[1].until - rungs[0].until, rungs[2].until - rungs[1].until]
    assert [rung.trials * part for rung, part in zip(rungs, parts, strict=True)] == pytest.approx([4 / 7] * 3)


def test_halving_trains_all_to_a_rung_and_promotes_the_better_half_to_twice_the_gpus() -> None:
    batches = played(SuccessiveHalving(), lambda n, at: by_number(3 - n, at), 4)
    untils = [rung.until for rung in SuccessiveHalving().rungs(4)]
    assert [legs(batch) for batch in batches] == [
        [(n, untils[0], 1) for n in range(4)],
        [(3, untils[1], 2), (2, untils[1], 2)],
        [(3, untils[2], 4)],
        [],
    ]


@pytest.mark.parametrize(
    ("trials", "eta", "counts"),
    [(1, 2, [1]), (2, 2, [2, 1]), (8, 2, [8, 4, 2, 1]), (9, 2, [9, 4, 2, 1]), (9, 3, [9, 3, 1]), (26, 3, [26, 8, 2])],
)
def test_one_in_eta_is_left_at_each_rung(trials: int, eta: int, counts: list[int]) -> None:
    assert [rung.trials for rung in SuccessiveHalving(eta).rungs(trials)] == counts


def test_no_trial_is_promoted_before_the_last_on_the_rung_is_there() -> None:
    search = AppSearch.of(SuccessiveHalving(), 4)
    search.next_orders()
    for n in range(3):
        search.record(n, search.trials[n].until, 0.5)
        assert search.next_orders() == ()
    search.drop(3)
    assert [order.trial for order in search.next_orders()] == [0, 1]


def test_a_rung_on_which_everybody_failed_ends_the_search() -> None:
    search = AppSearch.of(SuccessiveHalving(), 2)
    search.next_orders()
    for n in range(2):
        search.drop(n)
    assert search.next_orders() == ()
    assert search.over


def test_what_lies_ahead_of_halving_are_the_rungs_above() -> None:
    searcher = SuccessiveHalving()
    search = AppSearch.of(searcher, 4)
    search.next_orders()
    rungs = searcher.rungs(4)
    later = (
        SearchPhase(2, rungs[1].until - rungs[0].until, 2),
        SearchPhase(1, rungs[2].until - rungs[1].until, 4),
    )
    assert searcher.ahead(search.trials) == later
    for n in range(4):
        search.record(n, search.trials[n].until, n)
    search.next_orders()
    assert searcher.ahead(search.trials) == later[1:]


# ── Hyperband ─────────────────────────────────────────────────────────────────────────────────────────────────────

TABLE = {  # Hyperband's Algorithm 1 for R = 81 and eta = 3: by bracket, trials and resource of each rung
    4: [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
    3: [(34, 3), (11, 9), (3, 27), (1, 81)],
    2: [(15, 9), (5, 27), (1, 81)],
    1: [(8, 27), (2, 81)],
    0: [(5, 81)],
}


def test_hyperband_has_the_brackets_of_its_algorithm() -> None:
    found = [[(r.trials, round(81 * r.until, 9)) for r in rungs] for rungs in Hyperband(3, 81.0).brackets]
    assert found == [[(n, float(r)) for n, r in rungs] for rungs in TABLE.values()]


def test_hyperband_runs_its_brackets_side_by_side_and_each_halves_on_its_own() -> None:
    batches = played(Hyperband(3, 9.0), by_number, 17)
    assert Counter(until for _, until, _ in legs(batches[0])) == {1 / 9: 9, 1 / 3: 5, 1.0: 3}
    assert legs(batches[1]) == [(0, 1 / 3, 3), (1, 1 / 3, 3), (2, 1 / 3, 3), (9, 1.0, 3)]
    assert legs(batches[2]) == [(0, 1.0, 9)]


def test_more_trials_than_hyperband_tries_are_refused_and_fewer_leave_the_last_brackets_short() -> None:
    with pytest.raises(InputError, match="tries 17"):
        AppSearch.of(Hyperband(3, 9.0), 18).next_orders()
    assert len(AppSearch.of(Hyperband(3, 9.0), 10).next_orders()) == 10


# ── the performance curve ─────────────────────────────────────────────────────────────────────────────────────────


@given(st.floats(0, 1), st.floats(0.5, 100), st.integers(3, 9))
def test_a_hyperbola_is_foretold_exactly(floor: float, pace: float, looks: int) -> None:
    def loss(x: float) -> float:
        return floor + 1.0 / (1.0 + pace * x)

    assert forecast([(k / 10, loss(k / 10)) for k in range(1, looks + 1)]) == pytest.approx(loss(1.0), abs=1e-6)


@pytest.mark.parametrize(
    ("heard", "end"),
    [
        ([(0.1, 0.9), (0.2, 0.8), (0.3, 0.7)], 0.0),  # a straight line goes on
        ([(0.1, 0.9), (0.2, 0.85), (0.3, 0.7)], -0.35),  # faster and faster: at the last speed
        ([(0.1, 0.9), (0.2, 0.5), (0.3, 0.6)], 0.5),  # rising: no better than it was
        ([(0.1, 0.9), (0.2, 0.5), (1.0, 0.6)], 0.6),  # done: what it is
    ],
)
def test_where_the_curve_does_not_flatten_the_more_hopeful_line_counts(
    heard: list[tuple[float, float]], end: float
) -> None:
    assert forecast(heard) == pytest.approx(end)


def test_a_trial_is_killed_once_it_cannot_beat_what_another_has_reached() -> None:
    floors = [0.0, 0.05, 0.5]
    batches = played(CurveStopping(looks=10), lambda n, x: floors[n] + (1 - floors[n]) / (1 + 9 * x), 3)
    assert legs(batches[0]) == [(0, 1.0, 1), (1, 1.0, 1), (2, 1.0, 1)]
    killed = [(at, order.trial) for at, batch in enumerate(batches) for order in batch if isinstance(order, Kill)]
    # Trial 2 ends at 0.55, which trial 0 has passed before anybody can be judged; trial 1 ends at 0.145, as trial 0
    # is only after two thirds.
    assert killed == [(3, 2), (7, 1)]


# ── every search ──────────────────────────────────────────────────────────────────────────────────────────────────

searchers = st.one_of(
    st.builds(SuccessiveHalving, st.integers(2, 4)),
    st.builds(Hyperband, st.integers(2, 4), st.sampled_from([1.0, 4.0, 9.0, 27.0])),
    st.builds(CurveStopping, st.integers(3, 12)),
    st.builds(SingleJob),
)


@given(searchers, st.data())
def test_every_search_ends_with_a_trial_trained_to_its_end_and_says_the_same_again(
    searcher: Searcher, data: st.DataObject
) -> None:
    most = sum(b[0].trials for b in searcher.brackets) if isinstance(searcher, Hyperband) else 40
    count = data.draw(st.integers(1, most))
    floors = data.draw(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.9]), min_size=count, max_size=count))

    def loss(n: int, x: float) -> float:
        return floors[n] + (1 - floors[n]) / (1 + 9 * x)

    batches = played(searcher, loss, count)
    orders = [order for batch in batches for order in batch]
    assert played(searcher, loss, count) == batches
    trained = [order for order in orders if isinstance(order, Train)]
    assert {order.trial for order in trained} == set(range(count))
    kills = Counter(order.trial for order in orders if isinstance(order, Kill))
    assert set(kills.values()) <= {1}
    # Nobody is trained after being killed, and each leg goes further than the last.
    for n in range(count):
        own = [order for order in orders if order.trial == n]
        assert [isinstance(order, Kill) for order in own[:-1]] == [False] * (len(own) - 1)
        untils = [order.until for order in own if isinstance(order, Train)]
        assert untils == sorted(set(untils))
    finished = [order.trial for order in trained if order.until == 1.0 and order.trial not in kills]
    assert finished
    if not isinstance(searcher, Hyperband):
        assert min(floors[n] for n in finished) == min(floors)


@given(st.integers(2, 4), st.integers(1, 60))
def test_halving_costs_the_same_on_every_rung_but_for_what_does_not_divide(eta: int, count: int) -> None:
    rungs = SuccessiveHalving(eta).rungs(count)
    assert rungs[-1].until == 1.0
    assert rungs[-1].trials in range(1, eta)
    parts = [b.until - a for a, b in zip([0.0, *(r.until for r in rungs)], rungs, strict=False)]
    for k, (rung, part) in enumerate(zip(rungs, parts, strict=True)):
        assert part == pytest.approx(parts[0] * eta**k)
        assert rung.trials == count // eta**k


@pytest.mark.parametrize(
    "order",
    [Kill(0), Train(1, 1.5), Train(1, 0.0), Train(1, 1.0, 0)],
    ids=["kill one that does not run", "past the end", "no further", "on no GPUs"],
)
def test_an_order_that_makes_no_sense_is_refused(order: Order) -> None:
    class Stubborn:
        marks = ()

        def orders(self, trials: Sequence[Trial]) -> Sequence[Order]:
            return [order]

        def ahead(self, trials: Sequence[Trial]) -> tuple[SearchPhase, ...]:
            return ()

    with pytest.raises(ValueError, match="trial"):
        AppSearch.of(Stubborn(), 2).next_orders()


# ── by name ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_searchers_are_named_with_their_options() -> None:
    assert parse_search("halving") == SuccessiveHalving()
    assert parse_search("halving:eta=3") == SuccessiveHalving(3)
    assert parse_search("hyperband:eta=2,most=16") == Hyperband(2, 16.0)
    assert parse_search("curve:looks=5") == CurveStopping(5)
    assert parse_search("single") == SingleJob()
    assert set(SEARCHERS) == {"halving", "hyperband", "curve", "single"}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("halfing", "did you mean halving"),
        ("halving:etta=2", "did you mean eta"),
        ("halving:eta=two", "must be a whole number"),
        ("hyperband:most=much", "must be a number"),
        ("halving:eta=1", "at least 2"),
        ("hyperband:most=nan", "at least 1"),
        ("curve:looks=2", "from 3"),
        ("single:eta=2", "takes no options"),
    ],
)
def test_a_misspelt_search_is_refused_with_a_way_out(spec: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_search(spec)


# ── what can be said of a search under way ────────────────────────────────────────────────────────────────────────


def test_a_trial_is_rejected_as_soon_as_enough_others_do_better_and_not_before() -> None:
    search = AppSearch.of(SuccessiveHalving(), 4)
    search.next_orders()
    assert (search.best, search.rejected()) == (None, ())
    for trial, loss, over in ((3, 0.9, ()), (1, 0.5, ()), (2, 0.7, (3,))):
        search.record(trial, 1 / 7, loss)
        assert search.rejected() == over
    search.record(0, 1 / 7, 0.1)
    search.next_orders()
    assert search.rejected() == (2, 3)
    search.record(0, 3 / 7, 0.4)
    assert search.best == 0  # trained further, though another had less loss earlier


def test_in_hyperband_trials_that_wait_for_their_bracket_are_not_rejected() -> None:
    search = AppSearch.of(Hyperband(eta=2, most=2), 3)  # two to a half and then one to the end; one to the end at once
    search.next_orders()
    search.record(1, 0.5, 0.3)
    search.record(2, 1.0, 0.0)
    assert search.rejected() == ()
    search.record(0, 0.5, 0.2)
    search.next_orders()
    assert search.rejected() == (1,)


def test_a_trial_whose_loss_is_no_number_is_stopped_and_one_that_recovers_is_not() -> None:
    assert forecast([(0.1, 1.0), (0.2, 0.9), (0.3, inf)]) == inf
    assert forecast([(0.1, inf), (0.2, 0.9), (0.3, 0.8)]) == -inf
