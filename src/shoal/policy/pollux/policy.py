"""Pollux: GPUs and nodes for every job, for the highest power mean of the jobs' speed-ups over a fair share.

A job's speed-up is its goodput on an allocation over that on a fair share; a change of allocation scales it by
(T − Rδ)/(T + δ), T the job's age, R its re-allocations so far and δ the cost of one. At most one job that spans nodes
sits on a node, and a job gets at most twice the GPUs it has ever had. A job that gets nothing counts with a speed-up of
``floor``: the power mean of p < 0 would otherwise be 0 as soon as one job waits, whatever the others get. GPUs are
allotted afresh whenever a job arrives, ends or can use more than before, and ``interval`` seconds after the last
allotment. The times are ours: with ``when=interval``, the paper's rule, GPUs are allotted every ``interval`` seconds,
and in between no job moves, new jobs wait and freed GPUs idle.

The search is near-exact with a bound on what it may have missed (``solve.allotment``); of 2,000 jobs or more only those
that regret what they have are allotted anew (``solve.regret_allotment``). ``search=genetic`` is the population-based
search of the paper. With ``types=off`` all GPUs count as of one kind, as in the paper. A fair share
is 1/n of the cluster's GPUs, as in eq. 15, whatever was measured; with ``share=measured``, ours, it is at most twice
the GPUs that the job was measured on.

References: Qiao et al., "Pollux", OSDI 2021, §4.2; Jayaram Subramanya et al., "Sia", SOSP 2023, for kinds.
"""

from dataclasses import dataclass
from functools import partial
from math import isfinite

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.decision import Decision, Verdicts
from shoal.core.job import ADAPTIVE
from shoal.core.reasons import LEASED
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.base import check_round, infeasible_refusals, round_end
from shoal.policy.goodput_options import (
    ALLOTTED,
    OPTIONS,
    WORTH_LESS,
    GoodputOptions,
    OptionsTuning,
    adapts,
    allotted,
    carried_options,
    tabled,
)
from shoal.policy.option_carry import OptionsCarry, OptionSettings
from shoal.policy.pollux import many_jobs
from shoal.policy.pollux.many_jobs import allot_many, verdicts_of_many
from shoal.policy.shared_reasons import ALLOTTED_LATER
from shoal.policy.tuning import constant
from shoal.solve.allotment import STAY, Allotment, AllotmentOptions, allot
from shoal.solve.genetic_search import evolve


@dataclass(frozen=True, slots=True)
class PolluxTuning:
    """Constants of Pollux."""

    floor: float = constant(
        0.05, "highest speed-up that a job without GPUs counts with; half the least of all options if that is lower"
    )
    steepest: float = constant(
        1e6, "most that the term of a job without GPUs is over a fair share's; p raises the floor"
    )
    options: OptionsTuning = OPTIONS


@dataclass(frozen=True, slots=True)
class Pollux:
    """The highest power mean of speed-ups; the lower ``p``, the fairer."""

    reasons = (ALLOTTED, WORTH_LESS, ALLOTTED_LATER)
    tuning = PolluxTuning()
    p: float = -1.0
    interval: float = 60.0
    when: str = "events"
    restart: float = 30.0
    types: str = "aware"
    search: str = "exact"
    memory: bool = False
    share: str = "whole"

    def __post_init__(self) -> None:
        if not isfinite(self.p):
            raise ValueError("p must be a finite number; -1 is the paper's, 1 the plain mean")
        check_round(self.interval, "interval")
        if self.when not in ("events", "interval"):
            raise ValueError("when must be events or interval")
        if not (isfinite(self.restart) and self.restart >= 0.0):
            raise ValueError("restart must be a finite number of seconds, at least 0")
        if self.types not in ("aware", "off"):
            raise ValueError("types must be aware or off")
        if self.search not in ("exact", "genetic"):
            raise ValueError("search must be exact or genetic")
        if self.share not in ("whole", "measured"):
            raise ValueError("share must be whole or measured")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts of an allotment, or of the last one until the next is due; reviewed within ``interval`` seconds.

        The carry is the time of the next allotment or, where any event calls for one, the options of this one.
        """
        due = self.settled_until(snapshot)
        if due is not None:
            return Decision(_unchanged(snapshot, due), due, due)
        if self.search == "exact" and len(snapshot.columns) >= many_jobs.MANY:
            carry = carried_options(snapshot, self._settings, _carried(snapshot))
            many = allot_many(snapshot, carry, partial(self._worth, snapshot))
            return self._decision(snapshot, verdicts_of_many(snapshot, many, carry.adapting), carry)
        found, options, allotment = self.allotment(snapshot)
        verdicts = allotted(snapshot, found, options, allotment, np.ones(len(found.fair)))
        return self._decision(snapshot, verdicts, found.carry)

    def _decision(self, snapshot: Snapshot, verdicts: Verdicts, carry: OptionsCarry) -> Decision:
        if self.when == "events":
            return Decision(verdicts, snapshot.now + self.interval, carry)
        due = round_end(snapshot.now, self.interval)
        return Decision(verdicts, due, due)

    def settled_until(self, snapshot: Snapshot) -> Seconds | None:
        """The time of the next allotment; None if it is due now."""
        due = snapshot.carry
        if self.when == "events" or not isinstance(due, float) or snapshot.now >= due or snapshot.sharing:
            return None
        return due

    def allotment(self, snapshot: Snapshot) -> tuple[GoodputOptions, AllotmentOptions, Allotment]:
        """Return the options, the options with their worth, and the choice among them with a bound on the best."""
        genetic = self.search == "genetic"
        found = tabled(snapshot, carried_options(snapshot, self._settings, _carried(snapshot)))
        stays = np.arange(found.rates.shape[1]) == STAY
        options = found.valued(self._worth(snapshot, found.speedups, np.arange(len(found.fair))[:, None], stays))
        if not genetic:
            return found, options, allot(options)
        return found, options, evolve(options, found.spread, snapshot.seed + snapshot.cycle)

    @property
    def _settings(self) -> OptionSettings:
        genetic = self.search == "genetic"
        return OptionSettings(self.memory, self.types == "aware", every=genetic, whole_share=self.share == "whole")

    def power_mean(self, found: GoodputOptions, value: float) -> float:
        """The power mean of all jobs' speed-ups, from ``value``, the total worth of their allocations."""
        count, floor = len(found.fair), self._floor(found.speedups)
        if not count:
            return 0.0
        if self.p == 0:
            return float(floor * np.exp(value / count))
        return float((floor**self.p + np.sign(self.p) * value / count) ** (1.0 / self.p))

    def _floor(self, speedups: Floats) -> float:
        """The speed-up that a job without GPUs counts with: below that of every option."""
        least = float(speedups.min(initial=np.inf, where=speedups > 0))
        floor = min(self.tuning.floor, 0.5 * least)
        return max(floor, self.tuning.steepest ** (1.0 / self.p)) if self.p < 0 else floor

    def _worth(self, snapshot: Snapshot, speedups: Floats, jobs: Indices, stays: Flags) -> Floats:
        """Return, by option, its term in the sum under the power mean less that of no GPUs, at least 0."""
        moved = speedups * _reallocation(snapshot, self.restart)[jobs]
        floor = self._floor(speedups)
        served = np.maximum(np.where(stays, speedups, moved), floor * (1.0 + 1e-3))
        if self.p == 0:
            return np.log(served / floor)
        worth: Floats = np.sign(self.p) * (served**self.p - floor**self.p)
        return worth


def _carried(snapshot: Snapshot) -> OptionsCarry | None:
    return snapshot.carry if isinstance(snapshot.carry, OptionsCarry) else None


def _reallocation(snapshot: Snapshot, restart: Seconds) -> Floats:
    """By job: the factor on its speed-up if its seats change; 1 for a job that has none."""
    columns = snapshot.columns
    age = np.maximum(snapshot.now - columns.submitted, 0.0)
    moves = np.maximum(columns.incarnation - 1, 0)
    factor = np.clip((age - moves * restart) / np.maximum(age + restart, 1e-9), 0.0, 1.0)
    return np.where(columns.held > 0, factor, 1.0)


def _unchanged(snapshot: Snapshot, due: Seconds) -> Verdicts:
    """Verdicts under which each job keeps what it has until the next allotment."""
    columns = snapshot.columns
    running = columns.held > 0
    verdicts = Verdicts(
        snapshot,
        gpus=columns.held,
        codes=np.where(running, LEASED.code, ALLOTTED_LATER.code),
        numbers={LEASED: (due,), ALLOTTED_LATER: (due,)},
        batches={i: ADAPTIVE for i in np.flatnonzero(running).tolist() if adapts(snapshot.specs[i])},
    )
    return verdicts.overruled(infeasible_refusals(snapshot, columns.held))
