"""State as a fold: what each event and command does to it, by hand, through its two doors and the snapshot."""

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
import pytest

from shoal.core.commands import Command, Resize, Start, Stop
from shoal.core.errors import JournalError
from shoal.core.events import (
    BatchChanged,
    CancelRequested,
    Event,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobMeasured,
    JobProfiled,
    JobReleased,
    JobReshaped,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeDrained,
    NodeLost,
    NodeReturned,
)
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import ADAPTIVE, BatchSetting
from shoal.core.lifecycle import JobState
from shoal.core.retry import OLD_RETRIES
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, Placement, parse_cluster
from shoal.engine.state import State
from shoal.engine.state_image import image_of, restore
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.policy.base import all_fit
from shoal.policy.classic.fifo import Fifo
from shoal.testing.builders import job, simulate, snapshot
from shoal.testing.conformance import arrays
from shoal.workload.schema import Job

_OLD_CRASHES = OLD_RETRIES + 1
"""Crashes that fail a job in a journal whose events do not say so."""

PAIR = Placement(((0, 2),))
FOUR = Placement(((0, 4),))
OTHER = Placement(((1, 4),))


def state_of(*jobs: Job, cluster: str = "gpu:2x4") -> State:
    world = parse_cluster(cluster)
    state = State(world, ProfiledModel(world, catalog()))
    state.apply_events(0.0, [JobSubmitted(row.submitted, row.spec()) for row in jobs])
    return state


def do(state: State, now: float, *, hear: Sequence[Event] = (), assume: Sequence[Command] = ()) -> Snapshot:
    state.apply_events(now, hear)
    state.apply_commands(assume)
    return state.freeze()


def running(
    state: State, number: int, *, at: float, seats: Placement = PAIR, rate: float = 1.0, done: float = 0.0
) -> int:
    """Start a job and hear that it runs; its incarnation."""
    incarnation = int(state.freeze().columns.incarnation[number]) + 1
    do(state, at, assume=[Start(number, incarnation, seats)])
    do(state, at, hear=[JobStarted(at, number, incarnation, rate, done)])
    return incarnation


def picture(snapshot: Snapshot) -> tuple[object, ...]:
    """All that can be seen in a snapshot, copied."""
    columns = {name: array.copy().tolist() for name, array in arrays(snapshot).items()}
    seats = [snapshot.placement(i) for i in range(len(snapshot.columns))]
    measured = [snapshot.measurements(i) for i in range(len(snapshot.columns))]
    return (
        snapshot.now,
        repr(columns),
        seats,
        measured,
        list(snapshot.ids),
        snapshot.free_gpus,
        snapshot.cluster,
        repr(snapshot.tenants),
        dict(snapshot.reports),
        dict(snapshot.model_reports),
        dict(snapshot.batch_changes),
    )


def report(batch: int, *, noise: float = 100.0, seen: int = 1, **gpus: int) -> GoodputReport:
    """A report of an agent whose fit of each kind has seen so many GPUs."""
    nothing = (0.0, 0.0)
    fits = {kind: StepFit((0.1, 0.01), nothing, nothing, nothing, 1.0, 64, count, 1) for kind, count in gpus.items()}
    return GoodputReport(tuple(fits.items()), noise, batch, seen, BatchSetting(batch))


# ── progress and service ──────────────────────────────────────────────────────────────────────────────────────────


def test_service_and_progress_are_settled_when_a_run_is_stopped() -> None:
    state = state_of(job("a", gpus=2, seconds=100))
    running(state, 0, at=10.0, rate=0.5)
    # Running from 10 to 30 on 2 GPUs at half a unit a second: 40 GPU-seconds, 20 s, 10 units.
    seen = do(state, 30.0).jobs["a"]
    assert (seen.attained, seen.run_seconds, seen.done, seen.remaining, seen.held) == (40.0, 20.0, 10.0, 90.0, 2)
    stopping = do(state, 30.0, assume=[Stop(0, 1)]).jobs["a"]
    assert (stopping.attained, stopping.run_seconds, stopping.done, stopping.held) == (40.0, 20.0, 10.0, 0)
    assert stopping.state is JobState.STOPPING
    # What was really saved is what counts, and waiting adds nothing.
    later = do(state, 99.0, hear=[JobStopped(31.0, 0, 1, 9.5)]).jobs["a"]
    assert (later.attained, later.run_seconds, later.done, later.state) == (40.0, 20.0, 9.5, JobState.PENDING)


def test_service_adds_up_over_runs_and_resizes() -> None:
    state = state_of(job("a", gpus=2, seconds=1000, min_gpus=1, max_gpus=4))
    running(state, 0, at=0.0)
    do(state, 10.0, assume=[Resize(0, 2, FOUR)])  # 20 GPU-seconds so far
    do(state, 10.0, hear=[JobStarted(10.0, 0, 2, 2.0, 10.0)])
    do(state, 15.0, assume=[Stop(0, 2)])  # and 4 × 5 = 20 more
    do(state, 15.0, hear=[JobStopped(15.0, 0, 2, 20.0)])
    seen = do(state, 50.0).jobs["a"]
    assert (seen.attained, seen.run_seconds, seen.done, seen.incarnation) == (40.0, 15.0, 20.0, 2)


def test_a_job_that_is_still_starting_has_service_but_no_progress() -> None:
    state = state_of(job("a", gpus=2))
    do(state, 0.0, assume=[Start(0, 1, PAIR)])
    seen = do(state, 30.0).jobs["a"]
    assert (seen.state, seen.attained, seen.done, seen.rate) == (JobState.STARTING, 60.0, 0.0, 0.0)


def test_progress_goes_on_at_the_rate_last_measured() -> None:
    state = state_of(job("a", gpus=2, seconds=100))
    running(state, 0, at=0.0, rate=1.0)
    do(state, 10.0, hear=[JobMeasured(8.0, 0, 1, 0.5, 8.0)])
    assert do(state, 20.0).jobs["a"].done == 8.0 + 0.5 * 12.0


def test_every_distinct_rate_is_remembered_once_and_latest_first() -> None:
    state = state_of(job("a", gpus=2))
    running(state, 0, at=0.0, rate=1.0)
    for at, rate in ((1.0, 0.5), (2.0, 1.0), (3.0, 0.25)):
        do(state, at, hear=[JobMeasured(at, 0, 1, rate, at)])
    seen = state.freeze().jobs["a"].measured
    assert [m.rate for m in seen] == [0.25, 0.5, 1.0]
    assert {(m.kind, m.gpus, m.locality) for m in seen} == {(0, 2, Locality.SAME_NODE)}


def test_a_batch_size_ordered_or_reported_is_the_one_seen() -> None:
    state = state_of(job("a", gpus=1, work=1e6, model="ResNet-18", batch_size=32), cluster="v100:1x4")
    seats = Placement(((0, 1),))
    assert state.freeze().jobs["a"].batch_size == 32
    before = float(state.freeze().columns.best_speed[0])
    ordered = do(state, 0.0, assume=[Start(0, 1, seats, BatchSetting(64))])
    assert ordered.jobs["a"].batch_size == 64
    do(state, 0.0, hear=[JobStarted(0.0, 0, 1, 10.0, 0.0)])
    changed = do(state, 5.0, hear=[BatchChanged(5.0, 0, 1, 20.0, 50.0, 128)])
    assert (changed.jobs["a"].batch_size, changed.jobs["a"].rate) == (128, 20.0)
    assert float(changed.columns.best_speed[0]) > before


def test_what_an_agent_reports_is_seen_of_its_job_and_remembered_of_its_model() -> None:
    rows = [job(name, gpus=1, work=1e6, model="ResNet-18", batch_size=32) for name in "ab"]
    state = state_of(*rows, cluster="v100:1x4")
    assert state.freeze().jobs["a"].report is None
    for number, name in enumerate("ab"):
        ordered = do(state, 0.0, assume=[Start(number, 1, Placement(((0, 1),)), ADAPTIVE)])
        assert ordered.jobs[name].batch_size == 32, "until the agent says which it chose"
        do(state, 0.0, hear=[JobStarted(0.0, number, 1, 10.0, 0.0)])
    first, second = report(64, noise=10.0, seen=4, v100=4), report(96, noise=20.0, seen=2, v100=2, k80=1)
    before = do(state, 30.0, hear=[JobProfiled(30.0, 0, 1, 20.0, 300.0, first)])
    seen = before.jobs["a"]
    assert (seen.report, seen.batch_size, seen.rate, seen.done) == (first, 64, 20.0, 300.0)
    assert [m.rate for m in seen.measured] == [10.0], "a drifting rate is not added to the chain"
    after = do(state, 60.0, hear=[JobProfiled(60.0, 1, 1, 20.0, 300.0, second), JobCompleted(60.0, 0, 1, 1e6)])
    memory = after.model_reports["ResNet-18"]
    assert dict(memory.fits) == {"v100": dict(first.fits)["v100"], "k80": dict(second.fits)["k80"]}
    assert (memory.noise, memory.seen_gpus, memory.remembered) == (20.0, 4, True)
    assert (after.jobs["b"].report, list(after.reports)) == (second, [1]), "a job that ended has no report any more"
    assert (before.jobs["a"].report, before.model_reports["ResNet-18"].noise) == (first, 10.0)
    settled = do(state, 60.0, assume=[Resize(1, 2, Placement(((0, 2),)))])
    assert settled.jobs["b"].batch_size == 32, "granted no batch, it trains at the one declared"


def test_every_batch_size_an_owners_script_was_seen_to_train_at_is_kept_in_order() -> None:
    state = state_of(job("a", gpus=2, work=1e6, model="ResNet-18", batch_size=32), cluster="v100:1x4")
    running(state, 0, at=0.0, rate=10.0)
    assert state.freeze().jobs["a"].regimes == ((0.0, 32),)
    do(state, 5.0, hear=[BatchChanged(5.0, 0, 1, 20.0, 50.0, 64), BatchChanged(5.0, 0, 1, 20.0, 80.0, 128)])
    assert state.freeze().jobs["a"].regimes == ((0.0, 32), (50.0, 64), (80.0, 128))
    do(state, 9.0, hear=[JobCrashed(9.0, 0, 1, 60.0, False, "node")])
    running(state, 0, at=9.0, done=60.0)
    do(state, 20.0, hear=[BatchChanged(20.0, 0, 2, 20.0, 80.0, 128)])
    assert state.freeze().jobs["a"].regimes == ((0.0, 32), (50.0, 64), (80.0, 128)), "a change that comes again is one"


def test_tenants_keep_what_their_finished_jobs_had() -> None:
    state = state_of(job("a", gpus=2, tenant="ada"), job("b", gpus=4, tenant="bob"))
    running(state, 0, at=0.0)
    running(state, 1, at=0.0, seats=OTHER)
    seen = do(state, 10.0, hear=[JobCompleted(10.0, 0, 1, 100.0)]).tenants
    assert (seen["ada"].live_jobs, seen["ada"].held_gpus, seen["ada"].attained) == (0, 0, 20.0)
    assert (seen["bob"].live_jobs, seen["bob"].held_gpus, seen["bob"].attained) == (1, 4, 40.0)


# ── messages that come too late ───────────────────────────────────────────────────────────────────────────────────

LATE: dict[str, Callable[[int], Event]] = {
    "started": lambda inc: JobStarted(9.0, 0, inc, 9.0, 9.0),
    "measured": lambda inc: JobMeasured(9.0, 0, inc, 9.0, 9.0),
    "batch changed": lambda inc: BatchChanged(9.0, 0, inc, 9.0, 9.0, 77),
    "profiled": lambda inc: JobProfiled(9.0, 0, inc, 9.0, 9.0, report(77)),
    "stopped": lambda inc: JobStopped(9.0, 0, inc, 9.0),
    "completed": lambda inc: JobCompleted(9.0, 0, inc, 9.0),
    "crashed": lambda inc: JobCrashed(9.0, 0, inc, 9.0, True, "late"),
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
def test_a_message_from_an_earlier_incarnation_changes_nothing(late: Callable[[int], Event]) -> None:
    state = state_of(job("a", gpus=2))
    first = running(state, 0, at=0.0)
    do(state, 5.0, assume=[Stop(0, first)])
    do(state, 5.0, hear=[JobStopped(5.0, 0, first, 5.0)])
    running(state, 0, at=6.0, done=5.0)
    before = picture(do(state, 10.0))
    assert picture(do(state, 10.0, hear=[late(first)])) == before


@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
def test_a_message_about_a_job_that_has_ended_changes_nothing(late: Callable[[int], Event]) -> None:
    state = state_of(job("a", gpus=2), job("b"))
    incarnation = running(state, 0, at=0.0)
    before = picture(do(state, 10.0, hear=[JobCompleted(10.0, 0, incarnation, 100.0)]))
    assert picture(do(state, 10.0, hear=[late(incarnation)])) == before


@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
def test_a_message_about_a_run_that_has_ended_changes_nothing(late: Callable[[int], Event]) -> None:
    # A node may be lost just when its job is stopped: then both the crash and the stop are reported.
    state = state_of(job("a", gpus=2))
    incarnation = running(state, 0, at=0.0)
    do(state, 5.0, assume=[Stop(0, incarnation)])
    before = picture(do(state, 6.0, hear=[JobCrashed(6.0, 0, incarnation, 4.0, False, "node gpu-0 was lost")]))
    assert picture(do(state, 6.0, hear=[late(incarnation)])) == before


@pytest.mark.parametrize("news", ["started", "measured", "batch changed"])
def test_reports_of_a_run_that_was_ordered_to_stop_are_ignored(news: str) -> None:
    state = state_of(job("a", gpus=2))
    incarnation = running(state, 0, at=0.0)
    before = picture(do(state, 9.0, assume=[Stop(0, incarnation)]))
    assert picture(do(state, 9.0, hear=[LATE[news](incarnation)])) == before
    assert do(state, 9.0, hear=[JobStopped(9.0, 0, incarnation, 9.0)]).jobs["a"].state is JobState.PENDING


def test_a_job_may_complete_while_it_is_being_stopped() -> None:
    state = state_of(job("a", gpus=2))
    incarnation = running(state, 0, at=0.0)
    do(state, 9.0, assume=[Stop(0, incarnation)])
    after = do(state, 9.5, hear=[JobCompleted(9.5, 0, incarnation, 100.0)])
    assert (len(after.columns), after.free_gpus.free) == (0, (8,))


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def pending(state: State) -> None:
    """Leave the job waiting."""


def starting(state: State) -> None:
    do(state, 0.0, assume=[Start(0, 1, FOUR)])


def up(state: State) -> None:
    running(state, 0, at=0.0, seats=FOUR)


def stopping(state: State) -> None:
    up(state)
    do(state, 1.0, assume=[Stop(0, 1)])


@pytest.mark.parametrize("into", [pending, starting, up, stopping], ids=lambda f: str(f.__name__))
def test_a_job_can_be_cancelled_at_any_time_of_its_life_and_once(into: Callable[[State], None]) -> None:
    state = state_of(job("a", gpus=4), job("b"))
    into(state)
    after = do(state, 5.0, hear=[JobCancelled(5.0, 0), JobCancelled(5.0, 0)])
    assert (list(after.ids), after.free_gpus.free, state.live) == (["b"], (8,), 1)
    with pytest.raises(KeyError):
        after.position("a")


@pytest.mark.parametrize("into", [pending, starting, up, stopping], ids=lambda f: str(f.__name__))
def test_a_cancelled_job_keeps_the_gpus_it_has_until_its_run_has_ended(into: Callable[[State], None]) -> None:
    state = state_of(job("a", gpus=4), job("b"))
    into(state)
    held = sum(view.held for view in state.freeze().jobs.values())
    requested: list[Event] = [CancelRequested(5.0, 0, 15.0), CancelRequested(6.0, 0, 6.0), JobStopped(6.0, 0, 1, 0.0)]
    after = do(state, 6.0, hear=requested)
    assert (list(after.ids), after.free_gpus.free, after.cluster.capacity, state.live) == (["b"], (8 - held,), (8,), 1)
    assert sum(after.ending.values()) == held
    image = image_of(state)
    restored = state_of()
    restore(restored, image)
    for it in (state, restored):
        before, after = it.freeze(), do(it, 9.0, hear=[JobCancelled(9.0, 0)])
        assert (before.free_gpus.free, list(before.ids)) == ((8 - held,), ["b"])
        assert (after.free_gpus.free, list(after.ids), after.ending, it.live) == ((8,), ["b"], {}, 1)
        assert [usage.attained for usage in after.tenants.values()] == [4.0 if into is stopping else 9.0 * held]


def test_the_gpus_of_a_cancelled_job_on_a_drained_or_lost_node_are_no_part_of_the_cluster() -> None:
    for event in (NodeDrained(4.0, 0, "hot"), NodeLost(4.0, 0)):
        state = state_of(job("a", gpus=4), job("b"))
        running(state, 0, at=0.0, seats=FOUR)
        assert do(state, 4.0, hear=[event]).cluster.capacity == (8,)
        assert do(state, 5.0, hear=[CancelRequested(5.0, 0, 15.0)]).cluster.capacity == (4,)


def test_cancelling_a_job_that_is_done_changes_nothing() -> None:
    state = state_of(job("a", gpus=4))
    running(state, 0, at=0.0, seats=FOUR)
    before = picture(do(state, 5.0, hear=[JobCompleted(5.0, 0, 1, 100.0)]))
    assert picture(do(state, 5.0, hear=[JobCancelled(5.0, 0)])) == before


def test_a_job_that_crashes_too_often_through_its_own_fault_is_set_aside() -> None:
    state = state_of(job("a", gpus=2))
    for n in range(1, _OLD_CRASHES + 1):
        assert state.freeze().jobs["a"].state is JobState.PENDING
        assert int(state.freeze().columns.crashes[0]) == n - 1
        running(state, 0, at=float(n))
        do(state, n + 0.5, hear=[JobCrashed(n + 0.5, 0, n, 0.0, True, "it crashed")])
    after = state.freeze()
    assert (state.live, after.free_gpus.free) == (0, (8,))


def test_a_job_that_keeps_crashing_on_one_kind_is_tried_on_another() -> None:
    # At this batch size the gang does not fit into the memory of K80s; without figures all kinds look alike.
    row = job("a", gpus=4, model="ResNet-50", batch_size=128, work=1000.0)
    run = simulate(Fifo(), [row], "k80:1x4,v100:1x4", knowledge="online")
    starts = [run.state.topology.nodes[c.placement.nodes[0]].kind for _, c in run.commands if isinstance(c, Start)]
    assert starts == ["k80", "k80", "v100"]
    assert "a" in run.completed


def test_a_job_that_crashes_on_every_kind_is_still_set_aside() -> None:
    state = state_of(job("a", gpus=2), cluster="old:1x4,new:1x4")
    for n in range(1, _OLD_CRASHES + 1):
        seen = state.freeze()
        kind = int(seen.columns.speeds[0].argmax())
        assert seen.columns.speeds[0, kind] > 0.0
        running(state, 0, at=float(n), seats=Placement(((kind, 2),)))
        do(state, n + 0.5, hear=[JobCrashed(n + 0.5, 0, n, 0.0, True, "it crashed")])
    assert state.live == 0


def test_a_job_is_not_blamed_for_the_nodes_it_lost() -> None:
    state = state_of(job("a", gpus=2))
    for n in range(1, 3 * _OLD_CRASHES):
        running(state, 0, at=float(n))
        do(state, n + 0.5, hear=[JobCrashed(n + 0.5, 0, n, 0.0, False, "a node was lost")])
    seen = state.freeze()
    assert (seen.jobs["a"].state, int(seen.columns.crashes[0])) == (JobState.PENDING, 0)


def test_a_crash_sets_the_progress_back_but_not_the_service() -> None:
    state = state_of(job("a", gpus=2))
    running(state, 0, at=0.0)
    seen = do(state, 20.0, hear=[JobCrashed(20.0, 0, 1, 15.0, True, "it crashed")]).jobs["a"]
    assert (seen.done, seen.attained, seen.held, seen.state) == (15.0, 40.0, 0, JobState.PENDING)


# ── seats ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_lost_node_has_no_room_until_it_returns() -> None:
    state = state_of(job("a", gpus=4))
    running(state, 0, at=0.0, seats=FOUR)
    lost = do(state, 5.0, hear=[NodeLost(5.0, 0), JobCrashed(5.0, 0, 1, 0.0, False, "node gpu-0 was lost")])
    assert (lost.cluster.capacity, lost.free_gpus.free, list(lost.free_gpus.node_free)) == ((4,), (4,), [0, 4])
    back = do(state, 9.0, hear=[NodeReturned(9.0, 0)])
    assert (back.cluster.capacity, back.free_gpus.free, list(back.free_gpus.node_free)) == ((8,), (8,), [4, 4])


def test_jobs_can_swap_seats_in_one_cycle() -> None:
    state = state_of(job("a", gpus=4), job("b", gpus=4))
    running(state, 0, at=0.0, seats=FOUR)
    running(state, 1, at=0.0, seats=OTHER)
    after = do(state, 5.0, assume=[Resize(0, 2, OTHER), Resize(1, 2, FOUR)])
    assert [after.placement(0), after.placement(1)] == [OTHER, FOUR]
    assert (after.free_gpus.free, list(after.free_gpus.node_free)) == ((0,), [0, 0])


def test_a_start_may_take_the_seats_a_stop_of_the_same_cycle_gives_back_in_any_order() -> None:
    state = state_of(job("a", gpus=4), job("b", gpus=4))
    running(state, 0, at=0.0, seats=FOUR)
    after = do(state, 5.0, assume=[Start(1, 1, FOUR), Stop(0, 1)])
    assert (after.jobs["a"].held, after.jobs["b"].held, after.free_gpus.free) == (0, 4, (4,))


def test_shared_seats_are_taken_once_and_free_when_both_have_left() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=2))
    both = do(state, 0.0, assume=[Start(0, 1, PAIR, partner=1), Start(1, 1, PAIR, partner=0)])
    assert (both.free_gpus.free, both.columns.partner.tolist(), both.columns.held.tolist()) == ((6,), [1, 0], [2, 2])
    do(state, 0.0, hear=[JobStarted(0.0, 0, 1, 0.5, 0.0), JobStarted(0.0, 1, 1, 0.5, 0.0)])
    one = do(state, 5.0, hear=[JobCompleted(5.0, 0, 1, 100.0)])
    assert (one.free_gpus.free, one.columns.partner.tolist()) == ((6,), [-1])
    assert do(state, 6.0, assume=[Stop(1, 1)]).free_gpus.free == (8,)


def test_a_partner_named_by_one_of_the_two_is_a_partner_of_both() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=2), job("c", gpus=2))
    alone = do(state, 0.0, assume=[Start(0, 1, PAIR), Start(2, 1, PAIR)])
    assert (alone.columns.partner.tolist(), alone.sharing) == ([-1, -1, -1], False)
    both = do(state, 1.0, assume=[Start(1, 1, PAIR, partner=0)])
    assert (both.columns.partner.tolist(), both.sharing, both.free_gpus.free) == ([1, 0, -1], True, (4,))
    parted = do(state, 2.0, assume=[Resize(1, 2, OTHER)])
    assert (parted.columns.partner.tolist(), parted.sharing, parted.free_gpus.free) == ([-1, -1, -1], False, (0,))


def test_starts_are_counted_and_resizes_are_not() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=2))
    running(state, 0, at=0.0)
    do(state, 1.0, assume=[Resize(0, 2, FOUR)])
    assert state.freeze().columns.starts.tolist() == [1, 0]
    do(state, 2.0, assume=[Stop(0, 2)], hear=[JobStarted(2.0, 0, 2, 1.0, 1.0)])
    do(state, 3.0, hear=[JobStopped(3.0, 0, 2, 2.0)], assume=[Start(0, 3, PAIR)])
    assert state.freeze().columns.starts.tolist() == [2, 0]


def test_two_jobs_that_share_gpus_can_stop_together() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=2))
    do(state, 0.0, assume=[Start(0, 1, PAIR, partner=1), Start(1, 1, PAIR, partner=0)])
    assert do(state, 5.0, assume=[Stop(0, 1), Stop(1, 1)]).free_gpus.free == (8,)


def test_equal_seats_without_sharing_are_different_gpus() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=2))
    assert do(state, 0.0, assume=[Start(0, 1, PAIR), Start(1, 1, PAIR)]).free_gpus.free == (4,)


# ── things that cannot have happened ──────────────────────────────────────────────────────────────────────────────


def test_a_name_cannot_be_submitted_twice() -> None:
    state = state_of(job("a"))
    with pytest.raises(JournalError, match="'a' was submitted twice"):
        state.apply_events(1.0, [JobSubmitted(1.0, job("a").spec())])


def test_what_the_table_does_not_allow_names_the_job_and_its_state() -> None:
    state = state_of(job("a", gpus=2))
    running(state, 0, at=0.0)
    with pytest.raises(JournalError, match="'a' cannot be start while running"):
        state.apply_commands([Start(0, 2, OTHER)])


# ── snapshots ─────────────────────────────────────────────────────────────────────────────────────────────────────


def busy(state: State) -> None:
    """Change everything that can change."""
    state.apply_events(50.0, [JobCompleted(50.0, 0, 1, 100.0), JobCancelled(50.0, 2), NodeLost(50.0, 1)])
    state.apply_commands([Start(1, 1, FOUR)])
    state.apply_events(60.0, [JobStarted(60.0, 1, 1, 3.0, 0.0), JobSubmitted(60.0, job("late", 60.0).spec())])
    state.end_cycle("something to remember")


def test_nothing_that_happens_later_changes_a_snapshot() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=4), job("c", tenant="ada"))
    running(state, 0, at=0.0)
    kept, untouched = do(state, 10.0), state.freeze()
    before = picture(kept)
    busy(state)
    assert picture(kept) == before
    assert picture(untouched) == before, "the one nobody had looked at yet"


def test_an_unread_snapshot_still_shows_its_own_moment() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=4), job("c", tenant="ada"))
    running(state, 0, at=0.0)
    first = do(state, 10.0)
    second = state.freeze()
    busy(state)
    assert first.columns.held.tolist() == second.columns.held.tolist() == [2, 0, 0]
    assert first.columns.attained.tolist() == second.columns.attained.tolist() == [20.0, 0.0, 0.0]


def test_no_array_of_a_snapshot_can_be_written() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=4))
    running(state, 0, at=0.0)
    for name, array in arrays(do(state, 10.0)).items():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        assert not np.shares_memory(array, arrays(state.freeze())[name]) or name == "rows", name


def test_growing_beyond_the_first_buffers_keeps_every_job_and_every_old_snapshot() -> None:
    state = state_of(*(job(f"j{i}", gpus=1 + i % 3, seconds=10.0 + i) for i in range(60)))
    running(state, 7, at=1.0, seats=Placement(((0, 1),)), rate=2.0)
    old = do(state, 2.0)
    before = picture(old)
    state.apply_events(3.0, [JobSubmitted(3.0, job(f"k{i}", 3.0, gpus=2, seconds=5.0).spec()) for i in range(300)])
    assert picture(old) == before
    new = state.freeze()
    assert len(new.columns) == 360
    assert new.ids[:60] == old.ids
    assert new.columns.work[:60].tolist() == [10.0 + i for i in range(60)]
    assert set(new.columns.work[60:].tolist()) == {5.0}
    assert new.columns.held.tolist() == [0] * 7 + [1] + [0] * 352
    assert new.jobs["j7"].done == 2.0 * (3.0 - 1.0)
    assert new.columns.kind.tolist().count(-1) == 359


def test_live_jobs_stay_in_order_of_admission_whoever_leaves() -> None:
    state = state_of(*(job(f"j{i}") for i in range(6)))
    after = do(state, 1.0, hear=[JobCancelled(1.0, i) for i in (4, 0, 3)])
    assert list(after.ids) == ["j1", "j2", "j5"]
    assert [after.position(name) for name in after.ids] == [0, 1, 2]
    assert [after.position_of(n) for n in range(6)] == [-1, 0, 1, -1, -1, 2]


def test_settling_counts_the_cycle_and_keeps_the_carry() -> None:
    state = state_of(job("a"))
    assert (state.freeze().cycle, state.freeze().carry) == (0, None)
    state.end_cycle(("lease", 5.0))
    assert (state.freeze().cycle, state.freeze().carry) == (1, ("lease", 5.0))


def test_all_views_at_once_are_the_views_one_by_one() -> None:
    moment = snapshot([job("a"), job("b", gpus=2)], "gpu:1x4", held={"b": 2})
    views = moment.jobs
    assert [v.id for v in views.values()] == [name for name, _ in views.items()] == list(views) == ["a", "b"]
    assert [v.held for v in views.values()] == [views[name].held for name in views] == [0, 2]


# ── held back, released, reshaped ─────────────────────────────────────────────────────────────────────────────────


def test_a_job_held_back_after_a_crash_is_offered_to_no_policy_until_it_is_released() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=2), job("c", gpus=2))
    running(state, 1, at=1.0)
    held = do(state, 2.0, hear=[JobCrashed(2.0, 1, 1, 0.5, True, "it crashed", retry_in=10.0)])
    assert (list(held.ids), held.free_gpus.free) == (["a", "c"], (8,))
    back = do(state, 12.0, hear=[JobReleased(12.0, 1)])
    assert list(back.ids) == ["a", "b", "c"]
    assert (back.jobs["b"].state, back.jobs["b"].done) == (JobState.PENDING, 0.5)


def test_the_state_knows_when_held_jobs_are_released() -> None:
    state = state_of(*(job(name, gpus=1) for name in "abcd"))
    for number, at in enumerate((1.0, 2.0, 4.0)):
        running(state, number, at=at, seats=Placement(((0, 1),)))
    crash = JobCrashed(6.0, 1, 1, 0.5, True, "it crashed", retry_in=10.0)
    do(state, 9.0, hear=[JobCompleted(5.0, 0, 1, 100.0), crash, JobCompleted(7.0, 2, 1, 100.0)])
    assert state.releases == {1: 16.0}
    do(state, 16.0, hear=[JobReleased(16.0, 1)])
    assert state.releases == {}
    do(state, 17.0, hear=[JobCancelled(17.0, 1)])
    assert state.live == 1


def test_a_held_job_can_be_cancelled_and_a_release_that_comes_late_is_ignored() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=2))
    running(state, 0, at=1.0)
    do(state, 2.0, hear=[JobCrashed(2.0, 0, 1, 0.0, True, "it crashed", retry_in=10.0)])
    assert state.releases == {0: 12.0}
    after = do(state, 12.0, hear=[JobCancelled(5.0, 0), JobReleased(12.0, 0)])
    assert (list(after.ids), state.releases) == (["b"], {})


def test_crashes_are_counted_in_a_row_so_a_job_that_gets_further_begins_anew() -> None:
    state = state_of(job("a", gpus=2))
    for n in range(1, 3 * _OLD_CRASHES):
        running(state, 0, at=float(n))
        seen = do(state, n + 0.5, hear=[JobCrashed(n + 0.5, 0, n, float(n), True, "it crashed")])
        assert int(seen.columns.crashes[0]) == 1


def test_another_gang_shows_in_later_snapshots_and_not_in_earlier_ones() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=1))
    before = state.freeze()
    after = do(state, 1.0, hear=[JobReshaped(1.0, 0, 4, 2, 8)])
    assert before.columns.gpus.tolist() == [2, 1]
    assert before.jobs["a"].spec.gpus == 2
    assert (after.columns.gpus.tolist(), after.columns.min_gpus.tolist()) == ([4, 1], [2, 1])
    assert (after.jobs["a"].spec.gpus, after.jobs["a"].spec.max_gpus) == (4, 8)


def test_the_gpus_asked_for_are_those_of_the_new_gang_after_a_resize() -> None:
    state = state_of(job("a", gpus=2), job("b", gpus=1))
    running(state, 0, at=1.0)
    asked = []
    for at, gang in ((2.0, 4), (3.0, 8), (4.0, 1)):
        fitting = all_fit(do(state, at, hear=[JobReshaped(at, 0, gang, 1, 8)]))
        asked.append(None if fitting is None else fitting.reason(0).numbers)
    assert asked == [(5, 8), None, (2, 8)]


def test_a_frozen_snapshot_has_every_field() -> None:
    assert {field.name for field in fields(Snapshot)} == vars(state_of(job("a")).freeze()).keys()
