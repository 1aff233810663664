"""What Shockwave tells everyone: how many of the window's rounds are planned for it, from when on, and its ρ."""

import numpy as np

from shoal.core.arrays import Flags, Floats, Int8s, Int32s
from shoal.core.decision import Numbers, ReasonCode, Verdicts
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.base import explained
from shoal.policy.shockwave.carry import WindowPlan, places

_C = ReasonCode


def told(
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
    """A verdict for every live job, ``turn`` being the round of the plan that is in force.

    Gangs are to sit on one node where one can hold them; with ``moving`` those that run elsewhere are moved for it.
    """
    at, known = places(plan.rows, snapshot.columns.rows)
    ahead = plan.runs[at, turn:] & known[:, None]
    planned, left = ahead.sum(axis=1, dtype=np.int32), plan.rounds - turn
    later = ahead[:, 1:].any(axis=1)
    first = plan.begins + (turn + 1 + ahead[:, 1:].argmax(axis=1)) * length if left > 1 else np.zeros(len(at))
    served = gpus > 0
    codes = np.where(served, np.where(ahead[:, 0], _C.WINDOW_RUNS, _C.WINDOW_FILLS), _C.WINDOW_OUT)
    codes = np.where(~served & later, _C.WINDOW_WAITS, np.where(served | known, codes, _C.ROUND_NEW))
    most = float(rho[served].max(initial=0.0))
    numbers: Numbers = {
        _C.WINDOW_RUNS: (planned, left, rho),
        _C.WINDOW_FILLS: (planned, left, rho),
        _C.WINDOW_WAITS: (planned, left, first, rho),
        _C.WINDOW_OUT: (left, rho, most),
        _C.ROUND_NEW: (plan.begins + (turn + 1) * length,),
    }
    verdicts = explained(snapshot, gpus, codes.astype(np.uint8), numbers, kinds)
    near = _on_one_node(snapshot, gpus, kinds, moving)
    if not near.any():
        return verdicts
    hopeless = {i: verdicts.at(i) for i in np.flatnonzero(~snapshot.possible).tolist()}
    asking = Verdicts(
        snapshot, gpus=gpus, codes=codes.astype(np.uint8), numbers=numbers, kinds=kinds, consolidated=near
    )
    return asking.overruled(hopeless)


def nobody(snapshot: Snapshot) -> Verdicts:
    """Verdicts where no live job could run on the cluster as it is: each is told why."""
    count = len(snapshot.columns)
    return explained(snapshot, np.zeros(count, dtype=np.int32), np.full(count, np.uint8(_C.NO_KIND)), {})


def _on_one_node(snapshot: Snapshot, gpus: Int32s, kinds: Int8s | None, moving: bool) -> Flags:
    """Gangs that a node of their kind can hold: those that sit down now and, if so asked, those that sit apart."""
    sizes = np.asarray(snapshot.cluster.node_size)
    room = sizes[kinds] if kinds is not None else sizes.max(initial=0)
    near: Flags = (gpus > 1) & (gpus <= room)
    return near if moving else near & (snapshot.columns.held == 0)
