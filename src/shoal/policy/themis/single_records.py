"""What Themis carries of apps of one job, in columns.

An unnamed job without later phases is an app of one job for as long as it lives, unless it bids for itself. There may
be tens of thousands, so their histories and valuations are columns, by admission number, and not objects.
"""

from dataclasses import dataclass, field, fields

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int64s
from shoal.core.columns import Columns, sealed
from shoal.core.interfaces import PerfModel
from shoal.core.units import Seconds
from shoal.policy.carried_rows import match_rows
from shoal.policy.themis.locality import GUESSED
from shoal.policy.themis.rates import RateClasses

UNKNOWN = -2
"""A value of ``learned`` that is no head of a chain of measurements."""


def _ints(*shape: int) -> Int64s:
    return np.zeros(shape, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class SingleRecords:
    """By admission number (``rows``, ascending) of an app's only job.

    ``start``, ``app_seconds``, ``demand`` and ``slowdown`` (apps × levels) as in `AppHistory`. ``learned`` is the head
    of the chain of measurements that the slowdown already reflects. ``of`` is the class of rates by kind (apps ×
    kinds), found from ``basis`` (apps × 5).

    The last valuation: the class by which it was made (``valued``; −1 for none), the ``work`` then left in the job's
    unit and the ``gpu_seconds`` that takes, the seconds on all GPUs it can use (``soonest``), and the fraction of the
    work done since (``spent``).
    """

    rows: Indices
    app: Int64s
    start: Floats
    app_seconds: Floats
    demand: Int64s
    slowdown: Floats
    learned: Int64s
    of: Int64s
    basis: Int64s
    valued: Int64s
    work: Floats
    gpu_seconds: Floats
    soonest: Floats
    spent: Floats

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def new(cls, rows: Indices, app: Int64s, start: Floats, app_seconds: Floats, kinds: int) -> "SingleRecords":
        """The records of apps that have just arrived."""
        count = len(rows)
        work, gpu_seconds, soonest, spent = (np.zeros(count) for _ in range(4))
        slowdown, learned = np.tile(np.array(GUESSED), (count, 1)), np.full(count, UNKNOWN, dtype=np.int64)
        of, basis, valued = _ints(count, kinds) - 1, _ints(count, 5), _ints(count) - 1
        seen = (rows, app, start, app_seconds, _ints(count), slowdown, learned)
        return cls(*seen, of, basis, valued, work, gpu_seconds, soonest, spent)

    def at(self, which: Indices) -> "SingleRecords":
        """A copy of the records at these places."""
        return SingleRecords(*(getattr(self, column.name).take(which, axis=0) for column in fields(self)))

    def sealed(self) -> "SingleRecords":
        """Return these records, which are read-only from now on."""
        for column in fields(self):
            sealed(getattr(self, column.name))
        return self

    def joined(self, more: "SingleRecords") -> "SingleRecords":
        """Return both records as one, in order of admission."""
        if not len(self) or not len(more):
            return self if len(self) else more
        pairs = ((getattr(self, column.name), getattr(more, column.name)) for column in fields(self))
        both = SingleRecords(*map(np.concatenate, pairs))
        return both if self.rows[-1] < more.rows[0] else both.at(both.rows.argsort())


@dataclass(frozen=True, slots=True, eq=False)
class SingleLeases:
    """Leases of apps of one job: GPUs of a kind and the end of their lease, by admission number, kind and end."""

    rows: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    kind: Int64s = field(default_factory=lambda: _ints(0))
    gpus: Int64s = field(default_factory=lambda: _ints(0))
    end: Floats = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def begun(cls, columns: Columns, at: Indices, seconds: Seconds) -> "SingleLeases":
        """Leases of this length of the GPUs that jobs at these positions hold alone, since they have them."""
        at = at[(columns.held[at] > 0) & (columns.partner[at] < 0)]
        kind, gpus = columns.kind[at].astype(np.int64), columns.held[at].astype(np.int64)
        return cls(columns.rows[at], kind, gpus, columns.since[at] + seconds)

    def of(self, which: Flags | Indices) -> "SingleLeases":
        """Return only the leases at these places."""
        return SingleLeases(self.rows[which], self.kind[which], self.gpus[which], self.end[which])

    def running(self, now: Seconds, live: Indices) -> "SingleLeases":
        """The leases of live jobs (``live``, ascending) that have not ended."""
        kept = (self.end > now) & match_rows(live, self.rows)[1]
        return self if kept.all() else self.of(kept)

    def trimmed(self, parts: Indices, gpus: Int64s) -> "SingleLeases":
        """Return the leases; of those at ``parts`` (ascending) only the last to end, up to ``gpus`` by app."""
        kept, left = self.gpus.copy(), dict[int, int]()
        rows = self.rows[parts].tolist()
        for part, row, most in zip(parts.tolist()[::-1], rows[::-1], gpus.tolist()[::-1], strict=True):
            kept[part] = min(kept[part], left.get(row, most))
            left[row] = left.get(row, most) - int(kept[part])
        some = kept > 0
        return SingleLeases(self.rows[some], self.kind[some], kept[some], self.end[some])

    def joined(self, more: "SingleLeases") -> "SingleLeases":
        """Return both sets of leases as one, in order."""
        rows, kind = np.append(self.rows, more.rows), np.append(self.kind, more.kind)
        both = SingleLeases(rows, kind, np.append(self.gpus, more.gpus), np.append(self.end, more.end))
        return both.of(np.lexsort((both.end, both.kind, both.rows)))


@dataclass(frozen=True, slots=True, eq=False)
class SingleCarry:
    """The records, leases and rates of apps of one job, and what the classes of rates were found from."""

    records: SingleRecords = field(
        default_factory=lambda: SingleRecords.new(np.zeros(0, dtype=np.intp), _ints(0), np.zeros(0), np.zeros(0), 0)
    )
    leases: SingleLeases = field(default_factory=SingleLeases)
    rates: RateClasses = field(default_factory=RateClasses)
    perf: PerfModel | None = None
    capacity: tuple[int, ...] = ()
    node_size: tuple[int, ...] = ()
