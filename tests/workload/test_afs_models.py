"""Models of AFS's Table 4, drawn onto the jobs of a trace."""

from dataclasses import replace

import pytest

from shoal.core.topology import parse_cluster
from shoal.perf.afs_profiles import AFS_MODELS
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.testing.builders import job
from shoal.workload.generators.afs import misjudged, widest, with_models
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Workload

TRACE = Workload("trace", tuple(job(f"j{i}", 1000.0 * i, (1, 2, 8, 32, 128)[i % 5], 100.0 + i) for i in range(50)))


def test_a_job_runs_as_long_on_its_gang_as_the_trace_says() -> None:
    drawn = with_models(TRACE, seed=3)
    for before, after in zip(TRACE.jobs, drawn.jobs, strict=True):
        profile = AFS_MODELS[after.model or ""]
        assert after.work / profile.speedup(after.gpus) == pytest.approx(before.work)
        assert (after.min_gpus, after.max_gpus) == (1, profile.peak_gpus)
        assert after.gpus == min(before.gpus, 52) <= profile.peak_gpus
    alone = replace(drawn, jobs=drawn.jobs[:1])
    scenario = Scenario(parse_cluster("gtx1080:16x4"), "fifo")
    assert run(scenario, alone).summary["avg_jct"] == pytest.approx(100.0)


def test_the_seed_draws_the_models_and_narrow_jobs_get_all_nine() -> None:
    assert with_models(TRACE, 1) == with_models(TRACE, 1) != with_models(TRACE, 2)
    narrow = Workload("narrow", tuple(job(f"j{i}", 0, 1, 10) for i in range(200)))
    assert {j.model for j in with_models(narrow).jobs} == set(AFS_MODELS)
    assert {j.model for j in with_models(TRACE).jobs if j.gpus > 44} == {"afs-inception-v4"}


def test_a_job_that_names_a_model_stays_as_it_is() -> None:
    named = Workload("named", (job("a", model="bert", work=10.0),))
    assert with_models(named).jobs == named.jobs


def test_the_widest_gang_is_the_most_a_job_can_use_and_its_work_the_same() -> None:
    drawn = with_models(TRACE)
    wide = widest(drawn)
    assert [j.gpus for j in wide.jobs] == [j.max_gpus for j in drawn.jobs]
    assert [j.work for j in wide.jobs] == [j.work for j in drawn.jobs]


def test_misjudged_lengths_are_declared_too_long_or_too_short_by_the_factor() -> None:
    wrong = misjudged(with_models(TRACE), 2.0)
    ratios = [(j.declared_work or 0.0) / j.work for j in wrong.jobs]
    assert sorted(set(ratios)) == [0.5, 2.0]
    assert 10 < ratios.count(2.0) < 40


def test_without_a_trace_jobs_are_made_up_that_keep_64_gpus_contended() -> None:
    made = generate("afs", jobs=2000, seed=1)
    gpu_seconds = sum(j.gpus * j.work / AFS_MODELS[j.model or ""].speedup(j.gpus) for j in made.jobs)
    assert 0.5 < gpu_seconds / (64 * made.jobs[-1].submitted) < 1.2
    assert {j.gpus for j in made.jobs} == {1, 2, 4, 8, 16}
