"""The desk: orders and news in, things to do out, without any process."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.conftest import order as order_of

from shoal.agent.node_run import RunPhase
from shoal.agent.node_state import Actions, Forget, NodeState, Prepare, SetMembers, StartRanks, StopRanks
from shoal.wire.messages import PROTOCOL, AgentOrders, Roster, RunOrder


def order(phase: str, job: int = 1, incarnation: int = 1, **other: Any) -> RunOrder:
    return order_of(phase, ["train"], job=job, incarnation=incarnation, **other)


def orders(*runs: RunOrder, generation: int = 0) -> AgentOrders:
    return AgentOrders(protocol=PROTOCOL, generation=generation, lease=10.0, runs=list(runs))


def words(todo: Actions) -> list[str]:
    """What is to be done, in short."""
    said = []
    for action in todo:
        match action:
            case Prepare(run):
                said.append(f"prepare {run.job}.{run.incarnation}")
            case StartRanks(run, devices, port):
                said.append(f"start {run.job}.{run.incarnation} on {list(devices)} port {port}")
            case SetMembers((job, incarnation), roster, leavers):
                said.append(f"tell {job}.{incarnation} {roster.generation}: {roster.members}, without {list(leavers)}")
            case StopRanks((job, incarnation), grace):
                said.append(f"stop {job}.{incarnation} in {grace:g}")
            case Forget((job, incarnation)):
                said.append(f"forget {job}.{incarnation}")
    return said


def workers(phase: str, incarnation: int, first: int, many: int, generation: int, *members: int) -> RunOrder:
    """Workers of job 1 that come and go, since its first incarnation."""
    roster = Roster(origin=1, keeps_store=incarnation == 1, generation=generation, members=list(members))
    return order(phase, 1, incarnation, gpus=many, first_rank=first, local_ranks=many, roster=roster)


def told(desk: NodeState) -> dict[str, str]:
    return {f"{run.job}.{run.incarnation}": run.phase for run in desk.reports()}


LIVES: dict[str, list[tuple[Any, list[str], dict[str, str]]]] = {
    "a run is made ready, goes, runs and ends, and is forgotten when it is no longer ordered": [
        (lambda d: d.follow(orders(order("prepare"))), ["prepare 1.1"], {}),
        (lambda d: d.prepared((1, 1), 7000), [], {"1.1": "ready"}),
        (lambda d: d.follow(orders(order("prepare"))), [], {"1.1": "ready"}),
        (lambda d: d.follow(orders(order("go"))), ["start 1.1 on [0] port 7000"], {"1.1": "ready"}),
        (lambda d: d.follow(orders(order("go"))), [], {"1.1": "ready"}),
        (lambda d: d.started((1, 1)), [], {"1.1": "running"}),
        (lambda d: d.exited((1, 1), 0, 0), [], {"1.1": "running"}),
        (lambda d: d.over((1, 1)), [], {"1.1": "ended"}),
        (lambda d: d.follow(orders(order("go"))), [], {"1.1": "ended"}),
        (lambda d: d.follow(orders()), ["forget 1.1"], {}),
    ],
    "a go that was never prepared is prepared and goes at once, at the gang's port": [
        (lambda d: d.follow(orders(order("go", port=99))), ["prepare 1.1"], {}),
        (lambda d: d.prepared((1, 1), 7000), ["start 1.1 on [0] port 99"], {"1.1": "ready"}),
    ],
    "a stop warns once and is over when nothing is left": [
        (lambda d: d.follow(orders(order("go"))), ["prepare 1.1"], {}),
        (lambda d: d.prepared((1, 1), 7000), ["start 1.1 on [0] port 7000"], {"1.1": "ready"}),
        (lambda d: d.follow(orders(order("stop", grace=3.0))), ["stop 1.1 in 3"], {"1.1": "running"}),
        (lambda d: d.started((1, 1)), [], {"1.1": "running"}),
        (lambda d: d.follow(orders(order("stop", grace=3.0))), [], {"1.1": "running"}),
        (lambda d: d.follow(orders(order("go"))), [], {"1.1": "running"}),
        (lambda d: d.over((1, 1)), [], {"1.1": "ended"}),
    ],
    "a stop of what never started is over at once": [
        (lambda d: d.follow(orders(order("prepare"))), ["prepare 1.1"], {}),
        (lambda d: d.follow(orders(order("stop"))), [], {"1.1": "ended"}),
        (lambda d: d.prepared((1, 1), 7000), [], {"1.1": "ended"}),
    ],
    "a stop of what is unknown is told as ended": [
        (lambda d: d.follow(orders(order("stop"))), [], {"1.1": "ended"}),
    ],
    "a run that is no longer ordered is stopped, and forgotten once dead": [
        (lambda d: d.follow(orders(order("go"))), ["prepare 1.1"], {}),
        (lambda d: d.prepared((1, 1), 7000), ["start 1.1 on [0] port 7000"], {"1.1": "ready"}),
        (lambda d: d.started((1, 1)), [], {"1.1": "running"}),
        (lambda d: d.follow(orders()), ["stop 1.1 in 30"], {"1.1": "running"}),
        (lambda d: d.follow(orders()), [], {"1.1": "running"}),
        (lambda d: d.over((1, 1)), ["forget 1.1"], {}),
    ],
    "a run waits for the devices of one that is being stopped": [
        (lambda d: d.follow(orders(order("go", gpus=2))), ["prepare 1.1"], {}),
        (lambda d: d.prepared((1, 1), 7000), ["start 1.1 on [0, 1] port 7000"], {"1.1": "ready"}),
        (lambda d: d.follow(orders(order("go", 2))), ["stop 1.1 in 30"], {"1.1": "running"}),
        (lambda d: d.over((1, 1)), ["forget 1.1", "prepare 2.1"], {}),
        (lambda d: d.prepared((2, 1), 7001), ["start 2.1 on [0] port 7001"], {"2.1": "ready"}),
    ],
    "the next incarnation waits for the last one, even where devices are free": [
        (lambda d: d.follow(orders(order("go"))), ["prepare 1.1"], {}),
        (lambda d: d.prepared((1, 1), 7000), ["start 1.1 on [0] port 7000"], {"1.1": "ready"}),
        (lambda d: d.follow(orders(order("stop"), order("go", 1, 2))), ["stop 1.1 in 30"], {"1.1": "running"}),
        (lambda d: d.over((1, 1)), ["prepare 1.2"], {"1.1": "ended"}),
    ],
    "who shares is given its partner's devices, in whichever order they come": [
        (lambda d: d.follow(orders(order("go", 2, shared_with=1, gpus=2), order("go", 1, gpus=2))),
         ["prepare 1.1", "prepare 2.1"], {}),
        (lambda d: d.prepared((2, 1), 7000), ["start 2.1 on [0, 1] port 7000"], {"2.1": "ready"}),
        (lambda d: d.prepared((1, 1), 7001), ["start 1.1 on [0, 1] port 7001"], {"1.1": "ready", "2.1": "ready"}),
    ],
    "partners that name each other share, and one keeps the devices when the other ends": [
        (lambda d: d.follow(orders(order("go", 1, shared_with=2, gpus=2), order("go", 2, shared_with=1, gpus=2))),
         ["prepare 1.1", "prepare 2.1"], {}),
        (lambda d: d.prepared((1, 1), 7000), ["start 1.1 on [0, 1] port 7000"], {"1.1": "ready"}),
        (lambda d: d.prepared((2, 1), 7000), ["start 2.1 on [0, 1] port 7000"], {"1.1": "ready", "2.1": "ready"}),
        (lambda d: d.over((1, 1)), [], {"1.1": "ended", "2.1": "ready"}),
        (lambda d: d.follow(orders(order("go", 2, shared_with=1, gpus=2), order("go", 3))), ["forget 1.1"],
         {"2.1": "ready"}),
    ],
    "what cannot start here ends, and its devices go to the next": [
        (lambda d: d.follow(orders(order("go", gpus=2), order("go", 2, gpus=2))), ["prepare 1.1"], {}),
        (lambda d: d.prepared((1, 1), 0, "no such program"), ["prepare 2.1"], {"1.1": "ended"}),
    ],
    "what needs more devices than there are ends": [
        (lambda d: d.follow(orders(order("go", gpus=3))), [], {"1.1": "ended"}),
    ],
    "older orders are ignored, but not those of a control plane met for the first time": [
        (lambda d: d.follow(orders(order("prepare"), generation=5)), ["prepare 1.1"], {}),
        (lambda d: d.prepared((1, 1), 7000), [], {"1.1": "ready"}),
        (lambda d: d.follow(orders(generation=4)), [], {"1.1": "ready"}),
        (lambda d: d.follow(orders(generation=4), first=True), ["forget 1.1"], {}),
        (lambda d: d.follow(orders(order("go"), generation=4)), ["prepare 1.1"], {}),
    ],
    "workers join those of an earlier incarnation, and only once they are named are they told of anything": [
        (lambda d: d.follow(orders(workers("go", 1, 0, 1, 1, 0))), ["prepare 1.1"], {}),
        (lambda d: d.prepared((1, 1), 7000), ["start 1.1 on [0] port 7000"], {"1.1": "ready"}),
        (lambda d: d.follow(orders(workers("go", 1, 0, 1, 1, 0), workers("go", 2, 1, 1, 0))), ["prepare 1.2"],
         {"1.1": "ready"}),
        (lambda d: d.prepared((1, 2), 7001), ["start 1.2 on [1] port 7001"], {"1.1": "ready", "1.2": "ready"}),
        (lambda d: d.follow(orders(workers("go", 1, 0, 1, 2, 0, 1), workers("go", 2, 1, 1, 2, 0, 1))),
         ["tell 1.1 2: [0, 1], without []", "tell 1.2 2: [0, 1], without []"], {"1.1": "ready", "1.2": "ready"}),
        (lambda d: d.follow(orders(workers("go", 1, 0, 1, 2, 0, 1), workers("go", 2, 1, 1, 1, 0))), [],
         {"1.1": "ready", "1.2": "ready"}),
    ],
    "the device of a worker that was left out goes to another job when nothing of that worker is left": [
        (lambda d: d.follow(orders(workers("go", 1, 0, 2, 1, 0, 1))), ["prepare 1.1"], {}),
        (lambda d: d.prepared((1, 1), 7000), ["start 1.1 on [0, 1] port 7000"], {"1.1": "ready"}),
        (lambda d: d.started((1, 1)), [], {"1.1": "running"}),
        (lambda d: d.follow(orders(workers("go", 1, 0, 2, 2, 1), order("go", 2))),
         ["tell 1.1 2: [1], without [0]"], {"1.1": "running"}),
        (lambda d: d.exited((1, 1), 0, 0), [], {"1.1": "running"}),
        (lambda d: d.cleared((1, 1), 0), ["prepare 2.1"], {"1.1": "running"}),
        (lambda d: d.prepared((2, 1), 7001), ["start 2.1 on [0] port 7001"], {"1.1": "running", "2.1": "ready"}),
    ],
    "workers that were to join others are not taken for ones that start a job": [
        (lambda d: d.follow(orders(workers("prepare", 2, 3, 1, 0))), ["prepare 1.2"], {}),
        (lambda d: d.prepared((1, 2), 7000), [], {"1.2": "ready"}),
        (lambda d: d.follow(orders(order("prepare", 1, 2, roster=Roster(origin=2, generation=1, members=[0])))), [],
         {"1.2": "ended"}),
    ],
    "an agent that ends stops what runs, drops what waits and takes nothing new": [
        (lambda d: d.follow(orders(order("go"), order("go", 2, gpus=2))), ["prepare 1.1"], {}),
        (lambda d: d.prepared((1, 1), 7000), ["start 1.1 on [0] port 7000"], {"1.1": "ready"}),
        (lambda d: d.close(), ["stop 1.1 in 30"], {"1.1": "running", "2.1": "ended"}),
        (lambda d: d.follow(orders(order("go"), order("go", 3))), ["forget 2.1"], {"1.1": "running"}),
        (lambda d: d.over((1, 1)), [], {"1.1": "ended"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES.keys())
def test_a_life(life: list[tuple[Any, list[str], dict[str, str]]]) -> None:
    desk = NodeState(2)
    for number, (step, expected, heard) in enumerate(life):
        assert words(step(desk) or []) == expected, f"step {number}"
        assert told(desk) == heard, f"step {number}"


def test_a_report_says_how_ranks_ended_in_the_order_they_did() -> None:
    desk = NodeState(2)
    desk.follow(orders(order("go", gpus=2, local_ranks=2)))
    desk.prepared((1, 1), 7000)
    desk.progressed((1, 1), 40.0, 30.0)
    desk.exited((1, 1), 1, -9)
    desk.exited((1, 1), 0, -15)
    desk.over((1, 1), "x" * 5000, blameless=True)
    (report,) = desk.reports()
    assert [(end.rank, end.status) for end in report.exits] == [(1, -9), (0, -15)]
    assert (report.done, report.saved, report.port, report.blameless) == (40.0, 30.0, 7000, True)
    assert len(report.cause) == 2000


def started(stopped: bool) -> NodeState:
    desk = NodeState(2)
    desk.follow(orders(order("go", gpus=2, local_ranks=2)))
    desk.prepared((1, 1), 7000)
    desk.started((1, 1))
    if stopped:
        desk.follow(orders(order("stop", gpus=2, local_ranks=2)))
    return desk


@pytest.mark.parametrize("stopped", [False, True], ids=["", "stopped"])
@pytest.mark.parametrize("unwarned", [False, True], ids=["why", ""])
@pytest.mark.parametrize("warned", [False, True], ids=["", "warned"])
@pytest.mark.parametrize("statuses", [(), (0,), (0, 0), (0, 1)], ids=str)
def test_a_run_has_finished_only_if_every_rank_it_started_was_reported_to_leave_unwarned_with_status_0(
    statuses: tuple[int, ...], *, warned: bool, unwarned: bool, stopped: bool
) -> None:
    desk = started(stopped)
    for rank, status in enumerate(statuses):
        desk.exited((1, 1), rank, status, warned=warned)
    desk.over((1, 1), unwarned=unwarned)
    (report,) = desk.reports()
    assert report.finished == (statuses == (0, 0) and unwarned and not warned)
    silent = len(statuses) < 2 and not stopped
    cause = f"its keeper ended without reporting how rank {len(statuses)} ended"
    assert (report.cause, report.blameless) == ((cause, True) if silent else ("", False))


_DEVICES = 3
_PARTNERS = {(1, 2): 2, (2, 1): 1, (3, 1): 2}
_RUNS = st.builds(
    lambda phase, job, incarnation: order(
        phase,
        job,
        incarnation,
        gpus=(job + incarnation) % _DEVICES + 1,
        shared_with=_PARTNERS.get((job, incarnation)),
    ),
    st.sampled_from(["prepare", "go", "stop"]),
    st.integers(1, 4),
    st.integers(1, 2),
)
_NEWS = st.sampled_from(["prepared", "refused", "started", "over"])


@given(st.lists(st.lists(_RUNS, max_size=4) | _NEWS, max_size=25))
def test_whatever_comes_no_device_is_held_twice_and_no_job_lives_twice(script: list[list[RunOrder] | str]) -> None:
    desk = NodeState(_DEVICES)
    live: dict[tuple[int, int], str] = {}  # what processes there would be: started, or being stopped

    def obey(todo: Actions) -> None:
        for action in todo:
            match action:
                case StartRanks(run, devices, _):
                    assert run.phase == "go"
                    assert len(set(devices)) == run.gpus
                    assert (run.job, run.incarnation) not in live
                    assert all(job != run.job for job, _ in live), "two incarnations of a job at once"
                    live[run.job, run.incarnation] = "started"
                case StopRanks(key, _):
                    assert live[key] == "started", "stopped twice, or never started"
                    live[key] = "stopped"
                case Forget(key):
                    assert key not in live

    def news(kind: str) -> None:
        for key, run in list(desk.runs.items()):
            if kind in ("prepared", "refused") and run.phase is RunPhase.PREPARING:
                obey(desk.prepared(key, 7000, "no" if kind == "refused" else ""))
            elif kind == "started" and key in live:
                desk.started(key)
            elif kind == "over" and key in live:
                del live[key]
                obey(desk.over(key))

    for step in script:
        if isinstance(step, str):
            news(step)
        else:
            obey(desk.follow(orders(*step)))
        alone = [run for run in desk.runs.values() if run.order.shared_with is None]
        seats = [device for run in alone for device in run.devices]
        assert len(seats) == len(set(seats)), "a device is held by two runs that share with nobody"
        assert {key for key, run in desk.runs.items() if run.phase in _WITH_PROCESSES} == set(live)
    obey(desk.follow(orders()))
    news("over")
    assert not live
    assert not desk.runs


_WITH_PROCESSES = {RunPhase.STARTING, RunPhase.RUNNING, RunPhase.STOPPING}


def test_a_run_that_is_being_stopped_is_stopped_sooner_if_a_later_order_leaves_it_less_grace() -> None:
    desk = NodeState(2)
    desk.follow(orders(order("go", grace=10.0)))
    desk.prepared((1, 1), 7000)
    desk.started((1, 1))
    assert words(desk.follow(orders(order("stop", grace=10.0)))) == ["stop 1.1 in 10"]
    assert words(desk.follow(orders(order("stop", grace=10.0)))) == []
    assert words(desk.follow(orders(order("stop", grace=0.0)))) == ["stop 1.1 in 0"]
    assert words(desk.follow(orders(order("stop", grace=0.0)))) == []


@pytest.mark.parametrize(("started", "unstarted"), [(False, True), (True, False)])
def test_a_run_whose_keeper_failed_before_its_ranks_were_up_was_not_started(started: bool, unstarted: bool) -> None:
    desk = NodeState(2)
    desk.follow(orders(order("go")))
    desk.prepared((1, 1), 7000)
    if started:
        desk.started((1, 1))
    desk.over((1, 1), "its keeper died", blameless=True)
    assert [run.unstarted for run in desk.reports()] == [unstarted]


def test_a_run_that_a_node_refuses_was_not_started() -> None:
    desk = NodeState(2)
    desk.follow(orders(order("go")))
    desk.prepared((1, 1), 0, "no such program")
    assert [(run.cause, run.unstarted) for run in desk.reports()] == [("no such program", True)]


def test_an_agent_that_its_engine_ends_gives_no_run_more_grace_than_the_engine_leaves() -> None:
    desk = NodeState(2)
    desk.follow(orders(order("go", 1, grace=60.0), order("go", 2, grace=1.0)))
    for job in (1, 2):
        desk.prepared((job, 1), 7000)
        desk.started((job, 1))
    assert words(desk.close(longest=22.5)) == ["stop 1.1 in 22.5", "stop 2.1 in 1"]
