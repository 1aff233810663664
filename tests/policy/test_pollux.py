"""Pollux: the power mean of speed-ups over fair shares, for adaptive, elastic and fixed jobs alike."""

from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.decision import Decision, Grant, Verdicts
from shoal.core.errors import InputError
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import ADAPTIVE, BatchSetting
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.policy.goodput_options import carried_options
from shoal.policy.pollux import many_jobs
from shoal.policy.pollux.policy import Pollux
from shoal.policy.registry import parse_policy
from shoal.research.bench import scale
from shoal.testing.builders import Knowledge, job, simulate, snapshot
from shoal.testing.strategies import faults, worlds
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job

T4 = "t4:16x4"


def fit(*, sync: float = 0.05, speed: float = 1.0, gpus: int = 1) -> StepFit:
    """Steps whose synchronisation costs ``sync`` seconds over nodes, and a tenth of it within one."""
    near, far = (sync / 10, sync / 1000), (sync, sync / 100)
    return StepFit((0.02 / speed, 0.002 / speed), near, far, far, 2.0, 256, gpus)


def reported(seen: int, *, noise: float = 2000.0, **fits: StepFit) -> GoodputReport:
    """What an agent has to say that has trained on so many GPUs."""
    return GoodputReport(tuple((fits or {"t4": fit(gpus=seen)}).items()), noise, 128, seen, BatchSetting(128))


def adaptive(name: str, submitted: float = 0.0, work: float = 5e6, **more: Any) -> Job:
    plain: dict[str, Any] = {
        "min_gpus": 1,
        "max_gpus": 64,
        "model": "cifar10",
        "batch_size": 128,
        "limits": (128, 4096, 32, 1024),
    }
    return job(name, submitted, 1, work=work, **(plain | more))


def moment(jobs: list[Job], reports: dict[str, GoodputReport], cluster: str = T4, **more: Any) -> Snapshot:
    """A moment at which the agents of some jobs have reported."""
    seen = snapshot(jobs, cluster, knowledge="online", **more)
    return replace(seen, reports={seen.register.numbers[name]: report for name, report in reports.items()})


def verdicts(policy: Pollux, seen: Snapshot) -> Verdicts:
    return Verdicts.of(seen, policy.decide(seen).verdicts)


def gpus(policy: Pollux, seen: Snapshot) -> dict[str, int]:
    return dict(zip(seen.ids, verdicts(policy, seen).gpus.tolist(), strict=True))


def test_a_burst_of_newcomers_gets_a_gpu_each_at_once() -> None:
    """The released search leaves most of 32 newcomers without GPUs at first, though 64 are free."""
    seen = moment([adaptive(f"j{n}") for n in range(32)], {})
    found = verdicts(Pollux(), seen)
    assert found.gpus.tolist() == [1] * 32
    assert set(found.batches.values()) == {ADAPTIVE}
    assert len(found.placements) == 32


@pytest.mark.parametrize(("most_seen", "allowed"), [(1, 2), (2, 4), (4, 8), (32, 64)])
def test_a_job_alone_gets_at_most_twice_the_gpus_it_has_had(most_seen: int, allowed: int) -> None:
    seen = moment([adaptive("alone")], {"alone": reported(most_seen, noise=1e6)})
    assert gpus(Pollux(), seen) == {"alone": allowed}


@pytest.mark.parametrize(("share", "over"), [("measured", 2), ("whole", 64)])
def test_a_fair_share_is_cut_at_twice_the_gpus_measured_unless_it_is_whole(share: str, over: int) -> None:
    """Alone on 64 GPUs, measured on one: in eq. 15 the share is the whole cluster."""
    seen = moment([adaptive("alone")], {"alone": reported(1, noise=1e9, t4=fit(sync=1e-9))})
    found, _, _ = Pollux(share=share).allotment(seen)
    one = int(np.flatnonzero(found.gpus[0] == 1)[-1])
    assert found.speedups[0, one] == pytest.approx(1 / over, rel=0.15)


def test_with_a_whole_share_a_job_on_a_small_part_of_it_still_grows() -> None:
    seen = moment([adaptive("alone")], {"alone": reported(1, noise=1e6)})
    assert gpus(Pollux(share="whole"), seen) == {"alone": 2}


def test_limits_on_the_batch_bound_the_gpus_too() -> None:
    narrow = adaptive("narrow", limits=(128, 512, 64, 512))
    assert gpus(Pollux(), moment([narrow], {"narrow": reported(32, noise=1e6)})) == {"narrow": 8}


def test_no_node_holds_two_jobs_that_span_nodes() -> None:
    jobs = [adaptive(f"j{n}", max_gpus=6 + n) for n in range(6)]
    seen = moment(jobs, {j.id: reported(16, noise=1e6) for j in jobs}, "t4:8x4")
    wide = [p.nodes for p in verdicts(Pollux(), seen).placements.values() if len(p.seats) > 1]
    assert len(wide) > 1
    assert len({node for nodes in wide for node in nodes}) == sum(map(len, wide))


def test_where_moving_costs_more_than_it_brings_everyone_stays() -> None:
    jobs = [adaptive("one"), adaptive("other")]
    held = {"one": Placement(((0, 2),)), "other": Placement(((1, 2),))}
    seen = moment(jobs, {j.id: reported(2) for j in jobs}, "t4:2x4", held=held, now=100.0)
    assert gpus(Pollux(restart=0.0), seen) == {"one": 4, "other": 4}
    assert gpus(Pollux(restart=1000.0), seen) == {"one": 2, "other": 2}
    assert verdicts(Pollux(restart=1000.0), seen).placements == {0: held["one"], 1: held["other"]}


def test_a_lower_p_is_fairer() -> None:
    jobs = [adaptive("scales"), adaptive("does-not")]
    seen = moment(
        jobs, {"scales": reported(16, noise=1e6), "does-not": reported(16, t4=fit(sync=0.4, gpus=16))}, "t4:2x4"
    )

    def worst(p: float) -> float:
        found, _, allotment = Pollux(p=p).allotment(seen)
        return float(np.where(allotment.picks >= 0, found.speedups[np.arange(2), allotment.picks], 0.0).min())

    assert worst(1.0) < worst(-1.0) <= worst(-10.0)


def test_fixed_and_elastic_jobs_that_do_not_adapt_share_with_those_that_do() -> None:
    jobs = [job("fixed", 0, 4, 600), job("elastic", 0, 1, 600, max_gpus=8), adaptive("adapts")]
    found = Pollux().decide(moment(jobs, {"adapts": reported(1)}, "t4:3x4")).verdicts
    fixed, elastic, adapts = (found[name] for name in ("fixed", "elastic", "adapts"))
    assert isinstance(fixed, Grant)
    assert isinstance(elastic, Grant)
    assert isinstance(adapts, Grant)
    assert (fixed.gpus, fixed.batch) == (4, None)
    assert (elastic.gpus >= 1, elastic.batch) == (True, None)
    assert (adapts.gpus, adapts.batch) == (2, ADAPTIVE)


def test_a_job_whose_own_script_changes_its_batch_size_gets_no_batch_size() -> None:
    seen = moment([adaptive("own", adaptation="gns"), adaptive("ours")], {"ours": reported(1)}, "t4:2x4")
    assert verdicts(Pollux(), seen).batches == {1: ADAPTIVE}


def test_a_newcomer_is_served_when_it_comes_and_the_next_allocation_is_an_interval_later() -> None:
    seen = moment(
        [adaptive("runs"), adaptive("comes", 670.0)], {"runs": reported(4)}, "t4:1x4", held={"runs": 4}, now=670.0
    )
    decision = Pollux().decide(seen)
    assert decision.review_at == 730.0
    given = gpus(Pollux(), seen)
    assert given["comes"] == 1, "though no GPU is idle"
    assert given["runs"] in (2, 3)
    told = decision.verdicts["comes"].reason.sentence()
    assert told.startswith("runs on 1 GPU: ")


def test_in_the_papers_form_no_job_moves_between_two_allocations_and_newcomers_wait() -> None:
    seen = moment([adaptive("runs"), adaptive("comes", 70.0)], {"runs": reported(1)}, held={"runs": 1}, now=70.0)
    waiting, paper = replace(seen, carry=120.0), Pollux(when="interval")
    decision = paper.decide(waiting)
    assert (decision.review_at, decision.carry) == (120.0, 120.0)
    assert gpus(paper, waiting) == {"runs": 1, "comes": 0}
    told = decision.verdicts["comes"].reason.sentence()
    assert told == "waits: GPUs are allotted anew at t = 120 s; until then no job starts or moves"
    assert gpus(paper, replace(waiting, now=120.0)) == {"runs": 2, "comes": 1}


def test_kinds_are_distinguished_unless_an_option_says_otherwise() -> None:
    report = reported(1, t4=fit(speed=1.0), a100=fit(speed=8.0))
    seen = moment([adaptive("one")], {"one": report}, "t4:2x4,a100:1x4")
    given = verdicts(Pollux(), seen)["one"]
    assert isinstance(given, Grant)
    assert given.kind == "a100"
    found = Pollux(types="off").allotment(seen)[0]
    by_kind = [found.rates[0, (found.kinds[0] == k) & (found.gpus[0] == 2)].max() for k in range(2)]
    assert by_kind[0] == by_kind[1]


def test_a_remembered_model_need_not_start_from_one_gpu() -> None:
    seen = replace(moment([adaptive("new")], {}), model_reports={"cifar10": replace(reported(4), remembered=True)})
    assert gpus(Pollux(), seen) == {"new": 1}
    assert gpus(Pollux(memory=True), seen)["new"] > 1


def test_the_search_is_as_good_as_the_papers_and_says_how_far_it_may_be_from_the_best() -> None:
    jobs = [adaptive(f"j{n}", limits=(64 + n, 4096, 16, 1024)) for n in range(24)]
    reports = {j.id: reported(2 ** (n % 4), noise=500.0 * (n + 1)) for n, j in enumerate(jobs)}
    seen = moment(jobs, reports, "t4:8x4")
    exact, genetic = (Pollux(search=search).allotment(seen)[2] for search in ("exact", "genetic"))
    assert exact.value >= genetic.value
    assert exact.gap < 0.01


def test_the_reasons_have_numbers() -> None:
    jobs = [job("fixed", 0, 4, 600), adaptive("adapts")]
    found = Pollux().decide(moment(jobs, {"adapts": reported(4)}, "t4:1x4")).verdicts
    told = sorted(found[name].reason.sentence() for name in ("fixed", "adapts"))
    assert told[0] == "runs on 4 GPUs: 2 times the goodput of its fair share, 2 GPUs; its weight is 1"
    assert told[1].startswith("waits: 1 GPU would give it 0.5279 times the goodput of its fair share, worth 18.11 at ")
    assert told[1].endswith("weight 1; the 1 jobs that have 4 GPUs are worth more in all")


@pytest.mark.parametrize(
    "bad",
    ["p=nan", "interval=0", "when=now", "restart=-1", "types=some", "search=random", "restart=inf", "memory=perhaps"],
)
def test_options_must_make_sense(bad: str) -> None:
    with pytest.raises(InputError, match=bad.partition("=")[0]):
        parse_policy(f"pollux:{bad}")


# ── options carried from decision to decision ─────────────────────────────────────────────────────────────────────


class _Checked:
    """The policy, each of whose decisions is compared with that of one which carries nothing."""

    def __init__(self, policy: Pollux) -> None:
        self.policy = policy

    def decide(self, snapshot: Snapshot) -> Decision:
        fresh = replace(snapshot, carry=None)
        carried, alone = (self.policy.allotment(seen) for seen in (snapshot, fresh))
        for name in ("rates", "gpus", "kinds", "fair", "known"):
            assert np.array_equal(getattr(carried[0], name), getattr(alone[0], name)), name
        assert list(carried[0].seats) == list(alone[0].seats)
        decision, other = self.policy.decide(snapshot), self.policy.decide(fresh)
        told, expected = (Verdicts.of(snapshot, found.verdicts) for found in (decision, other))
        assert told.digest() == expected.digest()
        assert [told.reason(i) for i in range(len(told))] == [expected.reason(i) for i in range(len(told))]
        return decision


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(["whole", "measured"]), st.sampled_from(["aware", "off"]))
def test_carried_options_are_those_of_a_policy_that_starts_afresh(data: st.DataObject, share: str, types: str) -> None:
    cluster, rows = data.draw(worlds(most_jobs=8))
    knowledge: Knowledge = "online" if data.draw(st.booleans()) else "profiled"
    policy = _Checked(Pollux(share=share, types=types))
    with patch.object(many_jobs, "MANY", data.draw(st.sampled_from([1, many_jobs.MANY]))):
        simulate(policy, rows, cluster, faults=data.draw(faults(cluster, rows)), knowledge=knowledge, until=3000.0)


# ── thousands of jobs ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("generator", "cluster"), [("demo", "v100:2x4,p100:2x4,k80:2x4"), ("pollux", "t4:8x4")])
def test_allotting_only_those_that_regret_what_they_have_ends_all_jobs_about_as_soon(
    generator: str, cluster: str
) -> None:
    jobs = generate(generator, jobs=30, seed=4).jobs
    all_at_once = simulate(Pollux(), jobs, cluster)
    with patch.object(many_jobs, "MANY", 1):
        of_a_core = simulate(Pollux(), jobs, cluster)
    assert of_a_core.completed.keys() == all_at_once.completed.keys() == {job.id for job in jobs}
    ends = [sum(log.completed[job.id] - job.submitted for job in jobs) for log in (of_a_core, all_at_once)]
    assert ends[0] <= 1.05 * ends[1]


@pytest.mark.parametrize("workload", ["rigid", "elastic", "kinds"])
def test_with_thousands_of_jobs_the_first_allotment_misses_next_to_nothing(workload: str) -> None:
    jobs = scale.jobs_of(workload, 2_000)[:2_000]
    seen = snapshot(jobs, scale.cluster_of(workload, 200), knowledge="online", held={})
    policy = Pollux()
    carry = carried_options(seen, policy._settings, None)
    assert many_jobs.allot_many(seen, carry, partial(policy._worth, seen)).found.gap < 1e-3
