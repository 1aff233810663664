"""The whole ring: whatever a policy wants within its contract, nothing is lost, doubled or told otherwise on replay."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.commands import Decided, Start, Stop
from shoal.core.decision import Decision, Grant, Refusal, Verdict
from shoal.core.events import EventBatch, JobCompleted, JobStopped
from shoal.core.interfaces import Policy
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import JobView, Snapshot
from shoal.core.topology import Topology
from shoal.engine.moves import StopStartPlanner
from shoal.engine.replay import ReplayDifference, Scheduler, replay
from shoal.engine.state import State
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.fifo import Fifo
from shoal.policy.classic.las import Las
from shoal.policy.classic.shortest import Srsf, Srtf
from shoal.testing import strategies
from shoal.testing.builders import Cycle, PlacementName, SimulationLog, job, simulate
from shoal.testing.conformance import arrays, check_seats


@dataclass(frozen=True)
class Whim:
    """Grants whatever comes to its mind: any size, any kind, any company, for as long as it likes.

    Its mind is the seed, the cycle and itself, so it is as pure as any policy.
    """

    mood: int = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        chance = np.random.default_rng([self.mood, snapshot.seed, snapshot.cycle])
        free = list(snapshot.cluster.capacity)
        verdicts: dict[str, Verdict] = dict.fromkeys(snapshot.ids, Refusal())
        alone: Grant | None = None
        host = ""
        for i in chance.permutation(len(snapshot.ids)).tolist():
            view = snapshot.jobs.at(i)
            usable = snapshot.columns.speeds[i] > 0
            if not usable.any() or chance.random() < 0.2:
                continue
            if alone is not None and chance.random() < 0.5 and _likes(view, alone, snapshot):
                verdicts[view.id] = replace(alone, shared_with=host)
                verdicts[host], alone = replace(alone, shared_with=view.id), None
                continue
            kind = int(chance.choice(np.flatnonzero(usable)))
            gpus = int(chance.integers(view.spec.min_gpus, view.spec.max_gpus + 1))
            if gpus <= free[kind]:
                free[kind] -= gpus
                host, alone = view.id, Grant(gpus, kind=snapshot.cluster.kinds[kind])
                verdicts[host] = alone
        return Decision(verdicts, review_at=snapshot.now + float(chance.integers(1, 200)))


def _likes(view: JobView, grant: Grant, snapshot: Snapshot) -> bool:
    """Whether a job could run on what another was granted."""
    speed = snapshot.columns.speeds[view.position, snapshot.cluster.kind_index[grant.kind or ""]]
    return bool(view.spec.min_gpus <= grant.gpus <= view.spec.max_gpus and speed > 0)


PLACEMENTS: st.SearchStrategy[PlacementName] = st.sampled_from(("packed", "any", "rack"))


def fresh_state(cluster: Topology, seed: int = 0) -> State:
    return State(cluster, ProfiledModel(cluster, catalog()), seed)


def check_seats_of(cycle: Cycle) -> None:
    check_seats(cycle.snapshot)


def check_progress_agrees(run: SimulationLog, cluster: Topology, seed: int) -> None:
    """What the state reckoned a stopped job had done is what the world says it had."""
    state = fresh_state(cluster, seed)
    for record in run.journal.read():
        if isinstance(record, EventBatch):
            before = state.freeze()
            for event in record.events:
                at = before.position_of(event.job) if isinstance(event, JobStopped) else -1
                if isinstance(event, JobStopped) and at >= 0 and before.columns.state[at] == JobState.STOPPING:
                    assert float(before.columns.done[at]) == pytest.approx(event.done, rel=1e-9, abs=1e-9)
            state.apply_events(record.now, record.events)
        elif isinstance(record, Decided):
            state.apply_commands(record.commands)
            state.end_cycle(None)


@settings(max_examples=60)
@given(mood=st.integers(0, 99), data=st.data())
def test_whatever_a_policy_fancies_the_books_balance(mood: int, data: st.DataObject) -> None:
    cluster, rows = data.draw(strategies.worlds())
    run = simulate(
        Whim(mood),
        rows,
        cluster,
        faults=data.draw(strategies.faults(cluster, rows)),
        restart_cost=data.draw(st.sampled_from([0.0, 5.0])),
        placement=data.draw(PLACEMENTS),
        until=8000.0,
        watch=check_seats_of,
    )
    check_seats(run.state.freeze())
    check_progress_agrees(run, cluster, 0)
    times = [cycle.now for cycle in run.cycles]
    assert times == sorted(times)
    ends = [e for e in run.events if isinstance(e, JobCompleted)]
    assert len({e.job for e in ends}) == len(ends)
    for event in ends:
        row = run.jobs[event.job]
        assert event.done == row.work
        assert event.at >= row.submitted


POLICIES: dict[str, Policy] = {
    "fifo": Fifo(),
    "srtf": Srtf(),
    "srsf": Srsf(),
    "las": Las(quantum=50.0),
    "whim": Whim(3),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
@settings(max_examples=15)
@given(data=st.data())
def test_state_is_a_fold_over_the_journal_and_every_decision_comes_out_again(
    policy: Policy, data: st.DataObject
) -> None:
    cluster, rows = data.draw(strategies.worlds())
    run = simulate(policy, rows, cluster, faults=data.draw(strategies.faults(cluster, rows)), seed=5, until=5000.0)
    state = fresh_state(cluster, seed=5)
    replayed = replay(run.journal.read, lambda _: Scheduler(state, policy, PackedPlacer(), StopStartPlanner()))
    assert replayed.decisions == len(run.cycles)
    assert replayed.events == len(run.events)
    assert replayed.commands == len(run.commands)
    ours, theirs = state.freeze(), run.state.freeze()
    for name, array in arrays(ours).items():
        assert np.array_equal(array, arrays(theirs)[name], equal_nan=array.dtype.kind == "f"), name
    for name in ("now", "cycle", "free_gpus", "cluster"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_a_replay_by_another_policy_stops_at_the_first_difference() -> None:
    rows = [job("long", 0, 4, 100), job("short", 10, 4, 5)]
    run = simulate(Srtf(), rows, "gpu:1x4")
    crew = Scheduler(fresh_state(run.state.topology), Fifo(), PackedPlacer(), StopStartPlanner())
    with pytest.raises(ReplayDifference, match=r"decision 1 at t = 10"):
        replay(run.journal.read, lambda _: crew)


def test_a_run_by_hand() -> None:
    # 4 GPUs. a (4 GPUs, 100 s) runs 0–10, b (2, 20 s) 10–30 and c (2, 30 s) 12–42 run before it, then a: 42 + 90.
    run = simulate(Srtf(), [job("a", 0, 4, 100), job("b", 10, 2, 20), job("c", 12, 2, 30)], "gpu:1x4")
    assert run.completed == {"b": 30.0, "c": 42.0, "a": 132.0}
    assert run.started == {"a": 0.0, "b": 10.0, "c": 12.0}
    assert [(at, type(c), c.job) for at, c in run.commands] == [
        (0.0, Start, 0),
        (10.0, Stop, 0),
        (10.0, Start, 1),
        (12.0, Start, 2),
        (42.0, Start, 0),
    ]
    assert [at for at, _ in run.story("a")] == [0.0, 10.0, 12.0, 30.0, 42.0]
