"""Rank on goodput: the shorter a job is among the live jobs, the more its speed-up over a fair share counts.

Ours. Jobs are ranked by the time they have left on a fair share, and rank i has the weight of heSRPT's shares for
speed-ups like k^q. An option is worth weight × speed-up, less the cost of a restart over the time that the allocation
is likely to last. Where not every job declares its work, jobs are ranked by levels of attained service instead: a level
is four times the service of the one before, so that jobs seldom overtake each other. On a cluster of several kinds an
option is worth the time by which it brings the job's end forward (the market over kinds), since there the time left
depends on the kind. A job's declared work is doubled each time its progress passes it by the fraction ``overrun``, and
at least ``overrun`` of it counts as left, since progress is not known more precisely.

References: heSRPT (Berg et al., 2019) for the weights; Pollux (OSDI '21) and Sia (SOSP '23) for goodput by kind; the
rest is our own.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.goodput_options import OPTIONS, GoodputOptions, OptionsTuning
from shoal.policy.tuning import constant
from shoal.solve.allotment import STAY
from shoal.solve.rank_shares import rank_weights


@dataclass(frozen=True, slots=True)
class RankTuning:
    """Constants of rank on goodput."""

    shortest_left: float = constant(30.0, "seconds left below which jobs rank alike: such estimates are noise")
    overrun: float = constant(0.02, "part of its declared work past which a job's work is taken to be twice as much")
    unprofiled_left: float = constant(300.0, "seconds left of a job of which nothing was measured")
    lasting: float = constant(300.0, "seconds for which an allocation is expected to last at most")
    rank_exponent: float = constant(0.7, "exponent of speed-ups in the weights of jobs of known length")
    level_exponent: float = constant(0.5, "the same where some length is unknown: weights differ less")
    level_power: float = constant(0.5, "power of the speed-up in an option's worth where some length is unknown")
    level_restart: float = constant(0.9, "factor on an option's worth for a restart where some length is unknown")
    first_level: float = constant(600.0, "GPU-seconds of service up to which a job is on the lowest level")
    late: float = constant(2.0, "times its duration on a fair share after which a job's weight rises")
    late_on_kinds: float = constant(1.0, "the same on several kinds")
    market_power: float = constant(0.7, "power of the speed in an option's worth on several kinds")
    market_length: float = constant(0.25, "power of the length by which worth falls on several kinds")
    options: OptionsTuning = OPTIONS


TUNING = RankTuning()


@dataclass(frozen=True, slots=True)
class Weighed:
    """Weights by job, and worth by job and option."""

    weights: Floats
    worth: Floats


def weigh(snapshot: Snapshot, found: GoodputOptions, restart: Seconds, power: float) -> Weighed:
    """Weights and worth by the rule that fits the known lengths: by levels, by market over kinds, or by rank."""
    work = _remaining(snapshot)
    left = _left(found, work)
    if not np.isfinite(left).all():
        return _by_levels(snapshot, found, left)
    if len(snapshot.cluster.kinds) > 1:
        return _by_market(snapshot, found, work, left, restart)
    return _by_rank(snapshot, found, work, left, restart, power)


def _remaining(snapshot: Snapshot) -> Floats:
    """Return the remaining work in each job's own unit; infinity where it is not declared."""
    columns = snapshot.columns
    passed = np.divide(
        columns.done, (1.0 + TUNING.overrun) * columns.work, out=np.zeros(len(columns)), where=columns.work > 0
    )
    work = columns.work * 2.0 ** np.ceil(np.log2(np.maximum(passed, 1.0)))
    return np.maximum(work - columns.done, TUNING.overrun * work)


def _left(found: GoodputOptions, work: Floats) -> Floats:
    """Seconds left on a fair share; infinity where the work is not declared."""
    seconds = np.divide(work, found.fair, out=np.zeros(len(work)), where=found.fair > 0)
    guessed = ~found.known & np.isfinite(work)
    return np.where(guessed, TUNING.unprofiled_left, np.maximum(seconds, TUNING.shortest_left))


def _by_rank(
    snapshot: Snapshot, found: GoodputOptions, work: Floats, left: Floats, restart: Seconds, power: float
) -> Weighed:
    weights = rank_weights(_ranks(-left), TUNING.rank_exponent, 0.0) * _ageing(snapshot, found, work, left, TUNING.late)
    speedups = found.speedups
    lasting = np.minimum(_seconds(found, work), TUNING.lasting)
    moved = speedups * lasting / (lasting + restart)
    moved[:, STAY] = speedups[:, STAY]
    return Weighed(weights, weights[:, None] * moved**power)


def _by_market(snapshot: Snapshot, found: GoodputOptions, work: Floats, left: Floats, restart: Seconds) -> Weighed:
    weights = _ageing(snapshot, found, work, left, TUNING.late_on_kinds)
    seconds = np.maximum(_seconds(found, work), 1.0)
    soonest = seconds.min(axis=1, initial=np.inf, where=found.rates > 0)
    soonest = np.where(np.isfinite(soonest), soonest, 1.0)
    kept = 1.0 - restart / np.minimum(seconds + restart, max(TUNING.lasting, 2.0 * restart))
    kept[:, STAY] = 1.0
    worth = (soonest[:, None] / seconds * kept) ** TUNING.market_power
    return Weighed(weights, (weights * soonest**-TUNING.market_length)[:, None] * worth)


def _by_levels(snapshot: Snapshot, found: GoodputOptions, left: Floats) -> Weighed:
    """Return weights and worth by levels of attained service; a job of known length is on that length's level."""
    columns = snapshot.columns
    service = np.where(np.isfinite(left), left * found.fair_gpus, columns.attained)
    level = np.floor(np.log2(np.maximum(service, TUNING.first_level) / TUNING.first_level) / 2.0)
    weights = rank_weights(_ranks(-level), TUNING.level_exponent, 0.0)
    worth = (found.speedups * TUNING.level_restart) ** TUNING.level_power
    worth[:, STAY] = found.speedups[:, STAY] ** TUNING.level_power
    return Weighed(weights, weights[:, None] * worth)


def _ranks(key: Floats) -> Floats:
    """Return ranks from 1 for the least key; of equal jobs the last to arrive is first."""
    order = np.lexsort((-np.arange(len(key)), key))
    places = np.empty(len(key))
    places[order] = np.arange(1, len(key) + 1)
    return places


def _seconds(found: GoodputOptions, work: Floats) -> Floats:
    """Return seconds left by job and option; ``unprofiled_left`` on a fair share for a job that was never measured."""
    there = np.where(found.known, work, TUNING.unprofiled_left * found.fair)
    seconds = np.full(found.rates.shape, np.inf)
    np.divide(np.broadcast_to(there[:, None], found.rates.shape), found.rates, out=seconds, where=found.rates > 0)
    return seconds


def _ageing(snapshot: Snapshot, found: GoodputOptions, work: Floats, left: Floats, late: float) -> Floats:
    """Return the factor on the weight of a job expected to take over ``late`` times its duration on a fair share."""
    columns = snapshot.columns
    alone = np.divide(columns.done + work, found.fair, out=np.full(len(left), np.inf), where=found.fair > 0)
    alone = np.where(found.known, np.maximum(alone, TUNING.shortest_left), TUNING.unprofiled_left)
    ratio = (snapshot.now - columns.submitted + left) / alone
    return np.maximum(ratio / late, 1.0)
