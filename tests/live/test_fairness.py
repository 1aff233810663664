"""ρ of live jobs, and the rows by tenant and app that pages show."""

import numpy as np
import pytest

from shoal.core.commands import Start
from shoal.core.events import JobSubmitted
from shoal.core.job import JobSpec
from shoal.core.topology import Node, Placement, topology_of
from shoal.engine.state import State
from shoal.live.fairness import fairness_rows, job_rho
from shoal.perf.catalog import Catalog
from shoal.perf.model import ProfiledModel


def state_of(*specs: JobSpec) -> State:
    cluster = topology_of([Node("n0", "gpu", 4, "r")], {"gpu": 2.5})
    state = State(cluster, ProfiledModel(cluster, Catalog({}, {})), 0)
    state.apply_events(0.0, [JobSubmitted(0.0, spec) for spec in specs])
    return state


def spec(id: str, gpus: int, work: float | None, tenant: str, app: str | None = None) -> JobSpec:
    return JobSpec(id, 0.0, gpus, work, gpus, gpus, tenant=tenant, app=app)


def test_rho_is_one_on_the_nth_part_and_counts_the_wait() -> None:
    state = state_of(spec("a", 2, 100.0, "ann"), spec("b", 2, 100.0, "bo"), spec("unknown", 1, None, "bo"))
    state.apply_commands([Start(0, 1, Placement(((0, 2),)))])
    state.end_cycle(None)
    state.apply_events(50.0, [])
    rho = job_rho(state.freeze(), 50.0)
    alone = 100.0 * 2 / (4 / 3)  # on 4/3 GPUs each of three jobs
    assert rho[:2] == pytest.approx([(50 + 100) / alone] * 2)
    assert np.isnan(rho[2])


def test_rows_are_by_tenant_and_app_and_only_those_a_tenant_may_see() -> None:
    state = state_of(spec("a", 2, 100.0, "ann", "sweep"), spec("b", 1, None, "bo"))
    state.apply_commands([Start(0, 1, Placement(((0, 2),)))])
    rows = fairness_rows(state.freeze(), 0.0, None)
    assert [(row.tenant, row.app, row.jobs, row.held, row.dollars) for row in rows] == [
        ("ann", None, 1, 2, 5.0),
        ("ann", "sweep", 1, 2, 5.0),
        ("bo", None, 1, 0, 0.0),
    ]
    assert [(row.rho, row.worst) for row in rows] == [(1.0, 1.0), (1.0, 1.0), (None, None)]
    assert [row.tenant for row in fairness_rows(state.freeze(), 0.0, "bo")] == ["bo"]


def test_a_job_alone_has_the_whole_cluster_and_a_cluster_smaller_than_the_jobs_a_part_of_a_gpu() -> None:
    assert job_rho(state_of(spec("a", 4, 100.0, "ann")).freeze(), 0.0).tolist() == [1.0]
    many = state_of(*(spec(str(n), 1, 100.0, "ann") for n in range(8)))
    assert job_rho(many.freeze(), 0.0) == pytest.approx([0.5] * 8), "on half a GPU it would take twice as long"


def test_work_left_falls_with_time_for_jobs_that_run_alone_and_never_below_none() -> None:
    state = state_of(spec("runs", 4, 100.0, "ann"), spec("waits", 4, 100.0, "ann"))
    state.apply_commands([Start(0, 1, Placement(((0, 4),)))])
    state.end_cycle(None)
    seen = state.freeze()
    assert job_rho(seen, 40.0) == pytest.approx([(40 + 60) / 200, (40 + 100) / 200])
    assert job_rho(seen, 150.0) == pytest.approx([150 / 200, 250 / 200])


def test_rows_are_sorted_and_rounded_and_have_the_dollars_of_what_is_held() -> None:
    state = state_of(
        spec("z", 1, 100.0, "bo", "b"),
        spec("y", 1, 300.0, "bo", "a"),
        spec("x", 3, 100.0, "ann"),
        spec("w", 1, 70.0, "cy"),
    )
    state.apply_commands([Start(1, 1, Placement(((0, 1),))), Start(2, 1, Placement(((0, 3),)))])
    state.end_cycle(None)
    rows = fairness_rows(state.freeze(), 33.0, None)
    assert [(row.tenant, row.app) for row in rows] == [
        ("ann", None), ("bo", None), ("bo", "a"), ("bo", "b"), ("cy", None)
    ]  # fmt: skip
    assert [row.dollars for row in rows] == [7.5, 2.5, 2.5, 0.0, 0.0]
    assert [(row.rho, row.worst) for row in rows] == [
        (0.33, 0.33), (1.17, 1.33), (1.0, 1.0), (1.33, 1.33), (1.47, 1.47)
    ]  # fmt: skip
