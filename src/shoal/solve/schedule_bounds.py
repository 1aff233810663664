"""Lower bounds on the mean completion time and on the makespan of every schedule, each with prices that prove it.

Job j is released at r_j. On kind k it needs at least p_jk seconds, and at least a_jk GPU-seconds; infinity if it cannot
run there. n_k GPUs of kind k exist. A schedule may stop and move jobs at any time without cost, spread one job over
kinds, and choose its number of GPUs anew at every moment. So a bound on such schedules holds for any policy.

Let y_jk(t) be the rate at which j does its work on kind k, in parts of all its work. Then

    Σ_k ∫ y_jk = 1,   Σ_k p_jk y_jk(t) ≤ 1,   Σ_j a_jk y_jk(t) ≤ n_k.

With p_j = min_k p_jk no work is done faster than in parts of 1/p_j a second, so j ends at least p_j / 2 after the mean
time of its work: C_j ≥ Σ_k ∫ t y_jk dt + p_j / 2 (Goemans's mean busy times). The least sum of the right-hand sides is
a linear program. Prices π_k(t) ≥ 0 on GPUs and a time c_j for each job bound it from below, whatever their values:

    Σ_j [ c_j − ∫_{t ≥ r_j} max_k (c_j − t − a_jk π_k(t))⁺ / p_jk dt + p_j / 2 ] − Σ_k n_k ∫ π_k dt.

Prices are constant in each slot of time and 0 after the last. The integrand is convex in t within a slot, so the
trapezoid rule, which is never below the integral, keeps the bound valid (`priced_bound`).

A second bound needs one price λ_k for each kind, at all times. The GPUs together are then one machine of speed
Σ_k λ_k n_k on which j has the size min_k λ_k a_jk, and no schedule of that machine has a lower sum of completion times
than the one that always serves the job with the least left (SRPT). For the makespan, the work released from any moment
on takes its size over that speed.

References: Schrage (1968) for SRPT; Goemans (1997) for mean busy times; Fisher (1981) for the prices.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats

_SLOTS = 96
"""Slots of equal length, and about as many between quantiles of releases and soonest ends."""
_STEPS = 60
"""Steps of ascent of the prices."""
_NEWTON = 3
"""Newton's steps for the times c after each change of the prices; ``_LAST`` after the last."""
_LAST = 30
_BALANCING = 200


@dataclass(frozen=True, slots=True, eq=False)
class LeastTimes:
    """By job its release; by job and kind the least seconds and the least GPU-seconds that it needs; GPUs by kind.

    Every job can run on some kind, and every kind has a GPU.
    """

    release: Floats
    seconds: Floats
    area: Floats
    gpus: Floats

    @property
    def shortest(self) -> Floats:
        """By job the least seconds on any kind."""
        least: Floats = self.seconds.min(axis=1)
        return least


@dataclass(frozen=True, slots=True, eq=False)
class SlotPrices:
    """Price of a GPU by kind and slot, in seconds of completion time for each GPU-second; slot i ends at ``ends[i]``.

    The first slot begins at ``begin``.
    """

    begin: float
    ends: Floats
    prices: Floats

    @property
    def begins(self) -> Floats:
        """When each slot begins."""
        return np.concatenate([[self.begin], self.ends[:-1]])


@dataclass(frozen=True, slots=True, eq=False)
class CompletionBound:
    """No schedule has a lower mean time from release to completion than ``mean``.

    The bound is the highest of ``alone`` (every job at once on its fastest option), ``served`` (SRPT on one machine at
    the prices ``kinds``) and ``priced`` (`priced_bound` with ``slots`` and ``times``).
    """

    alone: float
    served: float
    priced: float
    kinds: Floats
    slots: SlotPrices
    times: Floats

    @property
    def mean(self) -> float:
        """The bound, in seconds."""
        return max(self.alone, self.served, self.priced)


@dataclass(frozen=True, slots=True, eq=False)
class MakespanBound:
    """No schedule ends all jobs in less than ``seconds`` from the first release.

    The jobs released at ``since`` or later take ``seconds`` at the prices ``kinds``; or, with no prices, one job alone
    does.
    """

    seconds: float
    since: float
    kinds: Floats


def completion_bound(jobs: LeastTimes) -> CompletionBound:
    """A bound on the mean time from release to completion, with its proof."""
    kinds = _balanced(jobs, np.ones(len(jobs.release)))
    sizes, speed = _on_one_machine(jobs, kinds)
    served = float(np.mean(srpt(jobs.release, sizes / speed) - jobs.release))
    slots = _first_prices(jobs, kinds, sizes, speed)
    slots, times = _ascended(jobs, slots)
    return CompletionBound(float(jobs.shortest.mean()), served, priced_bound(jobs, slots, times), kinds, slots, times)


def priced_bound(jobs: LeastTimes, slots: SlotPrices, times: Floats) -> float:
    """The bound on the mean that these prices and times prove; valid for any prices not below 0 and any times."""
    done = _Work.of(jobs, slots, times)
    total = times - done.gain.sum(axis=1) - done.after + 0.5 * jobs.shortest - jobs.release
    rent = float((jobs.gpus[:, None] * slots.prices * (slots.ends - slots.begins)).sum())
    return float((total.sum() - rent) / len(times))


def makespan_bound(jobs: LeastTimes) -> MakespanBound:
    """A bound on the time from the first release to the last completion, with its proof."""
    first = float(jobs.release.min())
    alone = float((jobs.release + jobs.shortest).max()) - first
    best = MakespanBound(alone, first, np.zeros(len(jobs.gpus)))
    since = first
    for _ in range(4):
        kinds = _balanced(jobs, (jobs.release >= since).astype(np.float64))
        sizes, speed = _on_one_machine(jobs, kinds)
        order = np.argsort(-jobs.release, kind="stable")
        ends = jobs.release[order] + np.cumsum(sizes[order]) / speed
        at = int(ends.argmax())
        since = float(jobs.release[order[at]])
        if float(ends[at]) - first <= best.seconds * (1.0 + 1e-9):
            break
        best = MakespanBound(float(ends[at]) - first, since, kinds)
    return best


def srpt(release: Floats, seconds: Floats) -> Floats:
    """Completion times on one machine that always serves the job with the least left: the least possible sum."""
    ends = np.empty(len(release))
    waiting: list[tuple[float, int]] = []
    now = 0.0
    order = np.argsort(release, kind="stable").tolist()
    for place, job in enumerate(order):
        now = max(now, float(release[job]))
        heapq.heappush(waiting, (float(seconds[job]), job))
        until = float(release[order[place + 1]]) if place + 1 < len(order) else np.inf
        while waiting and now < until:
            left, first = heapq.heappop(waiting)
            if now + left > until:
                heapq.heappush(waiting, (left - (until - now), first))
                now = until
            else:
                now += left
                ends[first] = now
    return ends


# ── one machine ───────────────────────────────────────────────────────────────────────────────────────────────────


def _on_one_machine(jobs: LeastTimes, kinds: Floats) -> tuple[Floats, float]:
    """By job its size at these prices of the kinds, and the speed of the machine."""
    with np.errstate(invalid="ignore"):
        priced = np.where(np.isfinite(jobs.area), kinds * jobs.area, np.inf)
    return priced.min(axis=1), float(kinds @ jobs.gpus)


def _balanced(jobs: LeastTimes, counted: Floats) -> Floats:
    """Prices of the kinds at which the counted jobs, each on its cheapest kind, use all kinds about equally.

    The best of some hundred steps in which the price of a kind rises with its part of the work.
    """
    kinds = np.ones(len(jobs.gpus))
    best, longest = kinds, -1.0
    for step in range(_BALANCING if len(kinds) > 1 else 1):
        sizes, speed = _on_one_machine(jobs, kinds)
        taken = float(sizes @ counted) / speed
        if taken > longest:
            best, longest = kinds, taken
        cheapest = np.where(np.isfinite(jobs.area), kinds * jobs.area, np.inf).argmin(axis=1)
        used = np.bincount(
            cheapest, weights=counted * jobs.area[np.arange(len(cheapest)), cheapest], minlength=len(kinds)
        )
        load = used / jobs.gpus
        kinds = kinds * np.exp((load / max(float(load.mean()), 1e-300) - 1.0) / (step + 4.0))
        kinds = kinds / float(kinds @ jobs.gpus) * float(jobs.gpus.sum())
    return best


# ── prices over time ──────────────────────────────────────────────────────────────────────────────────────────────


def _first_prices(jobs: LeastTimes, kinds: Floats, sizes: Floats, speed: float) -> SlotPrices:
    """Prices of the schedule that serves the smallest job first, none faster than it can run.

    While the machine is full the price falls by 1 over the size of the last job served; at other times the price is 0.
    """
    release, shortest = jobs.release, jobs.shortest
    begin = float(release.min())
    end = max(float(release.max()), begin + float(sizes.sum()) / speed, float((release + shortest).max()))
    even = begin + 1.25 * (end - begin) * np.arange(1, _SLOTS + 1) / _SLOTS
    busy = np.quantile(np.concatenate([release, release + shortest]), np.arange(1, _SLOTS) / _SLOTS)
    ends = np.unique(np.concatenate([even, busy[busy > begin]]))
    lengths = np.diff(ends, prepend=begin)
    order = np.argsort(sizes, kind="stable")
    left, size, fastest = sizes[order].copy(), sizes[order], (sizes / shortest)[order]
    fall = np.zeros(len(ends))
    for slot, length in enumerate(lengths.tolist()):
        here = np.clip(ends[slot] - release[order], 0.0, length)
        wanted = np.minimum(left, fastest * here)
        through = np.cumsum(wanted)
        if through[-1] > speed * length:
            last = int(np.searchsorted(through, speed * length))
            fall[slot] = length / size[last]
            wanted[last] -= through[last] - speed * length
            wanted[last + 1 :] = 0.0
        left -= wanted
    price, at = np.zeros(len(ends)), 0.0
    for slot in range(len(ends) - 1, -1, -1):
        at = at + fall[slot] if fall[slot] else 0.0
        price[slot] = max(at - 0.5 * fall[slot], 0.0)
    return SlotPrices(begin, ends, kinds[:, None] * price)


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """The gains of jobs from working at given prices, and the work they do.

    Gains are by job and slot, and after the last slot; parts of the work done are by job, slot and kind.
    """

    gain: Floats
    after: Floats
    parts: list[Floats]

    @classmethod
    def of(cls, jobs: LeastTimes, slots: SlotPrices, times: Floats) -> "_Work":
        """Return at least the integral of max_k (c − t − a_k π_k)⁺ / p_k, by job and slot.

        The value is exact where one kind is the best in the whole slot: the best at the slot's begin, and the last to
        pay. Elsewhere it is the lesser of the trapezoid rule and the sum over kinds.
        """
        begins = np.minimum(np.maximum(slots.begins, jobs.release[:, None]), slots.ends)
        nets, paces = _nets(jobs, slots, times)
        early = [np.maximum(net - begins, 0.0) for net in nets]
        late = [np.maximum(net - slots.ends, 0.0) for net in nets]
        exact = [0.5 * pace * (e * e - x * x) for pace, e, x in zip(paces, early, late, strict=True)]
        first = np.array([pace * e for pace, e in zip(paces, early, strict=True)])
        best = first.argmax(axis=0)
        spent = [np.where(best == k, e - x, 0.0) for k, (e, x) in enumerate(zip(early, late, strict=True))]
        parts = [pace * seconds for pace, seconds in zip(paces, spent, strict=True)]
        gain = exact[0]
        if len(nets) > 1:
            net = np.array(nets)
            alone = np.take_along_axis(net, best[None], 0)[0] >= np.where(first > 0.0, net, -np.inf).max(axis=0)
            last = np.array([pace * x for pace, x in zip(paces, late, strict=True)]).max(axis=0)
            between = 0.5 * (first.max(axis=0) + last) * (slots.ends - begins)
            chosen = np.take_along_axis(np.array(exact), best[None], 0)[0]
            gain = np.where(alone, chosen, np.minimum(between, np.sum(exact, axis=0)))
        rest = np.maximum(times - np.maximum(slots.ends[-1], jobs.release), 0.0)
        return cls(gain, 0.5 * rest**2 / jobs.shortest, parts)


def _nets(jobs: LeastTimes, slots: SlotPrices, times: Floats) -> tuple[list[Floats], list[Floats]]:
    """Return, by kind, until when each job (rows) pays in each slot, and its greatest part of work a second."""
    nets, paces = [], []
    for k in range(len(jobs.gpus)):
        able = np.isfinite(jobs.seconds[:, k])
        cost = np.where(able, jobs.area[:, k], 0.0)[:, None] * slots.prices[k]
        nets.append(np.where(able[:, None], times[:, None] - cost, -np.inf))
        paces.append(np.where(able, 1.0 / jobs.seconds[:, k], 0.0)[:, None])
    return nets, paces


def _fitted(jobs: LeastTimes, slots: SlotPrices, times: Floats, steps: int) -> tuple[Floats, _Work]:
    """Return times c at which each job does about all of its work at these prices, by Newton's method."""
    most = 8.0 * float((slots.ends - slots.begins).mean())
    work = _Work.of(jobs, slots, times)
    for _ in range(steps):
        rest = np.maximum(times - np.maximum(slots.ends[-1], jobs.release), 0.0)
        done = sum(part.sum(axis=1) for part in work.parts) + rest / jobs.shortest
        times = times + np.clip((1.0 - done) * jobs.shortest, -most, most)
        work = _Work.of(jobs, slots, times)
    return times, work


def _ascended(jobs: LeastTimes, slots: SlotPrices) -> tuple[SlotPrices, Floats]:
    """Return better prices, and the times that go with them, by steps of ascent: the price follows the demand."""
    times = jobs.release + jobs.shortest + _dearest(jobs, slots)
    times, work = _fitted(jobs, slots, times, _LAST)
    best, best_times, highest = slots, times, priced_bound(jobs, slots, times)
    aim = 0.05
    length = slots.ends - slots.begins
    for _ in range(_STEPS):
        areas = np.where(np.isfinite(jobs.area), jobs.area, 0.0)
        used = np.array([areas[:, k] @ parts for k, parts in enumerate(work.parts)])
        excess = used / (jobs.gpus[:, None] * length) - 1.0
        excess = np.where((slots.prices <= 0.0) & (excess < 0.0), 0.0, excess)
        steepness = float((jobs.gpus[:, None] * length * excess**2).sum())
        if steepness <= 0.0:
            break
        gap = aim * highest * len(times)
        prices = np.maximum(slots.prices + gap / steepness * excess, 0.0)
        slots = SlotPrices(slots.begin, slots.ends, prices)
        times, work = _fitted(jobs, slots, times, _NEWTON)
        value = priced_bound(jobs, slots, times)
        if value > highest:
            best, best_times, highest = slots, times, value
        else:
            aim *= 0.85
            if aim < 1e-4:
                break
    times, _ = _fitted(jobs, best, best_times, _LAST)
    better = priced_bound(jobs, best, times) > highest
    return best, times if better else best_times


def _dearest(jobs: LeastTimes, slots: SlotPrices) -> Floats:
    """Return the cost of each job's work at the median price, as a start for the times."""
    typical = np.median(slots.prices, axis=1)
    with np.errstate(invalid="ignore"):
        cost: Floats = np.where(np.isfinite(jobs.area), jobs.area * typical, np.inf).min(axis=1)
    return cost
