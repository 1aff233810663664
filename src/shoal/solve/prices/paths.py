"""Paths of levels u(τ), non-decreasing in τ, in closed form for given stops.

A path states what is fair at every τ. Given ``stop``, the levels that rows cannot pass (at first their fastest type,
later what is left for them, or where they were frozen), `climb` returns a `BoundedPath`: u(τ) and the τ at which every
row is at its stop. After a freeze the same formulas hold with new stops, so a path is all a fairness rule must supply.

References: Gavel (OSDI 2020) §4; the tree generalises its two levels to any depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices


class BoundedPath(Protocol):
    """A path with its stops."""

    @property
    def top(self) -> float:
        """The least τ at which every row stands at its stop."""
        ...

    def at(self, tau: float) -> Floats:
        """Return the levels at τ: at most the stops, and equal to them for τ ≥ ``top``."""
        ...


class Path(Protocol):
    """A fairness rule that can be water filled."""

    def climb(self, stop: Floats) -> BoundedPath:
        """The path under these stops."""
        ...

    def worth(self, levels: Floats) -> float:
        """The rule's own objective at these levels; larger is better."""
        ...


@dataclass(frozen=True, slots=True)
class Proportional:
    """u = min(τ·w, stop): max-min with weights, and the common rate of a makespan with w the steps left."""

    weights: Floats

    def climb(self, stop: Floats) -> BoundedPath:
        """The path under these stops."""
        return _ProportionalClimb(self.weights, stop, float((stop / self.weights).max(initial=0.0)) * (1 + 1e-15))

    def worth(self, levels: Floats) -> float:
        """The least level per weight."""
        return float((levels / self.weights).min(initial=np.inf))


@dataclass(frozen=True, slots=True)
class _ProportionalClimb:
    weights: Floats
    stop: Floats
    top: float

    def at(self, tau: float) -> Floats:
        return np.minimum(tau * self.weights, self.stop)


@dataclass(frozen=True, slots=True)
class FinishTime:
    """τ = 1/ρ, u = min(steps·τ / (alone − elapsed·τ), stop), where ρ = (elapsed + steps/u) / alone."""

    steps: Floats
    elapsed: Floats
    alone: Floats

    def climb(self, stop: Floats) -> BoundedPath:
        """The path under these stops."""
        with np.errstate(divide="ignore"):
            arrival = self.alone / (self.elapsed + self.steps / stop)
        return _FinishTimeClimb(self, stop, float(arrival.max(initial=0.0)) * (1 + 1e-15))

    def worth(self, levels: Floats) -> float:
        """The least 1/ρ."""
        with np.errstate(divide="ignore"):
            return float((self.alone / (self.elapsed + self.steps / levels)).min(initial=np.inf))


@dataclass(frozen=True, slots=True)
class _FinishTimeClimb:
    path: FinishTime
    stop: Floats
    top: float

    def at(self, tau: float) -> Floats:
        left = self.path.alone - self.path.elapsed * tau
        wanted: Floats = np.full(len(left), np.inf)
        np.divide(self.path.steps * tau, left, out=wanted, where=left > 0)
        return np.minimum(wanted, self.stop, out=wanted)


@dataclass(frozen=True, slots=True)
class ShareNode:
    """A node of a tree of shares, divided by weight among all children ("fair") or given to the first ("fifo").

    Children are nodes or row numbers; a row's weight under a fair node comes with the rows.
    """

    children: Sequence["ShareNode | int"]
    weight: float = 1.0
    policy: Literal["fair", "fifo"] = "fair"


@dataclass(frozen=True, slots=True)
class _Depth:
    """All children at one depth, grouped by parent, those of fair parents first.

    ``sizes`` counts the children of each parent, ``fair`` the fair parents; ``inner`` are the entries that are parents
    at the next depth, in its order.
    """

    weights: Floats
    sizes: Indices
    fair: int
    is_row: Flags
    rows: Indices
    inner: Indices

    @classmethod
    def of(cls, parents: Sequence[ShareNode], weights: Floats) -> tuple["_Depth", list[ShareNode]]:
        """Return the children of these parents, and which of the children are nodes."""
        children = [child for node in parents for child in node.children]
        nodes = [(i, child) for i, child in enumerate(children) if isinstance(child, ShareNode)]
        nodes.sort(key=lambda entry: entry[1].policy != "fair")
        rows = [child for child in children if not isinstance(child, ShareNode)]
        is_row = np.ones(len(children), dtype=bool)
        inner = np.array([i for i, _ in nodes], dtype=np.intp)
        is_row[inner] = False
        own = np.empty(len(children))
        own[inner], own[is_row] = [node.weight for _, node in nodes], weights[rows]
        sizes = np.array([len(node.children) for node in parents])
        fair = sum(node.policy == "fair" for node in parents)
        floor = cls(own, sizes, fair, is_row, np.array(rows, dtype=np.intp), inner)
        return floor, [node for _, node in nodes]


class Tree:
    """Levels from a tree of shares: a child of a fair root has budget w·τ, and every node divides its own."""

    __slots__ = ("_depths",)

    def __init__(self, root: ShareNode, weights: Floats) -> None:
        self._depths: list[_Depth] = []
        parents = [root]
        while parents:
            floor, parents = _Depth.of(parents, weights)
            self._depths.append(floor)

    def climb(self, stop: Floats) -> BoundedPath:
        """The path under these stops."""
        return _TreeClimb(self._depths, stop)

    def worth(self, levels: Floats) -> float:
        """The least sum of levels per weight among the root's children; under a FIFO root the first child's sum."""
        first, sums = self._depths[0], _totals(self._depths, levels)[0]
        return float((sums / first.weights).min()) if first.fair else float(sums[0])


def _totals(floors: Sequence[_Depth], levels: Floats) -> list[Floats]:
    """The sum of the levels of the rows under each entry, depth by depth."""
    totals: list[Floats] = []
    below: Floats = np.zeros(0)
    for floor in reversed(floors):
        total = np.empty(len(floor.weights))
        total[floor.is_row], total[floor.inner] = levels[floor.rows], below
        totals.append(total)
        below = np.add.reduceat(total, np.cumsum(floor.sizes) - floor.sizes)
    return totals[::-1]


class _TreeClimb:
    __slots__ = ("_depths", "_rows", "top")

    def __init__(self, floors: Sequence[_Depth], stop: Floats) -> None:
        self._rows = len(stop)
        totals = _totals(floors, stop)
        self._depths = [_Stopped(floor, total) for floor, total in zip(floors, totals, strict=True)]
        first = floors[0]
        self.top = float((totals[0] / first.weights).max() if first.fair else totals[0].sum()) * (1 + 1e-12)

    def at(self, tau: float) -> Floats:
        levels = np.empty(self._rows)
        budget: Floats = np.array([tau])
        for depth, stopped in enumerate(self._depths):
            floor = stopped.floor
            # Under a fair root τ is the level itself, not a budget to be split.
            spread = depth == 0 and floor.fair
            given = np.minimum(tau * floor.weights, stopped.stop) if spread else stopped.passed_on(budget)
            levels[floor.rows] = given[floor.is_row]
            budget = given[floor.inner]
        return levels


class _Stopped:
    """One depth of a tree with its stops.

    Under a fair node, with children by rising r = stop/w, budgets break at Σ_{<k} stop + r_k Σ_{≥k} w.
    """

    __slots__ = ("_before", "_begin", "_breaks", "_prefix", "_split", "_tail", "_total", "floor", "stop")

    def __init__(self, floor: _Depth, stop: Floats) -> None:
        self.floor, self.stop = floor, stop
        self._begin = np.cumsum(floor.sizes) - floor.sizes
        self._split = int(floor.sizes[: floor.fair].sum())
        order = np.lexsort((stop / floor.weights, np.repeat(np.arange(len(floor.sizes)), floor.sizes)))[: self._split]
        by_ratio, weights = stop[order], floor.weights[order]
        self._before, self._tail, self._prefix = np.zeros(self._split), np.zeros(self._split), np.zeros(len(stop))
        for begin, size in zip(self._begin.tolist(), floor.sizes.tolist(), strict=True):
            end = begin + size
            self._prefix[begin + 1 : end] = np.cumsum(stop[begin : end - 1])
            if end <= self._split:
                self._before[begin + 1 : end] = np.cumsum(by_ratio[begin : end - 1])
                self._tail[begin:end] = np.cumsum(weights[begin:end][::-1])[::-1]
        self._breaks = self._before + by_ratio / weights * self._tail
        # A budget is itself such a sum: one that misses the total by rounding alone fills the node.
        self._total = np.add.reduceat(stop, self._begin) * (1 - 1e-14)

    def passed_on(self, budget: Floats) -> Floats:
        """The part of its parent's budget that each child gets."""
        floor, fair, split = self.floor, self.floor.fair, self._split
        budget = np.where(budget >= self._total, np.inf, budget)
        given = np.empty(len(self.stop))
        if fair:
            sizes, begin, mine = floor.sizes[:fair], self._begin[:fair], budget[:fair]
            reached = np.add.reduceat(self._breaks <= np.repeat(mine, sizes), begin, dtype=np.intp)
            at = begin + np.minimum(reached, sizes - 1)
            level = (mine - self._before[at]) / self._tail[at]
            given[:split] = np.repeat(level, sizes) * floor.weights[:split]
        if split < len(given):
            given[split:] = np.repeat(budget[fair:], floor.sizes[fair:]) - self._prefix[split:]
        return np.clip(given, 0.0, self.stop, out=given)
