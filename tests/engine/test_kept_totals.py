"""The totals that the state keeps are those that its columns add up to, whatever happens to the jobs."""

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.commands import Start, Stop
from shoal.core.events import (
    CancelRequested,
    Event,
    HoldLifted,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobHeld,
    JobReleased,
    JobReshaped,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeJoined,
    PriorityChanged,
)
from shoal.core.lifecycle import JobState
from shoal.core.topology import Placement, parse_cluster
from shoal.engine.state import State
from shoal.engine.state_image import image_of, restore
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.testing.builders import job

STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(1, 9)), max_size=40)


def empty() -> State:
    world = parse_cluster("v100:3x4,k80:2x4")
    return State(world, ProfiledModel(world, catalog()))


def event_of(state: State, what: int, number: int, gpus: int, incarnation: int) -> Event | None:
    """The event of a step; None for a step without one."""
    now, live = state.now, state.freeze().position_of(number) >= 0
    if what == 0 or number >= state.submitted:
        kinds = (None, ("v100",), ("none",))[gpus % 3]
        return JobSubmitted(now, job(f"j{state.submitted}", gpus=gpus, seconds=100, kinds=kinds).spec())
    events: dict[int, Event] = {
        1: JobReshaped(now, number, gpus, 1, gpus),
        2: JobHeld(now, number, "op"),
        3: JobReleased(now, number),
        4: CancelRequested(now, number, now) if gpus % 2 else JobCancelled(now, number),
        5: JobCrashed(now, number, incarnation, 0.0, True, "it crashed", retry_in=float(gpus % 2), ran=1.0),
        6: JobCompleted(now, number, incarnation, 100.0),
        7: PriorityChanged(now, number, gpus, "op") if live else HoldLifted(now, number, "op"),
        8: NodeJoined(now, n := len(state.topology.nodes), f"n{n}", ("a100", "none")[gpus % 2], 4),
    }
    return events.get(what)


@given(STEPS)
def test_kept_totals_are_those_of_the_columns(steps: list[tuple[int, int, int]]) -> None:
    state = empty()
    for time, (what, number, gpus) in enumerate(steps):
        seen = state.freeze()
        at = seen.position_of(number)
        incarnation = int(seen.columns.incarnation[at]) if at >= 0 else 1
        event = event_of(state, what, number, gpus, incarnation)
        state.apply_events(float(time), [] if event is None else [event])
        if what == 9 and at >= 0:
            run_or_stop(state, number, gpus)
        check(state)
    again = empty()
    restore(again, image_of(state))
    check(again)


def run_or_stop(state: State, number: int, gpus: int) -> None:
    """Start a waiting job on a free node, or stop a running one."""
    seen = state.freeze()
    view = seen.jobs.at(seen.position_of(number))
    node = gpus % len(state.topology.nodes)
    if view.state is JobState.PENDING and seen.free_gpus.node_free[node]:
        state.apply_commands([Start(number, view.incarnation + 1, Placement(((node, 1),)))])
        state.apply_events(state.now, [JobStarted(state.now, number, view.incarnation + 1, 1.0, 0.0)])
    elif view.state is JobState.RUNNING:
        state.apply_commands([Stop(number, view.incarnation)])
        state.apply_events(state.now, [JobStopped(state.now, number, view.incarnation, 0.0)])


def check(state: State) -> None:
    columns = state.freeze().columns
    for part in (columns, columns.subset(columns.rows.nonzero()[0])):
        assert part.demand == part.gpus.sum()
        assert part.widest == part.gpus.max(initial=0)
        assert part.all_able == part.best_speed.all()
        assert part.unserved == (part.gpus != part.held).nonzero()[0].tolist()


def test_a_copied_state_goes_on_by_itself() -> None:
    state = empty()
    state.apply_events(0.0, [JobSubmitted(0.0, job("a", gpus=2).spec())])
    other = deepcopy(state)
    run_or_stop(other, 0, 0)
    other.apply_events(1.0, [JobSubmitted(1.0, job("b", gpus=3).spec())])
    assert [s.freeze().columns.held.tolist() for s in (state, other)] == [[0], [1, 0]]
    assert [s.freeze().columns.demand for s in (state, other)] == [2, 5]
    check(other)


def test_a_resized_job_changes_the_demand_at_once() -> None:
    state = empty()
    state.apply_events(0.0, [JobSubmitted(0.0, job("a", gpus=4).spec()), JobSubmitted(0.0, job("b", gpus=1).spec())])
    assert (state.freeze().columns.demand, state.freeze().columns.widest) == (5, 4)
    state.apply_events(1.0, [JobReshaped(1.0, 0, 2, 1, 2)])
    assert (state.freeze().columns.demand, state.freeze().columns.widest) == (3, 2)


def test_columns_with_other_work_show_their_moment_after_a_job_has_started() -> None:
    state = empty()
    state.apply_events(0.0, [JobSubmitted(0.0, job("a", gpus=1).spec())])
    seen = state.freeze().columns
    other = seen.with_work(seen.work + 1.0)
    run_or_stop(state, 0, 0)
    assert (other.held.tolist(), state.freeze().columns.held.tolist()) == ([0], [1])
