"""Apathetic Future Share: elastic shares by length and efficiency, as if tomorrow were as crowded as today.

All three work in two stages, at every arrival and departure. Stage one gives each job one GPU (the fewest it can run
on) in an order; if not everyone fits, that is all. Stage two gives what is left GPU by GPU, never one that does not
raise a job's throughput:

- ``AfsL`` knows lengths: stage one from the shortest job up, stage two by inequality (3) between a job that will be
  done sooner and one that will be done later;
- ``AfsP`` does not: stage one by counters of time executed, each served for a unit of time before the next are,
  stage two by (3) whichever of the two will be done sooner;
- ``AfsS`` knows of each job's throughput only where it stops rising: stage one as ``AfsP``, stage two max-min fair.

The mathematics is in ``solve.apathetic``, with the order in which (3), which is not transitive, is applied.

References: AFS (NSDI '21) §3, Algorithm 1 and Appendix D.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.elastic.max_min import admit
from shoal.policy.elastic.profiling import learnt
from shoal.policy.elastic.shares import Rule, divided, fewest_and_lengths, told
from shoal.policy.shared_reasons import STRETCHED
from shoal.solve.afs_shares import Gains, with_lengths, without_lengths
from shoal.solve.max_min_counts import fair_counts


@dataclass(frozen=True, slots=True)
class AfsL:
    """Apathetic future share of jobs whose lengths are known; ``packing`` rounds shares to parts of machines."""

    reasons = (STRETCHED,)
    packing: bool = False

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job; the next comes with the next arrival or departure."""
        _, lengths = fewest_and_lengths(snapshot)
        admitted = admit(snapshot, np.argsort(lengths, kind="stable"))
        work = snapshot.columns.remaining

        def by_length(here: Sequence[int], gains: Sequence[Gains], units: Sequence[int], free: int) -> Sequence[int]:
            return with_lengths(gains, work[here].tolist(), units, free)

        gpus = divided(snapshot, admitted, by_length, packing=self.packing)
        return Decision(told(snapshot, admitted, gpus, "remaining time on its fewest GPUs", lengths))


@dataclass(frozen=True, slots=True, eq=False)
class _Counters:
    """By admission number: whole units of time each job had been executed for, when last somebody waited."""

    rows: Indices
    units: Floats


@dataclass(frozen=True, slots=True)
class AfsP:
    """Apathetic future share without lengths.

    ``unit`` is for how long a job is served when not everyone can be; ``packing`` rounds shares to parts of machines;
    ``trial`` is for how long a job is kept on each share that has to be measured first.
    """

    reasons = (STRETCHED,)
    unit: Seconds = 7200.0
    packing: bool = False
    trial: Seconds = 30.0

    def __post_init__(self) -> None:
        _check(self.unit, self.trial)

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed when a job has been executed for one more unit while others wait."""

        def by_gain(here: Sequence[int], gains: Sequence[Gains], units: Sequence[int], free: int) -> Sequence[int]:
            return without_lengths(gains, units, free)

        return _in_turns(snapshot, self, by_gain)


@dataclass(frozen=True, slots=True)
class AfsS:
    """The same knowing only each job's best number of GPUs."""

    reasons = (STRETCHED,)
    unit: Seconds = 7200.0
    packing: bool = False
    trial: Seconds = 30.0

    def __post_init__(self) -> None:
        _check(self.unit, self.trial)

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed when a job has been executed for one more unit while others wait."""
        columns = snapshot.columns

        def fairly(here: Sequence[int], gains: Sequence[Gains], units: Sequence[int], free: int) -> Sequence[int]:
            low = np.array(units, dtype=np.int32)
            best = np.array([g.useful(k) for g, k in zip(gains, units, strict=True)], dtype=np.int32)
            counts: list[int] = fair_counts(free, low, best, np.ones(len(low)), columns.held[here]).tolist()
            return counts

        return _in_turns(snapshot, self, fairly)


def _check(unit: Seconds, trial: Seconds) -> None:
    for name, seconds in (("unit", unit), ("trial", trial)):
        if not 1.0 <= seconds < inf:
            raise ValueError(f"{name} must be a finite number of seconds, at least 1")


def _in_turns(snapshot: Snapshot, options: AfsP | AfsS, rule: Rule) -> Decision:
    """Stage one by counters, not preempting anyone within a unit; stage two by the rule, as far as curves are known."""
    columns, now, unit = snapshot.columns, snapshot.now, options.unit
    counters = np.floor(columns.run_seconds / unit)
    running = columns.held > 0
    evicted = running & (counters > _before(snapshot, counters))
    order = np.lexsort((counters, ~running | evicted))
    known = learnt(snapshot, admit(snapshot, order))
    gpus = divided(snapshot, known.admitted, rule, packing=options.packing)
    for i, share in known.trials.items():
        gpus[i] = min(gpus[i], share)
    review_at = now + options.trial if known.open else inf
    verdicts = told(snapshot, known.admitted, gpus, f"time executed in units of {unit:g} s", counters)
    if not ((gpus == 0) & snapshot.possible).any():
        return Decision(verdicts, review_at)
    ends = now + (counters + 1.0) * unit - columns.run_seconds
    turn_ends = _next_second(float(ends[gpus > 0].min(initial=inf)), now)
    counters.flags.writeable = False
    return Decision(verdicts, min(review_at, turn_ends), _Counters(columns.rows, counters))


def _before(snapshot: Snapshot, counters: Floats) -> Floats:
    """Counters as they were when last somebody waited; those of now where nobody did, or the job is new."""
    before, rows = snapshot.carry, snapshot.columns.rows
    if not isinstance(before, _Counters) or not len(before.rows):
        return counters
    at = np.minimum(np.searchsorted(before.rows, rows), len(before.rows) - 1)
    known: Floats = np.where(before.rows[at] == rows, before.units[at], counters)
    return known


def _next_second(moment: Seconds, now: Seconds) -> Seconds:
    """The first whole second at or after a moment and after now: a review right at a crossing can spin on rounding."""
    return max(float(ceil(moment)), floor(now) + 1.0) if isfinite(moment) else moment
