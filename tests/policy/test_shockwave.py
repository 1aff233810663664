"""Shockwave: its paper's small examples, plans that are kept and made anew, budgets, and its public 120-job trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.decision import Decision, Grant, Refusal
from shoal.core.reasons import in_words
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, parse_cluster
from shoal.perf.catalog import catalog
from shoal.policy.shockwave.carry import ShockwaveCarry, WindowPlan
from shoal.policy.shockwave.policy import Shockwave
from shoal.policy.shockwave.welfare import SHAPES, part_done, welfare
from shoal.research.repro.shockwave_toy import SCHEDULES, TABLE_1
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.testing.builders import SimulationLog, job, simulate, snapshot
from shoal.workload.files import read_workload
from shoal.workload.schema import Job

FILES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "shockwave"


# ── §2: Table 1 and the schedules of figures 1 and 15 ─────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Scripted:
    """Gives out GPUs as a figure shows them, rounds of one second."""

    rounds: Sequence[str]

    def decide(self, snapshot: Snapshot) -> Decision:
        shown = self.rounds[min(int(snapshot.now), len(self.rounds) - 1)]
        told = in_words("as the figure shows")
        verdicts = {
            name: Grant(gpus, reason=told) if (gpus := shown.count(name)) else Refusal(told) for name in snapshot.ids
        }
        return Decision(verdicts, float(int(snapshot.now) + 1))


@pytest.mark.parametrize("filter_", TABLE_1)
def test_table_1_follows_from_the_schedules_with_the_serial_time_times_n_over_m(filter_: str) -> None:
    serial, most = {"A": 12.0, "B": 8.0, "C": 6.0}, {"A": 3, "B": 2, "C": 2}
    rows = [job(n, 0, most[n], serial[n] / most[n], min_gpus=1, max_gpus=most[n]) for n in serial]
    done = simulate(Scripted(SCHEDULES[filter_]), rows, "gpu:1x4").completed
    rho = max(done[n] / (serial[n] * 3 / 4) for n in serial)
    assert (rho, np.mean(list(done.values())), max(done.values())) == pytest.approx(TABLE_1[filter_], abs=0.05)


# ── §2.2: figure 4 ────────────────────────────────────────────────────────────────────────────────────────────────


def test_knowing_what_is_coming_beats_reacting_to_it_and_that_beats_not_noticing() -> None:
    # Three GPUs. J1 and J2 look like 7,200 s and take 3,150: after 30 % they train at another batch size, five times as
    # fast. J3 takes 4,800 s on two GPUs throughout. Who takes J1 and J2 for the longest runs them first, and J3 comes
    # too late. The lengths are ours, the paper's text gives none: of 64 sets of lengths tried, all three rules came
    # out strictly apart in 11 and in this order or equal in 61; this is one of the 11.
    pace, pace_of_two = 517.65, 1602.3
    changing: dict[str, Any] = {"batch_schedule": ((0.3 * 7200 * pace, 256),), "batch_size": 16, "model": "ResNet-18"}
    rows = [job(name, 0, 1, work=7200 * pace, **changing) for name in ("J1", "J2")]
    rows.append(job("J3", 0, 2, work=4800 * pace_of_two, model="ResNet-18", batch_size=16))
    makespan = {}
    for rule in ("restatement", "reactive", "agnostic"):
        done = simulate(Shockwave(predictor=rule), rows, "v100:1x3", knowledge="oracle").completed
        makespan[rule] = max(done.values())
    assert makespan["reactive"] > 1.1 * makespan["restatement"]
    assert makespan["agnostic"] > 1.05 * makespan["reactive"]


# ── the plan in force ─────────────────────────────────────────────────────────────────────────────────────────────


def plans(over: SimulationLog) -> list[tuple[float, WindowPlan]]:
    """Every plan that came into force, and when."""
    found: list[tuple[float, WindowPlan]] = []
    for cycle in over.cycles:
        carry = cycle.judgement.decision.carry
        assert isinstance(carry, ShockwaveCarry)
        if carry.plan is not None and (not found or carry.plan is not found[-1][1]):
            found.append((cycle.now, carry.plan))
    return found


def long_jobs(count: int = 3, seconds: float = 3000.0) -> list[Job]:
    return [job(f"j{i}", 0, 1, seconds) for i in range(count)]


def test_a_plan_is_followed_until_somebody_comes_or_goes_or_its_window_is_over() -> None:
    # 3 jobs of 3,000 s on 1 GPU; a fourth comes at 500. Windows of 5 rounds of 100 s.
    over = simulate(Shockwave(rounds=5, round=100), [*long_jobs(), job("late", 520, 1, 90)], "gpu:1x1", until=1500.0)
    began = [at for at, _ in plans(over)]
    # At 500 the window is over; the newcomer of 520 is planned for from 600 on and done before 700.
    assert began[:4] == [0.0, 500.0, 600.0, 700.0]
    assert over.completed["late"] == 690.0
    assert "rounds left" in over.cycles[1].sentence("j1")


def test_a_change_of_batch_size_causes_a_new_plan_and_lazily_only_with_the_next_window() -> None:
    rows = [
        *long_jobs(2),
        job(
            "changes", 0, 1, work=517.65 * 2000, model="ResNet-18", batch_size=16, batch_schedule=((517.65 * 130, 256),)
        ),
    ]
    began = {}
    for mode in ("reactive", "lazy"):
        over = simulate(Shockwave(mode=mode, rounds=6, round=100), rows, "v100:1x1", until=450.0)
        began[mode] = [at for at, _ in plans(over)]
    assert began == {"reactive": [0.0, 200.0], "lazy": [0.0]}


def test_a_plan_made_ahead_is_taken_up_at_the_end_of_the_round_and_one_not_made_is_not_waited_for() -> None:
    rows = [*long_jobs(2), job("early", 30, 1, 500), job("late", 80, 1, 500)]
    over = simulate(Shockwave(ahead=40, rounds=6, round=100), rows, "gpu:1x1", until=250.0)
    # Who came at 30 is in the plan made at 60 for 100; who came at 80, after that, in the one made at 160 for 200.
    assert [(at, len(plan.rows)) for at, plan in plans(over)] == [(0.0, 2), (100.0, 3), (200.0, 4)]
    carried = [(cycle.now, cycle.judgement.decision.carry) for cycle in over.cycles]
    assert [at for at, carry in carried if isinstance(carry, ShockwaveCarry) and carry.next_plan] == [60.0, 80.0, 160.0]


def test_gpus_that_come_free_within_a_round_are_given_away_at_once() -> None:
    over = simulate(Shockwave(round=100), [job("short", 0, 1, 30), *long_jobs(2)], "gpu:1x1", until=50.0)
    assert sorted(over.started.values())[:2] == [0.0, 30.0]


# ── who comes first ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_late_for_its_fair_finish_runs_before_shorter_ones() -> None:
    rows = [job("late", 0, 1, 900), job("short", 8000, 1, 100), job("other", 8000, 1, 100)]
    moment = snapshot(rows, "gpu:1x1", now=8040.0)
    verdicts = Shockwave(k=5.0).decide(moment).verdicts
    assert [name for name, verdict in verdicts.items() if isinstance(verdict, Grant)] == ["late"]
    assert "ρ" in verdicts["short"].reason.sentence()


@pytest.mark.parametrize(("budgets", "served"), [("job", "b"), ("tenant", "a")])
def test_a_larger_budget_buys_rounds_and_a_tenant_s_is_split_among_its_jobs(budgets: str, served: str) -> None:
    # Job by job b's weight of 2 counts; tenant by tenant c, d and e share the budget of 2 with it, 0.5 each.
    rows = [job("a", 0, 1, 6000, weight=1.0, tenant="one"), job("b", 0, 1, 6000, weight=2.0, tenant="many")]
    rows += [job(name, 0, 1, 6000, weight=2.0, tenant="many") for name in "cde"]
    decision = Shockwave(budgets=budgets, lam=0.0, layout="exact").decide(snapshot(rows, "gpu:1x1"))
    assert [name for name, verdict in decision.verdicts.items() if isinstance(verdict, Grant)] == [served]


def granted(moment: Snapshot, policy: Shockwave) -> list[str]:
    verdicts = policy.decide(moment).verdicts
    return [name for name, verdict in verdicts.items() if isinstance(verdict, Grant)]


NARROW = [job(name, 0, 1, 1000) for name in "abcd"]


@pytest.mark.parametrize(
    ("other", "held", "served"),
    [
        pytest.param(
            job("wide", 0, 4, 900), {}, ["a", "b", "c", "d"], id="those with less GPU time left, if more run time"
        ),
        pytest.param(job("wide", 0, 4, 900, weight=5.0), {}, ["wide"], id="who has the budget for it"),
        pytest.param(
            job("wide", 0, 4, 340), {"wide": 4}, ["wide"], id="who runs already, if it has not much more left"
        ),
        pytest.param(job("wide", 0, 4, 400), {"wide": 4}, ["a", "b", "c", "d"], id="not who runs, if it has"),
    ],
)
def test_the_most_weight_for_the_gpu_time_left_runs_first(other: Job, held: dict[str, int], served: list[str]) -> None:
    assert granted(snapshot([other, *NARROW], "gpu:1x4", held=held), Shockwave(lam=0.0)) == served


def test_a_job_with_less_than_its_margin_to_lose_runs_at_once_beside_the_longest() -> None:
    # All can be done 6,000 s from now. `next` could wait for 240 s, two rounds, if nothing at all came between.
    rows = [job("longest", 0, 1, 6000), job("next", 0, 1, 5760), *(job(f"s{i}", 0, 1, 600) for i in range(8))]
    assert granted(snapshot(rows, "gpu:1x3"), Shockwave()) == ["longest", "next", "s0"]


def test_linear_welfare_counts_what_is_left_and_the_others_all_work() -> None:
    done, gained, whole = np.array([75.0]), np.array([[0.0, 5.0]]), np.array([100.0])
    assert part_done(done, gained, whole, "linear").tolist() == [[0.0, 0.2]]
    assert part_done(done, gained, whole, "slopes").tolist() == part_done(done, gained, whole, "log").tolist()
    assert part_done(done, gained, whole, "log").tolist() == [[0.75, 0.8]]


def test_a_job_about_to_end_still_gains_from_a_round() -> None:
    # It has a second left of 4,000, and has waited; by its progress alone a round would be worth a hundredth of the
    # other's.
    rows = [job("ending", 0, 1, 4000), job("new", 4100, 1, 4000)]
    moment = snapshot(rows, "gpu:1x1", ran={"ending": 3999.0}, now=4100.0)
    verdicts = Shockwave(lam=0.0).decide(moment).verdicts
    assert isinstance(verdicts["ending"], Grant)


@pytest.mark.parametrize("shape", SHAPES)
def test_welfare_rises_and_is_concave(shape: str) -> None:
    steps = np.diff(welfare(np.linspace(0.001, 1.1, 500), shape))
    assert (steps > 0).all()
    assert (np.diff(steps) < 1e-9).all()


def test_the_five_slopes_are_the_published_ones() -> None:
    ends = welfare(np.linspace(0, 1, 6), "slopes")
    assert np.diff(ends) / 0.2 == pytest.approx([61, 3.5, 2.0, 1.4, 1.1], abs=0.07)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("k", -1.0),
        ("lam", -1.0),
        ("lam", float("nan")),
        ("rounds", 0),
        ("round", 0.0),
        ("ahead", 120.0),
    ]
    + [(name, "odd") for name in ("mode", "welfare", "layout", "budgets", "predictor")],
)
def test_options_out_of_range_are_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        Shockwave(**{option: value})  # type: ignore[arg-type]


# ── the public trace ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not FILES.is_dir(), reason="the public files are not here")
def test_on_the_public_120_job_trace_it_is_faster_and_fairer_than_the_public_simulator() -> None:
    # The public simulator: makespan 24,197 s, average JCT 9,958 s, worst ρ 1.78, 5.0 % above 1.05.
    scenario = Scenario(
        cluster=parse_cluster("v100:8x4"),
        policy="shockwave",
        restart_cost="20",
        throughputs=str(FILES / "throughputs" / "tacc_throughputs.json"),
    )
    summary = run(scenario, read_workload(FILES / "jobs_120_tacc.json", "shockwave")).summary
    rho = summary["rho"]["contention"]
    assert summary["makespan"] <= 24_600
    assert summary["avg_jct"] <= 10_200
    assert rho["max"] <= 1.75
    assert rho["unfair_1.05"] <= 0.05


def test_a_job_on_a_slow_gpu_goes_to_a_fast_one_that_comes_free() -> None:
    # In seconds on the V100, where a ResNet-50 is 7.1 times as fast: whichever of the two has the K80 at first moves
    # when the other is done, at the end of the round, and both are done as if it had done so at once, give or take two.
    profile = catalog().profile("ResNet-50")
    fast, slow = (profile.rate(kind, 1, Locality.SAME_NODE, 64) for kind in ("v100", "k80"))
    rows = [job(n, work=s * fast, model="ResNet-50", batch_size=64) for n, s in (("a", 3000.0), ("b", 2000.0))]
    run = simulate(Shockwave(), rows, "v100:1x1,k80:1x1")
    assert min(run.completed.values()) < 3120.0
    assert max(run.completed.values()) < 5000.0 - 2000.0 * slow / fast + 2 * 120.0
