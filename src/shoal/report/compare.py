"""Policies side by side on one workload and cluster, and which differences are significant.

Differences are paired: by seed where two policies ran on two or more common seeds (Student's t interval over the seeds'
differences), else by job within the one common seed (a seeded bootstrap over jobs that both completed; for figures that
are means or quantiles over jobs). A difference is significant if its interval excludes 0. A single run gives no
interval for a figure that is one number per run, such as the makespan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, sqrt
from statistics import stdev
from typing import Any

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.core.errors import InputError, nearest
from shoal.report.files import StoredRun
from shoal.report.metrics import UNFAIR_ABOVE, JobResults, Summary, unfair

CONFIDENCE = 0.95
"""Confidence of every interval here."""

NO_DIFFERENCE, NOT_SIGNIFICANT, ONE_RUN = "no difference", "not significant", "one run"
"""Verdicts beside ``better`` and ``worse``: equal in every pair; the interval covers 0; there is no interval."""

_APART = ("constants", "epoch", "opened", "lease", "away", "steadfast")
"""Values of a journal's header that are no settings of a comparison."""
_RESAMPLES = 2000
_MOST_DRAWS = 20_000_000
_FEWEST_RESAMPLES = 200
_CHUNK = 50


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure to compare: its name in tables, its unit, the better direction (−1: lower, 1: higher), how to read it.

    ``per_job`` gives each job's value and ``statistic`` the figure from rows of resampled values; None if the figure is
    not one over jobs.
    """

    name: str
    title: str
    unit: str
    better: int
    of: Callable[[Summary], float | None]
    per_job: Callable[[JobResults], Floats] | None = None
    statistic: Callable[[Floats], Floats] | None = None


def _jct(table: JobResults) -> Floats:
    return table.jct


def _unfair_share(summary: Summary) -> float | None:
    share: float | None = summary["rho"]["isolated"][f"unfair_{UNFAIR_ABOVE}"]
    return share


def _unfair(table: JobResults) -> Floats:
    rho = table.rho["isolated"]
    return np.where(np.isfinite(rho), unfair(rho, UNFAIR_ABOVE), np.nan)


def _mean(rows: Floats) -> Floats:
    mean: Floats = rows.mean(axis=-1)
    return mean


def _quantile(q: float) -> Callable[[Floats], Floats]:
    return lambda rows: np.quantile(rows, q, axis=-1)


MEASURES: tuple[Measure, ...] = (
    Measure("avg_jct", "average JCT", "h", -1, lambda s: s["avg_jct"], _jct, _mean),
    Measure("median_jct", "median JCT", "h", -1, lambda s: s["median_jct"], _jct, _quantile(0.5)),
    Measure("p99_jct", "p99 JCT", "h", -1, lambda s: s["p99_jct"], _jct, _quantile(0.99)),
    Measure("makespan", "makespan", "h", -1, lambda s: s["makespan"]),
    Measure("utilization", "utilization", "%", 1, lambda s: s["utilization"]),
    Measure("rho_max", "worst ρ", "", -1, lambda s: s["rho"]["isolated"]["max"]),
    Measure("unfair", f"jobs with ρ > {UNFAIR_ABOVE:g}", "%", -1, _unfair_share, _unfair, _mean),
    Measure("restarts", "restarts", "n", -1, lambda s: s["restarts"]),
    Measure("cost", "cost", "$", -1, lambda s: s.get("cost")),
)
"""The figures compared; ρ is the isolated one."""


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """The row of a policy: its seeds, mean numbers of jobs and completed jobs, and the mean of each measure.

    ``policy`` is the specification, followed by the settings that differ between the runs compared, e.g.
    ``las (noise 0.2)``; ``settings`` has those alone.
    """

    policy: str
    settings: Mapping[str, str]
    seeds: tuple[int, ...]
    jobs: float
    completed: float
    means: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Difference:
    """A policy's figure minus the baseline's, with a 95 % interval if there are pairs for one.

    ``basis`` says what was paired: ``seeds``, ``jobs``, or ``none``. ``verdict`` is ``better``, ``worse``,
    ``not significant``, ``no difference`` or ``one run``.
    """

    policy: str
    baseline: str
    measure: str
    value: float
    low: float | None
    high: float | None
    basis: str
    pairs: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The policies that ran on one workload and cluster.

    ``best`` names, by measure, the policy that is significantly better than every other; a measure without one is
    absent.
    """

    workload: str
    cluster: str
    baseline: str
    standings: tuple[PolicyResult, ...]
    differences: tuple[Difference, ...]
    best: Mapping[str, str]

    def measures(self) -> list[Measure]:
        """The measures of which any policy has a figure."""
        return [m for m in MEASURES if any(s.means[m.name] is not None for s in self.standings)]

    def difference(self, policy: str, measure: str) -> Difference | None:
        """A policy's difference from the baseline in a measure, where both have it."""
        return next((d for d in self.differences if (d.policy, d.measure) == (policy, measure)), None)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as plain values, for ``--json``."""
        return asdict(self)


Rows = Mapping[str, Mapping[int, StoredRun]]
"""Runs by the name of their row, then by seed."""


def compare(runs: Sequence[StoredRun], baseline: str | None = None) -> list[Comparison]:
    """One comparison for each workload and cluster; the baseline is the first row unless a policy or row is named."""
    groups = group_runs(runs)
    known = dict.fromkeys([*(run.policy for run in runs), *(name for rows in groups.values() for name in rows)])
    if baseline is not None and baseline not in known:
        raise InputError("baseline", baseline, nearest(baseline, known))
    return [_compared(*place, rows, baseline) for place, rows in groups.items()]


def group_runs(runs: Sequence[StoredRun]) -> dict[tuple[str, str], Rows]:
    """Rows by workload and cluster: runs that differ in policy or any other setting are in different rows."""
    places: dict[tuple[str, str], list[StoredRun]] = {}
    for run in runs:
        place = (str(run.summary.get("workload") or ""), str(run.summary.get("cluster") or ""))
        places.setdefault(place, []).append(run)
    return {place: _rows(group) for place, group in places.items()}


def _rows(runs: Sequence[StoredRun]) -> Rows:
    differing = differing_settings(runs)
    rows: dict[str, dict[int, StoredRun]] = {}
    for run in runs:
        row = rows.setdefault(_row_name(run, differing), {})
        if run.seed in row:
            hint = f"is policy {run.policy}, seed {run.seed} again, as is {row[run.seed].path}"
            raise InputError("run", str(run.path), hint)
        row[run.seed] = run
    return rows


def _row_name(run: StoredRun, differing: Sequence[str]) -> str:
    shown = settings_of_run(run.summary)
    parts = [f"{name} {shown[name]}" for name in differing if name in shown]
    return f"{run.policy} ({', '.join(parts)})" if parts else run.policy


def differing_settings(runs: Sequence[StoredRun]) -> list[str]:
    """The names of the settings that are not the same in all runs."""
    found = [settings_of_run(run.summary) for run in runs]
    names = dict.fromkeys(name for settings in found for name in settings)
    return [name for name in names if len({settings.get(name) for settings in found}) > 1]


def settings_of_run(summary: Summary) -> dict[str, str]:
    """Every setting of a run beside policy, seed, workload and cluster, as text; those that are off are left out.

    A policy's constants are left out too: they differ between policies, and within one only between versions. So are
    the values of a live journal's header that say how it was recorded.
    """
    given = {"knowledge": summary.get("knowledge"), **(summary.get("settings") or {})}
    return {
        name.replace("_", "-"): _setting_text(value) for name, value in given.items() if value and name not in _APART
    }


def _setting_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_setting_text(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_setting_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _compared(workload: str, cluster: str, rows: Rows, baseline: str | None) -> Comparison:
    by_policy = [name for name, row in rows.items() if baseline in (name, next(iter(row.values())).policy)]
    base = baseline if baseline is not None and baseline in rows else next(iter(by_policy or rows))
    found = {(n, m.name): _difference(n, base, m, rows) for n in rows if n != base for m in MEASURES}
    differences = tuple(difference for difference in found.values() if difference is not None)
    differing = differing_settings([run for row in rows.values() for run in row.values()])
    standings = tuple(_standing(name, list(row.values()), differing) for name, row in rows.items())

    def beats(first: str, other: str, measure: Measure) -> bool:
        if first == base:
            difference, verdict = found[other, measure.name], "worse"
        else:
            difference, verdict = _difference(first, other, measure, rows), "better"
        return difference is not None and difference.verdict == verdict

    best = {m.name: name for m in MEASURES if (name := _best(m, standings, beats)) is not None}
    return Comparison(workload, cluster, base, standings, differences, best)


def _standing(name: str, runs: Sequence[StoredRun], differing: Sequence[str]) -> PolicyResult:
    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if len(known) == len(values) else None

    settings = settings_of_run(runs[0].summary)
    return PolicyResult(
        name,
        {key: settings[key] for key in differing if key in settings},
        tuple(run.seed for run in runs),
        float(np.mean([run.summary["jobs"] for run in runs])),
        float(np.mean([run.summary["completed"] for run in runs])),
        {measure.name: mean([measure.of(run.summary) for run in runs]) for measure in MEASURES},
    )


def _best(
    measure: Measure, standings: Sequence[PolicyResult], beats: Callable[[str, str, Measure], bool]
) -> str | None:
    """The row that is significantly better than every other; the closest rival is tried first."""
    means = {s.policy: measure.better * mean for s in standings if (mean := s.means[measure.name]) is not None}
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    return ranked[0] if len(ranked) > 1 and all(beats(ranked[0], other, measure) for other in ranked[1:]) else None


def _difference(name: str, base: str, measure: Measure, rows: Rows) -> Difference | None:
    theirs, ours = rows[name], rows[base]
    pairs = [
        (x, y, seed)
        for seed in sorted(theirs.keys() & ours.keys())
        if (x := measure.of(theirs[seed].summary)) is not None and (y := measure.of(ours[seed].summary)) is not None
    ]
    if not pairs:
        return None
    gaps = np.array([x - y for x, y, _ in pairs])
    value, basis, count = float(gaps.mean()), "none", len(pairs)
    interval: tuple[float, float] | None = None
    if len(pairs) > 1:
        basis, interval = "seeds", t_interval(gaps)
    elif measure.per_job is not None and measure.statistic is not None:
        seed = pairs[0][2]
        a, b = paired(theirs[seed].jobs, ours[seed].jobs, measure.per_job)
        if len(a):
            basis, count, interval = "jobs", len(a), bootstrap_interval(a, b, measure.statistic)
    low, high = interval or (None, None)
    return Difference(name, base, measure.name, value, low, high, basis, count, _verdict(value, interval, measure))


def _verdict(value: float, interval: tuple[float, float] | None, measure: Measure) -> str:
    if not value and not any(interval or ()):
        return NO_DIFFERENCE
    if interval is None:
        return ONE_RUN
    if interval[0] <= 0.0 <= interval[1]:
        return NOT_SIGNIFICANT
    return "better" if value * measure.better > 0 else "worse"


def t_interval(gaps: Floats) -> tuple[float, float]:
    """Return Student's interval for the mean of paired differences, two or more."""
    mean, reach = float(gaps.mean()), half_width(gaps.tolist())
    return mean - reach, mean + reach


def half_width(values: Sequence[float]) -> float:
    """Return the half-width of Student's interval of the values' mean; infinite for fewer than two values."""
    if len(values) < 2:
        return inf
    from scipy.stats import t

    return float(t.ppf((1.0 + CONFIDENCE) / 2.0, len(values) - 1)) * stdev(values) / sqrt(len(values))


def paired(a: JobResults, b: JobResults, per_job: Callable[[JobResults], Floats]) -> tuple[Floats, Floats]:
    """The values of the jobs, matched by id, for which both tables have one."""
    where = {name: i for i, name in enumerate(b.id)}
    rows = [(i, where[name]) for i, name in enumerate(a.id) if name in where]
    left: Int64s = np.array([i for i, _ in rows], dtype=np.int64)
    right: Int64s = np.array([j for _, j in rows], dtype=np.int64)
    x, y = per_job(a)[left], per_job(b)[right]
    both = np.isfinite(x) & np.isfinite(y)
    return x[both], y[both]


def bootstrap_interval(a: Floats, b: Floats, statistic: Callable[[Floats], Floats]) -> tuple[float, float]:
    """Return the percentile interval of statistic(a) − statistic(b) over resampled pairs of jobs, with a fixed seed."""
    resamples = int(np.clip(_MOST_DRAWS // len(a), _FEWEST_RESAMPLES, _RESAMPLES))
    chance = np.random.default_rng(0)
    gaps = []
    for start in range(0, resamples, _CHUNK):
        rows = chance.integers(0, len(a), size=(min(_CHUNK, resamples - start), len(a)), dtype=np.int32)
        gaps.append(statistic(a[rows]) - statistic(b[rows]))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(gaps), [tail, 1 - tail])
    return float(low), float(high)
