"""The bounds of the grounds: what jobs need at least by their true speeds, below every simulated schedule."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.topology import parse_cluster
from shoal.perf.catalog import catalog
from shoal.research.grounds.cells import BOUND, cells
from shoal.research.grounds.ground import GROUNDS, Ground
from shoal.research.grounds.least_times import least_times
from shoal.research.grounds.sources import Source
from shoal.research.grounds.tables import bound_table, compared, number_table, policy_table
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job, Workload

TWO_KINDS = "v100:2x4,k80:1x4"
POLICIES = ("shoal", "srsf", "pollux", "afs-l", "gavel.max-min", "shockwave")
GENERATORS = (("demo", TWO_KINDS, "profiled"), ("shockwave", "v100:2x4", "profiled"), ("pollux", "t4:2x4", "online"))


def of(jobs: list[Job]) -> Source:
    return lambda data, draw: Workload("few", tuple(jobs))


@pytest.mark.parametrize(("generator", "cluster", "knowledge"), GENERATORS, ids=lambda value: str(value).split(":")[0])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 999), policy=st.sampled_from(POLICIES), noise=st.sampled_from([0.0, 0.3]))
def test_no_policy_is_below_the_bound(
    generator: str, cluster: str, knowledge: str, seed: int, policy: str, noise: float
) -> None:
    jobs = [msgspec.structs.replace(j, submitted=j.submitted / 20) for j in generate(generator, jobs=8, seed=seed).jobs]
    fitting = [j for j in jobs if j.gpus <= 4]
    settings = {"restart_cost": "0", "noise": noise}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GROUNDS, "few", Ground("few", "", cluster, of(fitting), knowledge, settings=settings))
        low, run = cells("few", BOUND, seed), cells("few", policy, seed)
    assert float(low["jct"] or 0) <= float(run["jct"] or 0) * (1 + 1e-9)
    assert float(low["makespan"] or 0) <= float(run["makespan"] or 0) * (1 + 1e-9)
    assert float(low["jct"] or 0) > 0.0


def test_a_rigid_job_needs_its_gang_and_an_elastic_one_the_best_of_its_numbers_of_gpus() -> None:
    world = parse_cluster("gpu:2x4")
    rigid = Job(id="a", submitted=5.0, gpus=2, work=100.0)
    elastic = msgspec.structs.replace(rigid, min_gpus=1, max_gpus=8)
    needs = least_times([rigid, elastic], world, catalog(), [1.0, 0.5])
    assert needs.seconds.tolist() == [[100.0], [50.0]]  # 8 GPUs: four times as fast; its true speed is half
    assert needs.area.tolist() == [[200.0], [400.0]]


def test_a_job_that_changes_its_batch_size_needs_the_time_of_each_part() -> None:
    world, known = parse_cluster("v100:1x4"), catalog()
    plain = Job(id="a", submitted=0.0, gpus=1, work=1e6, model="ResNet-18", batch_size=16)
    half = msgspec.structs.replace(plain, batch_schedule=((5e5, 256),), adaptation="gns", limits=None)
    large = msgspec.structs.replace(plain, batch_size=256)
    needs = least_times([plain, half, large], world, known, [1.0] * 3).seconds[:, 0]
    assert needs[1] == pytest.approx((needs[0] + needs[2]) / 2)


def test_a_kind_that_a_job_does_not_allow_is_none_for_it() -> None:
    job = Job(id="a", submitted=0.0, gpus=1, work=1e6, model="ResNet-18", batch_size=16, kinds=("k80",))
    needs = least_times([job], parse_cluster("v100:1x4,k80:1x4"), catalog(), [1.0])
    assert np.isinf(needs.seconds[0, 0])
    assert np.isfinite(needs.seconds[0, 1])


def test_stages_that_suit_different_kinds_may_each_be_done_on_theirs() -> None:
    world, known = parse_cluster("v100:1x4,k80:1x4"), catalog()
    small = Job(id="a", submitted=0.0, gpus=1, work=1e6, model="ResNet-18", batch_size=16)
    both = msgspec.structs.replace(small, batch_schedule=((5e5, 256),), adaptation="gns")
    needs = least_times([small, both, msgspec.structs.replace(small, batch_size=256)], world, known, [1.0] * 3)
    assert needs.shortest[1] == pytest.approx((needs.shortest[0] + needs.shortest[2]) / 2)
    assert (needs.seconds[1] <= (needs.seconds[0] + needs.seconds[2]) / 2 * (1 + 1e-9)).all()


def test_where_jobs_depend_on_the_policy_there_is_no_bound() -> None:
    assert "depends on the policy" in str(cells("themis", BOUND, 1, data=Path())["stopped"])


def test_tables_have_the_bound_beside_the_policies_and_not_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GROUNDS, "few", Ground("few", "", "gpu:1x2", of([])))
    figures = {"p99": 1.0, "rho": 1.0, "rho_mean": 1.0, "unfair": 0.0, "restarts": 0.0, "cpu": 1.0}
    results = {
        ("few", "shoal", 1): {"jct": 99.0, "makespan": 120.0, **figures},
        ("few", "srsf", 1): {"jct": 100.0, "makespan": 110.0, **figures},
        ("few", BOUND, 1): {"jct": 90.0, "makespan": 100.0, "cpu": 1.0},
    }
    found = compared(results, "shoal")
    assert list(found["few"].others) == ["srsf"]
    row = bound_table(found, "shoal").document()["rows"][0]
    assert (row["its JCT ÷ bound"], row["shoal's"]) == (pytest.approx(100 / 90), pytest.approx(1.1))
    assert (row["its makespan ÷ bound"], row["shoal's own"]) == (pytest.approx(1.1), pytest.approx(1.2))
    numbers = {row["number"]: row["no policy below"] for row in number_table(found, "shoal").document()["rows"]}
    assert numbers["JCT over the best other, lengths declared, geometric mean"] == pytest.approx(0.9)
    assert numbers["makespan over the shortest other, worst ground"] == pytest.approx(100 / 110)
    assert [row["policy"] for row in policy_table(results, "dev").document()["rows"]] == ["shoal", "srsf"]
