"""Gavel's §7.3 and §7.6 in small: what the cost policies save, and what estimating instead of knowing costs."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from shoal.core.topology import parse_cluster
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import SimulationResult, run
from shoal.scenario.specs import read_cluster
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Workload

PRICED = Path(__file__).resolve().parents[2] / "docs" / "examples" / "priced.yaml"


@cache
def workload() -> Workload:
    return generate("gavel-deadlines", jobs=120, seed=0)


@cache
def outcome(policy: str) -> SimulationResult:
    return run(Scenario(read_cluster(str(PRICED)), policy), workload())


def late(found: SimulationResult) -> int:
    deadlines = np.array([job.deadline for job in workload().jobs])
    missed = int((found.jobs.completed > deadlines).sum())
    assert found.summary["deadlines"] == {"jobs": 120, "missed": missed}
    return missed


def test_the_cheapest_shares_cost_a_good_quarter_less_and_miss_deadlines() -> None:
    # The paper: 1.4 times cheaper than the most throughput, with 35 % of the deadlines missed.
    cheap, fast = outcome("gavel.cost"), outcome("gavel.throughput")
    assert cheap.summary["completed"] == fast.summary["completed"] == 120
    assert fast.summary["cost"] / cheap.summary["cost"] >= 1.3
    assert late(cheap) >= 0.2 * 120


def test_with_deadlines_none_is_missed_and_it_is_still_cheaper() -> None:
    # The paper: no violation, 1.2 times cheaper than the most throughput.
    kept, fast = outcome("gavel.cost-slo"), outcome("gavel.throughput")
    assert late(kept) == 0
    assert fast.summary["cost"] / kept.summary["cost"] >= 1.15


@pytest.mark.parametrize("seed", [1, 2])
def test_estimated_sharing_costs_little_completion_time_against_known(seed: int) -> None:
    # Figure 16: on a small cluster with a fifth of the pairs profiled, close to the oracle.
    made = generate("gavel-continuous-single", jobs=80, seed=seed, interarrival=5400.0)
    cluster = parse_cluster("v100:1x4,p100:1x4,k80:1x4")

    def average(knowledge: str) -> float:
        scenario = Scenario(cluster, "gavel.max-min:space_sharing=true", seed=seed, knowledge=knowledge)
        return float(run(scenario, made).summary["avg_jct"])

    assert average("estimated") <= 1.05 * average("profiled")
