"""The reasons of Shockwave and the verdicts of a round."""

import numpy as np

from shoal.core.arrays import Flags, Floats, Int8s, Int32s
from shoal.core.decision import Numbers, Verdicts
from shoal.core.reasons import NO_KIND, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.base import explained
from shoal.policy.carried_rows import match_rows
from shoal.policy.shared_reasons import ROUND_NEW
from shoal.policy.shockwave.carry import WindowPlan

WINDOW_RUNS = ReasonTemplate(
    16,
    "WINDOW_RUNS",
    "runs this round: planned for {rounds planned for it:,.0f} of the window's {rounds left of the window:,.0f} "
    "rounds left, to end at ρ {predicted ρ:,.4g}",
)
WINDOW_FILLS = ReasonTemplate(
    17,
    "WINDOW_FILLS",
    "runs this round on GPUs left free by the plan, which gives it {rounds planned for it:,.0f} of the window's "
    "{rounds left of the window:,.0f} rounds left; to end at ρ {predicted ρ:,.4g}",
)
WINDOW_WAITS = ReasonTemplate(
    36,
    "WINDOW_WAITS",
    "waits: planned for {rounds planned for it:,.0f} of the window's {rounds left of the window:,.0f} rounds left, "
    "from {start of the first of them:time} on, to end at ρ {predicted ρ:,.4g}",
)
WINDOW_OUT = ReasonTemplate(
    37,
    "WINDOW_OUT",
    "waits: planned for none of the window's {rounds left of the window:,.0f} rounds left, to end at ρ "
    "{predicted ρ:,.4g} at best; running jobs end at ρ up to {highest ρ among running jobs:,.4g}",
)
REASONS = (WINDOW_RUNS, WINDOW_FILLS, WINDOW_WAITS, WINDOW_OUT, ROUND_NEW)


def window_verdicts(
    snapshot: Snapshot,
    plan: WindowPlan,
    turn: int,
    length: Seconds,
    gpus: Int32s,
    kinds: Int8s | None,
    rho: Floats,
    *,
    moving: bool,
) -> Verdicts:
    """A verdict for every live job in round ``turn`` of the plan.

    Gangs belong on one node where one can hold them; with ``moving`` running gangs are moved for it.
    """
    at, known = match_rows(plan.rows, snapshot.columns.rows)
    ahead = plan.runs[at, turn:] & known[:, None]
    planned, left = ahead.sum(axis=1, dtype=np.int32), plan.rounds - turn
    later = ahead[:, 1:].any(axis=1)
    first = plan.begins + (turn + 1 + ahead[:, 1:].argmax(axis=1)) * length if left > 1 else np.zeros(len(at))
    served = gpus > 0
    codes = np.where(served, np.where(ahead[:, 0], WINDOW_RUNS.code, WINDOW_FILLS.code), WINDOW_OUT.code)
    codes = np.where(~served & later, WINDOW_WAITS.code, np.where(served | known, codes, ROUND_NEW.code))
    most = float(rho[served].max(initial=0.0))
    numbers: Numbers = {
        WINDOW_RUNS: (planned, left, rho),
        WINDOW_FILLS: (planned, left, rho),
        WINDOW_WAITS: (planned, left, first, rho),
        WINDOW_OUT: (left, rho, most),
        ROUND_NEW: (plan.begins + (turn + 1) * length,),
    }
    verdicts = explained(snapshot, gpus, codes.astype(np.uint8), numbers, kinds)
    near = _on_one_node(snapshot, gpus, kinds, moving)
    if not near.any():
        return verdicts
    infeasible = {i: verdicts.at(i) for i in np.flatnonzero(~snapshot.possible).tolist()}
    detailed = Verdicts(
        snapshot, gpus=gpus, codes=codes.astype(np.uint8), numbers=numbers, kinds=kinds, consolidated=near
    )
    return detailed.overruled(infeasible)


def infeasible_verdicts(snapshot: Snapshot) -> Verdicts:
    """Verdicts where no live job can run on the cluster as it is."""
    count = len(snapshot.columns)
    return explained(snapshot, np.zeros(count, dtype=np.int32), np.full(count, NO_KIND.code), {})


def _on_one_node(snapshot: Snapshot, gpus: Int32s, kinds: Int8s | None, moving: bool) -> Flags:
    """Return which gangs fit on a node of their kind, of gangs that start now and, with ``moving``, running ones."""
    sizes = np.asarray(snapshot.cluster.node_size)
    largest = sizes[kinds] if kinds is not None else sizes.max(initial=0)
    near: Flags = (gpus > 1) & (gpus <= largest)
    return near if moving else near & (snapshot.columns.held == 0)
