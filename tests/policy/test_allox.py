"""AlloX: least total completion time by matching."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.policy.classic.allox import Allox
from shoal.testing.builders import job, simulate
from shoal.workload.schema import Job

V100, K80 = 281.27, 39.618
"""Samples per second of ResNet-50 at batch 64 on one GPU, from the catalogue."""


def resnet(id: str, at: float, v100_seconds: float) -> Job:
    return job(id, at, 1, model="ResNet-50", batch_size=64, work=v100_seconds * V100)


def test_shortest_first_on_one_kind() -> None:
    rows = [job("c", 0, 1, 300), job("a", 0, 1, 100), job("b", 0, 1, 200)]
    run = simulate(Allox(), rows, "gpu:1x1")
    assert run.completed == {"a": 100, "b": 300, "c": 600}
    assert run.cycles[0].sentence("a") == "runs now: matched to gpu, expected to take 100 s"


def test_no_job_is_stopped() -> None:
    run = simulate(Allox(), [job("long", 0, 1, 1000), job("short", 1, 1, 1)], "gpu:1x1")
    assert run.completed == {"long": 1000, "short": 1001}


def test_a_job_waits_for_the_fast_kind_when_that_ends_sooner() -> None:
    # b would take 1000 s on the V100, which is free in 100 s, and 7,100 s on the idle K80: it waits. c, of 10 s on
    # the V100, would be done there in 110 at best, before b, and in 71 s on the K80: it starts there at once.
    rows = [resnet("a", 0, 101), resnet("b", 1, 1000), resnet("c", 1, 10)]
    run = simulate(Allox(), rows, "v100:1x1,k80:1x1")
    assert run.started["b"] == pytest.approx(101, rel=1e-3)
    assert run.completed["c"] == pytest.approx(1 + 10 * V100 / K80, rel=1e-3)
    told = run.cycles[1].sentence("b")
    assert told.startswith("waits: number 1 in the queue of v100, expected to start there in 100")


def test_with_the_filter_jobs_that_waited_longest_come_first() -> None:
    # At 100 the GPU is free. Of the two that wait, half take part: the one that came first, however long it is.
    rows = [job("now", 0, 1, 100), job("long", 1, 1, 500), job("short", 2, 1, 10)]
    assert simulate(Allox(alpha=0.5), rows, "gpu:1x1").completed == {"now": 100, "long": 600, "short": 610}
    assert simulate(Allox(), rows, "gpu:1x1").completed == {"now": 100, "short": 110, "long": 610}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=5), st.integers(1, 2), st.integers(1, 2))
def test_jobs_of_one_gpu_end_at_the_least_total_time(seconds: list[int], fast: int, slow: int) -> None:
    """All there at once and known: what the run adds up to is the best of all ways to deal them out."""
    rows = [resnet(f"j{i}", 0, s) for i, s in enumerate(seconds)]
    run = simulate(Allox(), rows, f"v100:1x{fast},k80:1x{slow}")
    machines = [1.0] * fast + [V100 / K80] * slow
    best = float("inf")
    for where in itertools.product(range(len(machines)), repeat=len(seconds)):
        total = 0.0
        for m, slowness in enumerate(machines):
            queue = sorted(s * slowness for s, w in zip(seconds, where, strict=True) if w == m)
            total += sum(itertools.accumulate(queue))
        best = min(best, total)
    assert sum(run.completed.values()) == pytest.approx(best, rel=1e-3)


def test_a_large_free_cluster_is_filled_window_by_window() -> None:
    rows = [job(f"j{i}", 0, 1, 100 + i) for i in range(40)]
    run = simulate(Allox(window=8), rows, "a:4x5,b:4x5")
    assert len(run.cycles[0].granted()) == 40


@pytest.mark.parametrize(("option", "value"), [("alpha", 0.0), ("alpha", 1.5), ("window", 0)])
def test_options_must_make_sense(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        Allox(**{option: value})  # type: ignore[arg-type]
