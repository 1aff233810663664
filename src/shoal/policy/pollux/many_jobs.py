"""Pollux with thousands of jobs: only those that regret what they have are allotted anew (`solve.regret_allotment`).

Options are listed one after the other instead of in tables, since most jobs have few. The answer carries its bound.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.decision import Numbers, Refusal, Verdict, Verdicts
from shoal.core.job import ADAPTIVE
from shoal.core.lifecycle import JobState
from shoal.core.reasons import STOPPING, Reason
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.policy.base import infeasible_refusals
from shoal.policy.goodput_options import ALLOTTED, WORTH_LESS
from shoal.policy.option_carry import OptionsCarry
from shoal.solve.core_allotment import CoreAllotment, HeldSeats, Nodes
from shoal.solve.listed_options import ListedOptions
from shoal.solve.node_packing import Seats
from shoal.solve.regret_allotment import allot_regretful

_Number = TypeVar("_Number", bound=np.generic)

MANY = 2_000
"""Live jobs from which on only those that regret what they have are allotted anew."""

WorthOf = Callable[[Floats, Indices, Flags], Floats]
"""Worth of options from their speed-ups, their jobs, and whether they keep the present seats."""


@dataclass(frozen=True, slots=True, eq=False)
class ListedAllotment:
    """Options in order of their jobs, their speed-ups over a fair share, and the choice among them."""

    options: ListedOptions
    speedups: Floats
    fair_gpus: float
    found: CoreAllotment


def allot_many(snapshot: Snapshot, carry: OptionsCarry, worth_of: WorthOf) -> ListedAllotment:
    """Allot GPUs to the options of a carry."""
    columns, cluster = snapshot.columns, snapshot.cluster
    stopping = columns.state == int(JobState.STOPPING)
    rates = np.where(stopping[:, None], 0.0, carry.rates) if stopping.any() else carry.rates
    row, column = rates.nonzero()
    speedups = rates[row, column] / np.where(carry.fair > 0, carry.fair, 1.0)[row]
    stays, (sizes, kinds) = column == 0, carry.columns
    units = np.where(stays, columns.held[row], sizes[column - 1])
    pool = np.where(stays, columns.kind[row], kinds[column - 1])
    worth = worth_of(speedups, row, stays)
    options = ListedOptions.of(len(columns), row, worth, units.astype(np.float64), pool, stays)

    def seats_of(job: int) -> Seats | None:
        held = snapshot.placement(job)
        return None if held is None else held.seats

    held = HeldSeats(np.where(carry.there, carry.held.node, -1), seats_of)
    nodes = Nodes(np.array(cluster.usable, dtype=np.intp), np.array(cluster.node_kind, dtype=np.intp))
    found = allot_regretful(options, held, nodes, len(cluster.kinds))
    return ListedAllotment(options, speedups, float(carry.share), found)


def verdicts_of_many(snapshot: Snapshot, allotted: ListedAllotment, adapting: Flags) -> Verdicts:
    """Return verdicts for an allotment, with seats for the jobs that may move; all others stay on their seats."""
    options, speedups, picks = allotted.options, allotted.speedups, allotted.found.picks
    served = picks >= 0
    density = options.worth / options.units
    best = np.where(served, picks, options.first_at(density, options.top(density)))
    wanted = _of_option(options.units, best, 1.0).astype(np.int32)
    gpus = np.where(served, wanted, 0).astype(np.int32)
    over_fair, worth = _of_option(speedups, best, 0.0), _of_option(options.worth, best, 0.0)
    numbers: Numbers = {
        ALLOTTED: (gpus, over_fair, allotted.fair_gpus, 1.0),
        WORTH_LESS: (wanted, over_fair, worth, 1.0, int(served.sum()), int(gpus.sum())),
    }
    verdicts = Verdicts(
        snapshot,
        gpus=gpus,
        codes=np.where(served, ALLOTTED.code, WORTH_LESS.code),
        numbers=numbers,
        kinds=_of_option(options.pool, picks, -1).astype(np.int8),
        batches=dict.fromkeys((served & adapting).nonzero()[0].tolist(), ADAPTIVE),
        placements=_placements(snapshot, allotted),
    )
    refusals: dict[int, Verdict] = dict(infeasible_refusals(snapshot, gpus))
    for i in (snapshot.columns.state == int(JobState.STOPPING)).nonzero()[0].tolist():
        refusals[i] = Refusal(Reason(STOPPING))
    return verdicts.overruled(refusals)


def _of_option(values: NDArray[_Number], option: Indices, otherwise: float) -> NDArray[_Number]:
    """By job the value of its option; ``otherwise`` for a job without one, whose option is −1."""
    found = np.full(len(option), otherwise, dtype=values.dtype)
    has = option >= 0
    found[has] = values[option[has]]
    return found


def _placements(snapshot: Snapshot, allotted: ListedAllotment) -> dict[int, Placement]:
    """Return the placements of jobs that may have new seats; the present object where the seats are the same."""
    found: dict[int, Placement] = {}
    for i, seats in allotted.found.seats.items():
        before = snapshot.placement(i)
        found[i] = before if before is not None and before.seats == seats else Placement(seats)
    return found
