"""OSSP: least makespan."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.decision import Verdicts
from shoal.policy.classic.ossp import Ossp
from shoal.solve.makespan import lower_bound, shortest_makespan
from shoal.testing.builders import job, simulate, snapshot


def test_a_small_problem_ends_at_the_optimum() -> None:
    # 3 3 2 2 2 on two GPUs: longest first would end at 7; 3 + 3 and 2 + 2 + 2 end at 6.
    rows = [job(f"j{i}", 0, 1, 100.0 * s) for i, s in enumerate((3, 3, 2, 2, 2))]
    run = simulate(Ossp(), rows, "gpu:1x2")
    assert max(run.completed.values()) == pytest.approx(600)
    assert sum(run.starts.values()) == 5
    waiting = next(name for name in ("j0", "j1", "j2", "j3", "j4") if name not in run.cycles[0].granted())
    assert run.cycles[0].sentence(waiting).startswith("waits: number ")


def test_the_longest_goes_first_and_the_short_are_late() -> None:
    run = simulate(Ossp(exact=0), [job("short", 0, 1, 10), job("long", 0, 1, 1000)], "gpu:1x1")
    assert run.completed == {"long": 1000, "short": 1010}


def test_a_job_with_no_time_to_lose_stops_another_at_the_end_of_a_round() -> None:
    # a runs; at 60 the far longer b comes. All in all 2 GPUs need (40 + 100 + 1000) / 2 s at least, but b alone needs
    # 1000: it cannot wait, and at the review at 120 it takes the GPU of whichever is shorter.
    rows = [job("a", 0, 1, 100_000), job("c", 0, 1, 99_000), job("b", 60, 1, 200_000)]
    run = simulate(Ossp(exact=0), rows, "gpu:1x2", until=130)
    assert run.cycles[-1].granted() == {"a": 1, "b": 1}
    assert run.started["b"] == 120


def test_equal_jobs_do_not_take_turns_every_round() -> None:
    rows = [job(f"j{i}", 0, 1, 3000) for i in range(3)]
    run = simulate(Ossp(exact=0), rows, "gpu:1x2", restart_cost=10)
    assert sum(run.starts.values()) <= 6
    assert max(run.completed.values()) <= 1.1 * 4500


def test_a_running_job_moves_to_a_faster_kind_that_is_free() -> None:
    # On a K80 what is left would take hours; the V100 is free from 10 on, and the next round begins at 120.
    rows = [
        job("first", 0, 1, model="ResNet-50", batch_size=64, work=281.27 * 10_000, kinds=("v100",)),
        job("other", 0, 1, model="ResNet-50", batch_size=64, work=281.27 * 9_000),
    ]
    moment = snapshot(rows[1:], "v100:1x1,k80:1x1", held={})
    assert Verdicts.of(moment, Ossp().decide(moment).verdicts).kinds.tolist() == [0]  # type: ignore[union-attr]
    run = simulate(Ossp(), rows, "v100:1x1,k80:1x1")
    assert run.completed["other"] < 10_000 + 9_000 + 200


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 4)), min_size=1, max_size=6))
def test_the_run_is_as_long_as_the_proven_optimum(tasks: list[tuple[int, int]]) -> None:
    seconds, gpus = [10.0 * s for s, _ in tasks], [g for _, g in tasks]
    best = shortest_makespan(seconds, gpus, 4, nodes=100_000)
    rows = [job(f"j{i}", 0, g, s) for i, (s, g) in enumerate(zip(seconds, gpus, strict=True))]
    run = simulate(Ossp(round=1e6), rows)  # too long a round to stop anybody
    assert max(run.completed.values()) == pytest.approx(best.makespan)
    preemptive = simulate(Ossp(), rows)
    assert lower_bound(seconds, gpus, 4) - 1e-6 <= max(preemptive.completed.values()) <= best.makespan + 1e-6


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([1, 1, 2, 4])), min_size=13, max_size=20))
def test_a_larger_run_is_never_below_the_bound_and_near_it(tasks: list[tuple[int, int]]) -> None:
    seconds, gpus = [100.0 * s for s, _ in tasks], [g for _, g in tasks]
    run = simulate(Ossp(), [job(f"j{i}", 0, g, s) for i, (s, g) in enumerate(zip(seconds, gpus, strict=True))])
    bound = lower_bound(seconds, gpus, 4)
    assert bound - 1e-6 <= max(run.completed.values()) <= 2 * bound


@pytest.mark.parametrize(("option", "value"), [("round", 0.0), ("exact", 17), ("exact", -1)])
def test_options_must_make_sense(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        Ossp(**{option: value})  # type: ignore[arg-type]
