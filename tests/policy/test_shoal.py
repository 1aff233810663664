"""The policy ``shoal``: one market for rigid, elastic and adaptive jobs; the worked example of docs/market.md."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.decision import Decision, Grant, Verdicts
from shoal.core.quota import Quota
from shoal.core.snapshot import Snapshot
from shoal.core.suspension import SuspendedRun, Suspensions
from shoal.core.topology import Placement
from shoal.policy.shoal import bids
from shoal.policy.shoal.claims import claims, rigid_prospects
from shoal.policy.shoal.policy import Shoal
from shoal.policy.shoal.rate_table import traits_of
from shoal.sim.faults import Faults
from shoal.testing.builders import job, simulate, snapshot
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job

EXAMPLE = [job("a", 0, 1, 400), job("b", 0, 1, 900), job("c", 0, 2, 100)]


def granted(moment: Snapshot, policy: Shoal | None = None) -> dict[str, int]:
    verdicts = (policy or Shoal()).decide(moment).verdicts
    return {name: getattr(verdicts[name], "gpus", 0) for name in moment.ids}


def sentence(moment: Snapshot, name: str, policy: Shoal | None = None) -> str:
    return (policy or Shoal()).decide(moment).verdicts[name].reason.sentence()


def weights(moment: Snapshot, **knobs: float) -> dict[str, float]:
    bits = traits_of(moment, None).bits
    found = claims(moment, bits, rigid_prospects(moment, bits), **{"length": 0.2, "makespan": 0.0} | knobs)
    return dict(zip(moment.ids, found.weights.tolist(), strict=True))


# ── the worked example ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_worked_example_bids_as_computed_by_hand() -> None:
    # Two GPUs, three jobs: the even share is 1 GPU. Times left on it: a 400 s, b 900 s, c 100 s · 2 = 200 s. Places,
    # the longest first: b 1, a 2, c 3. A bid for a GPU is E^−0.2 · √place.
    found = weights(snapshot(EXAMPLE, "gpu:1x2", held={}))
    assert found["a"] == pytest.approx(400**-0.2 * 2**0.5)
    assert found["b"] == pytest.approx(900**-0.2)
    assert found["c"] / 2 == pytest.approx(200**-0.2 * 3**0.5)  # two GPUs, and f_c = 1/2


def test_in_the_worked_example_the_least_service_runs_and_the_price_is_the_highest_bid_refused() -> None:
    moment = snapshot(EXAMPLE, "gpu:1x2", held={})
    assert granted(moment) == {"a": 0, "b": 0, "c": 2}
    # Half of the restart of 30 s counts at a first start: c bids 0.6003 · (1 − 15/130) = 0.5310, a 0.4267 · 0.95 =
    # 0.4054; b is pressed.
    assert sentence(moment, "c").startswith(
        "runs on 2 GPUs: its bid for a GPU is 1.31 times the price; about 100 s of run left, lateness 1.00"
    )
    assert sentence(moment, "a").startswith("waits for 1 GPU: its bid for a GPU is 1.00 of the price;")
    assert sentence(moment, "b").startswith("waits for 1 GPU: its bid for a GPU is 0.84 of the price;")


# ── the order of rigid jobs ───────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.floats(60.0, 1e5)), min_size=2, max_size=12, unique=True))
def test_new_rigid_gangs_bid_in_the_order_of_their_service(gangs: list[tuple[int, float]]) -> None:
    rows = [job(f"j{i}", 0, gpus, seconds) for i, (gpus, seconds) in enumerate(gangs)]
    found = weights(snapshot(rows, "gpu:1x4", held={}))
    share = np.ceil(4 / len(gangs))
    service = {f"j{i}": seconds * max(gpus / share, 1.0) for i, (gpus, seconds) in enumerate(gangs)}
    bid = {name: found[name] / max(row.gpus, 1) for name, row in ((r.id, r) for r in rows)}
    wide = [name for name in bid if next(r.gpus for r in rows if r.id == name) >= share]
    assert sorted(wide, key=lambda n: -bid[n]) == sorted(wide, key=lambda n: (service[n], int(n[1:])))


def test_a_running_job_is_not_stopped_for_one_that_gains_less_than_a_restart_costs() -> None:
    rows = [job("runs", 0, 1, 1000), job("new", 500, 1, 480)]
    assert granted(snapshot(rows, "gpu:1x1", held={"runs": 1}, now=500.0))["runs"] == 1
    rows = [job("runs", 0, 1, 10_000), job("new", 500, 1, 480)]
    assert granted(snapshot(rows, "gpu:1x1", held={"runs": 1}, now=500.0))["new"] == 1


def test_a_running_rigid_job_of_unknown_length_keeps_its_gpus_until_a_newcomer_bids_twice_as_much() -> None:
    def runs(declared: bool, newcomer: float) -> int:
        old = Job(id="old", submitted=0.0, gpus=1, work=9000.0, declares_work=declared)
        rows = [old, Job(id="new", submitted=600.0, gpus=1, work=newcomer)]
        return granted(snapshot(rows, "gpu:1x1", held={"old": 1}, now=600.0))["old"]

    assert (runs(True, 600.0), runs(False, 600.0)) == (0, 1)
    assert runs(False, 40.0) == 1  # less time than a restart pays for
    waited = [Job(id="old", submitted=0.0, gpus=1, work=9e4, declares_work=False), job("new", 600, 1, 600)]
    assert granted(snapshot(waited, "gpu:1x1", held={"old": 1}, now=6000.0)) == {"old": 0, "new": 1}


def test_a_job_that_cannot_be_moved_once_it_runs_waits_rather_than_start_on_gpus_much_slower_than_its_share() -> None:
    def first(preemptible: str) -> dict[str, int]:
        row = {"model": "ResNet-50", "batch_size": 32}
        rows = [job("busy", 0, 4, 1e6, kinds=("v100",), **row), job("new", 50, 1, 1e7, preemptible=preemptible, **row)]
        return granted(snapshot(rows, "v100:1x4,k80:1x4", held={"busy": 4}, now=60.0))

    assert first("yes") == {"busy": 4, "new": 1}  # on a slow kind, until it is moved
    assert first("no")["new"] == 0


def test_a_late_job_outbids_a_shorter_newcomer() -> None:
    rows = [job("late", 0, 1, 1000), job("new", 5000, 1, 400)]
    moment = snapshot(rows, "gpu:1x1", held={}, now=5000.0)
    assert granted(moment) == {"late": 1, "new": 0}
    assert granted(snapshot([submitted_at(rows[0], 5000.0), rows[1]], "gpu:1x1", held={})) == {"late": 0, "new": 1}


def lateness(rows: list[Job], now: float, **held: int) -> dict[str, float]:
    moment = snapshot(rows, "gpu:1x4", held=held, now=now)
    bits = traits_of(moment, None).bits
    found = claims(moment, bits, rigid_prospects(moment, bits), length=0.2, makespan=0.0)
    return dict(zip(moment.ids, found.late.tolist(), strict=True))


def test_a_job_is_late_only_by_what_it_cannot_make_up_on_all_the_gpus_it_can_use() -> None:
    # Four jobs on four GPUs: on its share of one GPU the gang of four takes 4,000 s, alone 1,000 s.
    rows = [job("wide", 0, 4, 1000), *(job(f"s{i}", 0, 1, 9000) for i in range(3))]
    assert [lateness(rows, now)["wide"] for now in (0.0, 3000.0, 5000.0)] == [1.0, 1.0, 1.5]


def test_a_job_of_unknown_length_is_late_as_one_of_30_s_until_it_has_run() -> None:
    rows = [Job(id="new", submitted=0.0, gpus=1, work=9000.0, declares_work=False), job("other", 0, 1, 9000)]
    assert lateness(rows, 270.0) == {"new": 10.0, "other": pytest.approx(1.03)}
    assert lateness(rows, 270.0, new=1)["new"] == 1.0


def submitted_at(row: Job, submitted: float) -> Job:
    return job(row.id, submitted, row.gpus, row.work)


def test_a_heavier_job_bids_in_proportion_to_its_weight() -> None:
    rows = [job("light", 0, 1, 400), job("heavy", 0, 1, 400, weight=3.0)]
    found = weights(snapshot(rows, "gpu:1x1", held={}))
    # Of two jobs of equal length the first has place 2: √2 apart.
    assert found["heavy"] / found["light"] == pytest.approx(3.0 / 2**0.5)


def test_a_job_with_a_deadline_bids_more_the_less_time_it_has_to_spare_and_no_more_once_it_is_missed() -> None:
    def bid(deadline: float | None) -> float:
        rows = [job("a", 0, 1, 400, deadline=deadline), job("b", 0, 1, 400)]
        return weights(snapshot(rows, "gpu:1x1", held={}))["a"]

    assert bid(800.0) == pytest.approx(bid(None) / 0.52)  # half of its time to spare, and a fiftieth
    assert bid(400.0) == pytest.approx(bid(None) / 0.02)
    assert bid(399.0) == pytest.approx(bid(None))


def test_a_tenant_below_its_guarantee_is_late_sooner() -> None:
    rows = [job("a", 0, 1, 1000, tenant="ann"), *(job(f"b{i}", 0, 1, 1000, tenant="bob") for i in range(7))]
    plain = weights(snapshot(rows, "gpu:1x2", held={}, now=1500.0))
    promised = weights(snapshot(rows, "gpu:1x2", held={}, now=1500.0, quotas={"ann": Quota(guaranteed=2)}))
    assert promised["b0"] == pytest.approx(plain["b0"])
    assert promised["a"] >= plain["a"]


def test_trials_that_an_app_submits_together_claim_as_one() -> None:
    trials = [job(f"t{i}", 0, 1, 100, app="search") for i in range(10)]
    found = weights(snapshot([*trials, job("solo", 0, 1, 900)], "gpu:1x2", held={}))
    assert found["solo"] > max(found[t.id] for t in trials)  # the search has 1,000 s left, the job 900 s
    apart = [job(f"t{i}", 0, 1, 100) for i in range(10)]
    found = weights(snapshot([*apart, job("solo", 0, 1, 900)], "gpu:1x2", held={}))
    assert found["solo"] < min(found[t.id] for t in apart)


def test_a_trial_of_a_large_search_is_late_when_it_has_less_than_a_job_of_its_own_would() -> None:
    def late(app: str | None) -> float:
        solos = [job(f"s{i}", 0, 1, 1000) for i in range(7)]
        rows = [*(job(f"t{i}", 0, 4, 1000, app=app) for i in range(8)), *solos]
        moment = snapshot(rows, "gpu:8x4", held={}, now=3000.0)
        bits = traits_of(moment, None).bits
        found = claims(moment, bits, rigid_prospects(moment, bits), length=0.2, makespan=0.0)
        return float(found.late[0])

    # 32 GPUs among 15 jobs are 3 for each; the search, one of eight claimants, has 4, and so 1 for each trial.
    assert late("search") == late(None) == 3.0


# ── the end of all ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_makespan_knob_leads_from_a_jobs_own_bid_to_the_highest() -> None:
    rows = [job("long", 0, 1, 3000), *(job(f"s{i}", 0, 1, 300) for i in range(4))]
    moment = snapshot(rows, "gpu:1x2", held={})
    own, half, most = (weights(moment, makespan=knob)["long"] for knob in (0.0, 0.5, 1.0))
    assert most == pytest.approx(max(weights(moment).values()))
    assert half == pytest.approx((own * most) ** 0.5)
    ends = [max(simulate(Shoal(makespan=knob), rows, "gpu:1x2").completed.values()) for knob in (0.0, 1.0)]
    assert ends[1] < ends[0]


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_elastic_job_takes_idle_gpus_and_gives_them_back() -> None:
    rows = [job("e", 0, 2, 4000, min_gpus=1, max_gpus=4), job("r", 0, 2, 1000)]
    assert granted(snapshot(rows[:1], "gpu:1x4", held={})) == {"e": 4}
    assert granted(snapshot(rows, "gpu:1x4", held={"e": 4}, now=100.0)) == {"e": 2, "r": 2}


def test_the_faster_kind_goes_to_the_job_that_gains_more_from_it() -> None:
    rows = [
        job("gains", 0, 1, 1e6, model="ResNet-50", batch_size=32),
        job("little", 0, 1, 1e6, model="A3C", batch_size=4),
    ]
    moment = snapshot(rows, "v100:1x1,k80:1x1", held={})
    speed = dict(zip(moment.ids, moment.columns.speeds.tolist(), strict=True))
    gain = {name: fast / slow for name, (fast, slow) in speed.items()}
    verdicts = Shoal().decide(moment).verdicts
    first = max(gain, key=lambda name: gain[name])
    assert verdicts[first].kind == "v100"  # type: ignore[union-attr]


def test_jobs_that_all_fit_run_at_once_and_no_review_is_set() -> None:
    decision = Shoal().decide(snapshot([job("a", 0, 1, 10), job("b", 0, 2, 10)], "gpu:1x4", held={}))
    assert decision.review_at == float("inf")
    assert {v.reason.template.name for v in decision.verdicts.values()} == {"FITS"}


@pytest.mark.parametrize("option", [{"length": -0.1}, {"length": 1.1}, {"makespan": 2.0}, {"restart": float("nan")}])
def test_options_out_of_range_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        Shoal(**option)  # type: ignore[arg-type]


def test_a_decision_does_not_depend_on_what_was_carried() -> None:
    rows = [
        job("e", 0, 2, 4000, min_gpus=1, max_gpus=4),
        job("r", 10, 2, 1000, model="ResNet-18", batch_size=64),
        job("late", 20, 1, 500),
    ]
    first = Shoal().decide(snapshot(rows[:2], "v100:1x4,k80:1x2", held={}, now=10.0))
    fresh, carried = (snapshot(rows, "v100:1x4,k80:1x2", held={"e": 2}, now=30.0, carry=c) for c in (None, first.carry))
    assert Shoal().decide(fresh).verdicts.digest() == Shoal().decide(carried).verdicts.digest()  # type: ignore[attr-defined]


class WithoutMemory:
    """The market, which finds at each decision that it would decide the same without what it carries."""

    decisions = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        carried, fresh = Shoal().decide(snapshot), Shoal().decide(replace(snapshot, carry=None))
        answers = [decision.verdicts for decision in (carried, fresh)]
        assert all(isinstance(answer, Verdicts) for answer in answers)
        reasons = [[answer.reason(i) for i in range(len(snapshot.columns))] for answer in answers]  # type: ignore[attr-defined]
        assert reasons[0] == reasons[1]
        assert answers[0].digest() == answers[1].digest()  # type: ignore[attr-defined]
        assert carried.review_at == fresh.review_at
        self.decisions += 1
        return carried


@settings(max_examples=12, deadline=None)
@given(
    workload=st.sampled_from(
        [("demo", "v100:2x4,p100:2x4,k80:2x4"), ("afs", "gtx1080:6x4"), ("pollux", "t4:6x4"), ("themis", "p100:4x8")]
    ),
    seed=st.integers(0, 1000),
    many=st.sampled_from([1, bids.MANY]),
)
def test_a_decision_is_that_of_a_market_that_carries_nothing(workload: tuple[str, str], seed: int, many: int) -> None:
    generator, cluster = workload
    faults = Faults(node_mtbf=20_000.0, node_repair=900.0, gpu_mtbf=50_000.0)
    with patch.object(bids, "MANY", many):
        jobs = generate(generator, jobs=18, seed=seed).jobs
        policy = WithoutMemory()
        simulate(policy, jobs, cluster, faults=faults, restart_cost=20.0, seed=seed, until=20_000.0)
    assert policy.decisions >= len({job.submitted for job in jobs if job.submitted < 20_000.0})


def test_a_market_of_the_jobs_that_can_matter_ends_all_jobs_about_as_soon() -> None:
    jobs = generate("demo", jobs=60, seed=4).jobs
    cluster = "v100:2x4,p100:2x4,k80:2x4"
    all_at_once = simulate(Shoal(), jobs, cluster)
    with patch.object(bids, "MANY", 1):
        of_a_core = simulate(Shoal(), jobs, cluster)
    assert of_a_core.completed.keys() == all_at_once.completed.keys() == {job.id for job in jobs}
    ends = [sum(log.completed.values()) for log in (of_a_core, all_at_once)]
    assert ends[0] == pytest.approx(ends[1], rel=0.03)


# ── nobody starves ────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=12, deadline=None)
@given(
    gap=st.floats(20.0, 60.0),
    length=st.floats(30.0, 60.0),
    gpus=st.integers(1, 2),
    wide=st.integers(2, 4),
    wanted=st.floats(100.0, 450.0),
)
def test_a_wide_job_ends_under_an_endless_stream_of_short_newcomers(
    gap: float, length: float, gpus: int, wide: int, wanted: float
) -> None:
    """Also under an overload: a job of at most 450 s on 4 GPUs is overdue after 20 · 4 · 450 s = 36,000 s."""
    count = int(40_000 / gap)
    stream = [job(f"s{i}", gap * i, gpus, length) for i in range(count)]
    log = simulate(Shoal(), [job("wide", 0.0, wide, wanted), *stream], "gpu:1x4", until=40_000.0)
    assert log.completed["wide"] < 40_000.0


def test_a_gang_arrives_while_every_node_of_its_kind_is_down() -> None:
    rows = [job("gang", 0, 2, 1e6, model="ResNet-50", batch_size=32), job("other", 0, 1, 100)]
    moment = snapshot(rows, "v100:1x4,k80:1x4", held={}, down=(0,))
    assert granted(moment)["gang"] == 2  # on the other kind


def test_a_job_that_becomes_elastic_is_stretched_though_its_traits_were_carried() -> None:
    before = Shoal().decide(snapshot([job("e", 0, 2, 4000), job("r", 0, 2, 9000)], "gpu:1x4", held={}))
    now = snapshot(
        [job("e", 0, 2, 4000, min_gpus=1, max_gpus=4)], "gpu:1x4", held={"e": 2}, now=10.0, carry=before.carry
    )
    assert granted(now) == {"e": 4}


def suspended(rows: list[Job], name: str, seats: tuple[tuple[int, int], ...], held: dict[str, int]) -> Snapshot:
    """Two kinds, one node of two GPUs each, in which a job is suspended on seats."""
    moment = snapshot(rows, "v100:1x2,k80:1x2", held=held, now=60.0)
    run = SuspendedRun(Placement(seats), 30.0)
    return replace(moment, suspensions=Suspensions(runs={moment.register.numbers[name]: run}))


def test_a_suspended_job_is_resumed_on_its_own_node_alone() -> None:
    rows = [job("s", 0, 2, 500), job("w", 50, 2, 5000)]
    moment = suspended(rows, "s", ((1, 2),), {})
    verdict = Shoal().decide(moment).verdicts["s"]
    assert isinstance(verdict, Grant)
    assert verdict.placement == Placement(((1, 2),))
    assert granted(moment) == {"s": 2, "w": 2}  # the other job has the other node


def test_a_suspended_job_waits_for_jobs_on_its_node_that_bid_more_and_takes_no_other_gpus() -> None:
    rows = [job("s", 0, 2, 9000, kinds=("v100",)), job("r", 0, 2, 100, kinds=("v100",))]
    moment = suspended(rows, "s", ((0, 2),), {"r": 2})
    assert granted(moment) == {"s": 0, "r": 2}
    assert sentence(moment, "s").startswith("waits: it is suspended on v100-0 and can be resumed only there")


def test_a_suspended_job_replaces_a_job_on_its_node_that_bids_less() -> None:
    rows = [job("s", 0, 2, 100, kinds=("v100",)), job("r", 0, 2, 90_000, kinds=("v100",))]
    moment = suspended(rows, "s", ((0, 2),), {"r": 2})
    assert granted(moment) == {"s": 2, "r": 0}
