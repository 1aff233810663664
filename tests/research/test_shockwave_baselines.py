"""Shockwave's baselines compared with the authors' results: each modelled choice agrees with their schedules."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.policy.classic.fifo import Fifo
from shoal.research.repro.shockwave import ROUND
from shoal.research.repro.shockwave_baselines import (
    BASELINES,
    RoundStartPolicy,
    analytic_centre,
    bisected_makespan,
    explained_by,
    first_share_times,
    shipped_result,
)
from shoal.research.repro.table import REPRODUCES
from shoal.testing.builders import job, simulate

FILES = Path(__file__).resolve().parents[2].parent / "shared" / "data"
THERE = pytest.mark.skipif(not FILES.exists(), reason="the public traces are missing")


def first_rounds(name: str) -> list[int]:
    """By job of the public trace: the round in which it first ran in a shipped result."""
    found: dict[int, int] = {}
    for number, ran in enumerate(shipped_result(FILES, name)["per_round_schedule"]):
        for one in ran:
            found.setdefault(int(one), number)
    return [found[one] for one in range(len(found))]


@THERE
@pytest.mark.parametrize("name", [name for name, _ in BASELINES.values()])
def test_no_shipped_schedule_runs_a_job_before_its_first_share(name: str) -> None:
    jobs = json.loads((FILES / "shockwave" / "jobs_120_tacc.json").read_bytes())["jobs"]
    here = [round(at / ROUND) for at in first_share_times([one["arrival_s"] for one in jobs])]
    there = first_rounds(name)
    assert all(ran >= share for ran, share in zip(there, here, strict=True))
    # The first 24 jobs fit on the cluster together: each ran once it had a share, up to 1,080 s after its arrival.
    assert there[:24] == here[:24]


@THERE
def test_shockwave_itself_gives_new_jobs_shares_in_the_next_round() -> None:
    jobs = json.loads((FILES / "shockwave" / "jobs_120_tacc.json").read_bytes())["jobs"]
    soon = [-int(-one["arrival_s"] // ROUND) for one in jobs[:12]]
    assert first_rounds("shockwave")[:12] == soon != first_rounds("max_min_fairness")[:12]


@THERE
@pytest.mark.parametrize("baseline", BASELINES)
def test_with_all_their_choices_a_baseline_is_within_three_percent(baseline: str) -> None:
    name, choices = BASELINES[baseline]
    _, makespan, _, jct, _ = choices[-1].measure(FILES, shipped_result(FILES, name))
    assert max(abs(makespan), abs(jct)) < 0.03


def test_what_comes_free_within_a_round_stays_free_until_the_next() -> None:
    rows = [job("first", 0, 1, 50), job("second", 10, 1, 50), job("third", 130, 1, 10)]
    run = simulate(RoundStartPolicy(Fifo()), rows, "gpu:1x1")
    assert run.completed == {"first": 50.0, "second": 170.0, "third": 250.0}


@given(st.floats(1.0, 9e5))
def test_the_search_by_halves_stops_within_five_percent(least: float) -> None:
    found = bisected_makespan(least)
    assert max(least, 100.0) <= found <= 1.05 * max(least, 100.0)


@given(st.data())
def test_no_other_shares_are_further_from_all_bounds_than_the_centre(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    gangs = np.array(data.draw(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=count, max_size=count)))
    least = np.array(data.draw(st.lists(st.floats(0.001, 0.95), min_size=count, max_size=count)))
    capacity = float(gangs @ least) + data.draw(st.floats(0.01, 1.0)) * float(gangs @ (1.0 - least))
    middle = analytic_centre(least, gangs, capacity)

    def depth(x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        bounds = np.concatenate([x, x - least, 1.0 - x, [capacity - gangs @ x]])
        return float(np.log(bounds).sum()) if (bounds > 0).all() else -np.inf

    assert np.isfinite(depth(middle))
    for towards in (least, np.ones(count), np.full(count, capacity / gangs.sum() / 2), np.roll(middle, 1)):
        for part in (1e-3, 0.1, -1e-3):
            assert depth(middle + part * (towards - middle)) <= depth(middle) + 1e-9


def test_a_baseline_further_than_three_percent_from_the_shipped_result_is_named() -> None:
    near = [1.0, 0.02, 1.0, -0.029, 0.4]
    assert explained_by({"Gavel": near, "AlloX": near}) == REPRODUCES
    assert explained_by({"Gavel": near, "AlloX": [1.0, 0.02, 1.0, -0.31, 0.4]}).startswith("differs: AlloX")
