"""What people see: rows of jobs, nodes and tenants, what would let a job run, and what a tenant must not see."""

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from shoal.core import reasons
from shoal.core.commands import Resume, Start, Stop, Suspend
from shoal.core.decision import Grant, Refusal, Verdict, Verdicts
from shoal.core.events import (
    Event,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobHeld,
    JobResumed,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobSuspended,
    NodeLost,
)
from shoal.core.job import Conditions, JobSpec, Launch
from shoal.core.lifecycle import JobState
from shoal.core.reasons import Reason, in_words
from shoal.core.topology import Placement, parse_cluster
from shoal.engine.state import State
from shoal.live.accounts import Accounts
from shoal.live.holdings import Holdings
from shoal.live.job_changes import JobChanges
from shoal.live.job_lists import ANY_JOB, JobLists
from shoal.live.kept_lengths import KeptLengths
from shoal.live.page_rows import PageRows
from shoal.live.time_words import ClockWords
from shoal.live.training_figures import TrainingFigures
from shoal.live.verdict_words import verdict_sentence
from shoal.live.views import ClusterViews, LastDecision
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.wire.messages import JobRow, StartForecast

EPOCH, NOW = 1000.0, 110.0
WAITS = Refusal(in_words("waits: others are first"))


def spec(id: str, gpus: int = 1, tenant: str = "ann", work: float | None = 200.0, **more: object) -> JobSpec:
    return JobSpec(id, 0.0, gpus, work, gpus, gpus, tenant=tenant, **more)  # type: ignore[arg-type]


class Scene:
    """A cluster with jobs that were submitted at time 0, seated at 10 and up at 20, and the decision at 100."""

    def __init__(self, cluster: str, *specs: JobSpec, placed: Mapping[int, Placement], down: tuple[int, ...] = ()):
        topology = parse_cluster(cluster)
        self.state = State(topology, ProfiledModel(topology, catalog()))
        self.accounts = Accounts(topology.nodes)
        launch = Launch("name", ("train", "-x"), workdir="/w", grace=4.0)
        self.events(0.0, *(JobSubmitted(0.0, each, launch) for each in specs))
        hosts = {seats: number for number, seats in reversed(list(placed.items()))}
        starts = [
            Start(n, 1, seats, partner=None if hosts[seats] == n else hosts[seats]) for n, seats in placed.items()
        ]
        self.state.apply_events(10.0, ())
        self.state.apply_commands(starts)
        self.accounts.apply_commands(10.0, starts)
        self.events(20.0, *(JobStarted(20.0, number, 1, 1.0, 0.0) for number in placed))
        self.events(100.0, *(NodeLost(100.0, node) for node in down))

    def events(self, now: float, *events: object) -> None:
        self.state.apply_events(now, events)  # type: ignore[arg-type]
        self.accounts.apply_events(events)  # type: ignore[arg-type]

    def rows(self, views: ClusterViews, *, ended: bool = False) -> list[JobRow]:
        lists = JobLists(self.accounts, threading.RLock())
        return views.jobs(lists.read(views.tenant, ANY_JOB, ended=ended, forecasts=views.forecasts))

    def last(self, verdicts: Mapping[str, Verdict] | None = None) -> LastDecision:
        snapshot = self.state.freeze()
        found: dict[str, Verdict] = dict.fromkeys(snapshot.ids, WAITS)
        found |= {a.spec.id: Grant(a.placement.gpus) for a in self.accounts.live.values() if a.placement}
        found |= verdicts or {}
        lengths = KeptLengths()
        lengths.offer(snapshot.lengths)
        return LastDecision(snapshot, Verdicts.of(snapshot, found), None, lengths)

    @property
    def held(self) -> Holdings:
        return Holdings.of(self.accounts)

    def views(
        self,
        last: LastDecision | None = None,
        tenant: str | None = None,
        forecasts: Mapping[str, StartForecast] | None = None,
    ) -> ClusterViews:
        topology = self.state.freeze().cluster
        return ClusterViews(self.accounts, last, topology, forecasts or {}, NOW, EPOCH, tenant)


CRASHED = JobCrashed(102.0, 1, 1, 0.0, True, "rank 0 died", retry_in=38.0)
ON_FIRST = Placement(((0, 2),))
ON_BOTH = Placement(((0, 1), (1, 2)))


def two_tenants() -> Scene:
    """Ann's job runs on two GPUs of node 0, Bob's waits, and so does another of Ann's."""
    return Scene("gpu:2x2", spec("a", 2), spec("b", 3, "bob"), spec("c", 1), placed={0: ON_FIRST})


def test_the_row_of_a_job_that_runs_and_of_one_that_waits() -> None:
    scene = two_tenants()
    a, b, _ = scene.rows(scene.views(scene.last()))
    assert (a.id, a.name, a.tenant, a.state, a.gpus_held, a.gpus_wanted) == ("a", "name", "ann", "running", 2, 2)
    assert (a.submitted, a.started, a.ended, a.done, a.work) == (1000.0, 1010.0, None, 90.0, 200.0)
    assert (a.kind, a.nodes, a.position, a.start) == ("gpu", ["gpu-0"], None, None)
    assert (b.state, b.gpus_held, b.started, b.kind, b.nodes) == ("pending", 0, None, None, [])
    assert (b.reason, b.position) == ("waits: others are first", 1)


def test_waiting_jobs_stand_in_order_of_their_forecast_start_then_of_submission() -> None:
    scene = two_tenants()
    scene.events(105.0, JobSubmitted(105.0, spec("d"), Launch("d", ())))
    soon = {"c": StartForecast(5.0, 1.0, 9.0), "a": StartForecast(1.0, 1.0, 1.0)}
    rows = scene.rows(scene.views(scene.last(), forecasts=soon))
    assert {row.id: row.position for row in rows} == {"a": None, "b": 2, "c": 1, "d": 3}
    assert {row.id: row.start for row in rows} == {"a": None, "b": None, "c": soon["c"], "d": None}


def test_jobs_that_ended_are_listed_on_request_and_in_the_accounts() -> None:
    scene = two_tenants()
    scene.events(105.0, JobCompleted(105.0, 0, 1, 200.0), JobCancelled(105.0, 1))
    views = scene.views(scene.last())
    assert [row.id for row in scene.rows(views)] == ["c"]
    assert [(row.id, row.reason, row.ended) for row in scene.rows(views, ended=True)] == [
        ("c", "waits: others are first", None),
        ("a", "completed", 1105.0),
        ("b", "cancelled", 1105.0),
    ]
    a, b = views.acct()
    assert (a.id, a.state, a.gpus, a.started, a.ended, a.waited, a.gpu_seconds, a.restarts, a.cause) == (
        "a", "completed", 2, 1010.0, 1105.0, 10.0, 190.0, 0, "",
    )  # fmt: skip
    assert (b.started, b.waited, b.cause, b.submitted) == (None, 105.0, "cancelled", 1000.0)
    assert [row.id for row in scene.views(tenant="bob").acct()] == ["b"]


def test_the_detail_of_a_job_mixes_what_happened_with_the_verdicts_in_order_of_time() -> None:
    scene = two_tenants()
    last = scene.last()
    detail = scene.views(last).job(scene.accounts.accounts[0], [(15.0, "runs: it is first")])
    assert (detail.command, detail.workdir, detail.ranks, detail.grace) == (["train", "-x"], "/w", "gpu", 4.0)
    assert (detail.incarnation, detail.restarts, detail.crashes, detail.gpu_seconds, detail.rate) == (1, 0, 0, 200.0, 1)
    assert (detail.decided, detail.change) == (1100.0, "")
    assert [(moment.at, moment.what) for moment in detail.story] == [
        (1000.0, "submitted by ann"),
        (1010.0, "seated on gpu-0 (2 GPUs) as run 1"),
        (1015.0, "runs: it is first"),
        (1020.0, "all ranks are up"),
    ]
    undecided = scene.views(None).job(scene.accounts.accounts[1], [])
    assert (undecided.decided, undecided.change, undecided.decision) == (
        1000.0,
        "",
        "waits: it has just been submitted",
    )


def at(seconds: float) -> str:
    """The clock time of a second of the journal."""
    return time.strftime("%H:%M:%S", time.localtime(EPOCH + seconds))


def test_a_held_job_says_how_often_it_crashed_and_when_it_is_tried_again() -> None:
    scene = two_tenants()
    scene.events(102.0, JobCrashed(102.0, 0, 1, 0.0, True, "rank 0 died", retry_in=38.0))
    last = scene.last()
    detail = scene.views(last).job(scene.accounts.accounts[0], [])
    assert detail.decision == f"waits: it crashed (rank 0 died); it is tried again at {at(140.0)} (in 30 s)"
    assert detail.change == "`shoal logs` shows what it wrote before it died; `shoal cancel` ends the tries"
    row = scene.rows(scene.views(last, forecasts={"a": StartForecast(1.0, 1.0, 1.0)}))[0]
    assert (row.state, row.position) == ("held", 1)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([], StartForecast(20.0, 1.0, 50.0), id="as forecast"),
        pytest.param([CRASHED], StartForecast(30.0, 30.0, 50.0), id="not before it is tried again"),
        pytest.param([JobHeld(102.0, 1, "ann")], None, id="not while a person holds it"),
    ],
)
def test_the_expected_start_is_not_before_the_job_may_start(
    events: list[Event], expected: StartForecast | None
) -> None:
    """The forecast was made before these events."""
    scene = Scene("gpu:2x2", spec("a", 4), spec("b", 2), placed={1: ON_FIRST} if CRASHED in events else {})
    scene.events(102.0, *events)
    views = scene.views(scene.last(), forecasts={"b": StartForecast(20.0, 1.0, 50.0)})
    (row,) = (row for row in scene.rows(views) if row.id == "b")
    assert row.start == expected


def test_a_job_that_waits_for_another_is_expected_to_start_as_forecast() -> None:
    after = Conditions(after=(("a", "ok"),))
    scene = Scene("gpu:2x2", spec("a", 4), spec("b", 2, conditions=after), placed={})
    forecast = StartForecast(20.0, 1.0, 50.0)
    rows = scene.rows(scene.views(scene.last(), forecasts={"b": forecast}))
    assert {row.id: (row.state, row.start) for row in rows} == {"a": ("pending", None), "b": ("held", forecast)}


def test_nodes_say_how_much_of_their_last_hour_jobs_held() -> None:
    placed = {0: Placement(((0, 1),)), 1: Placement(((1, 2),))}
    scene = Scene("gpu:3x2", spec("runs", 1), spec("ended", 2), placed=placed)
    scene.accounts.apply_events([JobCompleted(65.0, 1, 1, 100.0)])
    assert [node.recent_use for node in scene.views().nodes([None] * 3, scene.held)] == [
        0.4545,  # one of two GPUs, for 100 of the 110 s so far
        0.5,  # both for 55 s
        0.0,
    ]
    views = replace(scene.views(), now=3600.0 + 40.0)
    assert [node.recent_use for node in views.nodes([None] * 3, scene.held)] == [0.5, round(25.0 / 3600.0, 4), 0.0]


def test_a_nodes_use_is_counted_from_when_on_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.seat_history._MOST_SPANS", 1)
    scene = Scene(
        "gpu:2x2", spec("runs", 1), spec("ended", 2), placed={0: Placement(((0, 1),)), 1: Placement(((1, 2),))}
    )
    scene.accounts.apply_events([JobCompleted(65.0, 1, 1, 100.0)])
    assert [node.recent_use for node in scene.views().nodes([None] * 2, scene.held)] == [0.5, 0.0], "since 65 s"


def test_nodes_say_what_is_used_and_name_only_the_jobs_that_may_be_seen() -> None:
    scene = Scene("gpu:3x2", spec("a", 3), spec("b", 1, "bob"), placed={0: ON_BOTH, 1: Placement(((0, 1),))}, down=(2,))
    rows = scene.views(scene.last()).nodes([50.0, None, 60.0], scene.held)
    assert [(row.name, row.kind, row.gpus, row.up, row.used, row.jobs, row.heard) for row in rows] == [
        ("gpu-0", "gpu", 2, True, 2, ["a", "b"], 1050.0),
        ("gpu-1", "gpu", 2, True, 2, ["a"], None),
        ("gpu-2", "gpu", 2, False, 0, [], 1060.0),
    ]
    assert [row.jobs for row in scene.views(scene.last(), "bob").nodes([None] * 3, scene.held)] == [
        ["b"],
        [],
        [],
    ]


def shared() -> tuple[Scene, LastDecision]:
    """Two jobs on the same two GPUs, and one that waits for three."""
    seats = {0: ON_FIRST, 1: ON_FIRST}
    scene = Scene("gpu:2x2", spec("a", 2), spec("b", 2), spec("c", 3), placed=seats)
    last = scene.last()
    last.verdicts.partners = np.array([1, 0, -1], dtype=np.int32)
    return scene, last


def test_two_jobs_that_share_gpus_use_them_once() -> None:
    scene, last = shared()
    assert [row.used for row in scene.views(last).nodes([None, None], scene.held)] == [2, 0]
    assert [last.partner(number) for number in (0, 1, 2, 7)] == [1, 0, None, None]
    assert [row.used for row in scene.views(None).nodes([None, None], scene.held)] == [2, 0], (
        "never more than the node has"
    )
    assert last.remedy(scene.accounts.accounts[2], list(scene.accounts.accounts.values())[:2], 100.0) == (
        "it would start when 1 GPU more comes free: 2 jobs hold GPUs there, the next is expected to end in 2 min"
    )


def test_tenants_see_what_they_hold_and_had_and_all_others_as_one() -> None:
    scene = Scene(
        "gpu:3x2", spec("a", 3), spec("b", 1, "bob"), spec("c", 1, "cy"), spec("d", 1),
        placed={0: ON_BOTH, 1: Placement(((0, 1),))},
    )  # fmt: skip
    scene.events(105.0, JobCompleted(105.0, 1, 1, 200.0))
    rows = scene.views().share()
    assert [(row.tenant, row.live, row.held, row.gpu_seconds) for row in rows] == [
        ("ann", 2, 3, 300.0),
        ("bob", 0, 0, 95.0),
        ("cy", 1, 0, 0.0),
    ]
    assert [(row.part_now, row.part_ever) for row in rows] == [(1.0, 300 / 395), (0.0, 95 / 395), (0.0, 0.0)]
    assert [(row.tenant, row.live, row.gpu_seconds) for row in scene.views(tenant="bob").share()] == [
        ("bob", 0, 95.0),
        ("others", 3, 300.0),
    ]
    nothing = Scene("gpu:1x2", spec("a"), placed={}).views().share()
    assert [(row.part_now, row.part_ever) for row in nothing] == [(0.0, 0.0)]


def test_names_of_other_tenants_jobs_are_hidden_in_sentences() -> None:
    scene = two_tenants()
    last = scene.last({"c": Refusal(in_words("waits: b is first, then a; ab and b.x stay"))})
    told = {tenant: scene.rows(scene.views(last, tenant))[-1].reason for tenant in (None, "ann")}
    assert told[None] == "waits: b is first, then a; ab and b.x stay"
    assert told["ann"] == "waits: another job is first, then a; ab and b.x stay"
    detail = scene.views(last, "ann").job(scene.accounts.accounts[2], [(50.0, "waits: b runs")])
    assert "waits: another job runs" in [moment.what for moment in detail.story]


NO_KIND = Refusal(Reason(reasons.NO_KIND))
HOLDS = "1 job holds GPUs there, the next is expected to end in 2 min"
REMEDIES: dict[str, tuple[Scene, Mapping[str, Verdict], str]] = {
    "it runs": (Scene("gpu:1x2", spec("x", 2), placed={0: ON_FIRST}), {}, ""),
    "no kind suits it": (
        Scene("gpu:1x2,big:1x2", spec("x", kinds=("k80",)), placed={}),
        {"x": NO_KIND},
        "it would run if its `kinds` named one of gpu, big",
    ),
    "no node it can use is up": (
        Scene("gpu:1x2,big:1x2", spec("x", kinds=("gpu",)), placed={}, down=(0,)),
        {},
        "it would run when a node it can use comes up (`shoal nodes`)",
    ),
    "it wants more than are up": (
        Scene("gpu:2x2", spec("x", 3), placed={}, down=(1,)),
        {},
        "it would run on 2 GPUs or fewer (`shoal resize`), or when more nodes come up",
    ),
    "it wants all that are up": (
        Scene("gpu:2x2", spec("x", 2), placed={}, down=(1,)),
        {},
        "2 GPUs are free, but jobs before it are to get them: no job runs there now",
    ),
    "others hold what it wants": (
        Scene("gpu:2x2", spec("x", 3), spec("y", 2), placed={1: ON_FIRST}),
        {},
        f"it would start when 1 GPU more comes free: {HOLDS}",
    ),
    "others of another kind do not": (
        Scene("gpu:1x2,big:1x2", spec("x", 2, kinds=("big",)), spec("y", 2), placed={1: ON_FIRST}),
        {},
        "2 GPUs are free, but jobs before it are to get them: no job runs there now",
    ),
    "the kind with the most free counts": (
        Scene("gpu:2x2,big:1x4", spec("x", 3), spec("y", 2), placed={1: ON_FIRST}),
        {},
        f"4 GPUs are free, but jobs before it are to get them: {HOLDS}",
    ),
    "its end is not known": (
        Scene("gpu:1x2", spec("x", 2), spec("y", 1, work=None), placed={1: Placement(((0, 1),))}),
        {},
        "it would start when 1 GPU more comes free: 1 job holds GPUs there, when they end is not known",
    ),
}


@pytest.mark.parametrize(("scene", "verdicts", "remedy"), REMEDIES.values(), ids=REMEDIES.keys())
def test_what_would_let_a_job_run(scene: Scene, verdicts: Mapping[str, Verdict], remedy: str) -> None:
    placed = [account for account in scene.accounts.accounts.values() if account.placement]
    assert scene.last(verdicts).remedy(scene.accounts.accounts[0], placed, 100.0) == remedy


def test_a_job_that_came_after_the_decision_or_has_ended_has_no_remedy() -> None:
    scene = two_tenants()
    last = scene.last()
    scene.events(105.0, JobSubmitted(105.0, spec("d"), Launch("d", ())), JobCancelled(105.0, 1))
    assert [last.remedy(scene.accounts.accounts[number], [], 100.0) for number in (1, 3)] == ["", ""]
    assert [last.sentence(number, ClockWords(EPOCH)) for number in (1, 3)] == ["waits: others are first", None]


def test_a_verdict_has_changed_where_its_code_or_its_gpus_have() -> None:
    scene = two_tenants()
    before = scene.last()
    assert before.changed.tolist() == [True, True, True]
    scene.events(105.0, JobSubmitted(105.0, spec("d"), Launch("d", ())))
    same = scene.last()
    same.compare(before)
    assert same.changed.tolist() == [False, False, False, True]
    other = scene.last({"a": Grant(1), "b": NO_KIND, "d": Refusal(in_words("waits: for another reason"))})
    other.compare(same)
    assert other.changed.tolist() == [True, True, False, False]
    scene.events(106.0, JobCancelled(106.0, 1))
    fewer = scene.last()
    fewer.compare(same)
    assert fewer.changed.tolist() == [False, False, False]
    empty = Scene("gpu:1x2", placed={}).last()
    fewer.compare(empty)
    assert fewer.changed.tolist() == [False, False, False], "nothing to compare with"


def test_a_sentence_has_clock_times_counted_from_the_moment_of_asking() -> None:
    scene = two_tenants()
    leased = Grant(2, "gpu", reason=Reason(reasons.LEASED, (170.0,)))
    last = scene.last({"a": leased})
    clock = time.strftime("%H:%M", time.localtime(EPOCH + 170.0))

    def told(now: float) -> str:
        return replace(scene.views(last), now=now).job(scene.accounts.accounts[0], []).decision

    assert told(100.0) == f"keeps its GPUs: its lease runs until {clock} (in 70 s)"
    assert told(165.0) == f"keeps its GPUs: its lease runs until {at(170.0)} (in 5 s)"
    assert told(470.0) == f"keeps its GPUs: its lease ended at {clock} (5 min ago) and no job has taken them"


def test_no_number_of_a_sentence_is_infinite_and_a_text_of_a_policy_has_clock_times_too() -> None:
    words = ClockWords(EPOCH, 100.0)
    outranked = Reason(reasons.OUTRANKED, ("remaining time in seconds", inf, 5.0))
    assert outranked.sentence(words).startswith("waits: its remaining time in seconds is unknown; jobs with up to 5 go")
    assert in_words("on trial until t = 1.5e+02 s").sentence(words) == f"on trial until {at(150.0)} (in 50 s)"
    assert Reason(reasons.LEASED, (inf,)).sentence(words).endswith("until a time that is not known yet")
    assert in_words("on trial until t = 150 s").sentence() == "on trial until t = 150 s"


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (
            Reason(reasons.IN_TURN, ("attained service in GPU-seconds", 6.43309, 9000.0)),
            "runs: its attained service is 6.4 GPU-seconds, and jobs with up to 2.5 GPU-hours go first",
        ),
        (
            Reason(reasons.IN_TURN, ("remaining time in seconds", inf, inf)),
            "runs: its remaining time is unknown, and jobs before it go first",
        ),
        (
            Reason(reasons.OUTRANKED, ("remaining time in seconds", 7210.0, 240.0)),
            "waits: its remaining time is 2 h; jobs with up to 4 min go first and take the GPUs",
        ),
        (
            Reason(reasons.OUTRANKED, ("ratio", 0.5, 0.25)),
            "waits: its ratio is 0.5; jobs with up to 0.25 go first and take the GPUs",
        ),
        (
            Reason(reasons.HELD_UNSAVED, (1, 1, 2, 7300.0)),
            "waits: needs 1 GPU; running jobs (1) keep 2 GPUs: stopping them would lose 2 h of run",
        ),
        (
            Reason(reasons.TOO_LARGE, (9, 4)),
            "cannot run: needs 9 GPUs of one kind; the most this cluster has is 4",
        ),
        (Reason(reasons.TOO_LARGE, (3, 2)), "waits for nodes: needs 3 GPUs of one kind; 2 of 4 can be used now"),
        (Reason(reasons.TOO_LARGE, (1, 0)), "waits for nodes: needs 1 GPU; 0 of 4 can be used now"),
    ],
)
def test_reasons_have_durations_for_people_and_say_when_nodes_are_away(reason: Reason, sentence: str) -> None:
    cluster = parse_cluster("gpu:2x2")
    assert verdict_sentence(reason, cluster, np.ones(1), ClockWords(EPOCH, 100.0)) == sentence


def test_a_running_job_is_expected_to_end_within_a_spread_and_forecasts_of_starts_age() -> None:
    scene = two_tenants()
    views = replace(scene.views(scene.last(), forecasts={"b": StartForecast(60.0, 5.0, 90.0)}), forecast_age=20.0)
    rows = {row.id: row for row in scene.rows(views)}
    assert (rows["b"].start, rows["b"].end) == (StartForecast(40.0, 0.0, 70.0), None)
    end = rows["a"].end
    assert end is not None
    left = (rows["a"].work or 0.0) - rows["a"].done
    assert end.low < left < end.high
    assert end.low < end.median < end.high


def test_a_job_that_declares_no_work_is_expected_to_last_as_earlier_runs_did() -> None:
    jobs = [spec(name, 2, work=None, name="train") for name in "ab"]
    scene = Scene("gpu:2x2", *jobs, placed={0: ON_FIRST})
    for _ in range(24):
        scene.state.lengths.add(jobs[0], 7200.0, 1.0)
    last = scene.last()
    views = scene.views(last)
    detail = views.job(scene.accounts.accounts[0], ())
    end = detail.job.end
    assert end is not None
    assert end.median == pytest.approx(7110, rel=0.1)
    assert end.low <= end.median <= end.high
    of = "from 24 earlier runs of train by ann on 2 GPUs"
    assert re.fullmatch(rf"about [12](\.\d)? h left \(80 %: .+ to .+ h\), {of}", detail.length), detail.length
    waiting = views.job(scene.accounts.accounts[1], ())
    assert re.fullmatch(rf"about 2\.1 h of run \(80 %: .+ to .+ h\), {of}", waiting.length), waiting.length
    assert "the next is expected to end in 2 h" in waiting.change
    later = replace(views, now=20_000.0).job(scene.accounts.accounts[0], ())
    assert later.length.endswith("h), having outlasted others"), later.length
    scene.events(120.0, JobCompleted(120.0, 0, 1, 100.0))
    assert views.job(scene.accounts.accounts[0], ()).length == ""


def test_a_job_that_never_ran_has_not_outlasted_others() -> None:
    scene = Scene("gpu:2x2", spec("new", 1, "bob", work=None, name="try"), placed={})
    scene.state.lengths.add(spec("old", 2, work=None, name="train"), 7200.0, 1.0)
    detail = scene.views(scene.last()).job(scene.accounts.accounts[0], ())
    assert re.fullmatch(r"about .+ of run \(80 %: .+\), with few earlier runs to go by", detail.length), detail.length


@pytest.mark.parametrize("work", [500.0, None])
def test_no_end_is_expected_after_the_time_limit_of_the_run(work: float | None) -> None:
    """It was up at 20, so 30 s are left of its limit."""
    jobs = [spec("a", 4, work=work, name="train", time=120.0), spec("b", 1)]
    scene = Scene("gpu:2x2", *jobs, placed={0: Placement(((0, 2), (1, 2)))})
    for _ in range(24):
        scene.state.lengths.add(replace(jobs[0], work=None), 7200.0, 1.0)
    views = scene.views(scene.last())
    runs, waits = (views.job(scene.accounts.accounts[number], ()) for number in (0, 1))
    assert runs.job.end == StartForecast(30.0, 30.0, 30.0)
    assert runs.length.startswith("about 30 s left (80 %: 30 s to 30 s)" if work is None else "")
    assert "the next is expected to end in 30 s" in waits.change


def test_a_time_limit_counts_neither_suspended_time_nor_that_of_an_earlier_run() -> None:
    seats = Placement(((0, 2), (1, 2)))
    scene = Scene("gpu:2x2", spec("a", 4, work=5000.0, time=120.0), spec("b", 1), placed={0: seats})
    account = scene.accounts.accounts[0]
    assert account.time_left(NOW) == 30.0
    scene.accounts.apply_commands(30.0, [Suspend(0, 1)])
    scene.accounts.apply_events([JobSuspended(30.0, 0, 1, 10.0)])
    assert account.time_left(NOW) == inf
    scene.accounts.apply_commands(60.0, [Resume(0, 1, seats)])
    scene.accounts.apply_events([JobResumed(60.0, 0, 1, 1.0, 10.0)])
    assert account.time_left(NOW) == 60.0
    scene.accounts.apply_events([JobCrashed(70.0, 0, 1, 0.0, True, "rank 0 died")])
    scene.accounts.apply_commands(80.0, [Start(0, 2, seats)])
    assert account.time_left(NOW) == inf
    scene.accounts.apply_events([JobStarted(90.0, 0, 2, 1.0, 0.0)])
    assert account.time_left(NOW) == 100.0


def test_the_cause_of_a_completed_job_is_not_that_of_an_earlier_crash() -> None:
    scene = two_tenants()
    account = scene.accounts.accounts[0]
    scene.events(102.0, JobCrashed(102.0, 0, 1, 0.0, True, "rank 0 died", failed=False))
    scene.accounts.apply_commands(103.0, [Start(0, 2, ON_FIRST)])
    scene.events(104.0, JobCompleted(104.0, 0, 2, 9.0))
    detail = scene.views(None).job(account, [])
    assert (account.state, account.cause, detail.decision) == (JobState.COMPLETED, "", "completed")


def test_seats_are_remembered_after_a_job_left_them_and_name_no_job_of_another_tenant() -> None:
    scene = two_tenants()
    scene.accounts.apply_commands(100.0, [Start(1, 1, ON_BOTH)])
    scene.events(104.0, JobCompleted(104.0, 0, 1, 200.0))
    rows = scene.views().seat_spans()
    assert [(row.job, row.node, row.gpus, row.began, row.ended) for row in rows] == [
        ("a", "gpu-0", 2, 1010.0, 1104.0),
        ("b", "gpu-0", 1, 1100.0, None),
        ("b", "gpu-1", 2, 1100.0, None),
    ]
    seen = scene.views(tenant="ann").seat_spans()
    assert [(row.job, row.tenant) for row in seen] == [("a", "ann"), ("", "others"), ("", "others")]


def test_a_node_says_how_many_gpus_each_of_the_callers_jobs_holds_there() -> None:
    scene = two_tenants()
    scene.accounts.apply_commands(100.0, [Start(1, 1, ON_BOTH)])
    assert [row.held for row in scene.views().nodes([None, None], scene.held)] == [
        {"a": 2, "b": 1},
        {"b": 2},
    ]
    assert [row.held for row in scene.views(tenant="bob").nodes([None, None], scene.held)] == [
        {"b": 1},
        {"b": 2},
    ]


def test_the_jobs_that_changed_are_found_and_those_that_ended_are_named() -> None:
    scene = two_tenants()
    figures, unknown = TrainingFigures(scene.accounts, 1000.0), lambda job, tenant: scene.accounts.accounts[0]
    views = lambda tenant: scene.views(scene.last(), tenant)  # noqa: E731
    pages = PageRows(scene.accounts, threading.RLock(), views, figures, unknown)
    number, everything, _ = pages.changed_jobs(None, -1)
    assert everything is None
    assert pages.changed_jobs(None, number) == (number, [], [])
    scene.events(104.0, JobCompleted(104.0, 0, 1, 200.0), JobCancelled(104.0, 1))
    scene.accounts.changes.note_verdict(2)
    later, changed, ended = pages.changed_jobs(None, number)
    assert ([row.id for row in changed or []], sorted(ended)) == (["c"], ["a", "b"])
    scene.accounts.forget(scene.accounts.ended())
    assert sorted(pages.changed_jobs(None, number)[2]) == ["a", "b"], "also once they are on disk"
    assert pages.changed_jobs("bob", number)[1] == []
    assert pages.changed_jobs(None, later) == (later, [], [])


def test_changes_that_are_no_longer_remembered_count_as_changes_of_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.job_changes._MOST_REMEMBERED", 2)
    changes = JobChanges()
    for job in range(4):
        changes.note(job, f"j{job}", "ann")
    assert changes.since(1) == (4, None)
    assert changes.since(2) == (4, [(3, "j3"), (2, "j2")])
    assert (changes[None], changes["ann"], changes["bob"]) == (4, 4, 0)


def test_a_job_that_was_stopped_while_suspended_and_started_elsewhere_is_suspended_nowhere() -> None:
    scene = two_tenants()
    scene.accounts.apply_commands(101.0, [Suspend(0, 1)])
    assert [row.suspended for row in scene.views().nodes([None, None], scene.held)] == [["a"], []]
    scene.accounts.apply_commands(102.0, [Stop(0, 1)])
    scene.accounts.apply_events([JobStopped(103.0, 0, 1, 80.0)])
    assert [row.suspended for row in scene.views().nodes([None, None], scene.held)] == [[], []]
    assert next(row for row in scene.rows(scene.views()) if row.id == "a").nodes == []
    scene.accounts.apply_commands(104.0, [Start(0, 2, Placement(((1, 2),)))])
    assert [row.suspended for row in scene.views().nodes([None, None], scene.held)] == [[], []]
    assert scene.accounts.live[0].bound is None


def test_the_next_end_is_counted_from_the_moment_of_asking() -> None:
    scene = Scene("gpu:1x2", spec("x", 2), spec("y", 2), placed={1: ON_FIRST})
    placed, last = [scene.accounts.accounts[1]], scene.last()
    said = [last.remedy(scene.accounts.accounts[0], placed, now).rpartition(" in ")[2] for now in (100.0, 160.0, 999.0)]
    assert said == ["2 min", "60 s", "0 s"]


def test_a_suspended_job_says_where_it_is_and_what_it_waits_for() -> None:
    scene = two_tenants()
    scene.accounts.apply_commands(101.0, [Suspend(0, 1)])
    reasons_of = [
        next(row.reason for row in scene.rows(scene.views(last)) if row.id == "a")
        for last in (None, scene.last(), scene.last({"a": WAITS}))
    ]
    assert all(reason.startswith("suspended on gpu-0 since ") for reason in reasons_of)
    alone = "to be resumed there; nothing of it is lost"
    assert [reason.partition(", ")[2] for reason in reasons_of] == [
        alone,
        f"{alone}: {WAITS.reason.sentence()}",
        f"{alone}: {WAITS.reason.sentence()}",
    ]
