"""Pollux: GPUs and nodes for every job so that the power mean of their speed-ups over a fair share is highest.

A job's speed-up is its goodput on an allocation over that on a fair share; a change of allocation scales it by
(T − Rδ)/(T + δ), T the job's age, R its re-allocations so far and δ what one costs. At most one job that spans nodes
sits on a node, and a job gets at most twice the GPUs it has ever had. A job that gets nothing counts with a speed-up of
``FLOOR``: the power mean of p < 0 would otherwise be 0 as soon as one job waits, and say nothing of the others.
Allocations are made anew whenever a job comes, ends or can use more than before, and ``interval`` seconds after the
last time. That is ours: with ``when=interval``, the paper's, they are made every ``interval`` seconds, and in between
nobody moves, newcomers wait and freed GPUs idle.

The search is near-exact with a bound on what it may have missed (``solve.allotment``); ``search=genetic`` is the
population-based search of the paper. With ``types=off`` all GPUs are taken to be of one kind, as the paper's are.

References: Qiao et al., "Pollux", OSDI 2021, §4.2; Jayaram Subramanya et al., "Sia", SOSP 2023, for kinds.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.decision import Decision, Verdicts
from shoal.core.job import ADAPTIVE
from shoal.core.reasons import LEASED
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.base import check_round, infeasible_refusals, round_end
from shoal.policy.goodput_options import ALLOTTED, WORTH_LESS, Prospects, adapts, allotted, prospects
from shoal.policy.shared_reasons import ALLOTTED_LATER
from shoal.solve.allotment import STAY, Allotment, AllotmentOptions, allot
from shoal.solve.genetic_search import evolve

FLOOR = 0.05
"""The speed-up an unserved job counts with, a twentieth of a fair share; a served one counts with a little more."""

STEEPEST = 1e6
"""The most an unserved job's term may be of a fair share's: with a steep p the floor rises so that it is no more."""


@dataclass(frozen=True, slots=True)
class Pollux:
    """The highest power mean of speed-ups; ``p`` is the fairness knob, lower being fairer."""

    reasons = (ALLOTTED, WORTH_LESS, ALLOTTED_LATER)
    p: float = -1.0
    interval: float = 60.0
    when: str = "events"
    restart: float = 30.0
    types: str = "aware"
    search: str = "exact"
    memory: bool = False

    def __post_init__(self) -> None:
        if not isfinite(self.p):
            raise ValueError("p must be a finite number; -1 is the paper's, 1 the plain mean")
        check_round(self.interval)
        if self.when not in ("events", "interval"):
            raise ValueError("when must be events or interval")
        if not (isfinite(self.restart) and self.restart >= 0.0):
            raise ValueError("restart must be a finite number of seconds, at least 0")
        if self.types not in ("aware", "off"):
            raise ValueError("types must be aware or off")
        if self.search not in ("exact", "genetic"):
            raise ValueError("search must be exact or genetic")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job; everyone's is thought over after ``interval`` seconds at the latest."""
        due = self.settled_until(snapshot)
        if due is not None:
            return Decision(_as_they_are(snapshot, due), due, due)
        found, menu, allotment = self.allotment(snapshot)
        verdicts = allotted(snapshot, found, menu, allotment, np.ones(len(found.fair)))
        if self.when == "events":
            return Decision(verdicts, snapshot.now + self.interval)
        due = round_end(snapshot.now, self.interval)
        return Decision(verdicts, due, due)

    def settled_until(self, snapshot: Snapshot) -> Seconds | None:
        """When GPUs are next allotted anew; None if that is now."""
        due = snapshot.carry
        if self.when == "events" or not isinstance(due, float) or snapshot.now >= due or snapshot.sharing:
            return None
        return due

    def allotment(self, snapshot: Snapshot) -> tuple[Prospects, AllotmentOptions, Allotment]:
        """Who is to get what, out of what, with the bound on how much better it could be."""
        genetic = self.search == "genetic"
        found = prospects(snapshot, memory=self.memory, aware=self.types == "aware", every=genetic)
        menu = found.menu(self._worth(snapshot, found))
        if not genetic:
            return found, menu, allot(menu)
        return found, menu, evolve(menu, found.spread, snapshot.seed + snapshot.cycle)

    @property
    def _floor(self) -> float:
        return max(FLOOR, STEEPEST ** (1.0 / self.p)) if self.p < 0 else FLOOR

    def power_mean(self, value: float, count: int) -> float:
        """The power mean of so many jobs' speed-ups, when what they got is worth this together."""
        if not count:
            return 0.0
        if self.p == 0:
            return float(self._floor * np.exp(value / count))
        return float((self._floor**self.p + np.sign(self.p) * value / count) ** (1.0 / self.p))

    def _worth(self, snapshot: Snapshot, found: Prospects) -> Floats:
        """What each option adds to the sum under the power mean over having nothing; never below 0."""
        speedups = found.speedups * _reallocation(snapshot, self.restart)[:, None]
        speedups[:, STAY] = found.speedups[:, STAY]
        floor = self._floor
        served = np.maximum(speedups, floor * (1.0 + 1e-3))
        if self.p == 0:
            return np.log(served / floor)
        worth: Floats = np.sign(self.p) * (served**self.p - floor**self.p)
        return worth


def _reallocation(snapshot: Snapshot, restart: Seconds) -> Floats:
    """By job the factor on its speed-up if its seats change; 1 for a job that has none."""
    columns = snapshot.columns
    age = np.maximum(snapshot.now - columns.submitted, 0.0)
    moves = np.maximum(columns.incarnation - 1, 0)
    factor = np.clip((age - moves * restart) / np.maximum(age + restart, 1e-9), 0.0, 1.0)
    return np.where(columns.held > 0, factor, 1.0)


def _as_they_are(snapshot: Snapshot, due: Seconds) -> Verdicts:
    """Everyone keeps what it has until the next allocation."""
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
