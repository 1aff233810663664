"""Policies side by side on the same workload and cluster, and which differences are more than chance.

Differences are paired: by seed where two policies ran on two or more common seeds (Student's t interval over the seeds'
differences), else by job within the one common seed (a seeded bootstrap over jobs that both completed; for figures that
are means or quantiles over jobs). An interval that covers 0 means "no difference" was found. A single run gives no
interval for what is one number per run, such as the makespan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.core.errors import InputError, nearest
from shoal.report.files import StoredRun
from shoal.report.metrics import JobTable, Summary, unfair

CONFIDENCE = 0.95
"""Of every interval here."""

_RESAMPLES = 2000
_MOST_DRAWS = 20_000_000
_FEWEST_RESAMPLES = 200
_CHUNK = 50
UNFAIR_AT = 1.1
"""The threshold at which unfair jobs are counted when policies are compared."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure to compare: its name in tables, its unit, which way is better (0: neither), how to read and resample it.

    ``per_job`` gives each job's value and ``statistic`` the figure from resampled rows of them; None where the figure
    is not one over jobs.
    """

    name: str
    title: str
    unit: str
    better: int
    of: Callable[[Summary], float | None]
    per_job: Callable[[JobTable], Floats] | None = None
    statistic: Callable[[Floats], Floats] | None = None


def _plain(name: str) -> Callable[[Summary], float | None]:
    return lambda summary: summary.get(name)


def _rho(figure: str) -> Callable[[Summary], float | None]:
    return lambda summary: summary["rho"]["isolated"][figure]


def _jct(table: JobTable) -> Floats:
    return table.jct


def _unfair(table: JobTable) -> Floats:
    rho = table.rho["isolated"]
    return np.where(np.isfinite(rho), unfair(rho, UNFAIR_AT), np.nan)


def _mean(rows: Floats) -> Floats:
    mean: Floats = rows.mean(axis=-1)
    return mean


def _quantile(q: float) -> Callable[[Floats], Floats]:
    return lambda rows: np.quantile(rows, q, axis=-1)


MEASURES: tuple[Measure, ...] = (
    Measure("avg_jct", "average JCT", "h", -1, _plain("avg_jct"), _jct, _mean),
    Measure("median_jct", "median JCT", "h", -1, _plain("median_jct"), _jct, _quantile(0.5)),
    Measure("p99_jct", "p99 JCT", "h", -1, _plain("p99_jct"), _jct, _quantile(0.99)),
    Measure("makespan", "makespan", "h", -1, _plain("makespan")),
    Measure("utilization", "utilization", "%", 1, _plain("utilization")),
    Measure("rho_max", "worst ρ", "", -1, _rho("max")),
    Measure("unfair", f"unfair, ρ > {UNFAIR_AT}", "%", -1, _rho(f"unfair_{UNFAIR_AT}"), _unfair, _mean),
    Measure("restarts", "restarts", "n", -1, _plain("restarts")),
    Measure("cost", "cost", "$", -1, _plain("cost")),
)
"""What is compared; ρ is the isolated one."""


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """How one policy did: over which seeds, how many jobs it completed of how many, the mean of each measure."""

    policy: str
    seeds: tuple[int, ...]
    jobs: float
    completed: float
    means: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Difference:
    """A policy's figure less the baseline's, with a 95 % interval where there is ground for one.

    ``basis`` says what was paired: ``seeds``, ``jobs``, or ``none``; ``verdict`` is ``better``, ``worse``,
    ``no difference``, or ``one run`` when there is no interval.
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
    """The policies that ran on one workload and cluster."""

    workload: str
    cluster: str
    baseline: str
    standings: tuple[PolicyResult, ...]
    differences: tuple[Difference, ...]

    def best(self, measure: Measure) -> tuple[str, ...]:
        """The policies with the best mean of a measure; none where all are equal or fewer than two have one."""
        means = {s.policy: m for s in self.standings if (m := s.means[measure.name]) is not None}
        if len(means) < 2 or len(set(means.values())) < 2:
            return ()
        top = max(means.values(), key=lambda mean: measure.better * mean)
        return tuple(policy for policy, mean in means.items() if mean == top)

    def difference(self, policy: str, measure: str) -> Difference | None:
        """A policy's difference from the baseline in a measure, where both have it."""
        return next((d for d in self.differences if (d.policy, d.measure) == (policy, measure)), None)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as plain values, for ``--json``."""
        return asdict(self)


def compare(runs: Sequence[StoredRun], baseline: str | None = None) -> list[Comparison]:
    """One comparison for each workload, cluster and world; the baseline is the first policy unless one is named."""
    policies = list(dict.fromkeys(run.policy for run in runs))
    if baseline is not None and baseline not in policies:
        raise InputError("baseline", baseline, nearest(baseline, policies))
    settings: dict[tuple[str, ...], list[StoredRun]] = {}
    for run in runs:
        settings.setdefault(_conditions(run.summary), []).append(run)
    return [_compared(key[0], key[1], group, baseline) for key, group in settings.items()]


def _conditions(summary: Summary) -> tuple[str, ...]:
    """What two runs must have in common to be compared: the workload, the cluster, and how the world was."""
    world = summary.get("settings") or {}
    given = [summary.get(name) for name in ("workload", "cluster", "knowledge")]
    given += [world.get(name) for name in ("placement", "restart_cost", "noise", "faults", "throughputs")]
    return tuple("" if value is None else str(value) for value in given)


def _compared(workload: str, cluster: str, runs: Sequence[StoredRun], baseline: str | None) -> Comparison:
    by_policy: dict[str, dict[int, StoredRun]] = {}
    for run in runs:
        if run.seed in by_policy.setdefault(run.policy, {}):
            other = by_policy[run.policy][run.seed].path
            raise InputError("run", str(run.path), f"is policy {run.policy}, seed {run.seed} again, as is {other}")
        by_policy[run.policy][run.seed] = run
    base = baseline if baseline in by_policy else next(iter(by_policy))
    differences = [
        difference
        for policy, theirs in by_policy.items()
        if policy != base
        for measure in MEASURES
        if (difference := _difference(policy, base, measure, theirs, by_policy[base])) is not None
    ]
    standings = tuple(_standing(policy, list(seeds.values())) for policy, seeds in by_policy.items())
    return Comparison(workload, cluster, base, standings, tuple(differences))


def _standing(policy: str, runs: Sequence[StoredRun]) -> PolicyResult:
    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if len(known) == len(values) else None

    return PolicyResult(
        policy,
        tuple(run.seed for run in runs),
        float(np.mean([run.summary["jobs"] for run in runs])),
        float(np.mean([run.summary["completed"] for run in runs])),
        {measure.name: mean([measure.of(run.summary) for run in runs]) for measure in MEASURES},
    )


def _difference(
    policy: str, base: str, measure: Measure, theirs: Mapping[int, StoredRun], ours: Mapping[int, StoredRun]
) -> Difference | None:
    pairs = [
        (x, y, seed)
        for seed in sorted(theirs.keys() & ours.keys())
        if (x := measure.of(theirs[seed].summary)) is not None and (y := measure.of(ours[seed].summary)) is not None
    ]
    if not pairs:
        return None
    gaps = np.array([x - y for x, y, _ in pairs])
    value, basis, count = float(gaps.mean()), "none", len(pairs)
    low: float | None = None
    high: float | None = None
    if len(pairs) > 1:
        basis = "seeds"
        low, high = t_interval(gaps)
    elif measure.per_job is not None and measure.statistic is not None:
        seed = pairs[0][2]
        a, b = paired(theirs[seed].jobs, ours[seed].jobs, measure.per_job)
        if len(a):
            basis, count = "jobs", len(a)
            low, high = bootstrap_interval(a, b, measure.statistic)
    return Difference(policy, base, measure.name, value, low, high, basis, count, _verdict(value, low, high, measure))


def _verdict(value: float, low: float | None, high: float | None, measure: Measure) -> str:
    if low is None or high is None:
        return "one run" if value else "no difference"
    if low <= 0.0 <= high:
        return "no difference"
    return "better" if value * measure.better > 0 else "worse"


def t_interval(gaps: Floats) -> tuple[float, float]:
    """Student's interval for the mean of paired differences, two or more."""
    from scipy.stats import t

    mean, count = float(gaps.mean()), len(gaps)
    reach = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * float(gaps.std(ddof=1)) / count**0.5
    return mean - reach, mean + reach


def paired(a: JobTable, b: JobTable, per_job: Callable[[JobTable], Floats]) -> tuple[Floats, Floats]:
    """The values of the jobs, matched by id, for which both tables have one."""
    where = {name: i for i, name in enumerate(b.id)}
    rows = [(i, where[name]) for i, name in enumerate(a.id) if name in where]
    left: Int64s = np.array([i for i, _ in rows], dtype=np.int64)
    right: Int64s = np.array([j for _, j in rows], dtype=np.int64)
    x, y = per_job(a)[left], per_job(b)[right]
    both = np.isfinite(x) & np.isfinite(y)
    return x[both], y[both]


def bootstrap_interval(a: Floats, b: Floats, statistic: Callable[[Floats], Floats]) -> tuple[float, float]:
    """The percentile interval of statistic(a) − statistic(b) when pairs of jobs are drawn again, by fixed dice."""
    resamples = int(np.clip(_MOST_DRAWS // len(a), _FEWEST_RESAMPLES, _RESAMPLES))
    chance = np.random.default_rng(0)
    gaps = []
    for start in range(0, resamples, _CHUNK):
        rows = chance.integers(0, len(a), size=(min(_CHUNK, resamples - start), len(a)), dtype=np.int32)
        gaps.append(statistic(a[rows]) - statistic(b[rows]))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(gaps), [tail, 1 - tail])
    return float(low), float(high)
