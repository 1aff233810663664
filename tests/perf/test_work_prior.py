"""What is drawn of live jobs: never less than what was seen, the same for the same seed, and told what it rests on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.perf.length_table import DRAWN
from shoal.perf.work_prior import DECLARED_SPREAD, PRIOR_SECONDS, Basis, Known

AMOUNTS = st.floats(min_value=1e-3, max_value=1e9)


def known(*jobs: tuple[float, float, float, float], past: tuple[float, ...] = ()) -> Known:
    """Jobs as (declared work, done, seconds run, speed); ``past`` are totals that earlier runs predict for all."""
    columns = np.array(jobs, dtype=np.float64).reshape(-1, 4).T
    row = np.quantile(past, DRAWN, method="inverted_cdf") if past else np.full(len(DRAWN), np.nan)
    return Known(columns[0], columns[1], columns[2], columns[3], np.tile(row, (len(jobs), 1)))


@given(
    st.lists(st.tuples(AMOUNTS | st.just(np.inf), AMOUNTS | st.just(0.0), AMOUNTS, AMOUNTS), min_size=1, max_size=8),
    st.lists(AMOUNTS, max_size=20),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1, DECLARED_SPREAD, 3.0]),
)
def test_no_job_has_less_work_than_is_done_and_every_job_has_some(
    jobs: list[tuple[float, float, float, float]], past: list[float], seed: int, spread: float
) -> None:
    facts = known(*jobs, past=tuple(past))
    work = facts.draw(seed, spread)
    assert np.isfinite(work).all()
    assert (work >= facts.done).all()
    assert (work > 0).all()
    assert np.array_equal(work, facts.draw(seed, spread))


def test_one_more_job_changes_no_other_jobs_draw() -> None:
    few = known((100, 0, 0, 1), (np.inf, 5, 5, 1))
    more = known((100, 0, 0, 1), (np.inf, 5, 5, 1), (50, 0, 0, 1))
    assert np.array_equal(few.draw(7), more.draw(7)[:2])


def test_without_a_spread_declared_work_is_taken_at_its_word_unless_more_is_done() -> None:
    assert known((100, 0, 0, 1), (100, 99, 9, 1), (100, 130, 9, 1)).draw(0, 0.0).tolist() == [100, 100, 130]


def test_declared_work_is_the_median_of_what_is_drawn_and_the_spread_its_deviation() -> None:
    logs = np.log(known(*[(100.0, 0.0, 0.0, 1.0)] * 20_000).draw(3) / 100)
    assert np.median(logs) == pytest.approx(0.0, abs=0.01)
    assert logs.std() == pytest.approx(DECLARED_SPREAD, rel=0.03)


def test_a_job_past_its_declared_work_is_drawn_from_the_tail_however_far_out() -> None:
    for done in (150.0, 1e4, 1e12):
        work = known(*[(100.0, done, 1.0, 1.0)] * 1000).draw(1)
        assert (work > done).all()
        assert np.median(work) < 2 * done


def test_undeclared_work_is_drawn_from_what_earlier_runs_predict() -> None:
    facts = known(*[(np.inf, 100.0, 55.0, 2.0)] * 20_000, past=tuple(float(work) for work in range(110, 210)))
    drawn = facts.draw(0)
    assert np.quantile(drawn, (0.1, 0.5, 0.9)) == pytest.approx([120.0, 160.0, 200.0], abs=2.0)
    assert set(facts.bases()) == {Basis.HISTORY}


@pytest.mark.parametrize(("ran", "mean"), [(50_000.0, 50_000.0), (0.0, PRIOR_SECONDS)])
def test_without_a_prediction_a_job_runs_as_long_again(ran: float, mean: float) -> None:
    facts = known(*[(np.inf, 0.0, ran, 1.0)] * 20_000)
    assert facts.draw(0).mean() == pytest.approx(mean, rel=0.03)
    assert set(facts.bases()) == {Basis.AS_LONG_AGAIN}


def test_what_a_job_declares_comes_before_what_others_did() -> None:
    assert known((5, 0, 0, 1), past=(1.0,) * 50).bases() == [Basis.DECLARED]
