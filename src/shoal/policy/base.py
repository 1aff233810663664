"""What policies are written with: serving jobs in an order, and saying why.

A policy is any object with ``decide(snapshot) -> Decision``. Those in this room are frozen dataclasses whose fields
are their options; ``registry`` turns ``name:key=value`` into one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, inf, isfinite

import numpy as np
from numpy.typing import NDArray

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s, UInt8s
from shoal.core.decision import NumberColumn, Numbers, Refusal, Verdict, Verdicts
from shoal.core.reasons import FITS, IN_TURN, LEASED, NO_KIND, NO_ROOM, OUTRANKED, TOO_LARGE, Reason, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds


@dataclass(frozen=True, slots=True)
class Served:
    """Who is served when jobs are taken in an order: GPUs by job, the kind by job, and who was the last one served."""

    gpus: Int32s
    kinds: Int8s | None
    last: int
    """Position of the last job served in order; −1 when none was."""
    free: int
    """GPUs left over."""
    most_free: int
    """The most left over of any one kind."""


def all_fit(snapshot: Snapshot) -> Verdicts | None:
    """Verdicts that grant everyone its gang, when there is room for all; None when there is not.

    Most moments of most clusters are like this, and then no order of service matters. On a cluster of several kinds
    it does: who gets the better one.
    """
    columns, capacity = snapshot.columns, snapshot.cluster.capacity
    if len(capacity) != 1:
        return None
    used = int(np.add.reduce(columns.gpus))
    if used > capacity[0] or not columns.best_speed.all():
        return None
    codes = np.full(len(columns), FITS.code)
    return Verdicts(snapshot, gpus=columns.gpus, codes=codes, numbers={FITS: (used, capacity[0])})


def serve(snapshot: Snapshot, order: Indices, *, strict: bool = False, preferences: Floats | None = None) -> Served:
    """Give each job in order its whole gang or nothing; with ``strict`` the first that does not fit ends it.

    On a cluster of several kinds each takes, of those with room, the one it prefers (``preferences``, by job and
    kind). By default a running job stays on the kind it has, and any other takes the kind it is fastest on; which kind
    suits whom is left to heterogeneity-aware policies.
    """
    if len(snapshot.cluster.kinds) == 1:
        return _serve_one_kind(snapshot, order, strict)
    if preferences is None:
        preferences = first_of_all(snapshot, snapshot.columns.kind)
    return _serve_kinds(snapshot, order, strict, preferences)


def first_of_all(snapshot: Snapshot, kinds: NDArray[np.signedinteger]) -> Floats:
    """Wishes for these kinds (−1: none in particular), and after them for the faster ones."""
    preferences = snapshot.columns.speeds.copy()
    named = np.flatnonzero(kinds >= 0)
    preferences[named, kinds[named]] = inf
    return preferences


_GAIN, _SAVES = 1.1, 60.0
"""How many times, and by how many seconds, less a job must have to go elsewhere for it to be moved there."""


def migration_preferences(snapshot: Snapshot, left: Floats) -> Floats:
    """Wishes of running jobs for kinds on which they gain, before the one they have; ``left`` is seconds at their best.

    They must gain more than a restart may cost.
    """
    columns = snapshot.columns
    preferences, runs = columns.speeds.copy(), np.flatnonzero(columns.kind >= 0)
    speeds, here = preferences[runs], columns.kind[runs]
    work, present = (left * columns.best_speed)[runs], speeds[np.arange(len(runs)), here]
    now = np.divide(work, present, out=np.full(len(runs), inf), where=present > 0)
    then = np.divide(work[:, None], speeds, out=np.full(speeds.shape, inf), where=speeds > 0)
    pays = _GAIN * then + _SAVES <= now[:, None]
    # Above the kind it has come those that pay, below it the others, by speed each.
    most = 2.0 * columns.best_speed[runs]
    preferences[runs] = np.where(pays, speeds + most[:, None], speeds)
    preferences[runs, here] = most
    return preferences


_NOBODY: Indices = np.empty(0, dtype=np.intp)


def serve_ascending(snapshot: Snapshot, key: Floats | Int32s, first: Indices = _NOBODY) -> Served:
    """Serve ``first``, then everyone else in ascending key, ties in order of arrival; sorts no more than can matter."""
    demand, left = snapshot.columns.gpus, snapshot.cluster.total_gpus
    if len(first):
        left -= int(demand[first].sum())
        others = np.ones(len(key), dtype=bool)
        others[first] = False
        rest = others.nonzero()[0]
        keys = key[rest]
    else:
        rest, keys = None, key
    if left <= 0 or not len(keys):
        return serve(snapshot, first)
    # Each job served takes a GPU or more, so the first `left` in line nearly always settle it.
    if len(keys) > 4 * left:
        near = (keys <= np.partition(keys, left)[left]).nonzero()[0]
        served = serve(snapshot, _line(first, rest, near[keys[near].argsort(kind="stable")]))
        if served.free == 0:
            return served
    return serve(snapshot, _line(first, rest, keys.argsort(kind="stable")))


def _line(first: Indices, rest: Indices | None, order: Indices) -> Indices:
    """Positions in line: those who go first, then the rest in an order of theirs."""
    return order if rest is None else np.concatenate([first, rest[order]])


def _serve_one_kind(snapshot: Snapshot, order: Indices, strict: bool) -> Served:
    demand = snapshot.columns.gpus
    granted = np.zeros(len(demand), dtype=np.int32)
    free = snapshot.cluster.capacity[0]
    last = -1
    # A job that cannot run here would take its turn, and its GPUs, for ever.
    line = order if snapshot.all_possible else order[snapshot.possible[order]]
    # Each turn takes the longest run that fits. The job that stops it needs more than is left, so everything as wide
    # is out for good: there are at most as many turns as there are distinct gang sizes.
    while len(line) and free:
        total = demand[line[:free]].cumsum()  # nobody takes less than one GPU, so no more than `free` can be served
        count = int(total.searchsorted(free, side="right"))
        if count:
            taken = line[:count]
            granted[taken] = demand[taken]
            free -= int(total[count - 1])
            last = int(taken[-1])
        if strict or count == len(line):
            break
        line = line[count:]
        line = line[demand[line] <= free]
    return Served(granted, None, last, free, free)


def _serve_kinds(snapshot: Snapshot, order: Indices, strict: bool, preferences: Floats) -> Served:
    columns = snapshot.columns
    granted = np.zeros(len(columns), dtype=np.int32)
    kinds = np.full(len(columns), -1, dtype=np.int8)
    free = list(snapshot.cluster.capacity)
    demand, speeds = columns.gpus.tolist(), columns.speeds
    preference = np.argsort(-preferences, axis=1, kind="stable").tolist()
    last = -1
    for i in order.tolist():
        want = demand[i]
        choice = next((k for k in preference[i] if free[k] >= want and speeds[i, k] > 0), -1)
        if choice >= 0:
            free[choice] -= want
            granted[i], kinds[i], last = want, choice, i
            if not any(free):
                break
        elif strict:
            break
    return Served(granted, kinds, last, sum(free), max(free))


def any_on_slow_kind(snapshot: Snapshot) -> bool:
    """Whether a job runs on a kind that is not its fastest, and may go to a better one when a round is over."""
    columns = snapshot.columns
    runs = np.flatnonzero(columns.held > 0)
    return bool((columns.speeds[runs, columns.kind[runs]] < columns.best_speed[runs]).any())


def ranked_verdicts(
    snapshot: Snapshot,
    served: Served,
    name: str,
    key: Floats | Int32s,
    *,
    leased: Flags | None = None,
    until: Floats | float = 0.0,
) -> Verdicts:
    """Verdicts for jobs served in ascending ``key``, after those under lease.

    Everyone is told its own key and the last one served; who was passed over for want of room, its gang and the room;
    who is under lease, until when.
    """
    granted = served.gpus > 0
    in_turn = served.last >= 0 and (leased is None or not leased[served.last])
    cut = float(key[served.last]) if in_turn else inf
    codes = np.where(granted, IN_TURN.code, np.where(key > cut, OUTRANKED.code, NO_ROOM.code))
    story: tuple[NumberColumn, ...] = (name, key, cut)
    numbers: dict[ReasonTemplate, tuple[NumberColumn, ...]] = {
        IN_TURN: story,
        OUTRANKED: story,
        NO_ROOM: (snapshot.columns.gpus, served.most_free),
    }
    if leased is not None:
        codes[leased & granted] = LEASED.code
        numbers[LEASED] = (until,)
    return explained(snapshot, served.gpus, codes, numbers, served.kinds)


def explained(
    snapshot: Snapshot,
    gpus: Int32s,
    codes: UInt8s,
    numbers: Numbers,
    kinds: Int8s | None = None,
) -> Verdicts:
    """Verdicts in which jobs that cannot run at all on this cluster are told that instead."""
    verdicts = Verdicts(snapshot, gpus=gpus, codes=codes, numbers=numbers, kinds=kinds)
    return verdicts.overruled(infeasible_refusals(snapshot, gpus))


def infeasible_refusals(snapshot: Snapshot, gpus: Int32s) -> Mapping[int, Verdict]:
    """By position, of jobs that got nothing: a refusal for each that could not run on this cluster if it were alone."""
    if snapshot.all_possible:
        return {}
    cluster, columns = snapshot.cluster, snapshot.columns
    own: dict[int, Verdict] = {}
    for i in np.flatnonzero((gpus == 0) & ~snapshot.possible).tolist():
        if columns.best_speed[i] > 0:
            usable = max(c for c, s in zip(cluster.capacity, columns.speeds[i], strict=True) if s > 0)
            own[i] = Refusal(Reason(TOO_LARGE, (int(columns.gpus[i]), usable)))
        elif int(columns.gpus[i]) > max(cluster.installed, default=0):
            own[i] = Refusal(Reason(TOO_LARGE, (int(columns.gpus[i]), max(cluster.capacity, default=0))))
        else:
            own[i] = Refusal(Reason(NO_KIND, (", ".join(cluster.kinds),)))
    return own


def round_end(now: Seconds, seconds: Seconds) -> Seconds:
    """The end of the round that ``now`` lies in, rounds being counted from time 0; always after ``now``."""
    end = (floor(now / seconds) + 1) * seconds
    return end if end > now else end + seconds


def check_round(seconds: Seconds) -> None:
    """Refuse a round no cluster could keep to."""
    if not (isfinite(seconds) and seconds >= 1):
        raise ValueError(f"round must be a finite number of seconds, at least 1, not {seconds}")
