"""Shockwave's ρ: eq. 9 as printed, with contention averaged over a job's life, and ours with its peak."""

import numpy as np
import pytest

from shoal.core.snapshot import Snapshot
from shoal.policy.shockwave.carry import JobForecasts, ShockwaveCarry
from shoal.policy.shockwave.fairness import heading_for, met_contention
from shoal.policy.shockwave.policy import Shockwave
from shoal.testing.builders import job, simulate, snapshot


def moment(count: int, now: float) -> Snapshot:
    return snapshot([job(f"j{n}", 0, 1, 3600) for n in range(count)], "gpu:1x1", now=now)


def forecasts(count: int, seconds: float, optimistic: float) -> JobForecasts:
    rows, none = np.arange(count), np.zeros(count, dtype=np.int32)
    left, soonest = np.full(count, seconds), np.full(count, optimistic)
    return JobForecasts(rows, np.zeros(count), none, none, left, soonest, left, np.zeros((count, 2)))


def test_a_job_that_has_just_arrived_heads_for_1_in_the_paper_and_for_1_over_n_here() -> None:
    seen, known = moment(4, 0.0), forecasts(4, 3600.0, 3600.0)
    met = met_contention(seen, None)
    assert heading_for(seen, known, met, "mean").tolist() == [1.0] * 4
    assert heading_for(seen, known, met, "peak").tolist() == [0.25] * 4


def test_the_papers_contention_is_averaged_over_the_jobs_life() -> None:
    """Four jobs for 100 s, then two for 100 s: three on average, four at the peak."""
    carry = ShockwaveCarry(0.0, np.arange(4), met_contention(moment(4, 0.0), None))
    second = moment(2, 100.0)
    carry = ShockwaveCarry(0.0, np.arange(2), met_contention(second, carry))
    third = moment(2, 200.0)
    met = met_contention(third, carry)
    assert met.job_seconds.tolist() == [600.0, 600.0]
    assert met.peak_jobs.tolist() == [4, 4]
    known = forecasts(2, 400.0, 300.0)
    assert heading_for(third, known, met, "mean") == pytest.approx((200 + 400 * 3) / (400 * 3))
    assert heading_for(third, known, met, "peak") == pytest.approx((200 + 300) / (300 * 4))


def test_a_run_with_the_papers_measure_ends_all_jobs() -> None:
    rows = [job(f"j{n}", 60.0 * n, 1 + n % 2, 900) for n in range(6)]
    done = simulate(Shockwave(rho="mean"), rows, "gpu:1x2").completed
    assert set(done) == {row.id for row in rows}


def test_another_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="rho must be one of peak, mean"):
        Shockwave(rho="median")
