"""Rank where jobs adapt: goodput weighed by who is nearly done, in one formulation for all jobs."""

from dataclasses import replace
from typing import Any

import pytest

from shoal.core.decision import Verdicts
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import ADAPTIVE, BatchSetting
from shoal.core.snapshot import Snapshot
from shoal.policy.elastic.rank import Rank
from shoal.policy.elastic.rank_goodput import weigh
from shoal.policy.goodput_options import goodput_options
from shoal.testing.builders import job, snapshot
from shoal.workload.schema import Job


def reported(seen: int = 16, **speeds: float) -> GoodputReport:
    """An agent's report: nearly linear on one node, less so beyond; by kind how fast beside the plain figures."""
    fits = tuple(
        (kind, StepFit((0.02 / s, 0.002 / s), (0.005, 0.0), (0.1, 0.001), (0.1, 0.001), 2.0, 256, seen))
        for kind, s in (speeds or {"t4": 1.0}).items()
    )
    return GoodputReport(fits, 5000.0, 128, seen, BatchSetting(128))


def adaptive(name: str, work: float, submitted: float = 0.0, **more: Any) -> Job:
    plain: dict[str, Any] = {
        "min_gpus": 1,
        "max_gpus": 64,
        "model": "cifar10",
        "batch_size": 128,
        "limits": (128, 4096, 32, 1024),
    }
    return job(name, submitted, 1, work=work, **(plain | more))


def moment(jobs: list[Job], report: GoodputReport, cluster: str = "t4:2x4", **more: Any) -> Snapshot:
    seen = snapshot(jobs, cluster, knowledge="online", **more)
    adapting = [n for n, spec in seen.register.specs.items() if spec.limits is not None]
    return replace(seen, reports=dict.fromkeys(adapting, report))


def shares(seen: Snapshot, rank: Rank | None = None) -> dict[str, int]:
    verdicts = Verdicts.of(seen, (rank or Rank()).decide(seen).verdicts)
    return dict(zip(seen.ids, verdicts.gpus.tolist(), strict=True))


def test_the_shorter_job_gets_more_and_the_next_decision_comes_with_the_interval() -> None:
    seen = moment([adaptive("long", 1e9), adaptive("short", 1e6)], reported())
    found = shares(seen)
    assert found["short"] > found["long"]
    assert Rank().decide(seen).review_at == 60.0


def test_a_job_that_adapts_is_noticed_beside_the_jobs_of_a_carried_table() -> None:
    fixed = job("fixed", 0, 4, 3000)
    table = Rank().decide(moment([fixed], reported())).carry
    assert table is not None
    seen = replace(moment([fixed, adaptive("adapts", 1e7)], reported()), carry=table)
    assert Rank().decide(seen).review_at == 60.0
    assert shares(seen) == shares(replace(seen, carry=None))


def test_adaptive_elastic_and_fixed_jobs_share_one_cluster() -> None:
    jobs = [adaptive("adapts", 1e7), job("elastic", 0, 1, 3000, max_gpus=4), job("fixed", 0, 4, 3000)]
    seen = moment(jobs, reported(), "t4:3x4")
    verdicts = Verdicts.of(seen, Rank().decide(seen).verdicts)
    assert (verdicts.gpus > 0).all()
    assert verdicts.gpus[2] == 4
    assert verdicts.batches == {0: ADAPTIVE}


def test_what_a_restart_costs_keeps_jobs_where_they_are() -> None:
    jobs = [adaptive("a", 1e7), adaptive("b", 1.1e7)]
    seen = moment(jobs, reported(2), held={"a": 2, "b": 2}, now=100.0)
    assert shares(seen, Rank(restart=0.0)) == {"a": 4, "b": 4}
    assert shares(seen, Rank(restart=1e5)) == {"a": 2, "b": 2}


def test_without_declared_work_levels_of_attained_service_decide() -> None:
    jobs = [adaptive(name, 1e9, declares_work=False) for name in ("served", "new", "newer")]
    seen = moment(jobs, reported(), held={"served": 1}, ran={"served": 40_000.0}, now=50_000.0)
    found = goodput_options(seen, memory=True, aware=True)
    weights = weigh(seen, found, 30.0, 1.0).weights
    assert weights[0] < weights[2] < weights[1], "the least served first, then the first to come"


def test_a_job_that_waits_too_long_weighs_more() -> None:
    jobs = [adaptive("old", 1e7), *(adaptive(f"j{n}", 1e6, 90_000.0) for n in range(3))]
    early, late = (moment(jobs, reported(), now=now) for now in (90_000.0, 990_000.0))
    weights = [weigh(seen, goodput_options(seen, memory=True, aware=True), 30.0, 1.0).weights for seen in (early, late)]
    assert weights[1][0] > 5 * weights[0][0]


def test_a_job_past_its_declared_work_is_taken_to_have_twice_as_much() -> None:
    held = {"over": 1, "nearly": 1, "long": 1}
    done = float(moment([adaptive("long", 1e9)], reported(), held={"long": 1}, now=1000.0).columns.done[0])
    declared = {"over": done / 1.2, "nearly": done / 1.005, "long": 3.0 * done}
    jobs = [adaptive(name, 1e9, declared_work=work) for name, work in declared.items()]
    seen = moment(jobs, reported(), held=held, now=1000.0)
    found = goodput_options(seen, memory=True, aware=True)
    weighed = weigh(seen, found, 30.0, 1.0)
    assert weighed.weights.argsort().tolist() == [2, 0, 1], "twice what is done, two thirds of it, next to none"
    assert (weighed.worth[:, 1:][found.rates[:, 1:] > 0] > 0).all(), "nobody is worth nothing"


def test_on_several_kinds_each_job_goes_where_its_end_comes_sooner() -> None:
    fast, slow = reported(1, t4=1.0, a100=8.0), reported(1, t4=1.0, a100=1.1)
    seen = snapshot([adaptive("gains", 1e7), adaptive("does-not", 1e7)], "t4:1x2,a100:1x2", knowledge="online")
    seen = replace(seen, reports={0: fast, 1: slow})
    verdicts = Verdicts.of(seen, Rank().decide(seen).verdicts)
    assert verdicts.kinds is not None
    assert [seen.cluster.kinds[k] for k in verdicts.kinds] == ["a100", "t4"]


def test_memory_can_be_left_out() -> None:
    seen = snapshot([adaptive("new", 1e7)], "t4:2x4", knowledge="online")
    seen = replace(seen, model_reports={"cifar10": replace(reported(4), remembered=True)})
    assert shares(seen, Rank(memory=False)) == {"new": 1}
    assert shares(seen)["new"] > 1


@pytest.mark.parametrize("bad", [{"power": 0.0}, {"power": 1.5}, {"interval": 0.5}, {"restart": -1.0}])
def test_options_must_make_sense(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"power|restart|round"):
        Rank(**bad)
