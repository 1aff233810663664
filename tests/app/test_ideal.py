"""The ideal mechanism: exact shares, no rounds, no restarts."""

import pytest

from shoal.app import Scenario, run
from shoal.core.errors import InputError
from shoal.core.topology import parse_cluster
from shoal.ideal import ideal_completions
from shoal.testing.builders import job
from shoal.workload.schema import Workload
from shoal.workload.synthetic import generate


def test_two_jobs_on_one_gpu_flow_at_half_speed_until_one_is_done() -> None:
    # a: 100 s, b: 300 s, one GPU. Half each until a is done at 200; b then has 200 s left and is done at 400.
    done = ideal_completions([job("a", 0, 1, 100), job("b", 0, 1, 300)], parse_cluster("gpu:1x1"), "gavel.max-min")
    assert done == pytest.approx({"a": 200.0, "b": 400.0})


def test_a_later_arrival_shares_from_its_arrival_on() -> None:
    # a alone until 50 (50 s left), then half each: a done at 150; b has done 50 of 100, and is done at 200.
    done = ideal_completions([job("a", 0, 1, 100), job("b", 50, 1, 100)], parse_cluster("gpu:1x1"), "gavel.max-min")
    assert done == pytest.approx({"a": 150.0, "b": 200.0})


def test_a_job_that_cannot_run_is_not_in_the_answer() -> None:
    done = ideal_completions([job("wide", 0, 8, 100), job("a", 0, 1, 100)], parse_cluster("gpu:1x1"), "gavel.max-min")
    assert done == pytest.approx({"a": 100.0})


def test_rounds_without_restart_costs_come_near_the_ideal() -> None:
    # Gavel's figure 15b: the mechanism's average completion time is within a few per cent of the ideal one.
    cluster = parse_cluster("v100:1x4,p100:1x4,k80:1x4")
    made = generate("gavel-continuous-single", jobs=40, seed=1, interarrival=3600.0)
    ideal = ideal_completions(made.jobs, cluster, "gavel.max-min")
    rounds = run(Scenario(cluster, "gavel.max-min", restart_cost="0"), Workload(name="w", jobs=made.jobs))
    flowing = sum(ideal[j.id] - j.submitted for j in made.jobs) / len(made.jobs)
    assert rounds.summary["avg_jct"] == pytest.approx(flowing, rel=0.05)


def test_changing_batch_sizes_are_refused() -> None:
    changing = job("a", 0, 1, model="ResNet-50", batch_size=32, work=1e6, batch_schedule=((5e5, 64),))
    with pytest.raises(InputError, match="batch"):
        ideal_completions([changing], parse_cluster("v100:1x1"), "gavel.max-min")
