"""Gavel's share problems for generated jobs, and the progress that shares give them."""

from collections.abc import Sequence

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.events import JobSubmitted
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.engine.state import State
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.policy.gavel.problem import ShareProblem
from shoal.policy.gavel.share_update import problem_of
from shoal.workload.schema import Job

PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}
"""Dollars per GPU-hour that Google Cloud listed when the paper was published."""


def snapshot_of(jobs: Sequence[Job], cluster: str) -> Snapshot:
    """A policy's snapshot in which all these jobs have been submitted and none has run."""
    topology = parse_cluster(cluster, prices=PRICES)
    state = State(topology, ProfiledModel(topology, catalog()), 0)
    state.apply_events(0.0, [JobSubmitted(0.0, job.spec()) for job in jobs])
    return state.freeze()


def problem_for(jobs: Sequence[Job], cluster: str, *, aware: bool = True) -> ShareProblem:
    """The problem of jobs that can all run on this cluster; speeds are the catalogue's."""
    snapshot = snapshot_of(jobs, cluster)
    return problem_of(snapshot, np.flatnonzero(snapshot.possible), aware=aware)


def levels(problem: ShareProblem, alone: Floats) -> Floats:
    """By job: its throughput over that with its time spread evenly over all GPUs; nothing is shared."""
    found: Floats = (problem.speeds * alone).sum(axis=1) / problem.equal_speed
    return found
