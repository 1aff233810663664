"""Predicted lengths in the state and its snapshots: a fold over the ends of jobs."""

import numpy as np
import pytest

from shoal.core.commands import Start
from shoal.core.events import (
    Event,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobReshaped,
    JobStarted,
    JobSubmitted,
    RunsImported,
)
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, parse_cluster
from shoal.engine.state import State
from shoal.engine.state_image import decode_image, encode_image, image_of, restore
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.testing.builders import job
from shoal.workload.schema import Job

SEAT = Placement(((0, 1),))


def fresh() -> State:
    world = parse_cluster("gpu:2x4")
    return State(world, ProfiledModel(world, catalog()))


def submit(state: State, *rows: Job) -> Snapshot:
    state.apply_events(state.now, [JobSubmitted(state.now, row.spec()) for row in rows])
    return state.freeze()


def undeclared(id: str, name: str = "train") -> Job:
    return job(id, seconds=1.0, declares_work=False, name=name, tenant="ana")


def run(state: State, row: Job, seconds: float, end: type = JobCompleted) -> None:
    """Submit a job, run it for this long, and let it end."""
    number, begin = state.submitted, state.now
    submit(state, row)
    state.apply_commands([Start(number, 1, SEAT)])
    state.apply_events(begin, [JobStarted(begin, number, 1, 1.0, 0.0)])
    at = begin + seconds
    how: dict[type, Event] = {
        JobCompleted: JobCompleted(at, number, 1, seconds),
        JobCancelled: JobCancelled(at, number),
        JobCrashed: JobCrashed(at, number, 1, 0.0, True, "exit 1", failed=True),
    }
    state.apply_events(at, [how[end]])


def median(snapshot: Snapshot) -> float:
    return float(snapshot.predicted_left.median[-1])


@pytest.mark.parametrize("end", [JobCompleted, JobCancelled, JobCrashed])
def test_a_run_counts_until_its_end_whatever_ended_it(end: type) -> None:
    state = fresh()
    for i in range(20):
        run(state, undeclared(f"a{i}"), 500.0, end)
    assert median(submit(state, undeclared("b"))) == pytest.approx(500, rel=0.1)


def test_runs_of_jobs_that_declared_their_work_count_too() -> None:
    state = fresh()
    for i in range(20):
        run(state, job(f"a{i}", seconds=500.0, name="train", tenant="ana"), 500.0)
    assert median(submit(state, undeclared("b"))) == pytest.approx(500, rel=0.1)


def test_only_jobs_that_declare_no_work_have_a_prediction() -> None:
    state = fresh()
    run(state, undeclared("a"), 500.0)
    left = submit(state, job("b"), undeclared("c")).predicted_left
    for column in (left.mean, left.low, left.median, left.high):
        np.testing.assert_array_equal(np.isnan(column), [True, False])


def test_a_cancelled_job_that_never_ran_says_nothing() -> None:
    state = fresh()
    submit(state, undeclared("a"))
    state.apply_events(9.0, [JobCancelled(9.0, 0)])
    assert np.isnan(median(submit(state, undeclared("b"))))


def test_a_running_job_is_predicted_from_longer_runs_only() -> None:
    state = fresh()
    for i in range(40):
        run(state, undeclared(f"a{i}"), 60.0 if i % 4 else 9000.0)
    number = state.submitted
    assert median(submit(state, undeclared("b"))) == pytest.approx(60, rel=0.1)
    state.apply_commands([Start(number, 1, SEAT)])
    state.apply_events(state.now + 1000.0, [JobStarted(state.now, number, 1, 1.0, 0.0)])
    assert median(state.freeze()) == pytest.approx(8000, rel=0.1)


def test_a_snapshot_keeps_showing_its_moment() -> None:
    state = fresh()
    run(state, undeclared("a"), 500.0)
    before = submit(state, undeclared("b"))
    for i in range(30):
        run(state, undeclared(f"c{i}"), 90_000.0)
    assert median(before) == pytest.approx(500, rel=0.1)


def test_a_snapshot_without_some_jobs_keeps_the_predictions_of_the_others() -> None:
    state = fresh()
    for i in range(20):
        run(state, undeclared(f"a{i}"), 500.0)
        run(state, undeclared(f"b{i}", name="other"), 90_000.0)
    snapshot = submit(state, undeclared("c"), undeclared("d", name="other"))
    assert median(snapshot.without(np.array([0]))) == pytest.approx(90_000, rel=0.1)


def test_an_image_of_a_state_keeps_its_history_of_lengths() -> None:
    state = fresh()
    for i in range(30):
        run(state, undeclared(f"a{i}"), 500.0 + 100 * i)
    submit(state, undeclared("b"))
    image = image_of(state)
    again = fresh()
    restore(again, decode_image(encode_image(image)))
    restore(state, image)
    assert image_of(again) == image_of(state)
    assert again.freeze().predicted_left.median == state.freeze().predicted_left.median
    for one in (state, again):
        run(one, undeclared("c"), 70.0)
    assert median(submit(again, undeclared("d"))) == median(submit(state, undeclared("d")))


def test_an_imported_history_counts_once() -> None:
    other = fresh()
    for i in range(20):
        run(other, undeclared(f"a{i}"), 500.0)
    event = RunsImported(0.0, "sacct.txt", other.lengths.image().keys)
    state = fresh()
    state.apply_events(0.0, [event])
    once = state.lengths.image()
    assert median(submit(state, undeclared("b"))) == pytest.approx(500, rel=0.1)
    state.apply_events(0.0, [event])
    assert state.lengths.image() == once


def test_a_job_whose_gang_was_changed_keeps_its_scale_in_an_image() -> None:
    state = fresh()
    submit(state, job("a", gpus=2, seconds=1.0, declares_work=False))
    state.apply_events(5.0, [JobReshaped(5.0, 0, 4, 4, 4)])
    before = state.freeze().columns.length_scale.tolist()
    again = fresh()
    restore(again, decode_image(encode_image(image_of(state))))
    assert again.freeze().columns.length_scale.tolist() == before == [1.0]
