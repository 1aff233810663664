"""What must hold of every run, on small simulated ones and against a plain reading of processor sharing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.topology import parse_cluster
from shoal.engine.loop import Loop
from shoal.engine.moves import StopStartPlanner
from shoal.engine.state import State
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.placement.packed import PackedPlacer
from shoal.policy.registry import parse_policy
from shoal.report.history import History, read_history
from shoal.report.metrics import job_table, summarize
from shoal.report.processor_sharing import share_equally
from shoal.report.timeline import timeline
from shoal.sim.backend import SimulatedBackend
from shoal.sim.truth import RestartCost, Truth
from shoal.store.journal import MemoryJournal
from shoal.workload.schema import Job, Workload

CLUSTER = "v100:2x2,k80:1x2"

jobs = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from([1, 2, 4]), st.integers(1, 60), st.sampled_from([None, "p", "q"])),
    min_size=1,
    max_size=12,
)


def simulated(rows: list[tuple[int, int, int, str | None]], policy: str) -> History:
    made = [Job(id=str(i), submitted=float(t), gpus=g, work=float(w), app=a) for i, (t, g, w, a) in enumerate(rows)]
    workload, topology = Workload("drawn", tuple(made)), parse_cluster(CLUSTER)
    backend = SimulatedBackend(
        Truth.of(workload.jobs, topology, catalog()), [job.spec() for job in workload.jobs], RestartCost.parse("0")
    )
    nodes = [[n.name, n.kind, n.gpus, n.rack] for n in topology.nodes]
    journal = MemoryJournal.begin({"cluster_nodes": nodes, "prices": {}})
    state = State(topology, ProfiledModel(topology, catalog()))
    Loop(backend, state, parse_policy(policy), PackedPlacer(), StopStartPlanner(), journal).run()
    return read_history(journal.raw())


@settings(max_examples=40, deadline=None)
@given(rows=jobs, policy=st.sampled_from(["fifo", "srtf", "las:quantum=7"]))
def test_figures_of_a_run_agree_with_each_other(rows: list[tuple[int, int, int, str | None]], policy: str) -> None:
    history = simulated(rows, policy)
    table = job_table(history)
    summary = summarize(history, table)
    assert summary["completed"] == len(rows)
    assert 0.0 < summary["utilization"] <= 1.0 + 1e-12
    # Without noise and restart cost nobody beats their own run time, and nothing is held in vain.
    assert (table.jct >= table.exclusive - 1e-9).all()
    assert table.gpu_seconds == pytest.approx(table.exclusive * table.gpus)
    assert table.queueing == pytest.approx(table.jct - table.exclusive, abs=1e-9)
    assert table.gpu_seconds.sum() == pytest.approx(float(history.holds.gpu_seconds.sum()))
    assert summary["utilization"] * summary["makespan"] * 6 == pytest.approx(summary["gpu_seconds"])
    assert all(np.isfinite(rho).all() and (rho > 0).all() for rho in table.rho.values())
    # Every contention is at least 1 and a fair share at most the whole cluster.
    assert all((rho <= table.jct / table.exclusive + 1e-9).all() for rho in table.rho.values())
    line = timeline(history)
    steps = np.diff(line.edges)
    assert float((line.busy * steps).sum()) == pytest.approx(summary["gpu_seconds"])
    assert float((line.queue_length * steps).sum()) == pytest.approx(float(table.queueing.sum()), abs=1e-6)
    assert float((line.live * steps).sum()) == pytest.approx(float(table.jct.sum()))


def plainly_shared(arrival: list[float], length: list[float], gang: list[int], gpus: int) -> list[float]:
    """The same by definition: between events everyone's remaining run time shrinks at their own speed."""
    left, finish, now = dict(enumerate(length)), {}, 0.0
    while left:
        live = [j for j in left if arrival[j] <= now]
        speed = {j: min(1.0, gpus / len(live) / gang[j]) for j in live}
        ends = [now + left[j] / speed[j] for j in live] + [arrival[j] for j in left if arrival[j] > now]
        until = min(ends)
        for j in live:
            left[j] -= (until - now) * speed[j]
            if left[j] <= 1e-9:
                finish[j] = until
                del left[j]
        now = until
    return [finish[j] for j in range(len(length))]


@settings(max_examples=100, deadline=None)
@given(rows=jobs, gpus=st.sampled_from([4, 7, 64]))
def test_sharing_by_clocks_equals_sharing_by_definition(
    rows: list[tuple[int, int, int, str | None]], gpus: int
) -> None:
    arrival, gang, length = ([float(row[0]) for row in rows], [row[1] for row in rows], [float(row[2]) for row in rows])
    finish = share_equally(np.array(arrival), np.array(length), np.array(gang), gpus)
    assert finish.tolist() == pytest.approx(plainly_shared(arrival, length, gang, gpus))
