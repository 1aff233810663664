"""Rank on goodput: the shorter a job is among those there, the more its speed-up over a fair share counts.

Ours. Jobs are ranked by the time they have left on a fair share, and rank i weighs what heSRPT's shares come to for
speed-ups like k^q. An option is worth weight × speed-up, less what a restart costs over the time the allocation is
likely to last. Where not every job declares its work, they are ranked by levels of attained service instead: four times
the service is a level, so that jobs do not pass each other all the time. On a cluster of several kinds an option is
worth what it brings the job's end forward, the market over kinds, since there time left depends on the kind.

References: heSRPT (Berg et al., 2019) for the weights; Pollux (OSDI '21) and Sia (SOSP '23) for goodput by kind; the
rest is this house's.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.goodput_options import Prospects
from shoal.solve.allotment import STAY
from shoal.solve.rank_shares import rank_weights

SHORTEST_LEFT: Seconds = 30.0
"""Jobs with less left than this rank alike: estimates of so little are noise."""

OVERRUN = 0.02
"""A job this much past its declared work, as a fraction of it, declared too little: its work is taken to be twice that,
and so on. Before that it is taken to have no less left than this, since progress is known only so well."""

UNPROFILED_LEFT: Seconds = 300.0
"""What a job of which nothing was measured is taken to have left."""

LASTING: Seconds = 300.0
"""An allocation is not counted on for longer: others come and go."""

RANK_EXPONENT = 0.7
LEVEL_EXPONENT, LEVEL_POWER, LEVEL_RESTART = 0.5, 0.5, 0.9
"""For jobs of unknown length: weights that differ less, worth that saturates, and what a restart leaves of it."""

FIRST_LEVEL = 600.0
"""GPU-seconds of service up to which jobs are on the lowest level."""

LATE, LATE_ON_KINDS = 2.0, 1.0
"""How many times longer than on a fair share all along a job may be expected to take before it weighs more for it."""

MARKET_POWER, MARKET_LENGTH = 0.7, 0.25
"""On several kinds: how worth saturates in speed, and how it falls with length."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """By job its weight, and by job and option what it is worth."""

    weights: Floats
    worth: Floats


def weighed(snapshot: Snapshot, found: Prospects, restart: Seconds, power: float) -> Weighed:
    """Every option at its worth, by the rule that fits what is known."""
    work = _remaining(snapshot)
    left = _left(found, work)
    if not np.isfinite(left).all():
        return _by_levels(snapshot, found, left)
    if len(snapshot.cluster.kinds) > 1:
        return _by_market(snapshot, found, work, left, restart)
    return _by_rank(snapshot, found, work, left, restart, power)


def _remaining(snapshot: Snapshot) -> Floats:
    """Work left, in the job's own unit; infinity where it is not declared."""
    columns = snapshot.columns
    passed = np.divide(columns.done, (1.0 + OVERRUN) * columns.work, out=np.zeros(len(columns)), where=columns.work > 0)
    work = columns.work * 2.0 ** np.ceil(np.log2(np.maximum(passed, 1.0)))
    return np.maximum(work - columns.done, OVERRUN * work)


def _left(found: Prospects, work: Floats) -> Floats:
    """Seconds left on a fair share; infinity where the work is not declared."""
    seconds = np.divide(work, found.fair, out=np.zeros(len(work)), where=found.fair > 0)
    guessed = ~found.known & np.isfinite(work)
    return np.where(guessed, UNPROFILED_LEFT, np.maximum(seconds, SHORTEST_LEFT))


def _by_rank(
    snapshot: Snapshot, found: Prospects, work: Floats, left: Floats, restart: Seconds, power: float
) -> Weighed:
    weights = rank_weights(_places(-left), RANK_EXPONENT, 0.0) * _ageing(snapshot, found, work, left, LATE)
    speedups = found.speedups
    lasting = np.minimum(_seconds(found, work), LASTING)
    moved = speedups * lasting / (lasting + restart)
    moved[:, STAY] = speedups[:, STAY]
    return Weighed(weights, weights[:, None] * moved**power)


def _by_market(snapshot: Snapshot, found: Prospects, work: Floats, left: Floats, restart: Seconds) -> Weighed:
    weights = _ageing(snapshot, found, work, left, LATE_ON_KINDS)
    seconds = np.maximum(_seconds(found, work), 1.0)
    soonest = seconds.min(axis=1, initial=np.inf, where=found.rates > 0)
    soonest = np.where(np.isfinite(soonest), soonest, 1.0)
    kept = 1.0 - restart / np.minimum(seconds + restart, max(LASTING, 2.0 * restart))
    kept[:, STAY] = 1.0
    worth = (soonest[:, None] / seconds * kept) ** MARKET_POWER
    return Weighed(weights, (weights * soonest**-MARKET_LENGTH)[:, None] * worth)


def _by_levels(snapshot: Snapshot, found: Prospects, left: Floats) -> Weighed:
    """By attained service; a job whose length is known stands on the level of that length."""
    columns = snapshot.columns
    service = np.where(np.isfinite(left), left * found.fair_gpus, columns.attained)
    level = np.floor(np.log2(np.maximum(service, FIRST_LEVEL) / FIRST_LEVEL) / 2.0)
    weights = rank_weights(_places(-level), LEVEL_EXPONENT, 0.0)
    worth = (found.speedups * LEVEL_RESTART) ** LEVEL_POWER
    worth[:, STAY] = found.speedups[:, STAY] ** LEVEL_POWER
    return Weighed(weights, weights[:, None] * worth)


def _places(key: Floats) -> Floats:
    """Places from 1 for the least key; of equals the last to come is first."""
    order = np.lexsort((-np.arange(len(key)), key))
    places = np.empty(len(key))
    places[order] = np.arange(1, len(key) + 1)
    return places


def _seconds(found: Prospects, work: Floats) -> Floats:
    """By job and option: seconds left there; what an unprofiled job has left is what every such job has."""
    there = np.where(found.known, work, UNPROFILED_LEFT * found.fair)
    seconds = np.full(found.rates.shape, np.inf)
    np.divide(np.broadcast_to(there[:, None], found.rates.shape), found.rates, out=seconds, where=found.rates > 0)
    return seconds


def _ageing(snapshot: Snapshot, found: Prospects, work: Floats, left: Floats, late: float) -> Floats:
    """A factor on the weight of jobs that will take more than ``late`` times what a fair share all along would have."""
    columns = snapshot.columns
    alone = np.divide(columns.done + work, found.fair, out=np.full(len(left), np.inf), where=found.fair > 0)
    alone = np.where(found.known, np.maximum(alone, SHORTEST_LEFT), UNPROFILED_LEFT)
    ratio = (snapshot.now - columns.submitted + left) / alone
    return np.maximum(ratio / late, 1.0)
