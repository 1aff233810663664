"""The best batch of one job on one allocation: the search of ``goodput`` in plain floats, for agents.

An agent searches for a single allocation at a time, where the array form spends its time on calls. Every step is one of
``goodput``, which explains it.
"""

from math import ceil, exp, floor, inf, log, sqrt
from typing import NamedTuple


class BatchSearch(NamedTuple):
    """Constants of the search: see ``goodput``."""

    tiny: float
    settled: float
    rounding: float
    most_steps: int
    most_tried: int


class OneCell(NamedTuple):
    """Step times and limits of a job on one allocation."""

    per_pass: float
    per_sample: float
    sync: float
    gamma: float
    noise: float
    gpus: float
    initial: float
    most: float
    least_local: float
    most_local: float

    def seconds(self, local: float, added: float) -> float:
        """Seconds of a step."""
        passing = self.per_pass + self.per_sample * local
        return added * passing + _overlapped(passing, self.sync, self.gamma)

    def goodput(self, local: float, added: float) -> float:
        """Effective samples per second, whether within the limits or not."""
        batch = self.gpus * local * (added + 1.0)
        return batch / self.seconds(local, added) * (self.noise + self.initial) / (self.noise + batch)


def best_of_one(cell: OneCell, search: BatchSearch) -> tuple[float, float, float]:
    """Goodput, m and s of the best batch; 0 where the limits allow none. The initial batch is below the largest."""
    passing = cell.per_pass + cell.per_sample * cell.most_local
    exposed, full = _overlapped(passing, cell.sync, cell.gamma) - passing, cell.gpus * cell.most_local
    wanted = min(max(sqrt(exposed * cell.noise / (passing * full)), cell.initial / full), cell.most / full)
    wanted = max(wanted - 1.0, 0.0)
    added, last_rise, found = float(floor(wanted)), float(ceil(wanted)), (0.0, 0.0, 0.0)
    for _ in range(search.most_tried):
        samples, reached, bound = _peak(cell, added, search)
        if reached > found[0]:
            found = (reached, samples, added)
        if not (bound > found[0] or added < last_rise):
            break
        added += 1.0
    return found


def _peak(cell: OneCell, added: float, search: BatchSearch) -> tuple[float, float, float]:
    """The best whole m for a given s, its goodput, and an upper bound of the goodput at any larger s."""
    passes = cell.gpus * (added + 1.0)
    fewest, fullest = cell.initial / passes, cell.most / passes
    low, high = max(cell.least_local, fewest), min(cell.most_local, fullest)
    top = max(low, high)
    peak = _smooth_peak(cell, added, low, top, search)
    if low <= high:
        longest = cell.seconds(top, added)
        bound = cell.goodput(peak, added) * search.rounding * longest / (longest + cell.per_pass)
    else:
        bound = inf if fewest > cell.most_local else 0.0
    least, most = float(ceil(low)), float(floor(high))
    if least > most:
        return 0.0, 0.0, bound
    lesser, greater = min(max(floor(peak), least), most), min(max(floor(peak) + 1.0, least), most)
    here, there = cell.goodput(lesser, added), cell.goodput(greater, added)
    return (greater if there > here else lesser), max(here, there), bound


def _smooth_peak(cell: OneCell, added: float, low: float, high: float, search: BatchSearch) -> float:
    least, most = log(low), log(high)
    at, last = most, inf
    for _ in range(search.most_steps):
        gap, slope = _tangent_gap(cell, added, at, search.tiny)
        reach = min(max(at + gap, least), most)
        least, most = (at, reach) if gap > 0 else (reach, at)
        step = at - gap / slope
        if not (least <= step <= most and abs(step - at) <= 0.5 * last):
            step = (least + most) / 2
        last, at = abs(step - at), step
        if last < search.settled:
            break
    return exp(at)


def _tangent_gap(cell: OneCell, added: float, at: float, tiny: float) -> tuple[float, float]:
    local = exp(at)
    passing = cell.per_pass + cell.per_sample * local
    lead = cell.gamma * log(cell.sync / passing) if cell.sync > 0 else -inf
    tail = exp(-abs(lead))
    joint = max(passing, cell.sync) * (1.0 + tail) ** (1.0 / cell.gamma)
    pass_weight, sync_weight = (tail, 1.0) if lead > 0 else (1.0, tail)
    pass_weight, sync_weight = pass_weight / (1.0 + tail), sync_weight / (1.0 + tail)
    rise = max(cell.per_sample * (added + joint / passing * pass_weight), tiny)
    start = max(added * cell.per_pass + joint * (sync_weight + pass_weight * cell.per_pass / passing), tiny)
    bend = cell.per_sample**2 * (cell.gamma - 1.0) * joint / passing**2 * pass_weight * sync_weight
    gap = 0.5 * log(max(cell.noise, tiny) / (cell.gpus * (added + 1.0)) * (start / rise)) - at
    return gap, -1.0 - 0.5 * local * bend * (local / start + 1.0 / rise)


def _overlapped(a: float, b: float, gamma: float) -> float:
    longer, shorter = max(a, b), min(a, b)
    share = shorter / longer if longer > 0 else 0.0
    return float(longer * (1.0 + share**gamma) ** (1.0 / gamma))
