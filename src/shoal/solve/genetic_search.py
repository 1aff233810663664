"""Genetic search over placements: Pollux's own method, kept as the baseline of `allotment`.

A population of placements (gangs × nodes) is crossed, mutated and repaired, and the best survive. Any number of units
on any nodes of a pool is allowed; no node is overfull, and unless waived at most one gang that spans nodes is on a
node. The search has no bound of its own: `Allotment.bound` is that of `multiple_choice`. The same seed gives the same
answer. Cost: generations × population × gangs × nodes.

References: Qiao et al., OSDI 2021, §4.3 (population-based search).
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int16s, Int32s
from shoal.solve.allotment import STAY, Allotment, AllotmentOptions
from shoal.solve.multiple_choice import best_choices

GENERATIONS = 100
POPULATION = 100


def evolve(
    menu: AllotmentOptions,
    spread: Flags,
    seed: int,
    generations: int = GENERATIONS,
    population: int = POPULATION,
    *,
    apart: bool = True,
) -> Allotment:
    """The best placement found; ``spread`` says by column, ``STAY`` aside, whether it spans several nodes.

    Unless ``apart``, gangs that span nodes may share them.
    """
    world = _World.of(menu, spread, apart=apart)
    rng = np.random.default_rng(seed)
    if not menu.worth.size or not len(world.capacity):
        return Allotment(np.full(len(menu.worth), -1, dtype=np.intp), {}, 0.0, 0.0, np.zeros(len(menu.node_units)))
    alive = np.repeat(world.now[None], population, axis=0)
    alive[1:] = world.fitting(world.changed(alive[1:], rng), rng)
    fitness = world.fitness(alive)
    for _ in range(generations):
        parents = rng.integers(0, population, (2, 2, population))
        better = np.where(fitness[parents[:, 0]] >= fitness[parents[:, 1]], parents[:, 0], parents[:, 1])
        mixed = np.where(rng.random((population, len(menu.worth), 1)) < 0.5, alive[better[0]], alive[better[1]])
        children = world.fitting(world.changed(mixed, rng), rng)
        candidates, values = np.concatenate([alive, children]), np.concatenate([fitness, world.fitness(children)])
        best = np.argsort(-values, kind="stable")[:population]
        alive, fitness = candidates[best], values[best]
    return world.answer(alive[0])


@dataclass(frozen=True, slots=True)
class _World:
    """The options indexed by gang, pool, units and whether they span nodes."""

    menu: AllotmentOptions
    nodes: Indices
    pools: Indices
    capacity: Indices
    columns: Int32s
    """By gang, pool, units and spread: the column of the option; −1 where there is none."""
    now: Int16s
    apart: bool

    @classmethod
    def of(cls, menu: AllotmentOptions, spread: Flags, *, apart: bool) -> "_World":
        places = [(node, pool, units) for pool, nodes in enumerate(menu.node_units) for node, units in nodes.items()]
        nodes, pools, capacity = np.array(places, dtype=np.intp).reshape(-1, 3).T
        most = max(menu.capacity, default=0)
        columns = np.full((len(menu.worth), len(menu.node_units), most + 1, 2), -1, dtype=np.int32)
        gang, column = np.nonzero(np.isfinite(menu.worth) & (np.arange(menu.worth.shape[1]) != STAY))
        columns[gang, menu.pools[gang, column], menu.units[gang, column], spread[column].astype(int)] = column
        now = np.zeros((len(menu.worth), len(nodes)), dtype=np.int16)
        at = {int(node): i for i, node in enumerate(nodes)}
        for i, seats in enumerate(menu.seats):
            for node, units in seats or ():
                now[i, at[node]] = units
        return cls(menu, nodes, pools, capacity, columns, now, apart)

    def changed(self, seatings: Int16s, rng: np.random.Generator) -> Int16s:
        """Each entry replaced with probability 1 / nodes, in half of the cases by 0."""
        hit = rng.random(seatings.shape) < 1.0 / seatings.shape[2]
        new = (rng.random(seatings.shape) * 2.0 * (self.capacity + 1)).astype(np.int16)
        return np.where(hit, np.where(new > self.capacity, 0, new), seatings)

    def fitting(self, seatings: Int16s, rng: np.random.Generator) -> Int16s:
        """Return placements repaired so that they are possible; of conflicting gangs a random one gives way.

        A gang keeps only its largest pool, a node has at most one gang that spans nodes (with ``apart``) and at most as
        many GPUs taken as it has.
        """
        by_pool = np.stack(
            [seatings[:, :, self.pools == k].sum(axis=2) for k in range(len(self.menu.node_units))], axis=2
        )
        seatings = np.where(self.pools == by_pool.argmax(axis=2)[:, :, None], seatings, 0)
        order = rng.permuted(np.tile(np.arange(seatings.shape[1]), (len(seatings), 1)), axis=1)[:, :, None]
        line = np.take_along_axis(seatings, order, axis=1)
        if self.apart:
            spanning = (line > 0) & ((line > 0).sum(axis=2, keepdims=True) > 1)
            line = np.where(spanning & (np.cumsum(spanning, axis=1) > 1), 0, line)
        filled = np.minimum(np.cumsum(line, axis=1), self.capacity)
        line = np.diff(filled, axis=1, prepend=0)
        fitted = np.empty_like(seatings)
        np.put_along_axis(fitted, order, line.astype(np.int16), axis=1)
        return fitted

    def picks(self, seatings: Int16s) -> Indices:
        """By placement and gang the column of its option, −1 for none."""
        taken = seatings > 0
        units, nodes = seatings.sum(axis=2, dtype=np.intp), taken.sum(axis=2)
        gangs = np.arange(seatings.shape[1])[None, :]
        found = self.columns[gangs, self.pools[taken.argmax(axis=2)], units, (nodes > 1).astype(int)].astype(np.intp)
        stays = (seatings == self.now).all(axis=2) & (units > 0) & np.isfinite(self.menu.worth[:, STAY])
        return np.where(stays, STAY, found)

    def fitness(self, seatings: Int16s) -> Floats:
        """The total worth of each placement."""
        picks = self.picks(seatings)
        worth = self.menu.worth[np.arange(picks.shape[1])[None, :], picks]
        fitness: Floats = np.where(picks >= 0, worth, 0.0).sum(axis=1)
        return fitness

    def answer(self, seating: Int16s) -> Allotment:
        """A placement as an allotment, with the bound of `multiple_choice`."""
        picks = self.picks(seating[None])[0]
        seats = {
            i: tuple(sorted((int(self.nodes[n]), int(seating[i, n])) for n in np.flatnonzero(seating[i]).tolist()))
            for i in np.flatnonzero(picks >= 0).tolist()
        }
        menu = self.menu
        value = float(menu.worth[np.flatnonzero(picks >= 0), picks[picks >= 0]].sum())
        relaxed = best_choices(menu.worth, menu.units, menu.pools, menu.capacity)
        return Allotment(picks, seats, value, max(relaxed.bound, value), relaxed.prices)
