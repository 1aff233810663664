"""Optimus: marginal gain in completion time."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.decision import Verdicts
from shoal.policy.elastic.optimus import Optimus
from shoal.testing.builders import job, simulate, snapshot


def test_the_longer_job_gains_more_from_a_gpu() -> None:
    # One GPU each, two left. A second one takes a from 400 s to 200 and a third to 133; b's second would take it from
    # 100 to 50. So a has 3 and b 1. At 100 b is done, a has done 300 of 400 and takes the fourth: 25 s more.
    rows = [job("a", 0, 1, 400, max_gpus=4), job("b", 0, 1, 100, max_gpus=4)]
    run = simulate(Optimus(), rows, "gpu:1x4")
    assert run.cycles[0].granted() == {"a": 3, "b": 1}
    assert run.cycles[0].sentence("a") == "runs on 3 GPUs: its last one was worth 66.67, the next bidder's 50"
    assert run.completed == {"a": pytest.approx(125), "b": pytest.approx(100)}


def test_between_reviews_no_job_gives_up_a_gpu_to_a_better_bid() -> None:
    # At 100 b comes, a hundred times longer than what is left of a. It gets one GPU at once, from a, which has all
    # four, but the others only at the review at 600.
    rows = [job("a", 0, 1, 4000, max_gpus=4), job("b", 100, 1, 300_000, max_gpus=4)]
    run = simulate(Optimus(interval=600), rows, "gpu:1x4", until=700)
    granted = {cycle.now: cycle.granted() for cycle in run.cycles}
    assert granted[100] == {"a": 3, "b": 1}
    assert granted[600] == {"a": 1, "b": 3}


def test_a_small_gain_does_not_move_a_gpu() -> None:
    # The next GPU is worth 51 s to b and the third 50 s to a, which has it: not worth two restarts.
    rows = [job("a", 0, 1, 300, max_gpus=3), job("b", 0, 1, 102, max_gpus=3)]
    moment = snapshot(rows, "gpu:1x4", held={"a": 3, "b": 1}, ran={"a": 0.0, "b": 0.0})
    assert Verdicts.of(moment, Optimus().decide(moment).verdicts).gpus.tolist() == [3, 1]


def test_first_come_first_served_when_gpus_are_short() -> None:
    rows = [job("long", 0, 1, 1000), job("short", 0, 1, 10)]
    run = simulate(Optimus(), rows, "gpu:1x1")
    assert run.completed == {"long": 1000, "short": 1010}
    assert run.cycles[0].sentence("short") == "waits: needs 1 GPU; 0 left when its turn comes"


def test_a_gpu_that_does_not_help_is_not_given() -> None:
    # The table for this model ends at 8 GPUs; a rate of 0 beyond is no gain.
    rows = [job("a", 0, 1, model="ResNet-18", batch_size=32, work=1e6, max_gpus=16)]
    moment = snapshot(rows, "v100:4x8")
    curve = moment.perf.curve(moment.jobs.at(0), "v100")
    got = int(Verdicts.of(moment, Optimus().decide(moment).verdicts).gpus[0])
    assert got == 16 or curve[got + 1] <= curve[got]
    assert np.all(np.diff(curve[1 : got + 1]) > 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(1, 7),
)
def test_equals_brute_force_where_speedups_are_concave(rows: list[tuple[int, int]], gpus: int) -> None:
    """With linear speedups the remaining time work/k is convex in k, so greedy is the least total remaining time."""
    jobs = [job(f"j{i}", 0, 1, float(work), max_gpus=most) for i, (work, most) in enumerate(rows)]
    if len(jobs) > gpus:
        return
    moment = snapshot(jobs, f"gpu:1x{gpus}")
    got = Verdicts.of(moment, Optimus().decide(moment).verdicts).gpus.tolist()
    divisions = itertools.product(*(range(1, most + 1) for _, most in rows))
    best = min(
        sum(work / n for (work, _), n in zip(rows, counts, strict=True)) for counts in divisions if sum(counts) <= gpus
    )
    assert sum(work / n for (work, _), n in zip(rows, got, strict=True)) == pytest.approx(best)


def test_an_interval_must_be_a_time() -> None:
    with pytest.raises(ValueError, match="interval"):
        Optimus(interval=0.0)
