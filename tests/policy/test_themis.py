"""Themis: valuations, the two sides of the auction, leases, and whole rounds."""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import numpy as np
import pytest

from shoal.core.decision import Decision, Grant, Verdicts
from shoal.core.snapshot import Measurement, Snapshot
from shoal.core.topology import Locality, Placement, parse_cluster
from shoal.perf.app_valuation import Work, finish_seconds, ideal_seconds, usable
from shoal.policy.registry import parse_policy
from shoal.policy.themis.agent import AppAgent, divided
from shoal.policy.themis.arbiter import Arbiter
from shoal.policy.themis.carry import GpuRanges, ThemisCarry
from shoal.policy.themis.locality import GUESSED, learned
from shoal.policy.themis.policy import Themis
from shoal.policy.themis.protocol import AppReport, Bid, GpuOffer, Level, Row
from shoal.policy.themis.settled import SettledCarry
from shoal.policy.themis.single_records import UNKNOWN
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.sim.faults import Faults, NodeFault
from shoal.testing.builders import job, simulate, snapshot
from shoal.testing.conformance import check_policy
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Workload

# ── valuation ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_bid_table_of_the_papers_example() -> None:
    """§4.3.3: 4 jobs of 80, 100, 100 and 120 s an iteration; 8, 16 and 36 iterations; 10,000 s budget, 4 apps."""
    phases = [
        [Work.linear(8.0 * s, 1, 8) for s in (80, 100, 100, 120)],
        [Work.linear(16.0 * 100, 1, 8)] * 2,
        [Work.linear(36.0 * 100, 1, 8)],
    ]
    ideal = ideal_seconds(10_000.0, demand=32, cluster=16, contention=4.0)
    rho = finish_seconds(phases, 16) / ideal
    assert ideal == 2500.0
    assert [round(float(rho[n]), 3) for n in (1, 2, 4, 8, 16)] == [4.0, 2.0, 1.0, 0.5, 0.34]
    assert rho[0] == inf
    agent = AppAgent(0, 0.0, ideal, tuple(phases[0]), 0, 16, GUESSED, 16, 16, tuple(map(tuple, phases[1:])))
    rows = {row.gpus: row.rho for row in agent.bid(GpuOffer(0, ((0, "r0", 16),), 600.0)).rows}
    assert [round(rows[n], 3) for n in (1, 2, 4, 8, 16)] == [4.0, 2.0, 1.0, 0.5, 0.34]


def test_when_the_slow_job_goes_on_its_phase_takes_as_long() -> None:
    """The same example revised: 120 · 16 is 1,920 s on a GPU of its own (the text has 3,200), 120 · 36 / 2 is 2,160."""
    second = finish_seconds([[Work.linear(16.0 * 120, 1, 1), Work.linear(16.0 * 100, 1, 1)]], 2)
    third = finish_seconds([[Work.linear(36.0 * 120, 1, 8)]], 2)
    assert (second[2], third[2]) == (1920.0, 2160.0)


def test_table_2_of_the_paper() -> None:
    # 200 GPU-seconds, T_id of 400: 1/2 on one GPU, 1/4 on two.
    agent = AppAgent(0, 0.0, 400.0, (Work.linear(200.0, 1, 2),), 0, 4, GUESSED, 2, 2)
    rows = agent.bid(GpuOffer(0, ((0, "r0", 2),), 600.0)).rows
    assert [(row.gpus, row.rho) for row in rows] == [(0, inf), (1, 0.5), (2, 0.25)]


def test_an_app_in_a_narrow_phase_is_as_fast_as_its_wide_ones_allow() -> None:
    last, ahead = (Work.linear(100.0, 1, 1),), ((Work.linear(800.0, 1, 8),) * 2,)
    agent = AppAgent(0, 0.0, 1.0, last, 0, 8, GUESSED, 1, 8, ahead)
    assert agent.left.tolist() == [inf, 1700.0]
    assert agent.fastest == 100.0 + 1600.0 / 8


def test_gangs_are_used_whole() -> None:
    use = usable([(4, 4), (4, 4), (1, 2)], 10)
    assert use.gpus.tolist() == [0, 1, 2, 2, 4, 5, 6, 6, 8, 9, 10]
    assert use.sizes(above=4).tolist() == [5, 6, 8, 9, 10]


@pytest.mark.parametrize(
    ("gpus", "running", "expected"),
    [
        (0, [0, 0, 0], [0, 0, 0]),
        (3, [0, 0, 0], [2, 1, 0]),
        (6, [0, 0, 0], [2, 2, 2]),
        (99, [0, 0, 0], [2, 4, 4]),
        (6, [0, 2, 2], [2, 2, 2]),
        (8, [0, 2, 2], [2, 4, 2]),
        (4, [0, 2, 3], [0, 2, 2]),
        (5, [0, 0, 4], [0, 1, 4]),
    ],
)
def test_an_app_moves_as_few_jobs_as_it_can(gpus: int, running: list[int], expected: list[int]) -> None:
    assert divided(gpus, [(2, 2), (1, 4), (1, 4)], np.array(running)).tolist() == expected


def test_an_app_leaves_no_gpu_idle_that_it_can_use() -> None:
    # The first could keep its four, but then the gang of two would not fit beside it.
    assert divided(5, [(1, 4), (2, 2)], np.array([4, 0])).tolist() == [3, 2]


def test_slowdowns_are_learned_from_what_was_measured() -> None:
    near = Measurement(0, 4, Locality.SAME_NODE, 32, 103.6)
    far = Measurement(0, 4, Locality.CROSS_NODE, 32, 80.4)  # VGG16 of Table 1
    known = learned(GUESSED, [(near, 103.6, Level.MACHINE), (far, 103.6, Level.MACHINE)])
    assert known == pytest.approx((1.0, 1.0, 103.6 / 80.4, 1.3))
    again = learned(known, [(far, 103.6, Level.MACHINE)])
    assert again == pytest.approx(known)
    faster = Measurement(0, 4, Locality.CROSS_NODE, 32, 110.0)
    assert learned(GUESSED, [(faster, 103.6, Level.MACHINE)])[Level.RACK] == 1.0


def test_a_bid_depends_on_the_distance_of_its_gpus() -> None:
    agent = AppAgent(0, 0.0, 100.0, (Work.linear(800.0, 8, 8),), 0, 8, (1.0, 1.0, 1.5, 2.0), 8, 8)
    offers = {
        Level.MACHINE: ((0, "r0", 8),),
        Level.RACK: ((0, "r0", 4), (1, "r0", 4)),
        Level.CLUSTER: ((0, "r0", 4), (1, "r1", 4)),
    }
    for level, free in offers.items():
        for bid in (agent.bid(GpuOffer(0, free, 0.0)), agent.bid_machines(GpuOffer(0, free, 0.0))):
            assert (bid.rows[-1].level, bid.rows[-1].rho) == (level, agent.slowdown[level])


def test_distance_is_learned_from_a_job_that_sat_apart() -> None:
    rows = [job("a", 0, 2, model="VGG16", work=1e6, kinds=("p100",))]
    moment = snapshot(rows, "p100:2x2", held={"a": Placement(((0, 1), (1, 1)))}, now=1000.0)
    (apart,) = moment.measurements(0)
    carry = Themis().decide(moment).carry
    assert isinstance(carry, ThemisCarry)
    together = float(moment.perf.curve(moment.jobs.at(0), "p100")[2])
    assert carry.histories[0].slowdown == pytest.approx((1.0, 1.0, together / apart.rate, 1.3))
    assert together / apart.rate > 1.2


# ── the arbiter ───────────────────────────────────────────────────────────────────────────────────────────────────


def table(app: int, *rhos: float) -> Bid:
    """A bid of these ρ for 0, 1, 2, … GPUs."""
    return Bid(app, tuple(Row(n, Level.MACHINE, rho) for n, rho in enumerate(rhos)), tuple(range(len(rhos))))


@pytest.mark.parametrize(
    ("f", "live", "count"), [(0.8, 10, 2), (0.8, 3, 1), (0.9, 4, 1), (1.0, 9, 1), (0.7, 10, 3), (0.0, 4, 4)]
)
def test_the_worst_part_of_the_apps_is_invited_and_at_least_one(f: float, live: int, count: int) -> None:
    reports = [AppReport(app, float(app), (1,)) for app in range(live)]
    assert Arbiter(f, "random").invited(reports, live) == frozenset(range(live - count, live))


def test_what_payments_leave_goes_to_apps_outside_the_auction() -> None:
    # Two linear bidders on 4 GPUs keep one each; the third, not invited, can use one of the two left, and no more.
    bids = [table(0, 1e6, 4.0, 2.0, 4 / 3, 1.0), table(1, 1e6, 8.0, 4.0, 8 / 3, 2.0)]
    outside = [AppReport(2, 0.1, (1,)), AppReport(3, 0.1, ())]
    for rounding in ("floor", "random"):
        settled = Arbiter(0.5, rounding).settle(
            GpuOffer(0, ((0, "r0", 4),), 0.0), bids, outside, np.random.default_rng(3)
        )
        assert [settled.awards[app].won for app in (0, 1)] == [2, 2]
        assert [settled.awards[app].kept for app in (0, 1)] == pytest.approx([0.5, 0.5])
        assert [settled.awards[app].gpus - settled.awards[app].extra for app in range(4)] == [1, 1, 0, 0]
        assert settled.awards[2].extra == 1
        # The last one nobody outside can use, so it is not left idle.
        assert sum(award.gpus for award in settled.awards.values()) == 4
        assert settled.outcome.gap <= 1e-12


def test_a_gang_is_kept_whole_or_not_at_all_with_the_right_chance() -> None:
    rows = (Row(0, Level.SLOT, 8.0), Row(4, Level.MACHINE, 1.0))
    bids = [Bid(0, rows, (0, 4)), table(1, 2.0, 1.0, 0.5, 0.4, 0.35)]
    offer, chance = GpuOffer(0, ((0, "r0", 4),), 0.0), np.random.default_rng(0)
    got = [Arbiter(0.0, "random").settle(offer, bids, [], chance).awards[0] for _ in range(400)]
    kept = got[0].kept
    won = [award.gpus - award.extra for award in got]
    assert set(won) == {0, 4}
    assert kept == pytest.approx(0.35 / 2.0)
    assert np.mean(won) == pytest.approx(4 * kept, abs=0.35)


def test_named_machines_are_given_to_one_each() -> None:
    # Both want the machine of four; the second minds distance more.
    def bid(app: int, apart: float) -> Bid:
        rows = (
            Row(0, Level.SLOT, 9.0),
            Row(4, Level.MACHINE, 1.0, ((0, 4),)),
            Row(4, Level.RACK, apart, ((1, 2), (2, 2))),
        )
        return Bid(app, rows, (0, 4))

    offer = GpuOffer(0, ((0, "r0", 4), (1, "r0", 2), (2, "r0", 2)), 0.0)
    settled = Arbiter(0.0, "floor").settle(offer, [bid(0, 1.1), bid(1, 2.0)], [], np.random.default_rng(0))
    assert [settled.awards[app].level for app in (0, 1)] == [Level.RACK, Level.MACHINE]
    # Without the first nothing changes for the second; without the second the first has the machine.
    assert [settled.awards[app].kept for app in (0, 1)] == [1.0, pytest.approx(1 / 1.1)]


# ── the policy ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_app_is_all_jobs_of_one_name() -> None:
    # Four jobs of one app and one job alone, on 4 GPUs, nobody else: both apps are new, and the first, for which a
    # lease is longer, is invited and takes all but what its payment (none: it bids alone) leaves.
    rows = [job(f"trial-{i}", 0, 1, 1000, app="search") for i in range(4)] + [job("alone", 0, 1, 10_000)]
    moment = snapshot(rows, "gpu:1x4")
    decision = Themis().decide(moment)
    verdicts = Verdicts.of(moment, decision.verdicts)
    assert verdicts.gpus.tolist() == [1, 1, 1, 1, 0]
    assert verdicts["trial-0"].reason.sentence() == (
        "runs on 1 GPU: its app, at ρ 0.8, won 4 at auction, paid 0% of them and kept 4, with 0 left over by others; "
        "leased until t = 600 s"
    )
    assert verdicts["alone"].reason.sentence() == (
        "waits: its app, at ρ 0.53, is not among the 1 that bid for 4 GPUs, at ρ 0.8 and above; "
        "it was handed 0 for other jobs"
    )
    assert decision.review_at == 600.0


def test_gpus_stay_with_the_app_until_its_lease_is_over() -> None:
    # The first of two jobs is done at 100 s: its GPUs go to the second, though the other app fares worse by then.
    rows = [job("a1", 0, 2, 100, app="a"), job("a2", 0, 2, 5000, app="a"), job("b", 1, 2, 50)]
    run = simulate(Themis(), rows, "gpu:1x2", until=700)
    granted = {cycle.now: cycle.granted() for cycle in run.cycles}
    assert granted[100.0] == {"a2": 2}
    assert granted[600.0] == {"b": 2}
    told = {cycle.now: cycle.sentence("a2") for cycle in run.cycles if cycle.now in (100.0, 600.0)}
    assert told[100.0] == "keeps its GPUs: its lease runs until t = 600 s"


def test_a_lease_given_in_the_second_half_of_a_period_lasts_until_the_end_of_the_next() -> None:
    # Leases end every 600 s. One given at 200 s ends at 600 s; one given at 400 s would last 200 s only, and ends at
    # 1,200 s: b, which waits from 450 s on, does not get the GPU before.
    early = simulate(Themis(), [job("a", 200, 1, 5000), job("b", 250, 1, 300)], "gpu:1x1", until=1300)
    assert early.cycles[0].sentence("a").endswith("leased until t = 600 s")
    assert early.started["b"] == 600.0
    late = simulate(Themis(), [job("a", 400, 1, 5000), job("b", 450, 1, 300)], "gpu:1x1", until=1300)
    assert late.cycles[0].sentence("a").endswith("leased until t = 1,200 s")
    assert late.started["b"] == 1200.0


def test_while_the_last_of_a_phase_run_the_app_keeps_what_it_leases_for_the_next() -> None:
    # Three of four trials run, then the fourth alone; from 200 s on two go on, and from 400 s on one.
    trials = [job(f"a{i}", 0, 2, 700, app="a", search="halving:eta=2", loss=0.1 + 0.1 * i, pace=20.0) for i in range(4)]
    workload = Workload("a search and a job", (*trials, job("b", 1, 4, 50)))
    table = run(Scenario(parse_cluster("gpu:1x6"), "themis", restart_cost="0"), workload).jobs
    started = dict(zip(table.id, table.started.tolist(), strict=True))
    assert (started["a3"], started["a0#2"], started["a1#2"], started["b"]) == (100.0, 200.0, 200.0, 400.0)


def test_what_no_job_of_the_app_can_use_is_offered_at_once() -> None:
    rows = [job("a", 0, 2, 100, app="a"), job("b", 1, 2, 50)]
    run = simulate(Themis(), rows, "gpu:1x2")
    assert run.completed == {"a": 100.0, "b": 150.0}


def test_the_rho_of_a_waiting_app_grows_until_it_is_served() -> None:
    # One GPU, two apps of the same length. The first has it until 600 s; by then the other fares worse.
    rows = [job("a", 0, 1, 3000), job("b", 0, 1, 3000)]
    run = simulate(Themis(), rows, "gpu:1x1", until=1300)
    holders = {cycle.now: next(iter(cycle.granted())) for cycle in run.cycles}
    assert holders[0.0] != holders[600.0]
    assert holders[1200.0] != holders[600.0]


def test_elastic_jobs_are_given_as_many_as_make_them_faster() -> None:
    rows = [job("wide", 0, 2, 1000, min_gpus=1, max_gpus=8)]
    moment = snapshot(rows, "gpu:2x4")
    assert Verdicts.of(moment, Themis().decide(moment).verdicts).gpus.tolist() == [8]


@pytest.mark.parametrize(("cluster", "gpus"), [("p100:2x8", 16), ("p100:1x8,p100:1x1", 8)])
def test_a_job_that_distance_slows_has_a_second_machine_where_that_makes_it_faster(cluster: str, gpus: int) -> None:
    # VGG16 is slower on nine GPUs of two machines than on eight of one, and faster on sixteen than on either.
    rows = [job("vgg", 0, 4, model="VGG16", work=1e6, min_gpus=1, max_gpus=16)]
    moment = snapshot(rows, cluster)
    curve = moment.perf.curve(moment.jobs.at(0), "p100")
    assert curve[9] < curve[8]
    assert Verdicts.of(moment, Themis().decide(moment).verdicts).gpus.tolist() == [gpus]


def test_gpus_that_slow_one_job_of_an_app_go_to_another() -> None:
    # Ten and nine GPUs for two jobs, each of which would be faster on eight, and on eleven.
    rows = [job(name, 0, 16, model="VGG16", work=1e6, min_gpus=1, max_gpus=16, app="a") for name in ("a1", "a2")]
    moment = snapshot(rows, "p100:2x8,p100:3x1")
    assert sorted(Verdicts.of(moment, Themis().decide(moment).verdicts).gpus.tolist()) == [8, 11]


def test_newcomers_fare_alike_whatever_their_width_and_waiting_hurts_short_apps_more() -> None:
    rows = [job("wide", 0, 8, 9000), job("narrow", 0, 1, 9000), job("short", 0, 1, 900), job("late", 600, 1, 9000)]
    new, later = snapshot(rows[:3], "gpu:1x8"), snapshot(rows, "gpu:1x8", now=600.0)
    assert [Themis().standing(new, app).rho for app in range(3)] == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    rho = [Themis().standing(later, app).rho for app in range(4)]
    assert rho[2] > rho[0] == pytest.approx(rho[1])
    assert rho[1] > rho[3] == pytest.approx(1 / 4)


def test_naming_machines_seats_jobs_there() -> None:
    rows = [job("a", 0, 4, 1000), job("b", 0, 2, 1000), job("c", 0, 2, 1000)]
    moment = snapshot(rows, "gpu:2x4")
    verdicts = Themis(bids="machines", f=0.0).decide(moment).verdicts
    seats = {name: v.placement for name, v in verdicts.items() if isinstance(v, Grant)}
    assert len(seats) == 3
    assert all(placement is not None and len(placement.seats) == 1 for placement in seats.values())


def test_a_one_machine_bid_asks_placement_for_one_machine() -> None:
    moment = snapshot([job("a", 0, 4, 1000)], "gpu:2x4")
    verdicts = Verdicts.of(moment, Themis().decide(moment).verdicts)
    assert verdicts.consolidated is not None
    assert verdicts.consolidated.tolist() == [True]


def test_contention_is_averaged_over_the_life_of_an_app() -> None:
    # Alone for 600 s, then beside another: at 1,200 s there were 1.5 apps on average, and T_id is 1.5 · 3,000 s.
    rows = [job("a", 0, 4, 3000), job("b", 600, 1, 9000)]
    run = simulate(Themis(), rows, "gpu:1x4", until=1300)
    carry = next(cycle for cycle in run.cycles if cycle.now == 1200.0).judgement.decision.carry
    assert isinstance(carry, ThemisCarry)
    assert carry.app_seconds == pytest.approx(600 + 2 * 600)


def test_an_early_app_expects_the_present_number_of_apps_for_the_rest_of_its_life() -> None:
    # Alone for 600 s, and beside two others for the 2,400 s it has left: 2.6 apps on average.
    rows = [job("early", 0, 4, 3000), job("late", 600, 4, 3000), job("later", 600, 4, 3000)]
    carry = Themis().decide(snapshot(rows[:1], "gpu:1x4")).carry
    moment = snapshot(rows, "gpu:1x4", held={"early": 4}, carry=carry)
    assert Themis().standing(moment, 0).rho == pytest.approx(3000 / (3000 * 2.6))


def test_an_app_first_seen_late_is_taken_to_have_always_competed_with_the_present_apps() -> None:
    rows = [job("old", 0, 2, 3000), job("older", 0, 2, 3000)]
    moment = snapshot(rows, "gpu:1x2", now=1000.0)
    assert Themis().standing(moment, 0).rho == pytest.approx((1000 + 3000) / (3000 * 2))


def test_the_seed_decides_which_app_gets_the_gpus_left_over() -> None:
    rows = [job(f"j{i}", 0, 1, 1000.0 + i, max_gpus=8) for i in range(6)]
    first, second = (replace(snapshot(rows, "gpu:1x8"), seed=seed) for seed in (1, 2))
    a, b, c = (Verdicts.of(m, Themis(f=0.6).decide(m).verdicts).gpus.tolist() for m in (first, first, second))
    assert a == b
    assert sum(a) == sum(c) == 8


def test_a_liar_and_errors_change_bids_and_nothing_else() -> None:
    rows = [job(f"j{i}", 0, 2, 1000.0, app=f"app-{i}") for i in range(3)]
    moment = snapshot(rows, "gpu:2x2")
    for policy in (Themis(noise=0.2), Themis(liar="app-1", lie=0.5)):
        assert Verdicts.of(moment, policy.decide(moment).verdicts).gpus.sum() == 4
        carry = policy.decide(moment).carry
        assert isinstance(carry, ThemisCarry)
        # or every round would add to the error
        assert {past.slowdown for past in carry.histories.values()} == {GUESSED}
    agent = AppAgent(0, 0.0, 1.0, (Work.linear(100.0, 1, 4),), 0, 4, GUESSED, 4, 4)
    wrong = agent.with_errors(0.1, 0.5)
    assert wrong.left[2] == pytest.approx(1.1 * agent.left[2])
    assert wrong.slowdown == pytest.approx((1.0, 1.0, 1.65, 1.95))


@dataclass(frozen=True)
class Forgetful:
    """Themis that works everything out again at each decision."""

    policy: Themis

    def decide(self, moment: Snapshot) -> Decision:
        carry = moment.carry
        if isinstance(carry, ThemisCarry):
            apps = {app: replace(past, estimate=None) for app, past in carry.apps.items()}
            records = replace(carry.singles.records, learned=np.full(len(carry.singles.records), UNKNOWN))
            singles = replace(carry.singles, records=records, perf=None)
            cold = replace(carry, apps=apps, gpu_ranges=GpuRanges(), singles=singles, settled=SettledCarry())
            moment = replace(moment, carry=cold)
        return self.policy.decide(moment)


def said_last(decision: Decision) -> list[tuple[int, float, list[float]]]:
    """By app what is carried of its last valuation."""
    carry = decision.carry
    assert isinstance(carry, ThemisCarry)
    valued = ((app, past.valuation) for app, past in carry.histories.items())
    return [(app, v.spent, v.left.tolist()) for app, v in valued if v is not None]


@pytest.mark.parametrize("knowledge", ["profiled", "online"])
@pytest.mark.parametrize(
    ("options", "generator", "cluster"),
    [
        ("", "afs", "gtx1080:3x4"),
        ("bids=machines,f=0.5", "afs", "gtx1080:3x4"),
        ("noise=0.2", "afs", "gtx1080:3x4"),
        ("f=0.5", "demo", "v100:1x4,p100:2x4,k80:1x4"),
        ("lease=200", "themis", "p100:6x4"),
    ],
)
def test_cached_values_change_no_result(
    knowledge: Literal["profiled", "online"], options: str, generator: str, cluster: str
) -> None:
    policy = parse_policy(f"themis:{options}" if options else "themis")
    assert isinstance(policy, Themis)
    rows = generate(generator, jobs=14, seed=4, interarrival=300.0).jobs
    lost = Faults(script=(NodeFault(2000.0, 1, 4000.0),))
    runs = [
        simulate(p, rows, cluster, knowledge=knowledge, faults=lost, until=12_000.0)
        for p in (policy, Forgetful(policy))
    ]
    ours, again = ([(cycle.now, cycle.judgement.verdicts.digest()) for cycle in run.cycles] for run in runs)
    assert len(ours) > 40
    assert ours == again
    first, second = (said_last(run.cycles[-1].judgement.decision) for run in runs)
    assert first == second


@pytest.mark.parametrize("knowledge", ["profiled", "online"])
@pytest.mark.parametrize(
    ("generator", "cluster", "options"),
    [
        ("afs", "gtx1080:3x4", "f=0.5"),
        ("shockwave", "v100:3x4", "rounding=floor"),
        ("gavel-deadlines", "v100:1x4,p100:2x4,k80:1x4", "nothing=inf,f=0.3"),
        ("demo", "v100:1x4,p100:2x4,k80:1x4", "lease=1200"),
    ],
)
def test_apps_of_one_job_get_the_same_in_columns_as_by_messages(
    generator: str,
    cluster: str,
    options: str,
    knowledge: Literal["profiled", "online"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = generate(generator, jobs=24, seed=6).jobs
    lost = Faults(script=(NodeFault(2000.0, 1, 4000.0),))
    seen: list[list[tuple[float, int, list[str]]]] = []
    carried = []
    for plain in (True, False):
        if not plain:
            monkeypatch.setattr(Themis, "_plain", False)
        run = simulate(
            parse_policy(f"themis:{options}"), rows, cluster, knowledge=knowledge, faults=lost, until=200_000.0
        )
        judged = [(cycle.now, Verdicts.of(cycle.snapshot, cycle.judgement.decision.verdicts)) for cycle in run.cycles]
        seen.append(
            [
                (now, verdicts.digest(), [verdicts.at(i).reason.sentence() for i in range(len(verdicts))])
                for now, verdicts in judged
            ]
        )
        carried.append([said_last(cycle.judgement.decision) for cycle in run.cycles])
    assert len(seen[0]) > 20
    assert seen[0] == seen[1]
    assert carried[0] == carried[1]


def test_dropping_the_rates_that_no_app_has_any_more_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = generate("afs", jobs=14, seed=4, interarrival=300.0).jobs
    seen, classes = [], []
    for spare in (1000, -1_000_000):
        monkeypatch.setattr("shoal.policy.themis.singles._SPARE", spare)
        run = simulate(Themis(), rows, "gtx1080:3x4", knowledge="online", until=12_000.0)
        last = run.cycles[-1].judgement.decision
        assert isinstance(last.carry, ThemisCarry)
        seen.append(([cycle.judgement.verdicts.digest() for cycle in run.cycles], said_last(last)))
        classes.append(len(last.carry.singles.rates))
    assert seen[0] == seen[1]
    assert classes[1] < classes[0]


def test_a_job_with_other_bounds_is_valued_anew() -> None:
    rows = [job("a", 0, 2, 1000, min_gpus=1, max_gpus=2), job("b", 0, 1, 1000)]
    moment = snapshot(rows, "gpu:1x4")
    first = Themis(f=0.0).decide(moment)
    assert Verdicts.of(moment, first.verdicts).gpus.tolist() == [2, 1]
    wider = snapshot([job("a", 0, 2, 1000, min_gpus=1, max_gpus=3), rows[1]], "gpu:1x4")
    assert isinstance(first.carry, ThemisCarry)
    second = Themis(f=0.0).decide(replace(wider, carry=replace(first.carry, leases={})))
    assert Verdicts.of(wider, second.verdicts).gpus.tolist() == [3, 1]
    assert isinstance(second.carry, ThemisCarry)
    assert second.carry.histories[0].demand == 3


@pytest.mark.parametrize(
    "options",
    ["f=1.1", "f=-0.1", "lease=0", "lease=inf", "rounding=up", "bids=all", "noise=1", "lie=-1", "lie=inf"],
)
def test_options_out_of_range_are_refused(options: str) -> None:
    with pytest.raises(Exception, match=options.partition("=")[0]):
        parse_policy(f"themis:{options}")


def test_the_policy_that_names_machines_conforms() -> None:
    check_policy(lambda: Themis(bids="machines", rounding="floor", f=0.5))


def test_by_equation_1_an_app_without_gpus_has_no_bounded_rho_and_otherwise_a_multiple_of_its_fewest() -> None:
    works = (Work.linear(200.0, 2, 4),)
    by_equation = AppAgent(0, 0.0, 100.0, works, 0, 4, GUESSED, 4, 4)
    assert by_equation.rho(0) == inf
    assert replace(by_equation, nothing=2.0).rho(0) == 2.0 * by_equation.rho(2)


def test_where_apps_outnumber_gpus_the_option_nothing_sets_the_payment() -> None:
    snap = snapshot([job(f"app-{i}", work=100.0, gpus=1) for i in range(3)], "v100:1x2")

    def kept(nothing: float) -> list[float]:
        awards = Themis(f=0.0, rounding="floor", nothing=nothing).auctions(snap).awards
        return [award.kept for award in awards.values() if award.won]

    assert kept(2.0) == pytest.approx([0.5, 0.5])
    assert kept(8.0) == pytest.approx([0.125, 0.125])
    assert kept(inf) == pytest.approx([0.0, 0.0], abs=1e-15)
