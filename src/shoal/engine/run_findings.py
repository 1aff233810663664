"""Findings of runs on speeds: measurements, kinds of GPU that a job keeps crashing on, and pairs that do not fit."""

import numpy as np

from shoal.core.events import JobCrashed
from shoal.core.interfaces import LearnsOfPairs, PerfModel
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Measurement
from shoal.core.topology import Topology
from shoal.core.units import JobNumber
from shoal.engine.job_rows import JobRows

UNFIT = 2
"""Crashes in a row after which a job is tried on another kind of GPU, if it can run on one."""


def add_measurement(jobs: JobRows, topology: Topology, slot: int, rate: float) -> None:
    """Add a measurement to the job's chain unless it is there already."""
    table, placement = jobs.register.measurements, jobs.placement(slot)
    assert placement is not None
    seen = Measurement(jobs.kind[slot], jobs.held[slot], topology.locality(placement), jobs.batch[slot], rate)
    head = link = jobs.measured[slot]
    while link >= 0:
        link, known = table[link]
        if known == seen:
            return
    jobs.measured[slot] = len(table)
    table.append((head, seen))


def exclude_kind(jobs: JobRows, topology: Topology, job: JobNumber, slot: int) -> None:
    """Set the job's speed on its present kind to 0, so that it is tried on another, if it can run on any other."""
    kind, speeds = jobs.kind[slot], jobs.speeds_to_change(slot)
    fits = np.asarray(topology.installed) >= jobs.register.specs[job].gpus
    fits[kind] = False
    if kind >= 0 and (speeds[fits] > 0.0).any():
        speeds[kind] = 0.0


def after_misfit(perf: PerfModel, jobs: JobRows, topology: Topology, event: JobCrashed, slot: int) -> PerfModel:
    """Return the model, changed if the crash shows that two jobs do not fit on the same GPUs.

    A crash shows that if the job crashed while it started beside another, without blame and with all its nodes up.
    """
    placement = jobs.placement(slot)
    partner, starting = jobs.partner[slot], jobs.state[slot] == JobState.STARTING
    if event.blamed or partner < 0 or not starting or not isinstance(perf, LearnsOfPairs):
        return perf
    if placement is None or not topology.down.isdisjoint(placement.nodes):
        return perf
    specs = jobs.register.specs
    batch, other = (jobs.batch[s] or None for s in (slot, jobs.slot_of(partner)))
    return perf.parted(specs[event.job], batch, specs[partner], other)
