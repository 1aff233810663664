"""Apps in the simulated world: what they submit and cancel when, by hand, and what holds of any under any policy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import InputError
from shoal.core.events import Event, EventBatch, JobCancelled, JobCompleted, JobCrashed, JobMeasured, JobSubmitted
from shoal.core.job import JobSpec
from shoal.core.topology import parse_cluster
from shoal.engine.loop import Loop
from shoal.engine.moves import StopStartPlanner
from shoal.engine.replay import Scheduler, replay
from shoal.engine.state import State
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.placement.packed import PackedPlacer
from shoal.policy.registry import parse_policy
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.sim.faults import NO_FAULTS, Faults, JobFault
from shoal.sim.searches import Searches
from shoal.sim.truth import RestartCost, Truth
from shoal.store.journal import MemoryJournal
from shoal.workload.schema import Job, Workload


def trial(
    name: str, loss: float, *, app: str = "a", search: str = "halving", work: float = 70.0, **more: object
) -> Job:
    plain = {"submitted": 0.0, "gpus": 1, "max_gpus": 4, "pace": 9.0, **more}
    return Job(id=name, app=app, search=search, loss=loss, work=work, **plain)  # type: ignore[arg-type]


FOUR = [trial(f"t{n}", loss) for n, loss in enumerate([0.4, 0.1, 0.3, 0.2])]


@dataclass(frozen=True)
class Told:
    """A run that is over: its journal, its last state, and what happened."""

    journal: MemoryJournal
    state: State

    @property
    def events(self) -> list[Event]:
        return [event for record in self.journal.read() if isinstance(record, EventBatch) for event in record.events]

    @property
    def specs(self) -> list[JobSpec]:
        return [event.spec for event in self.events if isinstance(event, JobSubmitted)]

    def when(self, kind: type[JobCompleted] | type[JobCancelled]) -> dict[str, float]:
        return {self.specs[event.job].id: event.at for event in self.events if isinstance(event, kind)}


def simulate(
    jobs: Sequence[Job],
    policy: str = "fifo",
    cluster: str = "gpu:1x4",
    cost: float = 0.0,
    faults: Faults = NO_FAULTS,
    noise: float = 0.0,
) -> Told:
    rows, world = sorted(jobs, key=lambda row: row.submitted), parse_cluster(cluster)
    truth = Truth.of(rows, world, catalog(), noise=noise)
    backend = Searches.of(truth, lambda row, _: row.spec(), RestartCost(cost), faults)
    state = State(world, ProfiledModel(world, catalog()), 0)
    journal = MemoryJournal.begin({})
    Loop(backend, state, parse_policy(policy), PackedPlacer(), StopStartPlanner(), journal).run()
    return Told(journal, state)


# ── by hand ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_halving_submits_the_next_rung_when_the_last_leg_ends_on_gangs_twice_as_wide() -> None:
    told = simulate(FOUR)
    # Legs of 1/7, 2/7 and 4/7 of 70 s on one GPU: 10 s each on 1, 2 and 4 GPUs.
    assert [(spec.id, spec.submitted, spec.gpus, spec.max_gpus) for spec in told.specs] == [
        ("t0", 0.0, 1, 1),
        ("t1", 0.0, 1, 1),
        ("t2", 0.0, 1, 1),
        ("t3", 0.0, 1, 1),
        ("t1#2", 10.0, 2, 2),
        ("t3#2", 10.0, 2, 2),
        ("t1#3", 20.0, 4, 4),
    ]
    assert told.when(JobCompleted)["t1#3"] == pytest.approx(30.0)
    assert [spec.work for spec in told.specs] == pytest.approx([10.0] * 7)


def test_what_the_app_means_to_run_later_is_declared_with_each_job() -> None:
    specs = {spec.id: spec for spec in simulate(FOUR).specs}
    assert [(jobs, gpus) for jobs, gpus, _ in specs["t0"].ahead] == [(2, 2), (1, 4)]
    assert [work for _, _, work in specs["t0"].ahead] == pytest.approx([10.0, 10.0])
    assert [(jobs, gpus) for jobs, gpus, _ in specs["t3#2"].ahead] == [(1, 4)]
    assert specs["t1#3"].ahead == ()


def test_a_trial_grows_no_wider_than_it_can_use() -> None:
    rows = [trial(f"t{n}", n / 10, max_gpus=2) for n in range(4)]
    assert [spec.gpus for spec in simulate(rows).specs] == [1, 1, 1, 1, 2, 2, 2]


def test_a_promoted_trial_takes_the_time_to_load_its_checkpoint() -> None:
    done = simulate(FOUR, cost=5.0).when(JobCompleted)
    assert [done["t1"], done["t1#2"], done["t1#3"]] == pytest.approx([10.0, 25.0, 40.0])


def test_a_phase_waits_for_its_slowest_where_gpus_are_short() -> None:
    told = simulate(FOUR, cluster="gpu:1x2")
    submitted = {spec.id: spec.submitted for spec in told.specs}
    assert (submitted["t1#2"], submitted["t3#2"]) == pytest.approx((20.0, 20.0))
    assert told.when(JobCompleted)["t3#2"] == pytest.approx(40.0)


def test_a_trial_behind_the_curve_is_cancelled_where_it_stands_and_its_gpu_is_free_at_once() -> None:
    rows = [
        trial("good", 0.0, search="curve"),
        trial("bad", 0.5, search="curve"),
        trial("next", 0.5, app="b", work=7.0),
    ]
    told = simulate(rows, cluster="gpu:1x2")
    # Heard every 7 s; three points make a curve; bad would end at 0.55, and good is at 0.27 by then.
    assert told.when(JobCancelled) == pytest.approx({"bad": 21.0})
    assert told.when(JobCompleted) == pytest.approx({"good": 70.0, "next": 28.0})
    heard = [event for event in told.events if isinstance(event, JobMeasured)]
    assert [event.at for event in heard if event.job == 0] == pytest.approx([7.0 * k for k in range(1, 10)])
    assert [event.at for event in heard if event.job == 1] == pytest.approx([7.0, 14.0, 21.0])


def test_plain_jobs_and_later_apps_come_when_they_would() -> None:
    plain = Job(id="plain", submitted=15.0, gpus=1, work=5.0)
    late = [trial(f"u{n}", n / 10, app="late", submitted=12.0) for n in range(2)]
    told = simulate([*FOUR, plain, *late], cluster="gpu:4x4")
    submitted = {spec.id: spec.submitted for spec in told.specs}
    assert (submitted["plain"], submitted["u0"], submitted["u1"]) == (15.0, 12.0, 12.0)
    done = told.when(JobCompleted)
    assert done["plain"] == pytest.approx(20.0)
    assert done["t1#3"] == pytest.approx(30.0)
    # Two trials: a third of 70 s, then two thirds on two GPUs.
    assert done["u0#2"] == pytest.approx(12.0 + 70 / 3 + 70 / 3)


def test_a_trial_that_crashed_too_often_is_out_and_the_others_go_on() -> None:
    faults = Faults(script=tuple(JobFault(float(at), 1) for at in range(1, 400)), checkpoint_every=1000.0)
    told = simulate(FOUR, faults=faults)
    assert sum(isinstance(event, JobCrashed) for event in told.events) == 4
    assert [spec.id for spec in told.specs[4:]] == ["t3#2", "t2#2", "t3#3"]


def test_gangs_of_a_known_model_do_the_same_samples_whatever_their_width() -> None:
    rows = [trial(f"t{n}", n / 10, work=700.0, model="VGG16", batch_size=1, min_gpus=1) for n in range(4)]
    specs = simulate(rows, cluster="p100:1x8").specs
    assert sum(spec.work or 0.0 for spec in specs if spec.id.startswith("t0")) == pytest.approx(700.0)
    assert {spec.min_gpus for spec in specs} == {1}


def test_a_crash_cannot_be_scripted_for_a_job_of_unknown_number(tmp_path: Path) -> None:
    script = tmp_path / "faults.yaml"
    script.write_text("script:\n  - {at: 5, crash: t0}\n")
    scenario = Scenario(parse_cluster("gpu:1x4"), "fifo", faults=str(script))
    with pytest.raises(InputError, match="cannot be named where trials are searched"):
        run(scenario, Workload("w", tuple(FOUR)))


# ── any search under any policy ───────────────────────────────────────────────────────────────────────────────────

POLICIES = ("fifo", "las:quantum=60", "srtf", "srsf", "tiresias", "gandiva", "optimus", "slaq")


@st.composite
def apps(draw: st.DrawFn) -> tuple[Job, ...]:
    """One to three apps, and a plain job among them."""
    rows = [Job(id="plain", submitted=50.0, gpus=1, work=60.0)]
    for number in range(draw(st.integers(1, 3))):
        search = draw(
            st.sampled_from(["halving", "halving:eta=3", "hyperband:eta=2,most=4", "curve:looks=4", "single"])
        )
        at, gpus = float(draw(st.sampled_from([0, 10, 50]))), draw(st.sampled_from([1, 2]))
        model = draw(st.sampled_from([None, "VGG16"]))
        for n in range(draw(st.integers(1, 8))):
            more = {"model": model, "batch_size": 1 if model else None, "min_gpus": 1, "gpus": gpus, "max_gpus": 4}
            rows.append(
                trial(
                    f"app-{number}-{n}",
                    draw(st.sampled_from([0.0, 0.2, 0.2, 0.8])),
                    app=f"app-{number}",
                    search=search,
                    submitted=at,
                    work=float(draw(st.integers(50, 2000))),
                    **more,
                )
            )
    return tuple(rows)


@settings(max_examples=60, deadline=None)
@given(apps(), st.sampled_from(POLICIES), st.sampled_from([0.0, 20.0]), st.sampled_from([0.0, 0.3]))
def test_every_search_ends_is_the_same_again_and_is_replayed(
    rows: tuple[Job, ...], policy: str, cost: float, noise: float
) -> None:
    cluster = "p100:1x4,p100:2x2"
    told = simulate(rows, policy, cluster, cost, noise=noise)
    assert list(simulate(rows, policy, cluster, cost, noise=noise).journal.raw()) == list(told.journal.raw())
    assert told.state.live == 0
    ends = Counter(e.job for e in told.events if isinstance(e, JobCompleted | JobCancelled))
    assert ends == dict.fromkeys(range(len(told.specs)), 1)
    # Of every app, somebody was trained to the end; who was cancelled never came again.
    cancelled = {told.specs[e.job].id for e in told.events if isinstance(e, JobCancelled)}
    ids = [spec.id for spec in told.specs]
    assert len(set(ids)) == len(ids)
    assert not any(f"{name}#" in other for name in cancelled for other in ids)
    for app in {row.app for row in rows if row.app}:
        mine = [spec for spec in told.specs if spec.app == app]
        assert any(spec.id not in cancelled and not spec.ahead for spec in mine)
    world = parse_cluster(cluster)

    def crew(_: object) -> Scheduler:
        state = State(world, ProfiledModel(world, catalog()), 0)
        return Scheduler(state, parse_policy(policy), PackedPlacer(), StopStartPlanner())

    assert replay(told.journal.read, crew).events == len(told.events)
