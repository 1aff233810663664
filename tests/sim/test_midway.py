"""Worlds that begin in the middle: each job goes on from where it stands, and nobody who has ended comes back."""

from shoal.core.commands import Start
from shoal.core.events import JobCompleted, JobMeasured, JobReleased, JobStarted, JobStopped, JobSubmitted, NodeLost
from shoal.core.lifecycle import JobState
from shoal.core.topology import Placement, parse_cluster
from shoal.perf.catalog import catalog
from shoal.sim.backend import SimulatedBackend
from shoal.sim.faults import NO_FAULTS, Faults, NodeFault
from shoal.sim.job_run import JobStart
from shoal.sim.truth import RestartCost, Truth
from shoal.testing.builders import job
from shoal.workload.schema import Job

INF = float("inf")
TWO = Placement(((0, 2),))


def midway(*jobs: Job, standings: list[JobStart], now: float = 100.0, faults: Faults = NO_FAULTS) -> SimulatedBackend:
    truth = Truth.of(jobs, parse_cluster("gpu:2x4"), catalog())
    specs = [row.spec() for row in jobs]
    return SimulatedBackend(truth, specs, RestartCost(30.0), faults, now=now, standings=standings, down={1})


def test_a_running_job_does_the_rest_of_its_work() -> None:
    world = midway(
        job("a", 0, 2, 100), standings=[JobStart(JobState.RUNNING, 60.0, incarnation=1, placement=TWO, rate=1.0)]
    )
    heard = world.wait(INF)
    assert heard.now == 140.0
    assert heard.events == (JobCompleted(140.0, 0, 1, 100.0),)
    assert world.wait(INF).over


def test_a_job_that_goes_faster_than_was_known_is_measured_anew() -> None:
    world = midway(
        job("a", 0, 2, 100), standings=[JobStart(JobState.RUNNING, 60.0, incarnation=1, placement=TWO, rate=0.5)]
    )
    assert world.wait(INF).events == (JobMeasured(100.0, 0, 1, 1.0, 60.0), JobCompleted(140.0, 0, 1, 100.0))


def test_a_first_start_is_up_at_once_and_a_later_one_when_its_restart_is_paid() -> None:
    first = JobStart(JobState.STARTING, incarnation=1, placement=TWO, since=90.0)
    second = JobStart(JobState.STARTING, 5.0, incarnation=2, placement=Placement(((0, 1),)), since=90.0)
    world = midway(job("a", 0, 2, 10), job("b", 0, 1, 10), standings=[first, second])
    assert world.wait(INF).events == (JobStarted(100.0, 0, 1, 1.0, 0.0), JobCompleted(110.0, 0, 1, 10.0))
    assert world.wait(INF).events == (JobStarted(120.0, 1, 2, 1.0, 5.0), JobCompleted(125.0, 1, 2, 10.0))


def test_a_stopping_job_has_stopped_and_can_be_started_again() -> None:
    world = midway(job("a", 0, 2, 100), standings=[JobStart(JobState.STOPPING, 40.0, incarnation=3)])
    assert world.wait(100.0).events == (JobStopped(100.0, 0, 3, 40.0),)
    world.send([Start(0, 4, TWO)])
    assert world.wait(INF).now == 100.0 + 30.0 + 60.0


def test_a_job_held_back_comes_free_when_it_should_and_one_overdue_at_once() -> None:
    later, overdue = (JobStart(JobState.HELD, incarnation=1, since=at) for at in (130.0, 70.0))
    world = midway(job("a", 0, 2, 10), job("b", 0, 2, 10), standings=[later, overdue])
    assert world.wait(INF).events == (JobReleased(100.0, 1),)
    assert world.wait(INF).events == (JobReleased(130.0, 0),)


def test_ended_jobs_are_over_and_those_to_come_arrive() -> None:
    ended = JobStart(JobState.COMPLETED)
    assert midway(job("a", 0, 2, 10), standings=[ended]).wait(INF).over
    world = midway(job("a", 0, 2, 10), job("b", 150, 2, 10), standings=[ended])
    heard = world.wait(INF)
    assert (heard.now, [type(event) for event in heard.events]) == (150.0, [JobSubmitted])


def test_a_node_that_is_down_is_not_lost_again_and_is_not_waited_for() -> None:
    faults = Faults(script=(NodeFault(110.0, 1, 5.0), NodeFault(120.0, 0, 5.0)))
    world = midway(job("a", 0, 8, 10), standings=[JobStart(JobState.PENDING)], faults=faults)
    assert world.wait(INF).events == (NodeLost(120.0, 0),)
    reviews = 0
    while not world.wait(200.0 + reviews).over:
        reviews += 1
        assert reviews < 5000, "the world waits for ever for a node that does not come back"
    assert reviews > 100
