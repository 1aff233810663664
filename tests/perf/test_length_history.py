"""Predicted lengths: what ended runs say of jobs that declare no work."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.job import JobSpec
from shoal.perf.length_history import LengthHistory
from shoal.perf.length_keys import script_of

ONE = np.ones(1)


def spec(user: str = "ana", name: str = "train", gpus: int = 1, **more: Any) -> JobSpec:
    return replace(JobSpec("", 0.0, gpus, None, gpus, gpus, tenant=user, name=name), **more)


def history(*runs: tuple[JobSpec, float], **more: bool) -> LengthHistory:
    made = LengthHistory(**more)
    for one, seconds in runs:
        made.add(one, seconds, 1.0)
    return made


def totals(of: LengthHistory, job: JobSpec, done: float = 0.0, speed: float = 1.0) -> list[float]:
    """The 10th, 50th and 90th percentile and the mean of the total length in seconds."""
    number, scale = of.place(job, np.array([speed]))
    found: list[float] = of.totals(np.array([number]), np.array([done / scale]))[0].tolist()
    return found


def median(of: LengthHistory, job: JobSpec, done: float = 0.0, speed: float = 1.0) -> float:
    return totals(of, job, done, speed)[1]


def test_without_any_ended_run_nothing_is_predicted() -> None:
    assert np.isnan(totals(LengthHistory(), spec())).all()


def test_a_job_that_declares_its_work_has_no_class() -> None:
    assert history((spec(), 100.0)).place(replace(spec(), work=5.0), ONE)[0] == -1


def test_a_few_members_of_an_array_predict_the_others_within_a_tenth() -> None:
    others = [(spec("bob", "other", 4), 60.0 * (1 + i % 50)) for i in range(300)]
    sweep = [(spec(name=f"sweep-{i}"), 7200.0) for i in range(3)]
    low, middle, high, _ = totals(history(*others, *sweep), spec(name="sweep-17"))
    assert middle == pytest.approx(7200, rel=0.1)
    assert low < 7200 * 1.1
    assert high > 7200 * 0.9
    assert median(history(*others), spec(name="sweep-17")) < 3600


def test_the_more_specific_key_counts_more() -> None:
    runs = [(spec(name="short"), 60.0)] * 20 + [(spec(name="long"), 36_000.0)] * 20
    assert median(history(*runs), spec(name="short")) == pytest.approx(60, rel=0.1)
    assert median(history(*runs), spec(name="long")) == pytest.approx(36_000, rel=0.1)


def test_a_script_predicts_jobs_of_other_names() -> None:
    runs = [(spec(name="a", script="train.py"), 500.0)] * 9 + [(spec("bob", "b"), 90_000.0)] * 9
    assert median(history(*runs), spec(name="c", script="train.py")) == pytest.approx(500, rel=0.1)


def test_only_longer_runs_count_for_a_job_that_has_run_a_while() -> None:
    runs = [(spec(), 30.0)] * 60 + [(spec(), 10_000.0)] * 4
    made = history(*runs)
    assert median(made, spec()) == pytest.approx(30, rel=0.1)
    assert median(made, spec(), done=600) == pytest.approx(10_000, rel=0.1)


def test_a_job_that_outlasts_all_runs_is_expected_to_go_on_for_a_similar_time() -> None:
    made = history(*[(spec(), 100.0)] * 50)
    for done in (1e4, 1e5):
        low, middle, high, mean = totals(made, spec(), done=done)
        assert done <= low < middle < high
        assert 0.1 * done < mean - done < 3 * done


def test_runs_of_a_model_convert_to_other_gangs_by_its_speed() -> None:
    made = LengthHistory()
    for _ in range(20):
        made.add(spec(model="m"), 36_000.0, 10.0)  # an hour at 10 samples per second
    assert median(made, spec(model="m", gpus=4), speed=40.0) == pytest.approx(900, rel=0.1)


def test_where_speeds_are_not_known_only_runs_of_the_model_count() -> None:
    made = LengthHistory(speeds_known=False)
    _, scale = made.place(spec(model="m"), ONE)
    made.add(spec(), 50.0, 1.0)
    assert np.isnan(median(made, spec(model="m")))
    made.add(spec(model="m"), 9e6, scale)
    assert median(made, spec(model="m")) * scale == pytest.approx(9e6, rel=0.5)


def test_a_history_follows_what_its_user_does_now() -> None:
    made = history(*[(spec(), 100.0)] * 500, *[(spec(), 5000.0)] * 64)
    assert median(made, spec()) == pytest.approx(5000, rel=0.1)


def test_intervals_that_hold_too_few_lengths_are_widened_until_they_hold_80_percent() -> None:
    scored, unscored, job, held = LengthHistory(), LengthHistory(), spec(), np.zeros((2, 6000))
    rng = np.random.default_rng(1)
    for number in range(6000):
        if not number % 20:  # 20 jobs alike are submitted together, before any of them has ended
            typical = 1000.0 * np.exp(1.5 * rng.normal())
            scored_before, unscored_before = totals(scored, job), totals(unscored, job)
            for later in range(number, number + 20):
                scored.submitted(later, job, ONE)
        length = typical * np.exp(0.1 * rng.normal())
        for fold, (low, _, high, _) in enumerate((scored_before, unscored_before)):
            held[fold, number] = low <= length <= high
        scored.ended(number, job, length, 1.0)
        unscored.add(job, length, 1.0)
    calibrated, raw = held[:, 3000:].mean(axis=1)
    assert raw < 0.7
    assert 0.75 < calibrated < 0.87


def test_an_image_restores_the_same_predictions() -> None:
    made = LengthHistory()
    for number in range(900):
        made.submitted(number, spec(), ONE)
        made.ended(number, spec(), 100.0 + number % 37 * 10, 1.0)
    once = made.restored(made.image())
    again = once.restored(once.image())
    assert once.image() == made.image()
    assert totals(again, spec()) == totals(once, spec())
    for fold in (once, again):
        fold.add(spec(), 5000.0, 1.0)
    assert once.image() == again.image()


def test_imported_runs_count_as_older_than_a_history_s_own() -> None:
    old, own = history(*[(spec(), 100.0)] * 64), history(*[(spec(), 9000.0)] * 32)
    own.merge(old.image().keys)
    low, _, high, _ = totals(own, spec())
    assert low == pytest.approx(100, rel=0.1)
    assert high == pytest.approx(9000, rel=0.1)
    for _ in range(32):
        own.add(spec(), 9000.0, 1.0)  # the older ones go first
    assert totals(own, spec())[0] == pytest.approx(9000, rel=0.1)


def test_a_copy_goes_on_by_itself() -> None:
    made = history(*[(spec(), 100.0)] * 10)
    before = totals(made, spec())
    other = deepcopy(made)
    for _ in range(64):
        other.add(spec(), 9000.0, 1.0)
    assert totals(made, spec()) == before
    assert median(other, spec()) == pytest.approx(9000, rel=0.1)


def test_memory_is_bounded_by_dropping_the_keys_used_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.perf.length_history.MOST_KEYS", 100)
    made = history(*[(spec(f"u{i}", f"n{chr(97 + i % 26)}{chr(97 + i // 26)}"), 10.0) for i in range(200)])
    assert len(made.image().keys) == 100


def test_more_classes_than_tables_are_all_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.perf.length_history._SLOTS", 4)
    users = [f"u{i}" for i in range(30)]
    made = history(*[(spec(user), 100.0 * (i + 1)) for i, user in enumerate(users) for _ in range(40)])
    numbers = np.array([made.place(spec(user), ONE)[0] for user in users])
    middle = made.totals(numbers, np.zeros(30))[:, 1]
    np.testing.assert_allclose(middle, 100.0 * np.arange(1, 31), rtol=0.1)


@given(
    lengths=st.lists(st.floats(1e-3, 1e8), min_size=1, max_size=80),
    done=st.floats(0, 1e8),
    gpus=st.integers(1, 64),
)
def test_quantiles_ascend_and_never_lie_below_what_is_done(lengths: list[float], done: float, gpus: int) -> None:
    low, middle, high, mean = totals(history(*[(spec(gpus=gpus), length) for length in lengths]), spec(), done=done)
    assert min(done, 3e7) * (1 - 1e-9) <= low <= middle <= high
    assert mean >= min(done, 3e7) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["python", "-u", "/home/ana/train.py", "--lr", "0.1"], "train.py"),
        (["torchrun", "--nproc", "4", "run.py"], "run.py"),
        (["python3", "-m", "pkg.train"], "pkg.train"),
        (["bash", "job.sh"], "job.sh"),
        (["./simulate", "x"], "simulate"),
    ],
)
def test_the_script_of_a_command_is_the_file_or_module_it_runs(command: list[str], script: str) -> None:
    assert script_of(command) == script
