"""Native mode in the live backend: an agent for each part of a run, nodes that are up by the engine's survey."""

from dataclasses import dataclass

import pytest
from tests.live.test_backend import ManualClock
from tests.refusals import refusal

from shoal.core.commands import Resize, Start, Stop
from shoal.core.events import (
    Event,
    JobCompleted,
    JobCrashed,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReturned,
)
from shoal.core.job import JobSpec, Launch
from shoal.core.topology import Placement, parse_cluster
from shoal.live.backend import LiveBackend
from shoal.live.native_runs import START_SECONDS, RunPart, run_parts, see, set_up
from shoal.live.recovery import RecoveredRuns
from shoal.provider.protocol import AllocationState, Seen
from shoal.wire.messages import PROTOCOL, AgentOrders, AgentReport, Hello, RankExit, RunReport

LEASE, GRACE, MARGIN = 5.0, 1.0, 2.0
CLUSTER = parse_cluster("gpu:2x2")
N0, N1 = (node.name for node in CLUSTER.nodes)


@dataclass
class Native:
    """A backend in native mode with jobs a and b, whose events and acknowledgements are taken at once."""

    clock: ManualClock
    backend: LiveBackend

    @classmethod
    def made(cls, *, in_place: bool = False, jobs: int = 2) -> "Native":
        clock = ManualClock()
        backend = LiveBackend(CLUSTER, clock, lambda spec, placement: 1.0, LEASE, native=True)
        launch = Launch("job", ("python",), grace=GRACE, in_place=in_place)
        backend.submit([(JobSpec(name, 0.0, 2, None, 1, 4), launch) for name in "ab"[:jobs]], None)
        it = cls(clock, backend)
        it.survey(N0, N1)
        it.events()
        return it

    def survey(self, *up: str) -> None:
        index = CLUSTER.node_index
        self.backend.look(lambda runs, now: set_up(runs, {index[name] for name in up}, now))

    def seen(self, name: str, state: str, *, cleared: bool = False, why: str = "") -> None:
        one = Seen(name, "17", AllocationState(state), cleared=cleared, why=why)
        self.backend.look(lambda runs, now: see(runs, {name: one}, now))

    def events(self) -> list[Event]:
        found = list(self.backend.wait(self.clock.time).events)
        self.backend.confirm()
        return found

    def parts(self) -> list[RunPart]:
        return self.backend.look(lambda runs, _: run_parts(runs))

    def names(self) -> list[str]:
        return [part.allocation for part in self.parts()]

    def hello(self, allocation: str, node: str = N0, gpus: int = 2, boot: str = "b") -> AgentOrders:
        return self.backend.hello(Hello(PROTOCOL, node, boot, "gpu", gpus, "10.0.0.1", allocation=allocation))

    def report(self, allocation: str, *runs: RunReport, node: str = N0, leaving: float | None = None) -> AgentOrders:
        sent = AgentReport(
            protocol=PROTOCOL, node=node, boot="b", known=0, runs=list(runs), allocation=allocation, leaving=leaving
        )
        return self.backend.sync(sent)


def run(job: int, incarnation: int, phase: str, *statuses: int, warned: bool = False) -> RunReport:
    exits = [RankExit(rank, status, warned) for rank, status in enumerate(statuses)]
    return RunReport(job=job, incarnation=incarnation, phase=phase, exits=exits)  # type: ignore[arg-type]


def test_a_node_is_up_by_the_survey_and_its_runs_go_on_when_the_engine_calls_it_down() -> None:
    it = Native.made()
    it.backend.send([Start(0, 1, Placement(((0, 2),)))])
    it.hello("a.1." + N0)
    it.report("a.1." + N0, run(0, 1, "running"))
    assert [type(event) for event in it.events()] == [JobStarted]
    it.survey(N1)
    assert it.events() == [NodeLost(0.0, 0)]
    it.clock.time = LEASE - 1.0
    it.report("a.1." + N0, run(0, 1, "running"))
    it.clock.time += LEASE
    assert it.events() == []
    it.survey(N0, N1)
    assert it.events() == [NodeReturned(it.clock.time, 0)]


def test_each_part_of_a_run_needs_an_allocation_and_its_agent_gets_the_orders_of_that_run_alone() -> None:
    it = Native.made()
    it.backend.send([Start(0, 1, Placement(((0, 1), (1, 2)))), Start(1, 1, Placement(((0, 1),)))])
    assert [(part.allocation, part.gpus) for part in it.parts()] == [
        (f"a.1.{N0}", 1), (f"a.1.{N1}", 2), (f"b.1.{N0}", 1)
    ]  # fmt: skip
    orders = it.hello(f"a.1.{N0}", gpus=1)
    assert [(order.job, order.gpus, order.phase) for order in orders.runs] == [(0, 1, "prepare")]
    assert [order.job for order in it.hello(f"b.1.{N0}", gpus=1).runs] == [1]
    with refusal("allocation: 'a.1.gpu-0': has no run on this node any more: end the agent"):
        it.hello(f"a.1.{N0}", node=N1)
    with refusal("node gpu-1: '1 x gpu': this cluster has it with 2 x gpu"):
        it.hello(f"a.1.{N1}", node=N1, gpus=1)
    with refusal("node: 'gpu-0': the engine says which nodes are up, and agents belong to runs: start none by hand"):
        it.hello("")
    it.hello(f"a.1.{N1}", node=N1)
    it.report(f"a.1.{N0}", run(0, 1, "ready"))
    orders = it.report(f"a.1.{N1}", run(0, 1, "ready"), node=N1)
    assert orders.runs[0].phase == "go"


def test_the_allocation_closes_with_its_run_and_its_agent_gets_no_orders_until_it_has_gone() -> None:
    it = Native.made()
    it.backend.send([Start(0, 1, Placement(((0, 2),)))])
    name = f"a.1.{N0}"
    it.hello(name)
    it.report(name, run(0, 1, "running"))
    it.report(name, run(0, 1, "ended", 0, 0))
    assert it.names() == []
    assert [type(event) for event in it.events()] == [JobStarted, JobCompleted]
    assert it.report(name, run(0, 1, "ended", 0, 0)).runs == []
    it.report(name, leaving=0.0)
    with refusal("allocation: 'a.1.gpu-0': has no run on this node any more: end the agent"):
        it.report(name)


def test_a_silent_agent_loses_its_run_and_not_its_node() -> None:
    it = Native.made()
    it.backend.send([Start(0, 1, Placement(((0, 2),)))])
    it.hello(f"a.1.{N0}")
    it.report(f"a.1.{N0}", run(0, 1, "running"))
    it.events()
    it.clock.time = LEASE + MARGIN + GRACE - 0.1
    assert it.events() == []
    it.clock.time += 0.2
    (crash,) = it.events()
    assert isinstance(crash, JobCrashed)
    assert not crash.blamed
    assert it.backend.is_up(0)


def test_an_allocation_that_waits_is_not_silent_and_one_that_began_must_have_an_agent() -> None:
    it = Native.made()
    name = f"a.1.{N0}"
    it.backend.send([Start(0, 1, Placement(((0, 2),)))])
    it.seen(name, "waiting")
    it.clock.time = 1000.0
    assert it.events() == []
    assert not it.parts()[0].began
    it.seen(name, "up")
    assert it.parts()[0].began
    it.clock.time += START_SECONDS + LEASE + MARGIN + GRACE
    assert [type(event) for event in it.events()] == [JobCrashed]


def test_an_allocation_that_ends_without_an_agent_ends_its_run_with_the_engines_reason() -> None:
    it = Native.made()
    it.backend.send([Start(0, 1, Placement(((0, 2),)))])
    it.seen(f"a.1.{N0}", "ended", why="NonZeroExitCode")
    (crash,) = it.events()
    assert isinstance(crash, JobCrashed)
    assert crash.cause == f"its allocation on {N0} ended before its agent connected (NonZeroExitCode)"
    assert it.names() == []


def test_the_engine_ends_a_connected_run_only_where_it_is_certain_that_no_process_is_left() -> None:
    for state, cleared, ended in (("ended", False, False), ("lost", False, False), ("ended", True, True)):
        it = Native.made()
        it.backend.send([Start(0, 1, Placement(((0, 2),)))])
        it.hello(f"a.1.{N0}")
        it.report(f"a.1.{N0}", run(0, 1, "running"))
        it.events()
        it.seen(f"a.1.{N0}", state, cleared=cleared)
        assert [type(event) for event in it.events()] == [JobCrashed] * ended


def test_a_run_stopped_before_its_agents_connected_is_over_at_once() -> None:
    it = Native.made()
    it.backend.send([Start(0, 1, Placement(((0, 2), (1, 2))))])
    it.backend.send([Stop(0, 1)])
    assert [type(event) for event in it.events()] == [JobStopped]
    assert it.names() == []


def test_an_agent_whose_allocation_is_closed_gives_its_job_back_and_leaves_the_node_in_service() -> None:
    it = Native.made()
    it.backend.send([Start(0, 1, Placement(((0, 2),)))])
    name = f"a.1.{N0}"
    it.hello(name)
    it.report(name, run(0, 1, "running"))
    it.report(name, run(0, 1, "running"), leaving=GRACE)
    it.report(name, run(0, 1, "ended", 0, 0, warned=True), leaving=0.0)
    kinds = [type(event).__name__ for event in it.events()]
    assert kinds == ["JobStarted", "JobRequeued", "JobStopped"]
    assert it.backend.is_up(0)


def test_two_jobs_on_one_gpu_are_refused_with_a_sentence() -> None:
    it = Native.made()
    it.backend.send([Start(0, 1, Placement(((0, 2),)))])
    it.backend.send([Start(1, 1, Placement(((0, 2),)), partner=0)])
    (crash,) = it.events()
    assert isinstance(crash, JobCrashed)
    assert crash.cause.endswith("two jobs on one GPU are not possible in native mode")


@pytest.mark.parametrize(("seats", "in_place"), [(((0, 1),), False), (((0, 2), (1, 1)), True)])
def test_a_job_grows_by_another_allocation_and_shrinks_inside_one_only_by_a_restart(
    seats: tuple[tuple[int, int], ...], in_place: bool
) -> None:
    it = Native.made(in_place=True)
    it.backend.send([Start(0, 1, Placement(((0, 2),)))])
    it.hello(f"a.1.{N0}")
    it.report(f"a.1.{N0}", run(0, 1, "running"))
    it.backend.send([Resize(0, 2, Placement(seats))])
    orders = it.report(f"a.1.{N0}", run(0, 1, "running"))
    assert (orders.runs[0].phase != "stop") is in_place
    expected = [f"a.1.{N0}", f"a.2.{N1}"] if in_place else [f"a.1.{N0}", f"a.2.{N0}"]
    assert it.names() == expected


def test_a_restarted_control_plane_wants_the_same_allocation_and_starts_no_later_run_before_the_lease_has_ended() -> (
    None
):
    clock, recovered = ManualClock(), RecoveredRuns()
    launch = Launch("job", ("python",), grace=GRACE)
    recovered.apply_events([JobSubmitted(0.0, JobSpec("a", 0.0, 2, None, 1, 4), launch)])
    recovered.apply_events([NodeReturned(0.0, 0), NodeReturned(0.0, 1)])
    recovered.apply_commands([Start(0, 1, Placement(((0, 2),)))])
    it = Native(clock, LiveBackend(CLUSTER, clock, lambda spec, placement: 1.0, LEASE, native=True))
    it.backend.resume(recovered, frozenset())
    assert (it.names(), it.backend.is_up(0)) == ([f"a.1.{N0}"], True)
    it.seen(f"a.1.{N0}", "ended")
    assert it.events() == [], "an earlier control plane may have given it orders"
    it.seen(f"a.1.{N0}", "ended", cleared=True)
    assert [type(event) for event in it.events()] == [JobCrashed]
    it.backend.send([Start(0, 2, Placement(((1, 2),)))])
    assert it.hello(f"a.2.{N1}", node=N1).runs[0].phase == "prepare"
    for it.clock.time, phase in ((LEASE, "prepare"), (LEASE + MARGIN + GRACE, "go")):
        it.events()
        assert it.report(f"a.2.{N1}", run(0, 2, "ready"), node=N1).runs[0].phase == phase
