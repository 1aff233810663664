"""The simulated world by hand: what comes first at one moment, what restarts cost, when speeds change, what is lost."""

from dataclasses import dataclass

import pytest

from shoal.core.commands import Resize, Start, Stop
from shoal.core.decision import Decision, Grant, Refusal
from shoal.core.events import (
    BatchChanged,
    Event,
    EventBatch,
    JobCompleted,
    JobCrashed,
    JobMeasured,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReturned,
)
from shoal.core.interfaces import Policy
from shoal.core.retry import RETRIES
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, Placement, parse_cluster
from shoal.perf.catalog import catalog
from shoal.policy.classic.fifo import Fifo
from shoal.policy.classic.las import Las
from shoal.policy.classic.shortest import Srtf
from shoal.sim.backend import SimulatedBackend
from shoal.sim.faults import NO_FAULTS, Faults, JobFault, NodeFault, Straggler
from shoal.sim.truth import RestartCost, Truth
from shoal.testing.builders import job, simulate
from shoal.workload.schema import Job

INF = float("inf")
ONE = Placement(((0, 1),))
FOUR = Placement(((0, 4),))


def backend(*jobs: Job, cluster: str = "gpu:2x4", cost: float = 0.0, faults: Faults = NO_FAULTS) -> SimulatedBackend:
    truth = Truth.of(jobs, parse_cluster(cluster), catalog())
    return SimulatedBackend(truth, [row.spec() for row in jobs], RestartCost(cost), faults)


def kinds(heard: EventBatch) -> list[type[Event]]:
    return [type(event) for event in heard.events]


@dataclass(frozen=True)
class Everyone:
    """A policy of one line: everyone gets their gang in order of arrival, asked again every ``every`` seconds."""

    every: float = INF

    def decide(self, snapshot: Snapshot) -> Decision:
        free = snapshot.cluster.total_gpus
        verdicts: dict[str, Grant | Refusal] = {}
        for view in snapshot.jobs.values():
            fits = view.gpus <= free
            free -= view.gpus if fits else 0
            verdicts[view.id] = Grant(view.gpus) if fits else Refusal()
        return Decision(verdicts, review_at=snapshot.now + self.every)


# ── one moment ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_everything_of_one_moment_is_one_batch_completions_first_arrivals_last() -> None:
    faults = Faults(script=(NodeFault(10.0, 1, 10.0), JobFault(10.0, 1)))
    world = backend(job("a", 0, 1, 10), job("b", 0, 1, 99), job("c", 10, 1, 5), faults=faults)
    assert kinds(world.wait(INF)) == [JobSubmitted, JobSubmitted]
    world.send([Start(0, 1, ONE), Start(1, 1, ONE)])
    heard = world.wait(INF)
    assert heard.now == 10.0
    assert kinds(heard) == [JobStarted, JobStarted, JobCompleted, JobCrashed, NodeLost, JobSubmitted]


def test_a_node_that_returns_when_another_is_lost_is_reported_first() -> None:
    faults = Faults(script=(NodeFault(5.0, 0, 5.0), NodeFault(10.0, 1, 5.0)))
    world = backend(job("a", 0, 1, 99), faults=faults)
    world.wait(INF)
    assert kinds(world.wait(INF)) == [NodeLost]
    assert kinds(world.wait(INF)) == [NodeReturned, NodeLost]


def test_waiting_ends_at_the_review_when_nothing_happens_before() -> None:
    world = backend(job("a", 0, 1, 10), job("b", 50, 1, 10))
    assert world.wait(INF).now == 0.0
    assert world.wait(7.5) == EventBatch(7.5, ())
    assert world.wait(49.0) == EventBatch(49.0, ())
    assert kinds(world.wait(60.0)) == [JobSubmitted]


def test_a_quiet_event_does_not_end_the_wait_and_comes_with_the_next_urgent_one() -> None:
    world = backend(job("a", 0, 1, 10), faults=Faults(script=(Straggler(4.0, 0, 0.5, 100.0),)))
    world.wait(INF)
    world.send([Start(0, 1, ONE)])
    heard = world.wait(INF)
    # 4 s at full speed, then 6 units at half speed take 12 s more.
    assert (heard.now, kinds(heard)) == (16.0, [JobStarted, JobMeasured, JobCompleted])


def test_the_world_is_over_when_every_job_is_done() -> None:
    world = backend(job("a", 0, 1, 10))
    world.wait(INF)
    world.send([Start(0, 1, ONE)])
    assert not world.wait(INF).over
    assert world.wait(INF).over


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_repeating_a_command_is_harmless() -> None:
    world = backend(job("a", 0, 1, 10))
    world.wait(INF)
    for _ in range(3):
        world.send([Start(0, 1, ONE)])
    world.wait(4.0)
    for _ in range(3):
        world.send([Stop(0, 1)])
    world.send([Start(0, 1, ONE)])
    assert world.wait(6.0).events == (JobStopped(4.0, 0, 1, 4.0),)
    world.send([Start(0, 2, ONE), Stop(0, 1)])
    heard = world.wait(INF)
    assert heard.events == (JobStarted(6.0, 0, 2, 1.0, 4.0), JobCompleted(12.0, 0, 2, 10.0))


def test_a_start_that_cannot_work_is_reported_as_a_crash_at_once() -> None:
    # cifar10 was never measured on a k80.
    world = backend(job("a", 0, 1, work=1e5, model="cifar10", batch_size=128), cluster="k80:1x4")
    world.wait(INF)
    world.send([Start(0, 1, ONE)])
    heard = world.wait(INF)
    assert not heard.over
    assert [(type(e), e.at) for e in heard.events] == [(JobCrashed, 0.0)]


def test_a_job_that_can_never_run_where_it_is_put_fails_and_the_run_ends() -> None:
    rows = [job("lost", 0, 1, work=1e5, model="cifar10", batch_size=128), job("fine", 0, 1, 50)]
    run = simulate(Everyone(), rows, "k80:1x4", knowledge="online")
    assert run.completed == {"fine": 50.0}
    assert run.starts == {"lost": RETRIES + 1, "fine": 1}
    assert [e.retry_in for e in run.events if isinstance(e, JobCrashed)] == [10.0, 20.0, 40.0, 0.0]
    assert run.state.live == 0


# ── restarts ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_starts_after_the_first_cost_anything() -> None:
    # a runs 0–10, stops for b (10–15), resumes at 15: 7 s to restart, then its last 90 s: 112.
    run = simulate(Srtf(), [job("a", 0, 4, 100), job("b", 10, 4, 5)], "gpu:1x4", restart_cost=7.0)
    assert run.completed == {"a": 112.0, "b": 15.0}


def test_a_resize_costs_a_restart_too() -> None:
    # 4 s on one GPU of the two asked for do 2 units; 3 s restart; the other 8 units on two GPUs: 4 + 3 + 8.
    world = backend(job("a", 0, 2, 10, min_gpus=1, max_gpus=2), cost=3.0)
    world.wait(INF)
    world.send([Start(0, 1, ONE)])
    world.wait(4.0)
    world.send([Resize(0, 2, Placement(((0, 2),)))])
    assert world.wait(INF).events == (JobStarted(7.0, 0, 2, 1.0, 2.0), JobCompleted(15.0, 0, 2, 10.0))


def test_stopped_while_restarting_a_job_has_done_nothing_more() -> None:
    world = backend(job("a", 0, 1, 10), cost=5.0)
    world.wait(INF)
    world.send([Start(0, 1, ONE)])
    world.wait(4.0)
    world.send([Stop(0, 1)])
    world.wait(5.0)
    world.send([Start(0, 2, ONE)])
    world.wait(8.0)
    world.send([Stop(0, 2)])
    assert world.wait(9.0).events == (JobStopped(8.0, 0, 2, 4.0),)
    world.send([Start(0, 3, ONE)])
    assert [e.at for e in world.wait(INF).events] == [14.0, 20.0]


COSTS = {
    "a constant": (RestartCost(constant=12.0), job(restart_seconds=3.0), 12.0),
    "the job's own": (RestartCost(), job(restart_seconds=3.0), 3.0),
    "the default of a job that says nothing": (RestartCost(), job(), 30.0),
    "its checkpoint written and read": (RestartCost(gigabytes_per_second=2.0), job(checkpoint_gb=5.0), 5.0),
    "its own where it has no checkpoint": (RestartCost(gigabytes_per_second=2.0), job(restart_seconds=3.0), 3.0),
}


@pytest.mark.parametrize(("cost", "row", "seconds"), COSTS.values(), ids=COSTS.keys())
def test_a_restart_costs(cost: RestartCost, row: Job, seconds: float) -> None:
    assert cost.of(row) == seconds


def test_a_first_start_may_cost_something_too() -> None:
    truth = Truth.of([job("a", 0, 1, work=10.0)], parse_cluster("v100:1x4"), catalog())
    world = SimulatedBackend(truth, [truth.jobs[0].spec()], RestartCost(constant=7.0, first=2.0))
    world.wait(INF)
    world.send([Start(0, 1, ONE)])
    world.wait(4.0)
    world.send([Stop(0, 1), Start(0, 2, ONE)])
    assert [(type(e), e.at) for e in world.wait(INF).events] == [
        (JobStopped, 4.0), (JobStarted, 11.0), (JobCompleted, 19.0)
    ]  # fmt: skip


# ── speeds that change ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_script_changes_the_speed_at_the_right_moment() -> None:
    profile = catalog().profile("ResNet-18")
    slow, fast = (profile.rate("v100", 1, Locality.SAME_NODE, size) for size in (16, 128))
    # Half of the work at the speed of batch size 16, the other half at that of 128.
    work = 1000.0 * slow
    row = job("a", 0, 1, work=work, model="ResNet-18", batch_size=16, batch_schedule=((work / 2, 128),))
    run = simulate(Fifo(), [row], "v100:1x4")
    changed = [e for e in run.events if isinstance(e, BatchChanged)]
    assert [(e.at, e.batch_size, e.rate, e.done) for e in changed] == [(500.0, 128, fast, work / 2)]
    assert run.completed["a"] == 500.0 + (work / 2) / fast


def test_a_batch_script_is_found_where_it_was_left_after_a_stop() -> None:
    profile = catalog().profile("ResNet-18")
    slow, fast = (profile.rate("v100", 1, Locality.SAME_NODE, size) for size in (16, 128))
    work = 1000.0 * slow
    row = job("a", 0, 1, work=work, model="ResNet-18", batch_size=16, batch_schedule=((0.0, 128), (work / 2, 16)))
    world = backend(row, cluster="v100:1x4")
    world.wait(INF)
    world.send([Start(0, 1, ONE)])
    first = world.wait(10.0)
    # A change due before any work is done is made before the job starts.
    assert first.events == (JobStarted(0.0, 0, 1, fast, 0.0),)
    world.send([Stop(0, 1)])
    (stopped,) = world.wait(20.0).events
    assert isinstance(stopped, JobStopped)
    assert stopped.done == fast * 10.0
    world.send([Start(0, 2, ONE)])
    heard = world.wait(INF)
    assert kinds(heard) == [JobStarted, BatchChanged]
    assert heard.now == 20.0 + (work / 2 - fast * 10.0) / fast


def test_a_batch_size_that_fits_on_no_gpu_ends_the_run_but_loses_nothing() -> None:
    # The model's largest batch is 4,096 samples.
    row = job("a", 0, 1, work=1e6, model="cifar10", batch_size=128, batch_schedule=((1000.0, 8192),))
    run = simulate(Everyone(every=50.0), [row, job("b", 0, 3, 10)], "v100:1x4")
    (changed,) = [e for e in run.events if isinstance(e, BatchChanged)]
    (crash,) = [e for e in run.events if isinstance(e, JobCrashed)]
    assert (changed.rate, changed.batch_size) == (0.0, 8192)
    assert (crash.at, crash.done, crash.blamed) == (changed.at, 1000.0, False)
    assert run.completed == {"b": 10.0}
    assert run.story("a")[-1][1] == "cannot run: none of the cluster's GPU types (v100) is one it can use"


def test_a_straggler_slows_the_whole_gang_for_as_long_as_it_lasts() -> None:
    # 8 GPUs on two nodes. Full speed to 10, half speed from 10 to 30 (10 units), then 80 more: done at 110.
    faults = Faults(script=(Straggler(10.0, 1, 0.5, 20.0),))
    run = simulate(Fifo(), [job("wide", 0, 8, 100)], "gpu:2x4", faults=faults)
    assert run.completed == {"wide": 110.0}


def test_gangs_over_several_nodes_slow_each_other_while_they_share_one() -> None:
    across = Placement(((0, 2), (1, 2)))
    world = backend(
        job("a", 0, 4, 100),
        job("b", 0, 4, 30),
        job("c", 0, 2, 50),
        faults=Faults(interference_speed=0.5),
        cluster="gpu:2x6",
    )
    world.wait(INF)
    world.send([Start(0, 1, across), Start(1, 1, across), Start(2, 1, Placement(((0, 2),)))])
    ended: dict[int, float] = {}
    while len(ended) < 3:
        ended |= {event.job: event.at for event in world.wait(INF).events if isinstance(event, JobCompleted)}
    # b's 30 s take 60 s beside a, which then has 70 of its 100 s left; c sits on one node and is not in the way.
    assert ended == {0: 130.0, 1: 60.0, 2: 50.0}


def test_a_gang_that_no_longer_shares_a_node_has_its_full_speed_again() -> None:
    across = Placement(((0, 2), (1, 2)))
    world = backend(job("a", 0, 4, 100), job("b", 0, 4, 99), faults=Faults(interference_speed=0.5), cluster="gpu:3x4")
    world.wait(INF)
    world.send([Start(0, 1, across), Start(1, 1, across)])
    world.wait(20.0)
    world.send([Stop(0, 1)])
    world.wait(20.0)
    world.send([Start(0, 2, Placement(((2, 4),)))])
    heard = world.wait(INF)
    # 10 of a's 100 s were done in 20 s; 90 remain. b had 89 s left when a went.
    assert [(type(e), e.at) for e in heard.events if isinstance(e, JobCompleted)] == [(JobCompleted, 109.0)]
    assert world.wait(INF).now == 110.0


def test_a_straggler_slows_no_job_on_other_nodes() -> None:
    faults = Faults(script=(Straggler(10.0, 1, 0.5, 20.0),))
    run = simulate(Fifo(), [job("a", 0, 4, 100), job("b", 0, 4, 100)], "gpu:2x4", faults=faults)
    assert run.completed == {"a": 100.0, "b": 110.0}


def test_two_jobs_that_share_gpus_slow_each_other_until_one_leaves() -> None:
    # Nothing is known of them, so they take turns: half speed each. a needs 10 and ends at 20; b has 20 of 30 left.
    world = backend(job("a", 0, 1, 10), job("b", 0, 1, 30))
    world.wait(INF)
    world.send([Start(0, 1, ONE, partner=1), Start(1, 1, ONE, partner=0)])
    first = world.wait(INF)
    assert first.now == 20.0
    assert JobCompleted(20.0, 0, 1, 10.0) in first.events
    assert JobMeasured(20.0, 1, 1, 1.0, 10.0) in first.events, "its partner's speed is news of the same moment"
    assert world.wait(INF).events == (JobCompleted(40.0, 1, 1, 30.0),)


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_lost_node_sets_a_job_back_to_its_last_checkpoint() -> None:
    # Checkpoints every 30 s of a run. Lost at 100: 90 s are saved. Back at 160 the other 110 s run: 270.
    faults = Faults(script=(NodeFault(100.0, 0, 60.0),), checkpoint_every=30.0)
    run = simulate(Fifo(), [job("a", 0, 4, 200)], "gpu:1x4", faults=faults)
    (crash,) = [e for e in run.events if isinstance(e, JobCrashed)]
    assert (crash.at, crash.done, crash.blamed, crash.retry_in) == (100.0, 90.0, False, 0.0)
    assert "gpu-0" in crash.cause
    assert run.completed == {"a": 270.0}


def test_a_job_moves_to_another_node_when_its_own_is_lost() -> None:
    # Lost at 100 with 90 s saved; the other node is free at once: 100 + 110.
    faults = Faults(script=(NodeFault(100.0, 0, 1000.0),), checkpoint_every=30.0)
    run = simulate(Fifo(), [job("a", 0, 4, 200)], "gpu:2x4", faults=faults)
    assert run.completed == {"a": 210.0}


def test_what_a_stop_saved_is_never_lost() -> None:
    # a runs 0–25, is stopped with 25 s saved (b runs 25–35), resumes at 35 and crashes at 45, 10 s into a run that
    # checkpoints every 30 s: back to 25. Held back for 10 s, it has 75 s more from 55: 130.
    faults = Faults(script=(JobFault(45.0, 0),), checkpoint_every=30.0)
    run = simulate(Srtf(), [job("a", 0, 4, 100), job("b", 25, 4, 10)], "gpu:1x4", faults=faults)
    assert run.completed == {"a": 130.0, "b": 35.0}


def test_a_job_at_fault_is_held_back_longer_each_time_until_a_long_run_gets_further() -> None:
    # Checkpoints every 30 s of a run. At 35 it has saved 30 s, at 50 nothing more: held back for 10 s, then 20 s. From
    # 70 to 670 it saves 600 s in twice the time that forgives a crash, so the next is a first one again: 10 s. The
    # other 70 s run from 680.
    faults = Faults(script=tuple(JobFault(at, 0) for at in (35.0, 50.0, 670.0)), checkpoint_every=30.0)
    run = simulate(Fifo(), [job("a", 0, 4, 700)], "gpu:1x4", faults=faults)
    assert [e.retry_in for e in run.events if isinstance(e, JobCrashed)] == [10.0, 20.0, 10.0]
    assert [e.at for e in run.events if isinstance(e, JobReleased)] == [45.0, 70.0, 680.0]
    assert run.completed == {"a": 750.0}


def test_a_simulated_crash_passes_so_a_job_that_crashed_at_once_is_tried_again() -> None:
    run = simulate(Fifo(), [job("a", 0, 2, 100)], "gpu:1x4", faults=Faults(script=(JobFault(1.0, 0),)))
    assert [e.failed for e in run.events if isinstance(e, JobCrashed)] == [False]
    assert set(run.completed) == {"a"}


def test_a_crash_of_a_job_that_does_not_run_then_does_not_happen() -> None:
    faults = Faults(script=(JobFault(5.0, 1), JobFault(5.0, 7)))
    run = simulate(Fifo(), [job("a", 0, 4, 10), job("b", 0, 4, 10)], "gpu:1x4", faults=faults)
    assert run.completed == {"a": 10.0, "b": 20.0}


def test_a_node_lost_twice_at_once_is_lost_once() -> None:
    faults = Faults(script=(NodeFault(5.0, 0, 10.0), NodeFault(6.0, 0, 100.0)))
    run = simulate(Fifo(), [job("a", 0, 4, 10)], "gpu:1x4", faults=faults)
    assert [type(e) for e in run.events if isinstance(e, NodeLost | NodeReturned)] == [NodeLost, NodeReturned]
    assert run.completed == {"a": 25.0}


def test_a_long_repair_is_waited_for_however_often_the_policy_asks() -> None:
    # Nothing runs from 5 to 5,005 while the policy asks again every second; that is no reason to give up.
    faults = Faults(script=(NodeFault(5.0, 0, 5000.0),))
    run = simulate(Everyone(every=1.0), [job("a", 0, 4, 10)], "gpu:1x4", faults=faults)
    assert run.completed == {"a": 5015.0}


RANDOM = {
    "nodes": Faults(node_mtbf=400.0, node_repair=50.0, checkpoint_every=20.0),
    "GPUs": Faults(gpu_mtbf=2000.0, checkpoint_every=20.0),
    "stragglers": Faults(straggler_mtbf=200.0, straggler_lasts=100.0),
}


@pytest.mark.parametrize("faults", RANDOM.values(), ids=RANDOM.keys())
def test_random_faults_come_by_seed(faults: Faults) -> None:
    rows = [job(f"j{i}", 20.0 * i, 1 + i % 4, 150) for i in range(10)]
    again = [simulate(Srtf(), rows, "gpu:2x4", faults=faults, seed=seed).journal.records for seed in (1, 1, 2)]
    assert again[0] == again[1]
    assert again[0] != again[2]


def test_mean_times_between_faults_are_what_they_say() -> None:
    # 40 nodes for 10,000 s at one loss per 1,000 s and node: 400 losses expected, 20 being one standard deviation.
    faults = Faults(node_mtbf=1000.0, node_repair=0.001, checkpoint_every=1.0)
    run = simulate(Fifo(), [job("a", 0, 1, 1), job("end", 10_000, 1, 1)], "gpu:40x1", faults=faults)
    lost = sum(isinstance(e, NodeLost) for e in run.events)
    assert 300 < lost < 500


# ── noise and knowledge ───────────────────────────────────────────────────────────────────────────────────────────


def test_noise_comes_by_seed_and_only_where_it_is_asked_for() -> None:
    rows = [job(f"j{i}", 0, 1, 100) for i in range(8)]
    ends = [simulate(Fifo(), rows, "gpu:2x4", noise=0.3, seed=seed).completed for seed in (1, 1, 2)]
    assert ends[0] == ends[1] != ends[2]
    assert len(set(ends[0].values())) == 8
    assert set(simulate(Fifo(), rows, "gpu:2x4", seed=1).completed.values()) == {100.0}


def test_no_policy_sees_the_truth_before_it_is_measured() -> None:
    seen: list[float] = []

    @dataclass(frozen=True)
    class Nosy:
        def decide(self, snapshot: Snapshot) -> Decision:
            seen.extend(snapshot.columns.best_speed.tolist())
            return Decision({name: Grant(1) for name in snapshot.ids})

    simulate(Nosy(), [job("a", 0, 1, 100)], "gpu:1x4", noise=1.0, seed=3)
    assert set(seen) == {1.0}


# ── coming to rest ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", [Everyone(every=60.0), Las(), Fifo()], ids=["every minute", "las", "fifo"])
def test_a_job_that_can_never_run_does_not_keep_the_world_turning(policy: Policy) -> None:
    run = simulate(policy, [job("big", 0, 9, 10), job("a", 100, 4, 10)], "gpu:2x4")
    assert run.completed == {"a": 110.0}
    assert run.state.live == 1


def test_a_policy_that_grants_nothing_comes_to_rest() -> None:
    @dataclass(frozen=True)
    class Nobody:
        def decide(self, snapshot: Snapshot) -> Decision:
            return Decision({name: Refusal() for name in snapshot.ids}, review_at=snapshot.now + 1.0)

    assert simulate(Nobody(), [job("a")]).completed == {}


def test_the_report_of_a_last_stop_is_still_delivered() -> None:
    @dataclass(frozen=True)
    class Once:
        """Runs everyone until 10 and nobody afterwards."""

        def decide(self, snapshot: Snapshot) -> Decision:
            if snapshot.now < 10.0:
                return Decision({name: Grant(1) for name in snapshot.ids}, review_at=10.0)
            return Decision({name: Refusal() for name in snapshot.ids})

    run = simulate(Once(), [job("a", 0, 1, 100)])
    assert [e.done for e in run.events if isinstance(e, JobStopped)] == [10.0]
    assert run.state.freeze().jobs["a"].done == 10.0
