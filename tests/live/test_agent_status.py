"""The nodes and agents that the control plane knows: what an agent repeats, whom it serves, and what may start."""

from math import inf
from typing import Any

import pytest

from shoal.core.job import JobSpec, Launch
from shoal.core.topology import Node, Placement
from shoal.live.agent_status import Agents, AgentStatus, alone, steady_runs, unrunnable
from shoal.live.gang import Gang, NodePhase, Part
from shoal.live.live_job import LiveJob
from shoal.live.rate_tracker import RateTracker
from shoal.wire.agent_messages import SuspensionReport
from shoal.wire.messages import Roster, RunReport, SessionReport

NODES = (Node("n0", "gpu", 2), Node("n1", "gpu", 2))
LAUNCH = Launch("job", ("train",), grace=5.0)
ONE, BOTH = Placement(((0, 2),)), Placement(((0, 2), (1, 1)))


def gang(incarnation: int = 1, placement: Placement = ONE, *, job: int = 0, **more: Any) -> Gang:
    return Gang(job, incarnation, "job-a", LAUNCH, placement, None, RateTracker(1.0), **more)


def agents(count: int = 2, *, native: bool = False) -> Agents:
    made = Agents(native=native)
    for index in range(count):
        made.set_node(index)
    return made


def report(phase: str = "running", job: int = 0, incarnation: int = 1, **more: Any) -> RunReport:
    return RunReport(job=job, incarnation=incarnation, phase=phase, **more)  # type: ignore[arg-type]


def ended(it: Gang) -> Gang:
    it.parts = {node: Part(NodePhase.ENDED) for node in it.parts}
    return it


def test_steady_are_the_runs_that_are_up_and_report_nothing_that_changes_with_time_alone() -> None:
    steady = report(job=1, incarnation=2, done=7.0)
    suspended = SuspensionReport(turn=1, suspended=True)
    roster = Roster(origin=1, generation=0, members=[])
    others = [
        report("ready", 2),
        report("ended", 3),
        report(job=4, saved=0.0),
        report(job=5, session=SessionReport()),
        report(job=6, roster=roster),
        report(job=7, suspension=suspended),
    ]
    assert steady_runs([others[0], steady, *others[1:]]) == {(1, 2): steady}


def test_a_report_changes_nothing_only_if_it_repeats_the_last_one_of_a_run_that_goes_on_there() -> None:
    run = gang(started=True)
    agent = AgentStatus(0, gangs={(0, 1): run}, steady=steady_runs([report()]))
    assert agent.changes_nothing(report())
    assert not agent.changes_nothing(report(done=1.0)), "another progress"
    assert not agent.changes_nothing(report(job=1)), "another job"
    assert not agent.changes_nothing(report(incarnation=2)), "another incarnation"
    agent.steady = {}
    assert not agent.changes_nothing(report()), "nothing was reported before"
    agent.steady = steady_runs([report()])
    run.stopping = True
    assert not agent.changes_nothing(report()), "it is being stopped"
    run.stopping = False
    run.lose(0)
    assert not agent.changes_nothing(report()), "it is lost there"


def test_a_run_of_two_nodes_that_is_lost_on_one_changes_nothing_on_the_other() -> None:
    run = gang(placement=BOTH, started=True)
    run.lose(0)
    first, second = (AgentStatus(node, gangs={(0, 1): run}, steady=steady_runs([report()])) for node in range(2))
    assert (first.changes_nothing(report()), second.changes_nothing(report())) == (False, True)


def test_a_new_node_is_down_with_an_agent_of_the_first_generation_that_has_reported_nothing() -> None:
    it = agents(1)
    agent = it[0]
    assert (it.nodes[0].up, it.nodes[0].gangs) == (False, {})
    assert (agent.node, agent.generation, agent.key, agent.last_report, agent.last_contact) == (0, 1, 0, None, 0.0)
    assert (agent.up, agent.quiet_at, agent.look_at, agent.settled_at) == (False, -inf, inf, -inf)
    assert (0 in it, 1 in it, "job-a.1.n0" in it) == (True, False, False)
    it.set_node(1, generation=7)
    assert [(one.node, one.generation) for one in it] == [(0, 1), (1, 7)]


def test_a_removed_node_is_forgotten_with_its_agent_and_its_generation_rises() -> None:
    it = agents(3)
    it.add(gang(), "n0", 0, 1.0)
    it.nodes[0].up = it[0].up = True
    others = [*it.nodes[1:], *it.of_nodes[1:]]
    it.set_node(0, generation=9)
    assert [id(one) for one in (*it.nodes[1:], *it.of_nodes[1:])] == [id(one) for one in others]
    assert (it.nodes[0].up, it.nodes[0].gangs, it[0].gangs, it[0].up) == (False, {}, {}, False)
    assert [(one.node, one.generation) for one in it.of_nodes] == [(0, 9), (1, 1), (2, 1)]


def test_in_pilot_mode_the_agent_of_a_node_serves_each_part_there() -> None:
    it, run = agents(), gang(placement=BOTH)
    for node in run.parts:
        it.add(run, NODES[node].name, node, 1.0)
    assert list(it.of_runs) == []
    assert [it.serving(run, node).key for node in run.parts] == [0, 1]
    assert [one.gangs for one in it.of_nodes] == [{(0, 1): run}] * 2
    assert it.nodes[1].gangs == {(0, 1): run}
    assert it.changes == 0
    it.drop(run, 1)
    assert ([len(one.gangs) for one in it], [len(node.gangs) for node in it.nodes]) == ([1, 0], [1, 0])
    it.drop(run, 1)
    assert it.changes == 2


def test_in_native_mode_each_part_has_an_agent_of_its_own_until_that_has_ended() -> None:
    it, run = agents(native=True), gang(3, BOTH)
    for node in run.parts:
        it.add(run, NODES[node].name, node, 2.5)
    assert it.changes == 2
    assert [(one.key, one.node, one.generation) for one in it.of_runs] == [
        ("job-a.3.n0", 0, 2501),
        ("job-a.3.n1", 1, 2501),
    ]
    assert [one.key for one in it] == [0, 1, "job-a.3.n0", "job-a.3.n1"]
    assert (it["job-a.3.n1"].gangs, it[1].gangs, it.nodes[1].gangs) == ({(0, 3): run}, {}, {(0, 3): run})
    assert it.serving(run, 1) is it["job-a.3.n1"]
    assert it.serving(gang(4, BOTH), 1) is it[1], "another incarnation has no agent of its own"
    it["job-a.3.n1"].boot = "b1"
    it.drop(run, 0)
    it.drop(run, 1)
    assert it.changes == 4
    assert ("job-a.3.n0" in it, "job-a.3.n1" in it) == (False, True), "one that has connected stays until it has ended"
    assert it["job-a.3.n1"].gangs == it.nodes[1].gangs == {}
    assert it.serving(run, 1) is it[1]
    ended = it["job-a.3.n1"]
    for _ in range(2):
        it.forget(ended)
    assert list(it.of_runs) == []


def test_a_chain_is_served_where_its_first_gang_has_parts_and_where_later_ones_have_or_keep_workers() -> None:
    it, first = agents(3), gang(placement=ONE)
    later = gang(2, Placement(((0, 2), (1, 1))), chain=first.chain, own_seats=((1, 1),))
    last = gang(3, Placement(((1, 1),)), chain=first.chain, own_seats=((2, 1),))
    assert [one.node for one in it.serving_all(later)] == [0, 0, 1, 1, 2]
    assert it.serving_all(last) == it.serving_all(first)
    del first.parts[0]
    assert [one.node for one in it.serving_all(first)] == [0, 1, 1, 2], "its placement counts for later gangs only"


@pytest.mark.parametrize(
    ("changes", "now", "expected"),
    [
        ({"last_report": 3.0, "up": True}, 9.0, True),
        ({"last_report": None, "up": True}, 9.0, False),
        ({"last_report": 3.0, "up": True, "strays": frozenset({0})}, 9.0, False),
        ({"last_report": 3.0, "up": True, "strays": frozenset({1})}, 9.0, True),
        ({"last_report": None, "up": False, "quiet_at": 4.0}, 9.0, True),
        ({"last_report": None, "up": False, "quiet_at": 4.5}, 9.0, False),
        ({"last_report": None, "up": True, "quiet_at": 4.0}, 9.0, False),
        ({"last_report": 3.0, "up": False, "quiet_at": 4.5}, 9.0, True),
    ],
)
def test_a_later_incarnation_is_alone_where_every_node_has_reported_or_was_lost_for_the_jobs_grace(
    changes: dict[str, Any], now: float, expected: bool
) -> None:
    earlier, run = ended(gang(1)), gang(2)
    job = LiveJob(JobSpec("job", 0.0, 2, 10.0, 2, 2), LAUNCH, gangs=[earlier, run])
    clear, other = AgentStatus(0, last_report=1.0, up=True), AgentStatus(1)
    for name, value in changes.items():
        setattr(other, name, value)
    assert alone([clear, other], job, run, now) is expected
    assert alone([other, clear], job, run, now) is expected


def test_a_first_incarnation_is_always_alone_and_a_later_one_not_beside_processes_of_another() -> None:
    unknown = [AgentStatus(0, up=True)]
    first, second = gang(1), gang(2)
    job = LiveJob(JobSpec("job", 0.0, 2, 10.0, 2, 2), LAUNCH, gangs=[first, second])
    assert alone(unknown, job, first, 0.0)
    answered = [AgentStatus(0, last_report=1.0, up=True)]
    assert not alone(answered, job, second, 9.0), "the first incarnation has not ended"
    ended(first)
    assert alone(answered, job, second, 9.0)


def test_a_job_that_a_node_could_not_start_fails_if_others_run_there_or_no_other_node_would_do() -> None:
    it = agents()
    it.nodes[0].up = it.nodes[1].up = True
    job = LiveJob(JobSpec("job", 0.0, 2, 10.0, 2, 2), LAUNCH)
    assert not unrunnable(it, NODES, job, 0), "the other node has two GPUs"
    other = gang(job=1, started=True)
    it.add(other, "n0", 0, 1.0)
    assert unrunnable(it, NODES, job, 0), "another job runs there"
    assert not unrunnable(it, NODES, job, 1), "and not on the other node"
    other.started = False
    assert not unrunnable(it, NODES, job, 0), "the other job has not started either"
    other.started = True
    ended(other)
    assert not unrunnable(it, NODES, job, 0), "the other job has ended"
    it.nodes[1].up = False
    assert unrunnable(it, NODES, job, 0), "the node itself does not count"
    it.nodes[0].up, it.nodes[1].up = False, True
    assert unrunnable(it, NODES, LiveJob(JobSpec("job", 0.0, 3, 10.0, 3, 3), LAUNCH), 0), "too few GPUs elsewhere"
