"""The workers a job that is resized in place has had since it started from its checkpoint, and who of them is to train.

Pure bookkeeping, like the gang's. Orders are counted up; a worker keeps its number for good, and one that an order has
left out is never named again. Newcomers are named only once all of them are up, so nobody who leaves waits for them.

References: Hwang et al., Elastic Resource Sharing for Distributed Deep Learning (AFS and CoDDL), NSDI 2021, §4.3.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from shoal.core.topology import Placement
from shoal.wire.messages import RankExit, Roster, RunReport

Seats: TypeAlias = tuple[tuple[int, int], ...]
"""Nodes, and how many on each."""

_FOUNDING = 1


@dataclass(slots=True)
class Worker:
    """One worker: the incarnation that started it, its node, the first order that named it, and how it ended."""

    incarnation: int
    node: int
    named: int = 0
    exit: RankExit | None = None

    @property
    def died(self) -> bool:
        """Whether it ended unasked, other than by being done."""
        return self.exit is not None and self.exit.status != 0 and not self.exit.warned

    @property
    def finished(self) -> bool:
        """Whether it left by itself, unwarned, as one that is done or was let go."""
        return self.exit is not None and self.exit.status == 0 and not self.exit.warned


@dataclass(slots=True)
class ElasticWorkers:
    """All workers since incarnation ``origin``, and the latest order: its generation and its members by rank."""

    origin: int
    workers: dict[int, Worker] = field(default_factory=dict)
    generation: int = 0
    members: tuple[int, ...] = ()
    _settled: int = _FOUNDING
    """The latest generation whose members are known to hold what was trained; founders hold it from the beginning."""

    def enlist(self, incarnation: int, seats: Seats) -> None:
        """New workers on these seats, numbered on; no order names them yet."""
        for node, count in seats:
            for _ in range(count):
                self.workers[len(self.workers)] = Worker(incarnation, node)

    def order(self, members: Iterable[int]) -> bool:
        """From now on these; whether that is another order than the last."""
        wanted = tuple(members)
        if wanted == self.members:
            return False
        self.generation += 1
        self.members = wanted
        for number in wanted:
            self.workers[number].named = self.workers[number].named or self.generation
        return True

    def welcome(self, incarnation: int) -> None:
        """All that this incarnation started is up: from now on it trains with the others."""
        new = (number for number, worker in self._of(incarnation) if not worker.named and worker.exit is None)
        self.order((*self.members, *new))

    def mourn(self) -> bool:
        """Go on without members that died, as long as somebody is left who has what was trained; whether any had."""
        left = tuple(number for number in self.members if not self.workers[number].died)
        return self._anchored(left) and self.order(left)

    def keep(self, placement: Placement) -> tuple[int, ...]:
        """The members that may stay on these seats, by rank; nobody where none of them has what was trained."""
        room = dict(placement.seats)
        kept = []
        for number in self.members:
            node = self.workers[number].node
            if self.workers[number].exit is None and room.get(node):
                room[node] -= 1
                kept.append(number)
        return tuple(kept) if self._anchored(kept) else ()

    def lacking(self, placement: Placement, kept: Sequence[int]) -> Seats:
        """What is left of the seats for newcomers when these have theirs."""
        taken = [self.workers[number].node for number in kept]
        left = ((node, count - taken.count(node)) for node, count in placement.seats)
        return tuple((node, count) for node, count in left if count)

    def hear(self, incarnation: int, node: int, report: RunReport) -> None:
        """Take in what a node says of the workers that an incarnation started there."""
        here = dict(self.on(incarnation, node))
        for ended in report.exits:
            if ended.rank in here and here[ended.rank].exit is None:
                here[ended.rank].exit = ended
        if report.session is not None and report.session.generation is not None:
            self._settled = max(self._settled, min(report.session.generation, self.generation))
        told = report.roster
        if told is not None and told.generation > self.generation and set(told.members) <= self.workers.keys():
            # An earlier control plane gave it.
            self.generation, self.members = told.generation, tuple(told.members)

    def on(self, incarnation: int, node: int) -> list[tuple[int, Worker]]:
        """The workers that an incarnation started on a node."""
        return [(number, worker) for number, worker in self._of(incarnation) if worker.node == node]

    def needs(self, incarnation: int, node: int) -> bool:
        """Whether one of those is alive and trains, or is about to."""
        here = self.on(incarnation, node)
        return any(worker.exit is None and (number in self.members or not worker.named) for number, worker in here)

    def newcomers(self, incarnation: int) -> list[Worker]:
        """What an incarnation has started and no order has named yet."""
        return [worker for _, worker in self._of(incarnation) if not worker.named]

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """For each rank: its node, the incarnation that started it, its number."""
        found = [(number, self.workers[number]) for number in self.members]
        return [(worker.node, worker.incarnation, number) for number, worker in found]

    @property
    def finished(self) -> bool:
        """Whether all that were to train have left, as one does when all is trained."""
        return all(self.workers[number].finished for number in self.members)

    @property
    def lame(self) -> bool:
        """Whether a member died, and nobody is left who could go on without it."""
        dead = any(self.workers[number].died for number in self.members)
        return dead and not self._anchored(number for number in self.members if self.workers[number].exit is None)

    def roster(self, incarnation: int, node: int, *, keeps_store: bool) -> Roster:
        """What a node is told for the workers that an incarnation started there."""
        named = any(worker.named for _, worker in self.on(incarnation, node))
        if not named:
            return Roster(origin=self.origin, keeps_store=keeps_store)
        members = list(self.members)
        return Roster(origin=self.origin, keeps_store=keeps_store, generation=self.generation, members=members)

    def _of(self, incarnation: int) -> list[tuple[int, Worker]]:
        return [(number, worker) for number, worker in self.workers.items() if worker.incarnation == incarnation]

    def _anchored(self, numbers: Iterable[int]) -> bool:
        return any(0 < self.workers[number].named <= self._settled for number in numbers)
