"""Forecast of a job that changes its batch size while it trains: the regimes ahead, and the spread of the run time.

A regime is a stretch of work at one batch size. A forecast uses the rule by which the owner's script scales the batch
size (``JobSpec.adaptation``), its limits, and the regimes observed so far; not the schedule, unless the owner declares
one (``batch_schedule``), which is then used exactly. The work of the regimes ahead adds up to the work left, the
predicted time lies between the optimistic and the pessimistic one, and equal snapshots give equal forecasts.

**Which regimes.** ``accordion`` alternates between the declared batch size and the largest; ``gns`` doubles up to the
largest and never returns. How long each lasts is estimated:

- ``restatement``: each of K possible regimes is first expected to last 1/K of the work. Ended regimes count as
  observed; the present one and those ahead split the rest evenly. A regime that exceeds its part is expected to last as
  long again as it has (ours; Shockwave leaves it open). In the last regime no further change is expected.
- ``bayesian``: the plain update of the same Dirichlet prior, as if every sample were an independent draw of a regime.
- ``reactive``: the present batch size to the end. ``agnostic``: the declared one, whatever was observed.

**How fast.** A rate measured on the requested gang at a batch size is used as it is; else the model's rate, times the
ratio of the last measured rate to the model's.

References: Zheng et al., "Shockwave", NSDI 2023, §5 (Dirichlet prior, restatement rule) and §8.5 (injected error).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, sqrt
from typing import Final

import numpy as np

from shoal.core.job import JobSpec
from shoal.core.snapshot import JobView, Snapshot
from shoal.perf.work_prior import OVERDUE, PRIOR_SECONDS

RULES: Final = ("restatement", "bayesian", "reactive", "agnostic")
"""Rules that estimate the lengths of the regimes ahead."""

ObservedBatches = Sequence[tuple[float, int]]
"""Observed batch sizes, each with the progress at which it began."""


@dataclass(frozen=True, slots=True)
class Regime:
    """Work ahead at one batch size, in the job's own unit, and the work per second meanwhile."""

    batch_size: int
    work: float
    rate: float

    @property
    def seconds(self) -> float:
        """Its length in seconds on the requested gang."""
        if self.work <= 0.0:
            return 0.0
        return self.work / self.rate if self.rate > 0.0 else inf


@dataclass(frozen=True, slots=True)
class RegimeForecast:
    """The regimes ahead of a job, the fastest rate of any regime, and the spread of the run time.

    ``spread`` is the standard deviation of the remaining run time as a fraction of it, if every split of the work left
    among the regimes ahead is equally likely. ``correction`` is the last measured rate over the model's; None where
    nothing was measured.
    """

    ahead: tuple[Regime, ...]
    fastest: float
    spread: float
    correction: float | None = None

    @property
    def work(self) -> float:
        """Work left, in the job's own unit."""
        return sum(regime.work for regime in self.ahead)

    @property
    def seconds(self) -> float:
        """Seconds left on the requested gang."""
        return sum(regime.seconds for regime in self.ahead)

    @property
    def optimistic(self) -> float:
        """Seconds left at the fastest rate."""
        return min(self.seconds, self.work / self.fastest) if self.fastest > 0.0 else self.seconds

    @property
    def pessimistic(self) -> float:
        """Seconds left at the slowest rate of the regimes ahead."""
        slowest = min(regime.rate for regime in self.ahead)
        return max(self.seconds, self.work / slowest) if slowest > 0.0 else inf


def forecast(snapshot: Snapshot, job: JobView, rule: str = "restatement", noise: float = 0.0) -> RegimeForecast:
    """The regimes ahead of a job on the requested gang and its fastest kind. ``rule`` is one of ``RULES``.

    With ``noise`` p, run times are off by a factor from 1 − p to 1 + p, drawn once for each job (Shockwave's figure
    13). A job that cannot run has infinitely many seconds left.
    """
    spec, done = job.spec, job.done
    present = (spec.batch_size if rule == "agnostic" else job.batch_size) or 0
    to_come = (present,) if rule == "agnostic" else sizes(spec)
    known, correction = _rates(snapshot, job, {present, *to_come, *(size for _, size in spec.batch_schedule)})
    fastest = max(known.values())
    if fastest <= 0.0:
        return RegimeForecast((Regime(present, inf, 0.0),), 0.0, 1.0, correction)
    left = _left(spec, done, known[present] or fastest)
    split = _runnable(_split(job, to_come, present, left, rule), known)
    slower = _error(snapshot, job, noise) if noise else 1.0
    ahead = tuple(Regime(size, work, known[size] / slower) for size, work in split)
    return RegimeForecast(ahead, fastest / slower, _spread(ahead), correction)


def sizes(spec: JobSpec) -> tuple[int, ...]:
    """Return the batch sizes that the owner's rule may scale to, in its order; without a rule the declared one."""
    own, limits = spec.batch_size or 0, spec.limits
    if spec.adaptation is None or limits is None or limits.most <= limits.initial:
        return (own,)
    largest = own * limits.most // limits.initial
    if spec.adaptation == "accordion":
        return own, largest
    doubled = [own]
    while doubled[-1] < largest:
        doubled.append(min(2 * doubled[-1], largest))
    return tuple(doubled)


def _left(spec: JobSpec, done: float, rate: float) -> float:
    """Work left, above 0 also for a job without declared work or past it."""
    if spec.work is None:
        return max(done, rate * PRIOR_SECONDS)
    return spec.work - done if done < spec.work else OVERDUE * max(done, spec.work)


Split = list[tuple[int, float]]
"""Batch sizes and the work at each, in order."""


def _split(job: JobView, to_come: Sequence[int], present: int, left: float, rule: str) -> Split:
    """The work left, split among the batch sizes ahead."""
    done, schedule = job.done, job.spec.batch_schedule
    if schedule and rule in ("restatement", "bayesian"):
        return _scripted(schedule, present, done, done + left)
    at = to_come.index(present) if present in to_come else len(to_come) - 1
    if rule in ("reactive", "agnostic") or at == len(to_come) - 1:
        return [(present, left)]
    observed = job.regimes
    if rule == "bayesian":
        return _drawn(to_come, at, observed, done, left)
    began = observed[-1][0] if observed else 0.0
    ahead = len(to_come) - at
    part, lasted = (done + left - began) / ahead, done - began
    here = part - lasted if lasted < part else min(lasted, left)
    return [(present, here), *((size, (left - here) / (ahead - 1)) for size in to_come[at + 1 :])]


def _scripted(schedule: ObservedBatches, present: int, done: float, end: float) -> Split:
    changes = [(done, present), *((at, size) for at, size in schedule if done < at < end), (end, 0)]
    return [(size, until - since) for (since, size), (until, _) in pairwise(changes)]


def _drawn(to_come: Sequence[int], at: int, observed: ObservedBatches, done: float, left: float) -> Split:
    """The work left, split by the posterior mean of an even prior that weighs as much as the whole work."""
    spent = dict.fromkeys(to_come, 0.0)
    for (since, size), (until, _) in pairwise((*observed, (done, 0))):
        if size in spent:
            spent[size] += until - since
    whole = done + left
    posterior = {size: (whole / len(to_come) + spent[size]) * whole / (whole + done) for size in to_come}
    wanted = [max(posterior[size] - spent[size], 0.0) for size in to_come[at:]]
    total = sum(wanted)
    if total <= 0.0:
        return [(to_come[at], left)]
    return [(size, left * want / total) for size, want in zip(to_come[at:], wanted, strict=True)]


def _runnable(split: Split, known: Mapping[int, float]) -> Split:
    """Return the same work without batch sizes that cannot run: the others get it, or the fastest if none is left."""
    able = [(size, work) for size, work in split if known[size] > 0.0 and work > 0.0]
    left, covered = sum(work for _, work in split), sum(work for _, work in able)
    if not able:
        return [(max(known, key=lambda size: known[size]), left)]
    return able if covered == left else [(size, work * left / covered) for size, work in able]


def _rates(snapshot: Snapshot, job: JobView, wanted: Iterable[int]) -> tuple[Mapping[int, float], float | None]:
    """Return, by batch size, the rate of the requested gang on its best kind; and the ratio of measured to model's."""
    spec, perf = job.spec, snapshot.perf
    modelled = {size: perf.speeds(spec, size or None).tolist() for size in wanted}
    best = max(map(max, modelled.values()), default=0.0) if snapshot.cluster.kinds else 0.0
    kind = next((rates.index(best) for rates in modelled.values() if best in rates), 0)
    if best <= 0.0:
        return dict.fromkeys(modelled, 0.0), None
    measured: dict[int, float] = {}
    correction = None
    for measurement in job.measured:
        size, rate = measurement.batch_size, measurement.rate
        if measurement.gpus != spec.gpus or rate <= 0.0:
            continue
        if correction is None:
            model = modelled[size] if size in modelled else perf.speeds(spec, size or None).tolist()
            correction = rate / model[measurement.kind] if model[measurement.kind] > 0.0 else None
        if measurement.kind == kind:
            measured[size] = max(measured.get(size, 0.0), rate)
    off = 1.0 if correction is None else correction
    return {size: measured.get(size) or rates[kind] * off for size, rates in modelled.items()}, correction


def _spread(ahead: Sequence[Regime]) -> float:
    """Return standard deviation over mean of the run time, if all splits among these regimes are equally likely."""
    if len(ahead) < 2:
        return 0.0
    paces = [1.0 / regime.rate for regime in ahead]
    mean = sum(paces) / len(paces)
    variance = sum((pace - mean) ** 2 for pace in paces) / len(paces)
    return sqrt(variance / (len(paces) + 1.0)) / mean


def _error(snapshot: Snapshot, job: JobView, noise: float) -> float:
    """Return the factor by which this job's run time is misjudged."""
    number = int(snapshot.columns.rows[job.position])
    return 1.0 + noise * float(np.random.default_rng([snapshot.seed, 5, number]).uniform(-1.0, 1.0))
