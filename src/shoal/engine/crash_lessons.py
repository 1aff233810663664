"""What the state learns from a crash: kinds that a job is no longer tried on, and jobs that cannot share GPUs."""

from typing import TYPE_CHECKING

import numpy as np

from shoal.core.columns import FloatRow, IntRow
from shoal.core.events import JobCrashed
from shoal.core.interfaces import LearnsOfPairs
from shoal.core.lifecycle import JobState
from shoal.core.units import JobNumber

if TYPE_CHECKING:
    from shoal.engine.state import State

UNFIT = 2
"""Crashes in a row after which a job is tried on another kind of GPU, if it can run on one."""

_STARTING = int(JobState.STARTING)


def exclude_kind(state: "State", job: JobNumber, slot: int) -> None:
    """Set the job's speed on the kind it holds to 0, so that it is tried on another, if it can run on any other."""
    kind = state._jobs.ints.item(IntRow.KIND, slot)
    speeds = state._jobs.floats[FloatRow.SPEEDS :, slot]
    fits = np.asarray(state.topology.installed) >= state.register.specs[job].gpus
    fits[kind] = False
    if kind >= 0 and (speeds[fits] > 0.0).any():
        speeds[kind] = 0.0


def learn_misfit(state: "State", event: JobCrashed, slot: int) -> None:
    """Update the model if the crash shows that two jobs do not fit on the same GPUs.

    It does if a job ends while it starts beside another, without blame and with all its nodes up.
    """
    ints, placement = state._jobs.ints, state._jobs.placement(slot)
    partner, now = ints.item(IntRow.PARTNER, slot), ints.item(IntRow.STATE, slot)
    if event.blamed or partner < 0 or now != _STARTING or not isinstance(state.perf, LearnsOfPairs):
        return
    if placement is not None and state.topology.down.isdisjoint(placement.nodes):
        specs = state.register.specs
        batch, other = (ints.item(IntRow.BATCH, s) or None for s in (slot, state._jobs.slot_of(partner)))
        state.perf = state.perf.parted(specs[event.job], batch, specs[partner], other)
