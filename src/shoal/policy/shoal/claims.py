"""Claims of jobs: the work left, the time left on an even share, the lateness, and the weight that follows.

With s the even share, GPUs over claimants (a claimant is a job, or the trials that an app submitted together), and by
job j:

- f_j: its best rate within s GPUs, averaged over the kinds it can use; a gang wider than s has its rate in proportion,
  as if it took turns. E_j = work left / f_j: the time it has left on the even share. Trials of one app have the sum of
  theirs: the app's own.
- place_j: the number of jobs that have at least as long left, itself included. Of a running job eight tenths of the
  time left count, so that jobs of nearly the same length do not take turns.
- late_j: the time from its arrival to its end if it ran at its fastest from now on, over the time that all its work
  takes on its promised share; at least 1. So delay it can still avoid does not count. The promised share is s by
  declared weight, divided among the trials of an app, but no less than if each were a claimant of its own; a tenant
  with guaranteed GPUs is promised at least these. A job of unknown length that never ran counts as one of 30 s.
- weight_j = declared weight · late_j · max(E_j, 30 s)^(−length) · place_j^places · urgency_j / f_j.

The weight is for each unit of rate, so a rigid gang bids for a GPU by E_j alone: the least service first (SRSF).
Lateness has no limit, so every job's bid comes to exceed those of newcomers while the cluster is not overloaded for
ever. A job that would end 20 times as late as on its promised share is overdue. Overdue jobs bid more than all others,
and the one that has waited longest bids most. So every job ends, whatever arrives.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.core.snapshot import Snapshot
from shoal.perf.regime_forecast import forecast
from shoal.policy.shoal.option_list import OptionList
from shoal.policy.shoal.rate_table import IN_APP, SCRIPTED, RateTable
from shoal.policy.shoal.tuning import TUNING
from shoal.solve.allotment import STAY


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """By job its rate on its fastest option, on the even share and on its promised share; 0 where it cannot run.

    ``area``: the least GPU-seconds for a unit of its work. ``measured``: whether its rates are more than a guess.
    ``claimants``: the number of each job's claimant; None if each job is its own.
    """

    fastest: Floats
    even: Floats
    promised: Floats
    area: Floats
    measured: Flags | bool
    claimants: Indices | None


@dataclass(frozen=True, slots=True, eq=False)
class TableProspects:
    """Prospects by a table of rates, and the values by which a later snapshot checks which are still valid.

    ``values`` are ``fastest``, ``even``, ``promised`` and ``area`` × jobs; ``shares`` the even share and, by job, the
    promised one (None if all are even); ``capacity`` is by kind. ``whole`` is False where options were left out.
    """

    values: Floats
    shares: tuple[float, Floats | None]
    capacity: tuple[int, ...]
    whole: bool
    known: Flags
    claimants: Indices | None

    @property
    def prospects(self) -> Prospects:
        """The prospects themselves."""
        fastest, even, promised, area = self.values
        return Prospects(fastest, even, promised, area, self.known, self.claimants)

    def valid(self, origin: Indices, shares: tuple[float, Floats | None], capacity: tuple[int, ...]) -> Flags:
        """Return whether the values of the jobs at positions ``origin`` here (−1: none) are valid for these shares."""
        even, promised = shares
        before, before_promised = self.shares
        if not self.whole or before != even or self.capacity != capacity:
            return np.zeros(len(origin), dtype=bool)
        kept: Flags = origin >= 0
        if promised is not None and before_promised is not None:
            kept &= before_promised[origin] == promised
            return kept
        return kept if promised is before_promised else np.zeros(len(origin), dtype=bool)


@dataclass(frozen=True, slots=True, eq=False)
class MarketClaims:
    """By job: work left, least seconds left, lateness, weight, whether it is overdue, and its promised rate."""

    left: Floats
    soonest: Floats
    late: Floats
    weights: Floats
    """The worth of a unit of rate."""
    overdue: Flags
    promised: Floats


def claims(snapshot: Snapshot, traits: Int32s, ahead: Prospects, *, length: float, makespan: float) -> MarketClaims:
    """Return the claims of all jobs; ``makespan`` is the policy's option: how much the makespan counts, from 0 to 1."""
    left, known, longer = _work_left(snapshot, traits, ahead)
    able = ahead.fastest > 0
    soonest = np.divide(left, ahead.fastest, out=np.ones(len(left)), where=able)
    even = np.where(ahead.even > 0, ahead.even, 1.0)
    evenly: Floats = left / even
    if ahead.claimants is not None:
        evenly = np.bincount(ahead.claimants, weights=evenly).astype(np.float64)[ahead.claimants]
    late = _lateness(snapshot, left, soonest, ahead.promised, known)
    power = np.where(known, length, TUNING.unknown_length)
    places = _places(np.where(snapshot.columns.held > 0, TUNING.nearer * evenly, evenly))
    lengths = np.maximum(evenly, TUNING.shortest) ** -power
    weights = snapshot.columns.weight * late * lengths * places**TUNING.places / even
    weights = weights * _urgency(snapshot, soonest)
    if makespan > 0.0:
        bids = weights / np.where(ahead.area > 0, ahead.area, 1.0)
        end = max(float(left @ ahead.area) / max(snapshot.cluster.total_gpus, 1), _longest(soonest, able))
        weights = weights * _pressed(bids, soonest, soonest * longer, end, able, makespan)
    overdue = _overdue(snapshot, left, ahead.promised)
    if overdue.any():
        area, waited = np.where(ahead.area > 0, ahead.area, 1.0), snapshot.now - snapshot.columns.submitted
        first = float((weights / area).max()) * area * (2.0 + waited / float(waited.max()))
        weights = np.where(overdue, first, weights)
    return MarketClaims(left, soonest, late, weights, overdue, ahead.promised)


def typical(values: Floats) -> float:
    """The upper median; 0 without values."""
    return float(np.partition(values, len(values) // 2)[len(values) // 2]) if len(values) else 0.0


def _places(evenly: Floats) -> Floats:
    """Return, by job, the number of jobs with at least as long left; of equally long jobs the first has the highest."""
    places = np.empty(len(evenly))
    places[len(evenly) - 1 - np.argsort(-evenly[::-1], kind="stable")] = np.arange(1, len(evenly) + 1)
    return places


# ── rates ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def rigid_prospects(snapshot: Snapshot, traits: Int32s) -> Prospects:
    """Prospects of rigid jobs on one kind."""
    columns = snapshot.columns
    speed, gpus = columns.best_speed, columns.gpus
    claimants = _claimants(snapshot, traits)
    even, promised = _shares(snapshot, claimants)
    area = np.divide(gpus, speed, out=np.zeros(len(speed)), where=speed > 0)
    evenly = speed * np.minimum(1.0, even / gpus)
    promise = evenly if promised is None else speed * np.minimum(1.0, promised / gpus)
    return Prospects(speed, evenly, promise, area, True, claimants)


def table_prospects(
    snapshot: Snapshot, table: RateTable, options: OptionList, before: TableProspects | None = None
) -> TableProspects:
    """Return prospects by the rates of all options on the present cluster, kept for jobs with unchanged options."""
    claimants, capacity = _claimants(snapshot, table.traits), snapshot.cluster.capacity
    shares, whole = _shares(snapshot, claimants), options is table.options
    same = before.valid(table.origin, shares, capacity) if before is not None and whole else None
    if before is None or same is None or not same.any():
        values = _values(snapshot, options, np.arange(len(table.rows)), shares)
    else:
        values, new = before.values[:, table.origin], (~same).nonzero()[0]
        if len(new):
            values[:, new] = _values(snapshot, options.of_jobs(new), new, shares)
    return TableProspects(values, shares, capacity, whole, table.known, claimants)


def _values(snapshot: Snapshot, options: OptionList, jobs: Indices, shares: tuple[float, Floats | None]) -> Floats:
    """Return the rows of `TableProspects.values` for these jobs, whose options these are."""
    fewest = snapshot.columns.min_gpus[jobs].astype(np.float64)
    even, promised = shares
    evenly = _rates_within(snapshot, options, fewest, np.full(len(jobs), even))
    promise = evenly if promised is None else _rates_within(snapshot, options, fewest, promised[jobs])
    # The least of GPUs over rate is minus the most of its negative.
    area = -options.top(-(options.gpus / options.rate), none=0.0)
    return np.stack([options.top(options.rate, none=0.0), evenly, promise, area])


def _rates_within(snapshot: Snapshot, options: OptionList, fewest: Floats, share: Floats) -> Floats:
    """Return, by job, its best rate within its share: the mean over the kinds it can use, weighted by their GPUs."""
    within = (options.gpus <= np.maximum(share, fewest)[options.job]) & (options.column != STAY)
    total, weight = np.zeros(len(fewest)), np.zeros(len(fewest))
    for k, gpus in enumerate(snapshot.cluster.capacity):
        here = options.top(np.where(within & (options.kind == k), options.rate, 0.0), none=0.0)
        total += gpus * here
        weight += gpus * (here > 0)
    turns = np.minimum(1.0, share / np.maximum(fewest, 1.0))
    average: Floats = np.divide(total * turns, weight, out=np.zeros(len(fewest)), where=weight > 0)
    return average


def _shares(snapshot: Snapshot, together: Indices | None) -> tuple[float, Floats | None]:
    """Return the even share of a claimant, in whole GPUs, and each job's promised share; None if all are even."""
    columns, total = snapshot.columns, float(snapshot.cluster.total_gpus)
    weight = columns.weight
    count = len(columns) if together is None else int(together.max()) + 1
    even = max(float(np.ceil(total / max(count, 1))), 1.0)
    guaranteed = {tenant: quota.guaranteed for tenant, quota in snapshot.quotas.items() if quota.guaranteed}
    if together is None and not guaranteed and (weight == weight[:1]).all():
        return even, None
    share = np.ceil(total * weight / max(float(weight.sum()), 1e-300))
    if together is not None:
        divided = weight / np.bincount(together)[together]
        share = np.maximum(share, np.ceil(total * divided / max(float(divided.sum()), 1e-300)))
    for at, tenant in enumerate(snapshot.register.tenants):
        if tenant in guaranteed:
            own = columns.tenant == at
            share = np.where(own, np.maximum(share, guaranteed[tenant] / max(int(own.sum()), 1)), share)
    return even, share


def _claimants(snapshot: Snapshot, traits: Int32s) -> Indices | None:
    """Return the number of each job's claimant: trials submitted together are one. None if each job is its own."""
    if not (traits & IN_APP).any():
        return None
    columns = snapshot.columns
    order = np.lexsort((columns.submitted, columns.app))
    app, submitted = columns.app[order], columns.submitted[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (app[1:] != app[:-1]) | (submitted[1:] != submitted[:-1])
    if first.all():
        return None
    claimants = np.empty(len(order), dtype=np.intp)
    claimants[order] = np.cumsum(first) - 1
    return claimants


# ── lengths ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _work_left(snapshot: Snapshot, traits: Int32s, ahead: Prospects) -> tuple[Floats, Flags, Floats]:
    """Return the work left by job, in its own unit; whether it was declared; by what factor it may take longer.

    A job's declared work is doubled each time its progress passes it by ``overrun``. A job that declares none is
    guessed to have as much left as it has done, and ``unknown_ahead`` seconds on the even share besides; where earlier
    runs like it ended, the guess is a geometric mean of that and of their median. A job whose script changes its batch
    size has the work that its forecast seconds would do at its present speed, and may take as long as at the slowest
    rate ahead. A job whose batch size may be adapted has ``unmeasured`` seconds on the even share until its agent has
    reported.
    """
    columns = snapshot.columns
    work, done = columns.work, columns.done
    known: Flags = np.isfinite(work)
    if (done > work).any():
        passed = np.divide(done, (1.0 + TUNING.overrun) * work, out=np.zeros(len(work)), where=work > 0)
        work = work * 2.0 ** np.ceil(np.log2(np.maximum(passed, 1.0)))
    if known.all():
        left = np.maximum(work - done, TUNING.overrun * work)
    else:
        left = np.where(known, np.maximum(work - done, np.where(known, TUNING.overrun * work, 0.0)), 0.0)
        predicted = snapshot.predicted_left.median
        again = done + TUNING.unknown_ahead * ahead.even
        guess = np.where(np.isnan(predicted), again, again ** (1.0 - TUNING.trust) * predicted**TUNING.trust)
        left = np.where(known, left, guess)
    if ahead.measured is not True:  # its rate is a number of GPUs, not in the unit of its work
        left = np.where(ahead.measured, left, TUNING.unmeasured * ahead.even)
    scripted = np.flatnonzero(traits & SCRIPTED).tolist()
    longer = np.ones(len(left)) if scripted else np.ones(1)
    for i in scripted:
        regimes = forecast(snapshot, snapshot.jobs.at(i))
        if known[i] and 0 < regimes.seconds < np.inf:
            left[i] = regimes.seconds * columns.best_speed[i]
            longer[i] = min(regimes.pessimistic / regimes.seconds, TUNING.longer)
    return np.maximum(left, 1e-9), known, longer


# ── lateness, deadlines, the makespan ─────────────────────────────────────────────────────────────────────────────


def _lateness(snapshot: Snapshot, left: Floats, soonest: Floats, promised: Floats, known: Flags) -> Floats:
    columns = snapshot.columns
    pace = np.where(promised > 0, promised, 1.0)
    if not known.all():  # one that never ran may be short, and would wait too long if it counted like others
        shorter = np.where(known | (columns.starts > 0), 1.0, TUNING.shortest * pace / left)
        left, soonest = left * shorter, soonest * shorter
    total = np.maximum((columns.done + left) / pace, TUNING.shortest)
    return np.maximum((snapshot.now - columns.submitted + soonest) / total, 1.0)


def _overdue(snapshot: Snapshot, left: Floats, promised: Floats) -> Flags:
    """Return which jobs would end ``overdue`` times as late as on their promised share.

    They bid more than all others; the one that has waited longest bids most. Under an overload without end all waiting
    jobs become overdue, and are then served in order of arrival.
    """
    waited, able = snapshot.now - snapshot.columns.submitted, promised > 0
    pace = np.where(able, promised, 1.0)
    total = np.maximum((snapshot.columns.done + left) / pace, TUNING.overdue_least / TUNING.overdue)
    overdue: Flags = able & (waited + left / pace > TUNING.overdue * total)
    return overdue


def _urgency(snapshot: Snapshot, soonest: Floats) -> Floats | float:
    """Return the factor on the weight of a job with a deadline it can still meet: 1 over its slack, as a fraction."""
    deadline = snapshot.columns.deadline
    if not np.isfinite(deadline).any():
        return 1.0
    needed = soonest / np.maximum(deadline - snapshot.now, 1e-9)
    return np.where((deadline > snapshot.now) & (needed <= 1.0), 1.0 / (1.0 + TUNING.spare - needed), 1.0)


def _longest(soonest: Floats, able: Flags) -> float:
    return float(soonest.max(where=able, initial=0.0))


def _pressed(bids: Floats, soonest: Floats, slowest: Floats, end: float, able: Flags, knob: float) -> Floats | float:
    """Return the factor by which jobs that would delay the makespan bid more.

    ``bids`` are by job for each GPU. The makespan is the later of the longest job's end and the end of all work on all
    GPUs. With ``knob`` 0 a job makes its own bid, with 1 more than the highest bid, and in between a geometric mean of
    both.
    """
    pressing = able & (slowest + TUNING.margin > end)
    if not pressing.any():
        return 1.0
    top = float(bids.max(where=able, initial=0.0)) * soonest / max(_longest(soonest, able), 1e-9)
    raised = np.divide(top, bids, out=np.ones(len(bids)), where=bids > 0)
    return np.where(pressing, np.maximum(raised, 1.0) ** knob, 1.0)
