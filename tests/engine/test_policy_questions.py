"""What a policy is asked: without jobs that are set aside, or suspended and held; and how long its answer counts."""

from dataclasses import dataclass
from math import inf

import numpy as np
import pytest
from tests.refusals import refusal

from shoal.core.commands import Resume, Start, Suspend
from shoal.core.decision import Decision, Grant, Refusal
from shoal.core.errors import PolicyError
from shoal.core.events import (
    JobHeld,
    JobResumed,
    JobSetAside,
    JobStarted,
    JobSubmitted,
    JobSuspended,
    SuspensionReported,
)
from shoal.core.reasons import in_words
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.engine.policy_answer import ask
from shoal.engine.state import State
from shoal.engine.suspension import to_suspend
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.testing.builders import job, topology

WAITS = in_words("waits: its turn has not come")


@dataclass(frozen=True)
class Asked:
    """Refuses every job it is asked about, and remembers which those were."""

    review_at: float = 900.0

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision(dict.fromkeys(snapshot.ids, Refusal(WAITS)), self.review_at, tuple(snapshot.ids))


@dataclass(frozen=True)
class Wrapper:
    policy: Asked

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision({})


def suspending(*names: str, memory: int = 1000, **more: object) -> State:
    """Jobs of one GPU on a node that suspends runs; all of them have run since t = 0."""
    world = topology("gpu:1x4")
    state = State(world, ProfiledModel(world, catalog()))
    rows = [job(name, 0.0, 1, 500, preemptible="auto", **more) for name in names]
    state.apply_events(0.0, [JobSubmitted(0.0, row.spec()) for row in rows])
    state.apply_commands([Start(n, 1, Placement(((0, 1),))) for n in range(len(rows))])
    state.apply_events(0.0, [JobStarted(0.0, n, 1, 1.0, 0.0) for n in range(len(rows))])
    state.apply_events(5.0, [SuspensionReported(5.0, 0, "cuda", memory, 2, "")])
    return state


def suspend(state: State, number: int, size: int, at: float = 10.0) -> None:
    state.apply_events(at, [])
    state.apply_commands([Suspend(number, 1)])
    state.apply_events(at + 1.0, [JobSuspended(at + 1.0, number, 1, 3.0, size, 1.0)])


def test_a_node_that_says_why_it_cannot_suspend_runs_suspends_none() -> None:
    state = suspending("a")
    assert state.suspensions.nodes.keys() == {0}
    state.apply_events(6.0, [SuspensionReported(6.0, 0, "cuda", 1000, 2, "its driver is too old")])
    assert state.suspensions.nodes == {}


def test_a_policy_does_not_see_a_job_that_is_set_aside_and_is_asked_again_when_that_ends() -> None:
    state = suspending("a", "b", "c")
    state.apply_events(20.0, [JobSetAside(20.0, 1, "it raised KeyError", 80.0)])
    decision, verdicts = ask(Asked(), state.freeze())
    assert (decision.review_at, decision.carry) == (80.0, ("a", "c"))
    assert decision.verdicts is verdicts
    again = "it is tried again at t = 80 s, or under another policy"
    assert {name: verdicts[name].reason.sentence() for name in verdicts} == {
        "a": "waits: its turn has not come",
        "b": f"waits: set aside, since the policy cannot decide with it (it raised KeyError); {again}",
        "c": "waits: its turn has not come",
    }
    assert ask(Asked(30.0), state.freeze())[0].review_at == 30.0


def test_a_policy_does_not_see_a_suspended_job_that_a_person_holds() -> None:
    state = suspending("a", "b")
    suspend(state, 1, 300)
    assert ask(Asked(inf), state.freeze())[0].carry == ("a", "b")
    state.apply_events(20.0, [JobHeld(20.0, 1, "root")])
    decision, verdicts = ask(Asked(inf), state.freeze())
    assert (decision.carry, decision.review_at) == (("a",), inf)
    why = "waits: it is suspended on gpu-0 and held; `shoal release` lets it be resumed"
    assert verdicts["b"].reason.sentence() == why


def test_a_hidden_job_gets_the_verdict_it_was_hidden_with() -> None:
    moment = suspending("a", "b", "c").freeze()
    decision, verdicts = ask(Asked(), moment, {1: Grant(1)})
    assert (decision.carry, verdicts.gpus.tolist()) == (("a", "c"), [0, 1, 0])
    assert verdicts["b"] == Grant(1)


def test_a_fault_names_the_policy_inside_a_wrapper() -> None:
    with refusal("policy Asked: the policy gave no verdict for live job 'a'", PolicyError):
        ask(Wrapper(Asked()), suspending("a").freeze())


@pytest.mark.parametrize(
    ("memory", "sizes", "chosen"),
    [
        (1000, {}, {0, 1}),
        (1000, {2: 1000}, set()),
        (1000, {2: 999}, {0, 1}),
        (700, {0: 400, 1: 300}, {0, 1}),
        (699, {0: 400, 1: 300}, {0}),
        (399, {0: 400, 1: 300}, {1}),
    ],
)
def test_as_many_leaving_jobs_are_suspended_as_the_host_memory_holds_by_what_they_held_before(
    memory: int, sizes: dict[int, int], chosen: set[int]
) -> None:
    state = suspending("a", "b", "c", memory=memory)
    for number, size in sizes.items():
        suspend(state, number, size)
        if number < 2:
            state.apply_commands([Resume(number, 1, Placement(((0, 1),)))])
            state.apply_events(12.0, [JobResumed(12.0, number, 1, 1.0, 3.0)])
    state.apply_events(50.0, [])
    assert to_suspend(state.freeze(), [0, 1]) == chosen


def test_a_job_with_nothing_to_lose_is_stopped_and_not_suspended() -> None:
    state = suspending("a", "b")
    moment = state.freeze()
    assert not np.any(moment.columns.unsaved[[0]] > 5.0)
    assert to_suspend(moment, [0, 1]) == {0, 1}
    assert to_suspend(moment, []) == set()
    rows = suspending()
    rows.apply_events(6.0, [JobSubmitted(6.0, job("p", 6.0, 1, 500).spec())])
    rows.apply_commands([Start(0, 1, Placement(((0, 1),)))])
    rows.apply_events(7.0, [JobStarted(7.0, 0, 1, 1.0, 0.0)])
    assert to_suspend(rows.freeze(), [0]) == set()
