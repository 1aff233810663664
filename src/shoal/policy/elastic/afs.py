"""Apathetic Future Share: elastic shares by length and efficiency, as if contention stayed what it is now.

All three policies work in two stages, at every arrival and departure. Stage one gives each job one GPU (the fewest it
can run on) in an order; if not all jobs fit, that is all. Stage two gives out the rest GPU by GPU, never one that does
not raise a job's throughput:

- ``AfsL`` knows lengths: stage one from the shortest job up, stage two by inequality (3) between a job that will end
  sooner and one that will end later;
- ``AfsP`` does not: stage one by counters of time executed, each job served for a unit of time before the next ones,
  stage two by (3) whichever of the two will end sooner;
- ``AfsS`` knows of each job's throughput only where it stops rising: stage one as ``AfsP``, stage two max-min fair.

The mathematics is in ``solve.afs_shares``, with the order in which (3), which is not transitive, is applied.

References: AFS (NSDI '21) §3, Algorithm 1 and Appendix D.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.columns import sealed
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.base import check_round, next_second
from shoal.policy.carried_rows import match_rows
from shoal.policy.elastic.admission import admit
from shoal.policy.elastic.curves import CurveTable, curve_table
from shoal.policy.elastic.profiling import learned_curves
from shoal.policy.elastic.shares import Rule, divided, explain, fewest_and_lengths
from shoal.policy.shared_reasons import STRETCHED
from shoal.solve.afs_shares import Gains, with_lengths, without_lengths
from shoal.solve.max_min_counts import fair_counts


@dataclass(frozen=True, slots=True)
class AfsL:
    """Apathetic future share of jobs whose lengths are known; ``packing`` rounds shares to parts of machines."""

    reasons = (STRETCHED,)
    packing: bool = False

    def decide(self, snapshot: Snapshot) -> Decision:
        """Shares by length; only arrivals, departures and changes of the cluster change them."""
        table = curve_table(snapshot, snapshot.carry)
        _, lengths = fewest_and_lengths(snapshot, table)
        admitted = admit(snapshot, np.argsort(lengths, kind="stable"), table)
        work = snapshot.columns.remaining

        def by_length(here: Sequence[int], gains: Sequence[Gains], units: Sequence[int], free: int) -> Sequence[int]:
            return with_lengths(gains, work[here].tolist(), units, free)

        gpus = divided(snapshot, admitted, by_length, packing=self.packing)
        verdicts = explain(snapshot, admitted, gpus, "remaining time on its fewest GPUs", lengths)
        return Decision(verdicts, inf, table)


@dataclass(frozen=True, slots=True, eq=False)
class _TurnCarry:
    """The curves, and the whole units of time that each job had executed if a job waited at the last decision."""

    table: CurveTable
    units: Floats | None


@dataclass(frozen=True, slots=True)
class AfsP:
    """Apathetic future share without lengths.

    ``unit``: seconds for which a job is served when not all can be; ``packing`` rounds shares to parts of machines;
    ``trial``: seconds for which a job stays on each share that is to be measured first.
    """

    reasons = (STRETCHED,)
    unit: Seconds = 7200.0
    packing: bool = False
    trial: Seconds = 30.0

    def __post_init__(self) -> None:
        check_round(self.unit, "unit")
        check_round(self.trial, "trial")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Shares by gain, reviewed when a job has run for one more unit while others wait."""

        def by_gain(here: Sequence[int], gains: Sequence[Gains], units: Sequence[int], free: int) -> Sequence[int]:
            return without_lengths(gains, units, free)

        return _in_turns(snapshot, self, by_gain)


@dataclass(frozen=True, slots=True)
class AfsS:
    """Apathetic future share that knows only each job's best number of GPUs; options as for ``AfsP``."""

    reasons = (STRETCHED,)
    unit: Seconds = 7200.0
    packing: bool = False
    trial: Seconds = 30.0

    def __post_init__(self) -> None:
        check_round(self.unit, "unit")
        check_round(self.trial, "trial")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Shares by gain, reviewed when a job has been executed for one more unit while others wait."""
        columns = snapshot.columns

        def fairly(here: Sequence[int], gains: Sequence[Gains], units: Sequence[int], free: int) -> Sequence[int]:
            low = np.array(units, dtype=np.int32)
            best = np.array([g.useful(k) for g, k in zip(gains, units, strict=True)], dtype=np.int32)
            counts: list[int] = fair_counts(free, low, best, np.ones(len(low)), columns.held[here]).tolist()
            return counts

        return _in_turns(snapshot, self, fairly)


def _in_turns(snapshot: Snapshot, options: AfsP | AfsS, rule: Rule) -> Decision:
    """Decide for AfsP and AfsS: stage one by counters, stage two by ``rule`` on the curves that are known.

    Within a unit of time no job is preempted.
    """
    columns, now, unit = snapshot.columns, snapshot.now, options.unit
    counters = np.floor(columns.run_seconds / unit)
    running = columns.held > 0
    evicted = running & (counters > _earlier_counters(snapshot, counters))
    order = np.lexsort((counters, ~running | evicted))
    before = snapshot.carry if isinstance(snapshot.carry, _TurnCarry) else None
    table = curve_table(snapshot, before and before.table)
    learned = learned_curves(snapshot, admit(snapshot, order, table))
    gpus = divided(snapshot, learned.admitted, rule, packing=options.packing)
    for i, share in learned.trials.items():
        gpus[i] = min(gpus[i], share)
    review_at = now + options.trial if learned.open else inf
    verdicts = explain(snapshot, learned.admitted, gpus, f"time executed in units of {unit:g} s", counters)
    if not ((gpus == 0) & snapshot.possible).any():
        return Decision(verdicts, review_at, _TurnCarry(table, None))
    ends = now + (counters + 1.0) * unit - columns.run_seconds
    turn_ends = next_second(float(ends[gpus > 0].min(initial=inf)), now)
    sealed(counters)
    return Decision(verdicts, min(review_at, turn_ends), _TurnCarry(table, counters))


def _earlier_counters(snapshot: Snapshot, counters: Floats) -> Floats:
    """Return the counters of the last decision at which a job waited; present ones for a new job, or if none waited."""
    before = snapshot.carry
    if not isinstance(before, _TurnCarry) or before.units is None:
        return counters
    at, known = match_rows(before.table.rows, snapshot.columns.rows)
    earlier = counters.copy()
    earlier[known] = before.units[at[known]]
    return earlier
