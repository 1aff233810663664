"""Work that a stop would lose: which jobs keep their GPUs whatever a policy decides, and which jobs wait for them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from msgspec.structs import replace as replaced

from shoal.core.commands import Resize, Start, Stop
from shoal.core.decision import Decision, Grant, Refusal, Verdict
from shoal.core.events import (
    JobCrashed,
    JobReshaped,
    JobSaved,
    JobSetAside,
    JobStarted,
    JobStopped,
    JobSubmitted,
)
from shoal.core.interfaces import Policy
from shoal.core.quota import Quota
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.engine.loop import Judgement, judge
from shoal.engine.moves import StopStartPlanner
from shoal.engine.state import State
from shoal.engine.state_image import decode_image, encode_image, image_of, restore
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.placement.network import NetworkPlacer
from shoal.placement.packed import PackedPlacer
from shoal.policy.registry import parse_policy
from shoal.sim.checkpoints import next_save
from shoal.sim.job_run import JobRun
from shoal.testing.builders import job, simulate, snapshot, topology
from shoal.workload.schema import Job


@dataclass(frozen=True)
class Newest:
    """Runs the jobs that were admitted last, as far as they fit."""

    def decide(self, snapshot: Snapshot) -> Decision:
        left, verdicts = snapshot.cluster.total_gpus, dict[str, Verdict]()
        for view in reversed(list(snapshot.jobs.values())):
            fits = view.gpus <= left
            left -= view.gpus * fits
            verdicts[view.id] = Grant(view.gpus) if fits else Refusal()
        return Decision(verdicts)


@dataclass(frozen=True)
class Says:
    """Gives these verdicts, and refuses all other jobs."""

    verdicts: Mapping[str, Verdict]

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision({name: self.verdicts.get(name, Refusal()) for name in snapshot.ids})


def judged(moment: Snapshot, policy: Policy | None = None) -> tuple[Judgement, dict[str, int]]:
    judgement = judge(moment, policy or Newest(), PackedPlacer(), StopStartPlanner())
    granted = {name: n for name, n in zip(moment.ids, judgement.verdicts.gpus.tolist(), strict=True) if n}
    return judgement, granted


def script(name: str, at: float = 0.0, gpus: int = 1, **more: object) -> Job:
    """A job that never saves."""
    return job(name, at, gpus, 500, preemptible="auto", **more)


def test_a_job_that_has_never_saved_keeps_its_gpus_and_the_reasons_have_the_numbers() -> None:
    moment = snapshot([script("old"), script("new", 60.0)], "gpu:1x1", held={"old": 1})
    judgement, granted = judged(moment)
    assert granted == {"old": 1}
    assert not judgement.commands
    assert judgement.verdicts["old"].reason.sentence() == ("keeps its 1 GPU: a stop would lose its last 60 s of run")
    assert judgement.verdicts["new"].reason.sentence() == (
        "waits: needs 1 GPU; running jobs (1) keep 1 GPU: stopping them would lose 60 s of run"
    )


def test_jobs_that_may_always_be_stopped_are_decided_on_as_before() -> None:
    moment = snapshot([job("old"), job("new", 60.0)], "gpu:1x1", held={"old": 1})
    assert not moment.guarded
    assert not moment.unstoppable.any()
    judgement, granted = judged(moment)
    assert granted == {"new": 1}
    assert {type(command) for command in judgement.commands} == {Stop, Start}


def running(*rows: Job, cluster: str = "gpu:1x1", most_lost: float = 600.0) -> State:
    """The state in which the first of these jobs has run on the whole cluster since t = 0."""
    world = topology(cluster)
    state = State(world, ProfiledModel(world, catalog()), most_lost=most_lost)
    state.apply_events(0.0, [JobSubmitted(0.0, row.spec()) for row in rows])
    state.apply_commands([Start(0, 1, Placement(((0, rows[0].gpus),)))])
    state.apply_events(0.0, [JobStarted(0.0, 0, 1, 1.0, 0.0)])
    return state


@pytest.mark.parametrize(
    ("preemptible", "saved", "unsaved", "kept"),
    [
        ("yes", None, 0.0, False),
        ("auto", None, 1000.0, True),
        ("auto", JobSaved(700.0, 0, 1, 700.0), 300.0, False),
        ("auto", JobSaved(700.0, 0, 1, 300.0, age=400.0), 700.0, True),
        ("auto", JobSaved(10.0, 0, 1, 0.0, when_warned=True), 0.0, False),
        ("auto", JobSaved(700.0, 0, 9, 700.0), 1000.0, True),
        ("no", None, 1000.0, True),
        ("no", JobSaved(10.0, 0, 1, 0.0, when_warned=True), 0.0, True),
    ],
)
def test_a_job_may_be_stopped_once_it_has_saved_unless_more_than_the_limit_would_be_lost(
    preemptible: str, saved: JobSaved | None, unsaved: float, kept: bool
) -> None:
    state = running(job("a", preemptible=preemptible))
    state.apply_events(1000.0, [saved] if saved is not None else [])
    view = state.freeze().jobs["a"]
    assert (view.unsaved, view.unstoppable) == (unsaved, kept)


def test_what_was_lost_with_an_earlier_run_cannot_be_lost_again() -> None:
    state = running(script("a"))
    state.apply_events(300.0, [JobCrashed(300.0, 0, 1, 0.0, False, "node gpu-0 was lost")])
    state.apply_commands([Start(0, 2, state.register.placements[0])])
    state.apply_events(350.0, [JobStarted(310.0, 0, 2, 1.0, 0.0)])
    assert state.freeze().jobs["a"].unsaved == 50.0


def test_a_job_that_saves_may_still_be_stopped_in_its_next_run() -> None:
    state = running(script("a"))
    state.apply_events(300.0, [JobSaved(200.0, 0, 1, 200.0)])
    state.apply_commands([Stop(0, 1)])
    state.apply_events(300.0, [JobStopped(300.0, 0, 1, 200.0)])
    state.apply_commands([Start(0, 2, state.register.placements[0])])
    state.apply_events(350.0, [JobStarted(310.0, 0, 2, 1.0, 200.0)])
    view = state.freeze().jobs["a"]
    assert (view.unsaved, view.unstoppable) == (50.0, False)


def test_a_save_that_a_waiting_job_needs_calls_for_a_decision() -> None:
    saver = job("saver", 0.0, 1, 1000, preemptible="auto", save_every=100.0)
    run = simulate(Newest(), [saver, job("new", 50.0, 1, 30)], "gpu:1x1", most_lost=20.0)
    assert run.started["new"] == 100.0
    assert run.completed == {"new": 130.0, "saver": 1030.0}


def test_without_a_job_that_waits_for_it_a_save_calls_for_no_decision() -> None:
    saver = job("saver", 0.0, 1, 1000, preemptible="auto", save_every=100.0)
    run = simulate(Newest(), [saver], "gpu:1x1")
    assert len(run.cycles) == 2


def test_a_job_never_saves_twice_at_one_time() -> None:
    saver, run = job("saver", 0.0, 1, 1e5, preemptible="auto", save_every=1800.0), JobRun(began=55010.92064451485)
    now = run.began
    for saves in range(1, 11):
        at = next_save(saver, run, now)
        assert at is not None
        assert at == pytest.approx(run.began + 1800.0 * saves)
        now = at


def test_stoppable_jobs_fill_gpus_that_a_waiting_job_cannot_have_yet_and_others_do_not() -> None:
    rows = [script("old", 0, 2), job("filler", 1), script("rival", 2), script("wide", 3, 4)]
    moment = snapshot(rows, "gpu:1x4", held={"old": 2})
    judgement, granted = judged(moment)
    assert granted == {"old": 2, "filler": 1}
    assert "kept for wide" in judgement.verdicts["rival"].reason.sentence()


def test_gpus_of_a_kind_that_the_waiting_job_cannot_use_are_not_kept_for_it() -> None:
    rows = [
        script("old", 0, 2, kinds=("v100",)),
        script("same", 1, kinds=("v100",)),
        script("apart", 2, kinds=("k80",)),
        script("wide", 3, 4, kinds=("v100",)),
    ]
    moment = snapshot(rows, "v100:1x4,k80:1x4", held={"old": 2})
    judgement, granted = judged(moment, Says({"wide": Grant(4)}))
    assert granted == {"old": 2}
    kept = {name: "kept for wide" in judgement.verdicts[name].reason.sentence() for name in ("same", "apart")}
    assert kept == {"same": True, "apart": False}


@pytest.mark.parametrize(("seconds", "fills"), [(90, True), (100, True), (101, False)])
def test_a_job_that_ends_before_a_waiting_one_could_start_may_fill_although_it_cannot_be_stopped(
    seconds: int, fills: bool
) -> None:
    short = job("short", 2, 1, seconds, preemptible="auto")
    moment = snapshot(
        [script("old", 0, 2), short, script("long", 2), script("wide", 3, 4)],
        "gpu:1x4",
        held={"old": 2},
        ran={"old": 400.0},
    )
    assert judged(moment)[1] == ({"old": 2, "short": 1} if fills else {"old": 2})


def test_a_job_that_was_asked_to_stop_for_one_that_cannot_start_goes_on() -> None:
    rows = [script("old"), job("stoppable", 1), job("wide", 2, 2)]
    moment = snapshot(rows, "gpu:1x2", held={"old": 1, "stoppable": 1})
    judgement, granted = judged(moment)
    assert granted == {"old": 1, "stoppable": 1}
    assert not judgement.commands


def test_an_elastic_job_starts_on_fewer_gpus_beside_one_that_cannot_be_stopped() -> None:
    rows = [script("old"), job("elastic", 5, 4, 100, min_gpus=1, max_gpus=4)]
    moment = snapshot(rows, "gpu:1x4", held={"old": 1})
    assert judged(moment, parse_policy("afs-l"))[1] == {"old": 1, "elastic": 3}


def test_a_job_that_cannot_be_stopped_is_neither_resized_nor_moved() -> None:
    rows = [script("a", 0, 2, min_gpus=1, max_gpus=4), script("b", 0, 2)]
    moment = snapshot(rows, "v100:1x4,k80:1x4", held={"a": 2, "b": 2})
    wanted = {"a": Grant(4), "b": Grant(2, kind="k80")}
    judgement, granted = judged(moment, Says(wanted))
    assert granted == {"a": 2, "b": 2}
    assert not judgement.commands


def test_a_job_that_cannot_be_stopped_stays_spread_where_the_policy_wants_it_on_one_node() -> None:
    apart = Placement(((0, 1), (1, 1)))
    rows = [script("spread", 0, 2), job("other", 1)]
    moment = snapshot(rows, "gpu:2x2", held={"spread": apart})
    judgement, granted = judged(moment, Says({"spread": Grant(2, consolidated=True), "other": Grant(1)}))
    assert granted == {"spread": 2, "other": 1}
    assert [type(command) for command in judgement.commands] == [Start]
    assert judgement.verdicts["spread"].reason.sentence().startswith("keeps its 2 GPUs: a stop would lose")
    for node in (0, 1):
        seats = Placement(((node, 1),))
        placed = Says({"spread": Grant(2, consolidated=True), "other": Grant(1, placement=seats)})
        (start,) = judged(moment, placed)[0].commands
        assert isinstance(start, Start)
        assert start.placement == seats, "the seats that the policy chose for another job"


def test_the_network_placer_moves_no_job_that_cannot_be_stopped() -> None:
    rows = [job("one"), job("two", 1), job("wide", 2, 2)]
    apart = {"one": Placement(((0, 1),)), "two": Placement(((1, 1),))}
    everyone = Says({"one": Grant(1), "two": Grant(1), "wide": Grant(2)})
    for row, moved in (("one", 1), ("two", 0)):
        jobs = [replaced(job, preemptible="auto" if job.id == row else "yes") for job in rows]
        judgement = judge(snapshot(jobs, "gpu:2x2", held=apart), everyone, NetworkPlacer(), StopStartPlanner())
        assert [command.job for command in judgement.commands if isinstance(command, Resize)] == [moved]


def test_two_jobs_that_share_gpus_stay_together_if_one_of_them_cannot_be_stopped() -> None:
    rows = [script("host"), job("guest", 1), job("new", 2)]
    moment = snapshot(rows, "gpu:1x1", held={"host": 1}, sharing={"guest": "host"})
    judgement, granted = judged(moment)
    assert granted == {"host": 1, "guest": 1}
    assert not judgement.commands
    swapped = Says({"host": Grant(1, shared_with="new"), "new": Grant(1)})
    judgement, granted = judged(moment, swapped)
    assert granted == {"host": 1, "guest": 1}
    assert not judgement.commands


def test_its_owner_may_have_a_job_resized_that_cannot_be_stopped() -> None:
    state = running(script("a"), cluster="gpu:1x2")
    state.apply_events(60.0, [JobReshaped(60.0, 0, 2, 2, 2)])
    judgement, granted = judged(state.freeze())
    assert granted == {"a": 2}
    assert isinstance(judgement.commands[0], Resize)


def test_quotas_take_back_a_job_that_cannot_be_stopped_but_one_that_can_before_it() -> None:
    rows = [job("a", tenant="ann"), script("b", 1, tenant="ann"), script("c", 2, tenant="bob")]
    quotas = {"bob": Quota(guaranteed=1)}
    both = snapshot(rows, "gpu:1x2", held={"a": 1, "b": 1}, quotas=quotas)
    everything = Says({"a": Grant(1), "b": Grant(1)})
    assert judged(both, everything)[1] == {"b": 1, "c": 1}
    alone = snapshot(rows[1:], "gpu:1x1", held={"b": 1}, quotas=quotas)
    judgement, granted = judged(alone, Says({"b": Grant(1)}))
    assert granted == {"c": 1}
    assert judgement.verdicts["b"].reason.sentence().endswith("are returned to tenant bob")


def test_no_policy_makes_a_tenant_stop_its_unsaved_job_by_filling_its_quota_with_another() -> None:
    rows = [script("old", tenant="ann"), script("new", 60.0, tenant="ann")]
    moment = snapshot(rows, "gpu:1x2", held={"old": 1}, quotas={"ann": Quota(gpus=1)})
    assert judged(moment)[1] == {"old": 1}


def test_a_job_that_the_policy_failed_on_keeps_its_gpus_if_it_cannot_be_stopped() -> None:
    state = running(script("a"), job("b"))
    state.apply_events(60.0, [JobSetAside(60.0, 0, "it failed", 999.0)])
    judgement, granted = judged(state.freeze())
    assert granted == {"a": 1}
    assert not judgement.commands


def test_an_image_of_the_state_keeps_what_jobs_saved_and_older_images_can_be_read() -> None:
    state = running(script("a"))
    state.apply_events(300.0, [JobSaved(200.0, 0, 1, 200.0)])
    whole = image_of(state)
    restored = running(script("a"))
    restore(restored, decode_image(encode_image(whole)))
    view = restored.freeze().jobs["a"]
    assert (view.unsaved, view.unstoppable) == (100.0, False)
    older = replace(whole, jobs=tuple(replace(job, floats=job.floats[:-1], ints=job.ints[:-1]) for job in whole.jobs))
    restore(restored, older)
    assert restored.freeze().jobs["a"].run_seconds == 300.0
