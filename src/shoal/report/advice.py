"""Policies on a recorded history against what was recorded: figures, intervals and changes.

Intervals are 95 % intervals of a circular block bootstrap over days: blocks of consecutive days are drawn with
replacement until as many days are drawn as there are, and every figure is computed over the jobs that became eligible
on the drawn days. All policies and the record use the same draws, so a difference between two of them is a paired one.
Each policy is simulated once; queues are not simulated again for each draw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.core.arrays import Flags, Floats, Int64s
from shoal.core.units import DAY
from shoal.report.metrics import JobResults
from shoal.report.recorded_use import RecordedColumns

BOUND = 600.0
"""Seconds of run time below which a job counts as this long in its stretch."""

TAIL = 0.95
_DRAWS = 400
_FEWEST_TENANT_JOBS = 20
_FEWEST_UNITS = 4
_MOST_TENANTS = 60


@dataclass(frozen=True, slots=True)
class AdviceMeasure:
    """A figure of a policy: name, title and unit (``s`` or a ratio); less is better."""

    name: str
    title: str
    unit: str


MEASURES = (
    AdviceMeasure("mean_jct", "mean completion time", "s"),
    AdviceMeasure("tail_jct", "p95 completion time", "s"),
    AdviceMeasure("mean_wait", "mean wait", "s"),
    AdviceMeasure("tail_wait", "p95 wait", "s"),
    AdviceMeasure("mean_stretch", "mean stretch", "×"),
    AdviceMeasure("worst_tenant", "worst tenant's stretch", "×"),
)
"""Figures with intervals. Stretch is completion time over run time, the latter counted as at least ten minutes."""


@dataclass(frozen=True, slots=True)
class FigureInterval:
    """A figure, or a difference of two, with its 95 % interval (None with too few days)."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference is significant."""
        return self.low is not None and self.high is not None and (self.low > 0.0 or self.high < 0.0)


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """A policy, or the record: its figures and their changes; ``by_tenant`` has mean waits in seconds."""

    name: str
    figures: Mapping[str, FigureInterval]
    utilization: float
    restarts: int = 0
    unfinished: int = 0
    versus_baseline: Mapping[str, FigureInterval] = field(default_factory=dict)
    versus_record: Mapping[str, FigureInterval] = field(default_factory=dict)
    by_tenant: Mapping[str, float] = field(default_factory=dict)
    waits: Floats = field(default_factory=lambda: np.zeros(0))
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times of each job under one policy, in the order of the recorded columns; NaN where it did not finish."""

    name: str
    jct: Floats
    wait: Floats
    started: Floats
    utilization: float
    restarts: int = 0
    cpu_seconds: float = 0.0


def recorded_outcome(columns: RecordedColumns, total_gpus: int) -> Outcome:
    """The recorded times as an outcome."""
    span = float(columns.ended.max() - columns.eligible.min())
    used = float((columns.gpus * columns.run).sum())
    jct, wait = columns.ended - columns.eligible, columns.started - columns.eligible
    return Outcome("recorded", jct, wait, columns.started, used / (total_gpus * span))


def simulated_outcome(columns: RecordedColumns, table: JobResults, summary: Mapping[str, Any]) -> Outcome:
    """A simulated run, as an outcome."""
    place = {name: i for i, name in enumerate(table.id)}
    order = np.array([place[recorded.job.id] for recorded in columns.jobs])
    unfinished = ~np.isfinite(table.jct[order])
    wait = np.where(unfinished, np.nan, table.queueing[order])
    return Outcome(
        str(summary["policy"]),
        table.jct[order],
        wait,
        table.started[order],
        float(summary["utilization"] or 0.0),
        int(summary["restarts"]),
        float(summary["cpu_seconds"]),
    )


@dataclass(frozen=True, slots=True)
class Draws:
    """Bootstrap draws: ``unit`` is each job's day, ``counts`` (draws × days) how often each day was drawn."""

    unit: Int64s
    counts: Floats
    seconds: float
    block: int

    def describe(self) -> str:
        """How the intervals are made, in a sentence."""
        if not len(self.counts):
            return "No intervals: the history is too short."
        each = "days" if self.seconds == DAY else f"stretches of {self.seconds / 3600:.1f} hours"
        return (
            f"Intervals hold 95 % of {len(self.counts)} block-bootstrap draws over {self.counts.shape[1]} {each}, in "
            f"blocks of {self.block}, the same draws for every row. Each policy is simulated once; queues are not "
            "simulated again for a draw."
        )


def draw_days(eligible: Floats) -> Draws:
    """Return bootstrap draws of whole days, or of 24 equal intervals if the history is shorter than ten days."""
    span = float(eligible.max()) + 1.0
    seconds = DAY if span >= 10 * DAY else span / 24
    unit = (eligible // seconds).astype(np.int64)
    units = int(unit.max()) + 1
    if len(np.unique(unit)) < _FEWEST_UNITS:
        return Draws(unit, np.zeros((0, units)), seconds, 0)
    block = max(1, round(units ** (1 / 3)))
    rng = np.random.default_rng([0, 17])
    starts = rng.integers(units, size=(_DRAWS, -(-units // block)))
    drawn = ((starts[:, :, None] + np.arange(block)) % units).reshape(_DRAWS, -1)[:, :units]
    counts = np.zeros((_DRAWS, units))
    np.add.at(counts, (np.arange(_DRAWS)[:, None], drawn), 1.0)
    return Draws(unit, counts, seconds, block)


def _figures(outcome: Outcome, columns: RecordedColumns, kept: Flags, draws: Draws) -> dict[str, Floats]:
    """Return, by measure, 1 + draws values: the measure itself, then its value in each draw."""
    unit, tenant = draws.unit[kept], columns.tenant[kept]
    counts = np.concatenate([np.ones((1, draws.counts.shape[1])), draws.counts])
    jct, wait = outcome.jct[kept], outcome.wait[kept]
    stretch = np.maximum(jct / np.maximum(columns.run[kept], BOUND), 1.0)
    return {
        "mean_jct": _means(jct, unit, counts),
        "tail_jct": _quantiles(jct, unit, counts),
        "mean_wait": _means(wait, unit, counts),
        "tail_wait": _quantiles(wait, unit, counts),
        "mean_stretch": _means(stretch, unit, counts),
        "worst_tenant": _worst_tenant(stretch, unit, tenant, counts),
    }


def _means(values: Floats, unit: Int64s, counts: Floats) -> Floats:
    units = counts.shape[1]
    sums, numbers = np.bincount(unit, values, units), np.bincount(unit, minlength=units)
    means: Floats = counts @ sums / np.maximum(counts @ numbers, 1.0)
    return means


def _quantiles(values: Floats, unit: Int64s, counts: Floats) -> Floats:
    order = values.argsort(kind="stable")
    ranked, days = values[order], unit[order]
    found = np.empty(len(counts))
    for row, count in enumerate(counts):  # row by row: draws × jobs would not fit in memory for large histories
        weight = count[days].cumsum()
        found[row] = ranked[min(int(weight.searchsorted(TAIL * weight[-1])), len(ranked) - 1)]
    return found


def _worst_tenant(stretch: Floats, unit: Int64s, tenant: Int64s, counts: Floats) -> Floats:
    sizes = np.bincount(tenant)
    chosen = [t for t in np.argsort(-sizes).tolist()[:_MOST_TENANTS] if sizes[t] >= _FEWEST_TENANT_JOBS]
    if not chosen:
        return _means(stretch, unit, counts)
    units = counts.shape[1]
    rows = []
    for t in chosen:
        mine = tenant == t
        sums = np.bincount(unit[mine], stretch[mine], units)
        numbers = counts @ np.bincount(unit[mine], minlength=units)
        rows.append(np.where(numbers > 0, counts @ sums / np.maximum(numbers, 1.0), 1.0))
    worst: Floats = np.max(rows, axis=0)
    return worst


def _interval(values: Floats) -> FigureInterval:
    if len(values) < 2:
        return FigureInterval(float(values[0]))
    low, high = np.quantile(values[1:], (0.025, 0.975)).tolist()
    return FigureInterval(float(values[0]), low, high)


@dataclass(frozen=True, slots=True)
class Advice:
    """The record and every policy, over the jobs that finished under all of them (``compared``)."""

    record: AdviceRow
    policies: tuple[AdviceRow, ...]
    baseline: str
    best: Mapping[str, str]
    calibration: Mapping[str, Any]
    compared: int
    intervals: str
    tenants: tuple[str, ...]


def advice_of(columns: RecordedColumns, record: Outcome, outcomes: Sequence[Outcome], baseline: str) -> Advice:
    """Compare the policies' outcomes with the record and with the baseline's outcome."""
    draws = draw_days(columns.eligible)
    kept = np.isfinite(record.jct)
    for outcome in outcomes:
        kept &= np.isfinite(outcome.jct)
    figures = {o.name: _figures(o, columns, kept, draws) for o in (record, *outcomes)}
    hours = np.bincount(columns.tenant, columns.gpus * columns.run)
    tenants = [t for t in np.argsort(-hours, kind="stable").tolist() if np.any(columns.tenant[kept] == t)][:12]

    def row(outcome: Outcome) -> AdviceRow:
        mine, waits = figures[outcome.name], outcome.wait
        return AdviceRow(
            outcome.name,
            {name: _interval(values) for name, values in mine.items()},
            outcome.utilization,
            outcome.restarts,
            int((~np.isfinite(outcome.jct)).sum()),
            {} if outcome is record else {n: _interval(v - figures[baseline][n]) for n, v in mine.items()},
            {} if outcome is record else {n: _interval(v - figures[record.name][n]) for n, v in mine.items()},
            {columns.tenants[t]: float(waits[kept & (columns.tenant == t)].mean()) for t in tenants},
            waits[kept],
            outcome.cpu_seconds,
        )

    rows = tuple(map(row, outcomes))
    base = next(outcome for outcome in outcomes if outcome.name == baseline)
    return Advice(
        row(record),
        rows,
        baseline,
        _best(rows),
        _calibration(record, base, kept),
        int(kept.sum()),
        draws.describe(),
        tuple(columns.tenants[t] for t in tenants),
    )


def _best(rows: Sequence[AdviceRow]) -> dict[str, str]:
    """By measure, the policy whose interval lies below those of all others; a measure without one is absent.

    The intervals are those of the difference from the baseline, in which common variation cancels.
    """
    best: dict[str, str] = {}
    for measure in (m.name for m in MEASURES):
        changes = {row.name: row.versus_baseline[measure] for row in rows}
        first = min(changes, key=lambda name: changes[name].value)
        high = changes[first].high
        lows = [change.low for name, change in changes.items() if name != first]
        if high is not None and lows and all(low is not None and high < low for low in lows):
            best[measure] = first
    return best


def _calibration(record: Outcome, base: Outcome, kept: Flags) -> dict[str, Any]:
    """Return the differences of the simulated baseline from the record."""
    recorded, simulated = record.wait[kept], base.wait[kept]
    apart = np.abs(base.started[kept] - record.started[kept])
    ranks = np.stack([_ranks(recorded), _ranks(simulated)])
    varies = np.ptp(recorded) > 0 and np.ptp(simulated) > 0
    return {
        "recorded_mean_wait": float(recorded.mean()),
        "simulated_mean_wait": float(simulated.mean()),
        "recorded_median_wait": float(np.median(recorded)),
        "simulated_median_wait": float(np.median(simulated)),
        "started_within_10_min": float((apart <= 600.0).mean()),
        "median_start_difference": float(np.median(apart)),
        "rank_correlation": float(np.asarray(np.corrcoef(ranks))[0, 1]) if varies else None,
    }


def _ranks(values: Floats) -> Floats:
    """Ranks of values, equal ones sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (counts.cumsum() - (counts - 1) / 2.0)[inverse]
    return ranks
