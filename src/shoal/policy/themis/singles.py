"""The apps of one job at a decision: what the carry has of them, brought up to now, and their figures as bidders.

The columns have the same numbers as `Apps` and `AppAgent` would have: sums and quotients are in the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int64s
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.perf.app_valuation import useful_range
from shoal.policy.carried_rows import match_rows
from shoal.policy.themis.carry import ThemisCarry
from shoal.policy.themis.locality import Slowdown
from shoal.policy.themis.rates import RateClasses
from shoal.policy.themis.single_records import UNKNOWN, SingleCarry, SingleRecords

_SPARE = 1000
"""Classes of rates beyond two for each app and kind, after which those that no app has any more are dropped."""


def single_positions(snapshot: Snapshot, before: ThemisCarry) -> Indices:
    """The positions of unnamed jobs without later phases or a bid: those that were so before, and new ones."""
    rows, specs = snapshot.columns.rows, snapshot.register.specs
    single = match_rows(before.singles.records.rows, rows)[1]
    for i in np.flatnonzero(~match_rows(before.rows, rows)[1] & ~single).tolist():
        spec = specs[int(rows[i])]
        single[i] = spec.app is None and not spec.ahead
    if snapshot.bids:
        single &= ~np.isin(snapshot.columns.app, list(snapshot.bids))
    return np.flatnonzero(single)


def records_now(snapshot: Snapshot, before: ThemisCarry, at: Indices, live: int, app_seconds: float) -> SingleRecords:
    """The records of the jobs at these positions, with the work done since the last decision.

    Before an app's first snapshot as many live apps as now (``live``) are assumed; ``app_seconds`` is the integral of
    the number of live apps.
    """
    columns, past = snapshot.columns, before.singles.records
    rows = columns.rows[at]
    place, known = match_rows(past.rows, rows)
    new = at[~known]
    start = columns.submitted[new]
    contention = app_seconds - live * (snapshot.now - start)
    kinds = past.of.shape[1] if len(past) else len(snapshot.cluster.kinds)
    fresh = SingleRecords.new(columns.rows[new], columns.app[new].astype(np.int64), start, contention, kinds)
    records = past.at(place[known]).joined(fresh)
    _advance(records, before.singles.rates, columns.held[at].astype(np.int64), snapshot.now - before.at)
    np.maximum(records.demand, columns.max_gpus[at], out=records.demand)
    return records


def _advance(records: SingleRecords, rates: RateClasses, held: Int64s, seconds: Seconds) -> None:
    """Add the fraction of each valued work that was done in these seconds on the GPUs held."""
    runs = np.flatnonzero((held > 0) & (records.valued >= 0)) if seconds else np.zeros(0, dtype=np.intp)
    of = records.valued[runs]
    able = held[runs] >= rates.least[of]
    runs, of = runs[able], of[able]
    gpus = np.minimum(held[runs], rates.most[of])
    records.spent[runs] += seconds / rates.seconds(of, gpus, records.work[runs], records.gpu_seconds[runs])


def classed(
    snapshot: Snapshot, before: SingleCarry, at: Indices, records: SingleRecords
) -> tuple[SingleRecords, RateClasses]:
    """The records with the classes of rates of every job and kind, and the table of these classes."""
    columns, cluster = snapshot.columns, snapshot.cluster
    parts = (columns.batch_size, columns.measured, columns.gpus, columns.min_gpus, columns.max_gpus)
    basis = np.stack([part[at] for part in parts], axis=1).astype(np.int64)
    changed = (basis != records.basis).any(axis=1)
    if before.perf is not snapshot.perf or before.capacity != cluster.capacity:
        changed = np.ones(len(at), dtype=bool)
        records = replace(records, of=np.full((len(at), len(cluster.kinds)), -1, dtype=np.int64))
    records.learned[changed | (before.node_size != cluster.node_size)] = UNKNOWN
    rates = before.rates
    if len(rates) > 2 * records.of.size + _SPARE:
        used = np.unique(np.append(records.of, records.valued))
        used = used[used >= 0]
        rates = rates.only(used)
        for of in (records.of, records.valued):
            of[:] = np.where(of < 0, of, used.searchsorted(of))
    found = dict(rates.known) if changed.any() else {}
    for n in np.flatnonzero(changed).tolist():
        for kind in range(len(cluster.kinds)):
            key = _rates_of(snapshot, int(at[n]), kind)
            records.of[n, kind] = found.setdefault(key, len(found))
    return replace(records, basis=basis), rates.extended(found) if found else rates


def _rates_of(snapshot: Snapshot, i: int, kind: int) -> tuple[bytes, int, int]:
    """A job's rates on a kind up to the most GPUs it can use there, and the fewest and the most."""
    columns, capacity = snapshot.columns, snapshot.cluster.capacity[kind]
    curve = snapshot.perf.curve(snapshot.jobs.at(i), snapshot.cluster.kinds[kind])
    least, most, gang = columns.min_gpus.item(i), columns.max_gpus.item(i), columns.gpus.item(i)
    if least == most:
        able = columns.speeds.item(i, kind) > 0 and gang <= capacity
        least, most = (gang, gang) if able else (0, 0)
    else:
        least, most = useful_range(curve[: min(most, capacity) + 1].tobytes(), least)
    return curve[: most + 1].tobytes(), least, most


@dataclass(eq=False)
class Singles:
    """The apps of one job of a snapshot, in columns: positions of the jobs (``at``, ascending) and their figures.

    ``heads`` are those of the chains of measurements. ``elapsed`` is seconds since the start, ``ideal`` the seconds on
    the app's own share of the cluster, ``left`` the work left of the job in its unit; ``slowdown`` is that of the last
    decision, from which the measurements change it.
    """

    at: Indices
    records: SingleRecords
    rates: RateClasses
    held: Int64s
    heads: Int64s
    elapsed: Floats
    ideal: Floats
    left: Floats
    slowdown: Floats

    def __len__(self) -> int:
        return len(self.at)

    @cached_property
    def _by_app(self) -> Indices:
        return self.records.app.argsort()

    def places(self, apps: Sequence[int]) -> tuple[Indices, Flags]:
        """The places of these apps, and whether they are apps of one job; the place of any other app is meaningless."""
        if not len(self):
            return np.zeros(len(apps), dtype=np.intp), np.zeros(len(apps), dtype=np.bool_)
        numbers = np.array(apps, dtype=np.int64)
        at = np.minimum(self.records.app.searchsorted(numbers, sorter=self._by_app), len(self) - 1)
        found = self._by_app[at]
        return found, self.records.app[found] == numbers

    def value(self, which: Indices, kind: int, learn: Callable[[Sequence[int], Slowdown], Slowdown]) -> None:
        """Value these apps anew on a kind, by the work left of their jobs; measurements change their slowdown."""
        records, of, work = self.records, self.records.of[which, kind], self.left[which]
        total = self.rates.gpu_seconds(of, work)
        records.valued[which], records.work[which], records.gpu_seconds[which] = of, work, total
        records.soonest[which] = self.rates.seconds(of, self.rates.most[of], work, total)
        records.spent[which] = 0.0
        records.slowdown[which] = self.slowdown[which]
        for n in which[(self.held[which] > 1) & (records.learned[which] != self.heads[which])].tolist():
            near, machine, rack, cluster = self.slowdown[n].tolist()
            found = learn([int(self.at[n])], (near, machine, rack, cluster))
            records.slowdown[n] = found
            if found == (near, machine, rack, cluster):
                records.learned[n] = self.heads[n]

    def rho(self, which: Indices, wait: Seconds, kept: Int64s) -> Floats:
        """Return the least ρ they can still reach: ``wait`` seconds on ``kept`` GPUs, then on all they can use."""
        records = self.records
        of, spent = records.valued[which], records.spent[which]
        works = np.flatnonzero(kept >= self.rates.least[of]) if wait else np.zeros(0, dtype=np.intp)
        part, one = which[works], of[works]
        gpus = np.minimum(kept[works], self.rates.most[one])
        spent[works] += wait / self.rates.seconds(one, gpus, records.work[part], records.gpu_seconds[part])
        soonest = records.soonest[which] * np.maximum(1.0 - spent, 0.0)
        found: Floats = (self.elapsed[which] + wait + soonest) / self.ideal[which]
        return found

    def rho_on(self, which: Indices, gpus: Int64s, slower: Floats) -> Floats:
        """ρ with these numbers of GPUs, ``slower`` times slower than on as few machines as possible."""
        records = self.records
        left = self.rates.seconds(records.valued[which], gpus, records.work[which], records.gpu_seconds[which])
        found: Floats = (self.elapsed[which] + left * slower) / self.ideal[which]
        return found
