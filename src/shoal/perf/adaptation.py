"""What a job that changes its batch size while it trains will still take: a trajectory of regimes, and its spread.

A forecast is told the rule by which the owner's script scales the batch size (``JobSpec.adaptation``), between which
sizes, and what was seen of the job so far; never the schedule, unless the owner declares one (``batch_schedule``),
which is then followed to the letter. One may rely on this: the work of the regimes ahead adds up to what is left, the
predicted time lies between the optimistic and the pessimistic one, and equal snapshots give equal forecasts.

**Which regimes.** ``accordion`` alternates between the declared batch size and the largest; ``gns`` doubles up to the
largest and never comes back. What is not known is how long each lasts:

- ``restatement``: of K regimes that may come, each is first thought to last 1/K of the work. Regimes that ended lasted
  as long as they did; the present one and those ahead split the rest evenly. A regime that has outlasted its part is
  thought to last as long again as it has (ours; Shockwave leaves it open). In the last regime nothing is thought to
  change any more.
- ``bayesian``: the plain update of the same Dirichlet prior, as if every sample were an independent draw of a regime.
- ``reactive``: the present batch size to the end. ``agnostic``: the declared one, whatever was seen.

**How fast.** A rate measured on the requested gang at that batch size counts; elsewhere the model's rate, corrected by
how far off it was where it was last measured.

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

RULES: Final = ("restatement", "bayesian", "reactive", "agnostic")
"""How the lengths of the regimes ahead are guessed."""

ADAPTATIONS: Final = ("accordion", "gns")
"""By which rules an owner's script may scale a batch size."""

PRIOR_SECONDS = 3600.0
"""How long a job that declares no work is taken to run at least; if it has run longer, it is taken to be half done."""

_LATE = 0.01
"""The part of its progress that a job past its declared work is taken to have left."""

Seen = Sequence[tuple[float, int]]
"""Batch sizes a job was seen to train at, each from which progress on."""


@dataclass(frozen=True, slots=True)
class Regime:
    """Work, in the job's own unit, to be done at one batch size from now on, and the progress per second meanwhile."""

    batch_size: int
    work: float
    rate: float

    @property
    def seconds(self) -> float:
        """How long it lasts on the requested gang."""
        if self.work <= 0.0:
            return 0.0
        return self.work / self.rate if self.rate > 0.0 else inf


@dataclass(frozen=True, slots=True)
class RegimeForecast:
    """The regimes ahead of a job, the fastest rate it may reach in any, and how far off the run time may be.

    ``spread`` is the standard deviation of the remaining run time as a fraction of it, if every way of splitting the
    work left among the regimes ahead is equally likely. ``correction`` is how many times the model's rate the job was
    last seen to make; None as long as nothing was measured on it.
    """

    ahead: tuple[Regime, ...]
    fastest: float
    spread: float
    correction: float | None = None

    @property
    def work(self) -> float:
        """What is left to do, in the job's own unit."""
        return sum(regime.work for regime in self.ahead)

    @property
    def seconds(self) -> float:
        """The run time left on the requested gang."""
        return sum(regime.seconds for regime in self.ahead)

    @property
    def optimistic(self) -> float:
        """The run time left if all of it went at the fastest rate."""
        return min(self.seconds, self.work / self.fastest) if self.fastest > 0.0 else self.seconds

    @property
    def pessimistic(self) -> float:
        """The run time left if all of it went at the slowest rate in sight."""
        slowest = min(regime.rate for regime in self.ahead)
        return max(self.seconds, self.work / slowest) if slowest > 0.0 else inf


def forecast(snapshot: Snapshot, job: JobView, rule: str = "restatement", noise: float = 0.0) -> RegimeForecast:
    """What the job has before it, on the requested gang and the kind that suits it best. ``rule`` is one of ``RULES``.

    With ``noise`` p run times are off by a factor from 1 − p to 1 + p, the job's own and the same at every decision:
    Shockwave's figure 13. A job that cannot run has infinitely long to go.
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
    """The batch sizes that the rule named by the owner may scale to, in the order it comes to them.

    Just the declared one without a rule or limits; a batch size counts what the job's model means by it.
    """
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
    """Work to be done, above 0: a job without a declared end, or past it, is not over."""
    if spec.work is None:
        return max(done, rate * PRIOR_SECONDS)
    return spec.work - done if done < spec.work else _LATE * max(done, spec.work)


Split = list[tuple[int, float]]
"""Batch sizes and the work at each, in order."""


def _split(job: JobView, to_come: Sequence[int], present: int, left: float, rule: str) -> Split:
    """How the work left splits among the batch sizes to come."""
    done, schedule = job.done, job.spec.batch_schedule
    if schedule and rule in ("restatement", "bayesian"):
        return _scripted(schedule, present, done, done + left)
    at = to_come.index(present) if present in to_come else len(to_come) - 1
    if rule in ("reactive", "agnostic") or at == len(to_come) - 1:
        return [(present, left)]
    seen = job.regimes
    if rule == "bayesian":
        return _drawn(to_come, at, seen, done, left)
    began = seen[-1][0] if seen else 0.0
    ahead = len(to_come) - at
    part, lasted = (done + left - began) / ahead, done - began
    here = part - lasted if lasted < part else min(lasted, left)
    return [(present, here), *((size, (left - here) / (ahead - 1)) for size in to_come[at + 1 :])]


def _scripted(schedule: Seen, present: int, done: float, end: float) -> Split:
    changes = [(done, present), *((at, size) for at, size in schedule if done < at < end), (end, 0)]
    return [(size, until - since) for (since, size), (until, _) in pairwise(changes)]


def _drawn(to_come: Sequence[int], at: int, seen: Seen, done: float, left: float) -> Split:
    """What the posterior mean of an even prior, worth as much as the whole work, leaves to each."""
    spent = dict.fromkeys(to_come, 0.0)
    for (since, size), (until, _) in pairwise((*seen, (done, 0))):
        if size in spent:
            spent[size] += until - since
    whole = done + left
    believed = {size: (whole / len(to_come) + spent[size]) * whole / (whole + done) for size in to_come}
    wanted = [max(believed[size] - spent[size], 0.0) for size in to_come[at:]]
    total = sum(wanted)
    if total <= 0.0:
        return [(to_come[at], left)]
    return [(size, left * want / total) for size, want in zip(to_come[at:], wanted, strict=True)]


def _runnable(split: Split, known: Mapping[int, float]) -> Split:
    """The same work without batch sizes that do not run: it is trained at the others, else at whichever runs."""
    able = [(size, work) for size, work in split if known[size] > 0.0 and work > 0.0]
    left, covered = sum(work for _, work in split), sum(work for _, work in able)
    if not able:
        return [(max(known, key=lambda size: known[size]), left)]
    return able if covered == left else [(size, work * left / covered) for size, work in able]


def _rates(snapshot: Snapshot, job: JobView, wanted: Iterable[int]) -> tuple[Mapping[int, float], float | None]:
    """By batch size: the rate of the requested gang on its best kind; and by what factor the model was off."""
    spec, perf = job.spec, snapshot.perf
    modelled = {size: perf.speeds(spec, size or None).tolist() for size in wanted}
    best = max(map(max, modelled.values()), default=0.0) if snapshot.cluster.kinds else 0.0
    kind = next((rates.index(best) for rates in modelled.values() if best in rates), 0)
    if best <= 0.0:
        return dict.fromkeys(modelled, 0.0), None
    seen: dict[int, float] = {}
    correction = None
    for measurement in job.measured:
        size, rate = measurement.batch_size, measurement.rate
        if measurement.gpus != spec.gpus or rate <= 0.0:
            continue
        if correction is None:
            model = modelled[size] if size in modelled else perf.speeds(spec, size or None).tolist()
            correction = rate / model[measurement.kind] if model[measurement.kind] > 0.0 else None
        if measurement.kind == kind:
            seen[size] = max(seen.get(size, 0.0), rate)
    off = 1.0 if correction is None else correction
    return {size: seen.get(size) or rates[kind] * off for size, rates in modelled.items()}, correction


def _spread(ahead: Sequence[Regime]) -> float:
    """Standard deviation over mean of the time that the work takes, all splits among these regimes equally likely."""
    if len(ahead) < 2:
        return 0.0
    paces = [1.0 / regime.rate for regime in ahead]
    mean = sum(paces) / len(paces)
    variance = sum((pace - mean) ** 2 for pace in paces) / len(paces)
    return sqrt(variance / (len(paces) + 1.0)) / mean


def _error(snapshot: Snapshot, job: JobView, noise: float) -> float:
    """By what factor this job's run time is misjudged."""
    number = int(snapshot.columns.rows[job.position])
    return 1.0 + noise * float(np.random.default_rng([snapshot.seed, 5, number]).uniform(-1.0, 1.0))
