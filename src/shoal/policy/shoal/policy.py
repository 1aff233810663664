"""One market for all jobs: GPUs go where they are worth most, and worth rises with lateness, so that no job starves.

Every job j has options o: a kind and a number of GPUs, or the seats it holds. With r_jo its rate there,

    worth_jo = weight_j · r_jo · keep_o,   weight_j as in ``claims``.

keep_o is at least 1 for the seats held, more by what a stop would lose; elsewhere it is the part of the time left
there, at most ``lasting``, that a restart leaves; 1 for an overdue job. The choice of one option or none for each job
is the one of most total worth that the nodes can seat (``solve.allotment``, which also bounds how far it may be from
the best). Where all jobs are rigid, on one kind and indifferent to distance, that is an order: the highest bid for a
GPU, worth over GPUs, first.

References: ours. Smith (1956) for worth that falls with the time left; heSRPT (Berg et al., 2019) for the places.
"""

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from shoal.core.arrays import Floats, Int32s, UInt8s
from shoal.core.decision import Decision, Numbers, Refusal, Verdict, Verdicts
from shoal.core.job import ADAPTIVE as ADAPTIVE_BATCH
from shoal.core.lifecycle import JobState
from shoal.core.reasons import STOPPING, Reason
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.core.units import Seconds
from shoal.policy.base import all_fit, explained, infeasible_refusals, serve_ascending
from shoal.policy.shoal.bids import Offers, Sold, sold
from shoal.policy.shoal.claims import (
    MarketClaims,
    Prospects,
    TableProspects,
    claims,
    rigid_prospects,
    table_prospects,
    typical,
)
from shoal.policy.shoal.option_list import OptionList
from shoal.policy.shoal.rate_table import ADAPTIVE, ELASTIC, NEAR, RateTable, Traits, traits_of, updated
from shoal.policy.shoal.reasons import BOUGHT, OUTBID, RESUMES, UNCONTESTED
from shoal.policy.shoal.tuning import TUNING
from shoal.solve.allotment import STAY
from shoal.solve.node_packing import Seats


@dataclass(frozen=True, slots=True)
class Shoal:
    """The market. Worth falls with the time left to the power ``length``; ``makespan`` weighs the makespan, 0 to 1.

    ``restart`` is the cost of a change of seats in seconds; ``memory``: a job starts from the reports of earlier jobs
    of its model.
    """

    reasons = (OUTBID, BOUGHT, UNCONTESTED, RESUMES)
    tuning = TUNING
    length: float = 0.2
    makespan: float = 0.4
    restart: float = 30.0
    memory: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.length <= 1.0:
            raise ValueError("length must lie from 0 to 1")
        if not 0.0 <= self.makespan <= 1.0:
            raise ValueError("makespan must lie from 0 to 1")
        if not (isfinite(self.restart) and self.restart >= 0.0):
            raise ValueError("restart must be a finite number of seconds, at least 0")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts of the market, reviewed at every arrival and end and after a part of the median time left."""
        before = snapshot.carry if isinstance(snapshot.carry, _Carry) else _Carry()
        traits = traits_of(snapshot, before.traits)
        if len(snapshot.cluster.kinds) == 1 and not (traits.bits & (ELASTIC | ADAPTIVE | NEAR)).any():
            return self._in_order(snapshot, traits)
        table = updated(snapshot, traits.bits, before.table, memory=self.memory)
        options = _able(snapshot, table)
        ahead = table_prospects(snapshot, table, options, before.ahead)
        claimed = self._claims(snapshot, traits, ahead.prospects)
        options = _lasting(snapshot, options, claimed)
        offers = Offers(options, self._worth(snapshot, traits, options, claimed))
        verdicts = _allotted(snapshot, table, claimed, sold(snapshot, table, offers))
        return Decision(verdicts, snapshot.now + _interval(claimed.soonest), _Carry(traits, table, ahead))

    def _in_order(self, snapshot: Snapshot, traits: Traits) -> Decision:
        """Decide for rigid jobs on one kind: gangs in order of worth per GPU; one that does not fit is passed over."""
        if (verdicts := all_fit(snapshot)) is not None:
            return Decision(verdicts, inf, _Carry(traits))
        columns = snapshot.columns
        claimed = self._claims(snapshot, traits, rigid_prospects(snapshot, traits.bits))
        moves = self._moves(claimed.soonest, self._restarts(columns.starts))
        kept = np.where(columns.held > 0, self._stays(snapshot), moves)
        if (held_on := _held_on(snapshot, traits)) is not None:
            kept *= held_on
        kept[claimed.overdue] = 1.0
        bids = claimed.weights * columns.best_speed * kept / columns.gpus
        served = serve_ascending(snapshot, -bids)
        runs = served.gpus > 0
        price = np.full(len(bids), float(bids.max(where=~runs & snapshot.possible, initial=0.0)))
        codes, numbers = _explained(claimed, served.gpus, columns.gpus, bids, price, 0.0)
        verdicts = explained(snapshot, served.gpus, codes, numbers, served.kinds)
        return Decision(verdicts, snapshot.now + _interval(claimed.soonest), _Carry(traits))

    def _claims(self, snapshot: Snapshot, traits: Traits, ahead: Prospects) -> MarketClaims:
        return claims(snapshot, traits.bits, ahead, length=self.length, makespan=self.makespan)

    def _worth(self, snapshot: Snapshot, traits: Traits, options: OptionList, claimed: MarketClaims) -> Floats:
        """Return the worth of each option: weight · rate · keep_o."""
        job, columns = options.job, snapshot.columns
        kept = self._moves(claimed.left[job] / options.rate, self._restarts(columns.starts)[job])
        stays = (options.column == STAY).nonzero()[0]
        kept[stays] = self._stays(snapshot)[job[stays]]
        if (held_on := _held_on(snapshot, traits)) is not None:
            kept *= held_on[job]
        if claimed.overdue.any():
            kept[claimed.overdue[job]] = 1.0
        worth: Floats = claimed.weights[job] * options.rate
        worth *= kept
        return worth

    def _restarts(self, starts: Int32s) -> Floats:
        """Return the seconds that a restart costs, by job; a first start counts less."""
        return np.where(starts > 0, self.restart, TUNING.first_start * self.restart)

    def _moves(self, seconds: Floats, restarts: Floats) -> Floats:
        """Return the part of the time left, at most ``lasting``, that a restart leaves."""
        lasts = seconds + self.restart
        np.minimum(lasts, max(TUNING.lasting, 2.0 * self.restart, 1e-9), out=lasts)
        np.maximum(lasts, 1e-9, out=lasts)
        np.divide(restarts, lasts, out=lasts)
        return np.subtract(1.0, lasts, out=lasts)

    def _stays(self, snapshot: Snapshot) -> Floats:
        """Return ``keep_o`` of the seats held, by job: 1, and more by the run that a stop would lose."""
        return 1.0 + snapshot.columns.unsaved / TUNING.lasting


def _held_on(snapshot: Snapshot, traits: Traits) -> Floats | None:
    """Return ``keep_o`` of running rigid jobs of unknown length, by job; None if it is 1 for all.

    Where lengths are unknown, it gains little that jobs take turns.
    """
    columns = snapshot.columns
    unknown = (columns.held > 0) & np.isinf(columns.work) & ((traits.bits & (ELASTIC | ADAPTIVE)) == 0)
    return np.where(unknown, TUNING.unknown_stay, 1.0) if unknown.any() else None


def _lasting(snapshot: Snapshot, options: OptionList, claimed: MarketClaims) -> OptionList:
    """Return the options without those too slow for a job that, once started, would have to stay on its GPUs."""
    if not snapshot.guarded:
        return options
    slow = options.rate < TUNING.kept_rate * claimed.promised[options.job]
    return options.where(~(slow & snapshot.unstoppable_once_started[options.job]))


@dataclass(frozen=True, slots=True, eq=False)
class _Carry:
    """Values of the last decision on jobs, kept only so that they are not computed again."""

    traits: Traits | None = None
    table: RateTable | None = None
    ahead: TableProspects | None = None


def _interval(soonest: Floats) -> Seconds:
    return min(max(TUNING.review_part * typical(soonest), TUNING.review_least), TUNING.review_most)


def _able(snapshot: Snapshot, table: RateTable) -> OptionList:
    """The options that the present cluster has; a job that is being stopped has none."""
    options, stopping = table.options, snapshot.columns.state == int(JobState.STOPPING)
    if snapshot.cluster.capacity != snapshot.cluster.installed:
        there = options.gpus <= np.array(snapshot.cluster.capacity, dtype=np.intp)[options.kind]
        options = options.where(there | (options.column == STAY))
    return options.where(~stopping[options.job]) if stopping.any() else options


def _explained(
    claimed: MarketClaims, gpus: Int32s, wanted: Int32s, bids: Floats, price: Floats, gap: float
) -> tuple[UInt8s, Numbers]:
    """Return reason codes and numbers for these grants; by job, ``price`` is that of the kind it has or wants."""
    ratio = np.divide(bids, price, out=np.zeros(len(bids)), where=(price > 0) & np.isfinite(bids))
    runs = gpus > 0
    codes = np.where(runs, np.where(price > 0, BOUGHT.code, UNCONTESTED.code), OUTBID.code)
    facts = (claimed.soonest, claimed.late, 100.0 * gap)
    return codes, {
        BOUGHT: (gpus, ratio, *facts),
        OUTBID: (wanted, ratio, *facts),
        UNCONTESTED: (gpus, claimed.soonest),
    }


# ── the allotment ─────────────────────────────────────────────────────────────────────────────────────────────────


def _allotted(snapshot: Snapshot, table: RateTable, claimed: MarketClaims, found: Sold) -> Verdicts:
    """Verdicts with seats for the allotment of most worth."""
    codes, numbers = _explained(claimed, found.gpus, found.wanted, found.bids, found.prices, found.gap)
    served = found.gpus > 0
    adaptive = (served & ((table.traits & ADAPTIVE) > 0)).nonzero()[0].tolist()
    verdicts = Verdicts(
        snapshot,
        gpus=found.gpus,
        codes=codes,
        numbers=numbers,
        kinds=np.where(served, found.kinds, -1).astype(np.int8),
        batches=dict.fromkeys(adaptive, ADAPTIVE_BATCH),
        placements={i: _placement(snapshot.placement(i), seats) for i, seats in found.seats.items()},
    )
    refusals: dict[int, Verdict] = {**infeasible_refusals(snapshot, found.gpus), **found.verdicts}
    for i in (snapshot.columns.state == int(JobState.STOPPING)).nonzero()[0].tolist():
        refusals[i] = Refusal(Reason(STOPPING))
    return verdicts.overruled(refusals)


def _placement(held: Placement | None, seats: Seats) -> Placement:
    """Return these seats as a placement: the job's present one if its seats are this object."""
    return held if held is not None and held.seats is seats else Placement(seats)
