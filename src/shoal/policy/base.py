"""Building blocks of policies: serving jobs in an order, verdicts with reasons, and times of review.

A policy is any object with ``decide(snapshot) -> Decision``. The built-in ones are frozen dataclasses whose fields are
their options; ``registry`` makes one from ``name:key=value``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil, floor, inf, isfinite

import numpy as np
from numpy.typing import NDArray

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s, Int64s, UInt8s
from shoal.core.columns import sealed
from shoal.core.decision import NumberColumn, Numbers, Refusal, Verdict, Verdicts
from shoal.core.reasons import FITS, IN_TURN, LEASED, NO_KIND, NO_ROOM, OUTRANKED, TOO_LARGE, Reason, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.core.value import Value
from shoal.policy.tuning import constant


@dataclass(frozen=True, slots=True)
class MigrationTuning:
    """Conditions for moving a running job to a faster kind of GPU: the gain must exceed the cost of a restart."""

    gain: float = constant(1.1, "factor by which a job must end sooner on another kind to be moved there")
    saves: float = constant(60.0, "seconds by which it must end sooner besides")


MIGRATION = MigrationTuning()

_NONE: Indices = np.empty(0, dtype=np.intp)
_PART = 32
"""Jobs of a line that are served one by one before the rest of it is filtered again."""


class Served(Value, frozen=True):
    """The result of serving jobs in an order: GPUs and kind by job (kinds are None on a cluster of one kind)."""

    gpus: Int32s
    kinds: Int8s | None
    last: int
    """Position of the last job served in order; −1 when none was."""
    free: int
    """GPUs left over."""
    most_free: int
    """The most GPUs of one kind that are left over."""


def all_fit(snapshot: Snapshot) -> Verdicts | None:
    """Return verdicts that grant every job its gang, if all gangs fit on a cluster of one kind; otherwise None.

    Most decisions are like this, and then the order of service does not matter. With several kinds of GPU the order
    decides which job gets the faster kind.
    """
    columns, capacity = snapshot.columns, snapshot.cluster.capacity
    if len(capacity) != 1:
        return None
    used = columns.demand
    if used > capacity[0] or not columns.all_able:
        return None
    count = len(columns)
    codes = _fits(1 << count.bit_length())[:count]
    return Verdicts(snapshot, gpus=columns.gpus, codes=codes, numbers={FITS: (used, capacity[0])})


@cache
def _fits(count: int) -> UInt8s:
    """Return an array of this length, filled with the code of FITS."""
    return sealed(np.full(count, FITS.code))


def serve(
    snapshot: Snapshot,
    order: Indices,
    *,
    strict: bool = False,
    preferences: Floats | None = None,
    demand: Int32s | None = None,
) -> Served:
    """Give each job in order its whole gang or nothing; with ``strict`` stop at the first that does not fit.

    ``demand`` are the gangs by job, by default those asked for.
    On a cluster of several kinds each job takes, of the kinds with enough free GPUs, the one it prefers most
    (``preferences``, jobs × kinds). By default a running job stays on its kind and any other takes its fastest.
    """
    if len(snapshot.cluster.kinds) == 1:
        return _serve_one_kind(snapshot, order, strict, snapshot.columns.gpus if demand is None else demand)
    if preferences is None:
        preferences = prefer_kind(snapshot, snapshot.columns.kind)
    return _serve_kinds(snapshot, order, strict, snapshot.columns.gpus if demand is None else demand, preferences)


def prefer_kind(snapshot: Snapshot, kinds: NDArray[np.signedinteger]) -> Floats:
    """Return preferences (jobs × kinds) that rank the given kind of each job (−1: none) first, the others by speed."""
    preferences = snapshot.columns.speeds.copy()
    named = np.flatnonzero(kinds >= 0)
    preferences[named, kinds[named]] = inf
    return preferences


def serve_ascending(snapshot: Snapshot, key: Floats | Int32s, first: Indices = _NONE) -> Served:
    """Serve jobs ``first``, ascending, then the others in ascending key, ties by arrival; sorts only what matters.

    Keys are above negative infinity.
    """
    left, others = snapshot.cluster.total_gpus, len(key) - len(first)
    if len(first):
        left -= int(np.add.reduce(snapshot.columns.gpus.take(first)))
    if left == 0 or not others:
        return serve(snapshot, first)
    if len(first):
        key = key.astype(np.float64)
        key[first] = -inf
    # Each job served takes a GPU or more, so the first `left` in order nearly always settle it. Below 0 not all of
    # ``first`` fit, and others may fit instead.
    if 0 < left < others / 4:
        at = len(first) + left
        near = (key <= np.partition(key, at)[at]).nonzero()[0]
        served = serve(snapshot, near[key[near].argsort(kind="stable")])
        if served.free == 0:
            return served
    return serve(snapshot, key.argsort(kind="stable"))


def _serve_one_kind(snapshot: Snapshot, order: Indices, strict: bool, demand: Int32s) -> Served:
    granted = np.zeros(len(demand), dtype=np.int32)
    free = snapshot.cluster.capacity[0]
    last = -1
    # A job that cannot run here would hold its place, and its GPUs, for ever.
    line = order if snapshot.all_possible else order[snapshot.possible[order]]
    if strict:
        line = line[:free]  # a gang has at least one GPU, so no more than `free` jobs can be served
    gangs = demand.take(line)
    if len(line) and free:
        total = gangs[:free].cumsum()
        count = int(total.searchsorted(free, side="right"))
        if count:
            granted[line[:count]] = gangs[:count]
            free -= total.item(count - 1)
            last = line.item(count - 1)
        line, gangs = line[count:], gangs[count:]
    # What does not fit after one part of the line is dropped from the rest of it at once.
    while free and len(line) and not strict:
        fits = (gangs <= free).nonzero()[0]
        part, rest = fits[:_PART], fits[_PART:]
        for i, want in zip(line.take(part).tolist(), gangs.take(part).tolist(), strict=True):
            if want <= free:
                granted[i], last = want, i
                free -= want
                if not free:
                    break
        if not len(rest):
            break
        line, gangs = line.take(rest), gangs.take(rest)
    return Served(granted, None, last, free, free)


def _serve_kinds(snapshot: Snapshot, order: Indices, strict: bool, gangs: Int32s, preferences: Floats) -> Served:
    columns, line = snapshot.columns, order
    line_of = _KindLine(np.where(columns.speeds > 0, preferences, 0.0), gangs, np.array(snapshot.cluster.capacity))
    # Nothing becomes free, so what does not fit after one part of the line is dropped from the rest of it at once.
    while len(line) and line_of.free.any():
        line = line[line_of.take_first_choices(line, strict) :]
        part, line = (line, line[:0]) if strict else (line[:_PART], line[_PART:])
        line_of.take_one_by_one(part, strict)
        line = line[line_of.fits(line)]
    free = line_of.free
    return Served(line_of.granted, line_of.kinds, line_of.last, int(free.sum()), int(free.max(initial=0)))


class _KindLine:
    """Service of jobs in order on several kinds; ``usable`` are preferences, 0 where a job cannot run."""

    def __init__(self, usable: Floats, gangs: Int32s, free: Int64s) -> None:
        self.free = free
        self.granted = np.zeros(len(gangs), dtype=np.int32)
        self.kinds = np.full(len(gangs), -1, dtype=np.int8)
        self.last = -1
        self._usable, self._gangs = usable, gangs
        self._first = usable.argmax(axis=1)
        at = np.arange(len(gangs))
        self._able: Flags = usable[at, self._first] > 0.0
        self._asked = np.zeros(usable.shape, dtype=np.int64)
        """GPUs of the kind that a job prefers most."""
        self._asked[at, self._first] = np.where(self._able, gangs, 0)

    def take_first_choices(self, line: Indices, strict: bool) -> int:
        """Serve the longest beginning of a line in which all jobs get the kind they prefer most; return its length."""
        total = self._asked.take(line, axis=0).cumsum(axis=0)
        count = int((total <= self.free).all(axis=1).sum())
        able = self._able.take(line[:count])
        if strict and not able.all():
            count = int(able.argmin())
            able = able[:count]
        if count:
            taken = line[:count][able]
            self.granted[taken], self.kinds[taken] = self._gangs[taken], self._first[taken]
            self.free = self.free - total[count - 1]
            self.last = int(taken[-1]) if len(taken) else self.last
        return count

    def take_one_by_one(self, part: Indices, strict: bool) -> None:
        """Serve jobs one after the other, each on the kind it prefers most of those with enough free GPUs."""
        free = self.free.tolist()
        most = max(free, default=0)
        ranks, wanted = self._usable.take(part, axis=0).tolist(), self._gangs.take(part).tolist()
        for i, want, row in zip(part.tolist(), wanted, ranks, strict=True):
            best, choice = 0.0, -1
            if want <= most:
                for k, rank in enumerate(row):
                    if rank > best and free[k] >= want:
                        best, choice = rank, k
            if choice >= 0:
                free[choice] -= want
                self.granted[i], self.kinds[i], self.last = want, choice, i
                if not (most := max(free)):
                    break
            elif strict:
                break
        self.free = np.array(free, dtype=np.int64)

    def fits(self, line: Indices) -> Flags:
        """By job of a line whether some kind that it can use has enough free GPUs."""
        enough = self._gangs.take(line)[:, None] <= self.free
        return np.asarray((enough & (self._usable.take(line, axis=0) > 0.0)).any(axis=1))


def any_on_slow_kind(snapshot: Snapshot) -> bool:
    """Whether some job runs on a kind that is not its fastest, so that the end of a round may move it."""
    columns = snapshot.columns
    runs = np.flatnonzero(columns.held > 0)
    return bool((columns.speeds[runs, columns.kind[runs]] < columns.best_speed[runs]).any())


# ── verdicts ──────────────────────────────────────────────────────────────────────────────────────────────────────


def ranked_verdicts(
    snapshot: Snapshot,
    served: Served,
    name: str,
    key: Floats | Int32s,
    *,
    leased: Flags | None = None,
    until: Floats | float = 0.0,
) -> Verdicts:
    """Verdicts for jobs served in ascending ``key`` (called ``name``), after the ``leased`` ones.

    IN_TURN and OUTRANKED give a job's own key and the last one served, NO_ROOM its gang and the GPUs left, LEASED the
    end of its lease, ``until``.
    """
    granted = served.gpus > 0
    in_turn = served.last >= 0 and (leased is None or not leased[served.last])
    cut = float(key[served.last]) if in_turn else inf
    codes = either_code(key > cut, OUTRANKED, NO_ROOM)
    np.putmask(codes, granted, IN_TURN.code)  # in half the time of an assignment by mask
    ranked: tuple[NumberColumn, ...] = (name, key, cut)
    numbers: dict[ReasonTemplate, tuple[NumberColumn, ...]] = {
        IN_TURN: ranked,
        OUTRANKED: ranked,
        NO_ROOM: (snapshot.columns.gpus, served.most_free),
    }
    if leased is not None:
        np.putmask(codes, leased & granted, LEASED.code)
        numbers[LEASED] = (until,)
    return explained(snapshot, served.gpus, codes, numbers, served.kinds)


def either_code(mask: Flags, yes: ReasonTemplate, no: ReasonTemplate) -> UInt8s:
    """Return one reason's code where the mask is true and another's elsewhere: ``np.where`` at a tenth of its cost."""
    codes: UInt8s = _no_and_yes(yes, no).take(mask.view(np.uint8))
    return codes


@cache
def _no_and_yes(yes: ReasonTemplate, no: ReasonTemplate) -> UInt8s:
    return sealed(np.array([no.code, yes.code], dtype=np.uint8))


def explained(
    snapshot: Snapshot,
    gpus: Int32s,
    codes: UInt8s,
    numbers: Numbers,
    kinds: Int8s | None = None,
) -> Verdicts:
    """Return the verdicts with the reason TOO_LARGE or NO_KIND for each job that this cluster can never run."""
    verdicts = Verdicts(snapshot, gpus=gpus, codes=codes, numbers=numbers, kinds=kinds)
    return verdicts.overruled(infeasible_refusals(snapshot, gpus))


def infeasible_refusals(snapshot: Snapshot, gpus: Int32s) -> Mapping[int, Verdict]:
    """Return a refusal, by position, for each job that was granted nothing and could not run here even alone."""
    if snapshot.all_possible:
        return {}
    cluster, columns = snapshot.cluster, snapshot.columns
    where = np.flatnonzero((gpus == 0) & ~snapshot.possible)
    if not len(where):
        return {}
    capacity, needs = np.array(cluster.capacity, dtype=np.int64), columns.gpus[where]
    runs = columns.best_speed[where] > 0
    usable = np.where(columns.speeds[where] > 0, capacity, 0).max(axis=1, initial=0)
    usable[~runs] = capacity.max(initial=0)
    too_large = runs | (needs > max(cluster.installed, default=0))
    no_kind = Refusal(Reason(NO_KIND, (", ".join(cluster.kinds),)))

    @cache
    def refusal(large: bool, needed: int, most: int) -> Refusal:
        return Refusal(Reason(TOO_LARGE, (needed, most))) if large else no_kind

    each = map(refusal, too_large.tolist(), needs.tolist(), usable.tolist())
    return dict(zip(where.tolist(), each, strict=True))


# ── times of review ───────────────────────────────────────────────────────────────────────────────────────────────


def round_end(now: Seconds, seconds: Seconds) -> Seconds:
    """The end of the round that contains ``now``, rounds being counted from time 0; always after ``now``."""
    end = (floor(now / seconds) + 1) * seconds
    return end if end > now else end + seconds


def current_round(snapshot: Snapshot, seconds: Seconds) -> tuple[Seconds, Flags]:
    """Return the end of the round, for a policy that carries it, and by job whether it keeps its GPUs until then.

    Where the carried round is over, or none is carried, a new one begins and no job keeps anything.
    """
    end, held = snapshot.carry, snapshot.columns.held
    if isinstance(end, float) and snapshot.now < end:
        return end, held > 0
    return round_end(snapshot.now, seconds), np.zeros(len(held), dtype=bool)


def next_review(due: object | None, now: Seconds, interval: Seconds) -> tuple[bool, Seconds]:
    """Whether the review that the policy carries is due (or none is carried), and the time of the next one."""
    if isinstance(due, float) and now < due <= now + interval:
        return False, due
    return True, now + interval


def next_second(moment: Seconds, now: Seconds) -> Seconds:
    """The first whole second at or after ``moment`` and after ``now``; infinity stays infinity.

    A review exactly where two priorities cross could come early by a rounding error and repeat without end.
    """
    return max(float(ceil(moment)), floor(now) + 1.0) if isfinite(moment) else moment


def check_round(seconds: Seconds, name: str = "round") -> None:
    """Raise a ``ValueError`` unless a length of time is finite and at least one second."""
    if not (isfinite(seconds) and seconds >= 1):
        raise ValueError(f"{name} must be a finite number of seconds, at least 1, not {seconds}")
