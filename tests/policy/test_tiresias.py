"""Tiresias: queues of attained service, by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.policy.classic.tiresias import Tiresias
from shoal.testing.builders import job, simulate, snapshot


def test_jobs_are_demoted_at_the_threshold_and_queues_are_first_come_first_served() -> None:
    # One GPU, threshold 100. a runs 0–100 although b and c came, for all are in the first queue; at 100 a is demoted.
    # b 100–130. c 130–230, is demoted; a came before it, so a's last 50 s go first: a 230–280, c 280–330.
    rows = [job("a", 0, 1, 150), job("b", 50, 1, 30), job("c", 60, 1, 150)]
    run = simulate(Tiresias(thresholds=(100.0,)), rows, "gpu:1x1")
    assert run.completed == {"b": 130.0, "a": 280.0, "c": 330.0}
    assert [cycle.now for cycle in run.cycles] == [0.0, 50.0, 60.0, 100.0, 130.0, 230.0, 280.0, 330.0]
    assert run.cycles[3].sentence("a") == "waits: its queue is 2; jobs with up to 1 go first and take the GPUs"


def test_a_newcomer_preempts_whoever_has_been_demoted() -> None:
    # a is past the threshold at 100 but alone; b comes at 120 and takes the GPU until 140. a ends at 220.
    run = simulate(Tiresias(thresholds=(100.0,)), [job("a", 0, 1, 200), job("b", 120, 1, 20)], "gpu:1x1")
    assert run.completed == {"b": 140.0, "a": 220.0}


def test_the_review_comes_when_gpus_times_seconds_reach_the_threshold() -> None:
    # 2 GPUs have used 40 GPU-seconds by 20 s; the other 60 take 30 s more.
    moment = snapshot([job("a", 0, 2, 999), job("b", 0, 1, 999)], "gpu:1x2", held={"a": 2}, ran={"a": 20.0}, now=20.0)
    assert Tiresias(thresholds=(100.0,)).decide(moment).review_at == 50.0


def test_several_thresholds_make_several_queues() -> None:
    rows = [job(f"ran{i}", 0, 1, 999) for i in (0, 10, 20, 35)]
    moment = snapshot(rows, "gpu:1x2", ran={"ran10": 10.0, "ran20": 20.0, "ran35": 35.0}, now=100.0)
    verdicts = Tiresias(thresholds=(10.0, 30.0)).decide(moment).verdicts
    assert [verdicts[f"ran{i}"].reason.sentence() for i in (0, 10, 20, 35)] == [
        "runs: its queue is 1, and jobs with up to 2 go first",
        "runs: its queue is 2, and jobs with up to 2 go first",
        "waits: needs 1 GPU; 0 left when its turn comes",
        "waits: its queue is 3; jobs with up to 2 go first and take the GPUs",
    ]


STREAM = [job("old", 0, 1, 200), *(job(f"young{k}", 50 + 40 * k, 1, 40) for k in range(5))]


def test_without_promotion_an_old_job_waits_for_the_stream_of_young_ones_to_end() -> None:
    # old is demoted at 50; the young ones keep the GPU busy until 250; old's other 150 s end at 400.
    run = simulate(Tiresias(thresholds=(50.0,)), STREAM, "gpu:1x1")
    assert run.completed["old"] == 400.0


def test_promotion_brings_it_back_once_it_has_waited_as_long_as_it_ran() -> None:
    # old runs 0–50, waits 50 s, is promoted at 100 and, the earliest of its queue, runs until its 50 fresh GPU-seconds
    # are over at 150. So again 200–250 and 300–350: done.
    run = simulate(Tiresias(thresholds=(50.0,), promote=1.0), STREAM, "gpu:1x1")
    assert run.completed["old"] == 350.0
    assert run.starts["old"] == 4


def test_a_lease_outlasts_a_newcomer() -> None:
    # a is past the threshold at 10, but its lease runs to 30: b, in the first queue, runs 30–60. c, in the first queue
    # too, goes before a: 60–70. a's last 70 s end at 140.
    rows = [job("a", 0, 1, 100), job("b", 10, 1, 30), job("c", 45, 1, 10)]
    policy = Tiresias(thresholds=(10.0, 1000.0), lease=30.0)
    run = simulate(policy, rows, "gpu:1x1")
    assert run.completed == {"b": 60.0, "c": 70.0, "a": 140.0}
    assert run.cycles[1].sentence("a") == "keeps its GPUs: its lease runs until t = 30 s"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"thresholds": ()}, "thresholds"),
        ({"thresholds": (0.0, 5.0)}, "thresholds"),
        ({"thresholds": (5.0, 5.0)}, "thresholds"),
        ({"thresholds": (5.0, float("inf"))}, "thresholds"),
        ({"promote": -1.0}, "promote"),
        ({"lease": float("nan")}, "lease"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        Tiresias(**options)  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 4), st.integers(1, 300)), min_size=1, max_size=8))
def test_a_job_changes_places_seldom(rows: list[tuple[int, int, int]]) -> None:
    # A job is preempted only by an arrival, a demotion or a completion; each happens a bounded number of times.
    jobs = [job(f"j{i}", float(at), gpus, float(seconds)) for i, (at, gpus, seconds) in enumerate(rows)]
    run = simulate(Tiresias(thresholds=(50.0, 200.0)), jobs, "gpu:1x4")
    assert len(run.completed) == len(jobs)
    assert max(run.starts.values()) <= 1 + 4 * len(jobs)
