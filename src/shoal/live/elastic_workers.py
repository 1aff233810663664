"""The workers of a job that is resized in place, since it last started from its checkpoint, and which of them train.

Pure bookkeeping. The *members* are the workers that train, by rank; each new list of members has the next *generation*
number. A worker keeps its number for good, and one that was dropped never becomes a member again. Newcomers become
members only when all of them are up, so that a worker that leaves never waits for one that is still starting.

References: Hwang et al., Elastic Resource Sharing for Distributed Deep Learning (AFS and CoDDL), NSDI 2021, §4.3.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from shoal.core.commands import Resize, Start
from shoal.core.topology import Placement
from shoal.wire.messages import RankExit, Roster, RunReport

Seats: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a node and a number of GPUs on it."""

_FIRST_GENERATION = 1


@dataclass(slots=True)
class Worker:
    """A worker: the incarnation that started it, its node, its first generation as a member (0: none), its end."""

    incarnation: int
    node: int
    joined: int = 0
    exit: RankExit | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended with an error, without having been warned."""
        return self.exit is not None and self.exit.status != 0 and not self.exit.warned

    @property
    def finished(self) -> bool:
        """Whether it ended with status 0, without having been warned."""
        return self.exit is not None and self.exit.status == 0 and not self.exit.warned


@dataclass(slots=True)
class ElasticWorkers:
    """All workers since incarnation ``origin``, by number, and the present members, by rank."""

    origin: int
    workers: dict[int, Worker] = field(default_factory=dict)
    generation: int = 0
    members: tuple[int, ...] = ()
    _trained: int = _FIRST_GENERATION
    """The latest generation known to have trained: its members hold the weights, as the first ones do at once."""

    def add(self, incarnation: int, seats: Seats) -> None:
        """Add a worker for each seat; they are not members yet."""
        for node, count in seats:
            for _ in range(count):
                self.workers[len(self.workers)] = Worker(incarnation, node)

    def set_members(self, members: Iterable[int]) -> bool:
        """Make these the members, in order of rank; return whether that changed anything."""
        wanted = tuple(members)
        if wanted == self.members:
            return False
        self.generation += 1
        self.members = wanted
        for number in wanted:
            self.workers[number].joined = self.workers[number].joined or self.generation
        return True

    def admit(self, incarnation: int) -> None:
        """Add the live workers that an incarnation started to the members: all of them are up."""
        new = (number for number, worker in self._of(incarnation) if not worker.joined and worker.exit is None)
        self.set_members((*self.members, *new))

    def drop_failed(self) -> bool:
        """Drop failed members if another member holds the weights; return whether the members changed."""
        left = tuple(number for number in self.members if not self.workers[number].failed)
        return self._hold_weights(left) and self.set_members(left)

    def members_on(self, placement: Placement) -> tuple[int, ...]:
        """Return the members that fit on these seats, by rank; none if none of these members holds the weights."""
        free = dict(placement.seats)
        kept = []
        for number in self.members:
            node = self.workers[number].node
            if self.workers[number].exit is None and free.get(node):
                free[node] -= 1
                kept.append(number)
        return tuple(kept) if self._hold_weights(kept) else ()

    def free_seats(self, placement: Placement, kept: Sequence[int]) -> Seats:
        """Return the seats of a placement that these workers do not take: those for newcomers."""
        taken = [self.workers[number].node for number in kept]
        left = ((node, count - taken.count(node)) for node, count in placement.seats)
        return tuple((node, count) for node, count in left if count)

    def splits(self, kept: Iterable[int]) -> bool:
        """Return whether of the workers that one incarnation started on a node some are ``kept`` and others are not."""
        parts: dict[tuple[int, int], set[bool]] = {}
        stays = set(kept)
        for number in self.members:
            worker = self.workers[number]
            if worker.exit is None:
                parts.setdefault((worker.incarnation, worker.node), set()).add(number in stays)
        return any(len(found) > 1 for found in parts.values())

    def update(self, incarnation: int, node: int, report: RunReport) -> None:
        """Process a node's report on the workers that an incarnation started there."""
        here = dict(self.on(incarnation, node))
        for ended in report.exits:
            if ended.rank in here and here[ended.rank].exit is None:
                here[ended.rank].exit = ended
        if report.session is not None and report.session.generation is not None:
            self._trained = max(self._trained, min(report.session.generation, self.generation))
        roster = report.roster
        if roster is not None and roster.generation > self.generation and set(roster.members) <= self.workers.keys():
            # An earlier control plane chose these members.
            self.generation, self.members = roster.generation, tuple(roster.members)

    def on(self, incarnation: int, node: int) -> list[tuple[int, Worker]]:
        """Return the workers that an incarnation started on a node, with their numbers."""
        return [(number, worker) for number, worker in self._of(incarnation) if worker.node == node]

    def needs(self, incarnation: int, node: int) -> bool:
        """Return whether a worker that an incarnation started on a node is a member, or may become one.

        One that ended by itself is not needed. One that ended after a warning is: only an order that this control plane
        does not know of, or the end of the whole run, warns a member.
        """
        here = [(n, worker) for n, worker in self.on(incarnation, node) if worker.exit is None or worker.exit.warned]
        return any(number in self.members or not worker.joined for number, worker in here)

    def newcomers(self, incarnation: int) -> list[Worker]:
        """Return the workers that an incarnation started and that were never members."""
        return [worker for _, worker in self._of(incarnation) if not worker.joined]

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """By rank: the node of the member, the incarnation that started it, and its worker number."""
        found = [(number, self.workers[number]) for number in self.members]
        return [(worker.node, worker.incarnation, number) for number, worker in found]

    @property
    def finished(self) -> bool:
        """Whether all members ended by themselves with status 0, as they do when the work is done."""
        return bool(self.members) and all(self.workers[number].finished for number in self.members)

    @property
    def all_left(self) -> bool:
        """Whether all members ended with status 0, by themselves or after they were warned."""
        ends = [self.workers[number].exit for number in self.members]
        return bool(ends) and all(end is not None and end.status == 0 for end in ends)

    @property
    def broken(self) -> bool:
        """Whether a member failed and no live member holds the weights."""
        failed = any(self.workers[number].failed for number in self.members)
        return failed and not self._hold_weights(number for number in self.members if self.workers[number].exit is None)

    def roster(self, incarnation: int, node: int, *, keeps_store: bool) -> Roster:
        """Return the members, for the workers that an incarnation started on a node.

        Generation 0 with no members is for workers that never were members: a list without them would end them.
        """
        if not any(worker.joined for _, worker in self.on(incarnation, node)):
            return Roster(origin=self.origin, keeps_store=keeps_store)
        members = list(self.members)
        return Roster(origin=self.origin, keeps_store=keeps_store, generation=self.generation, members=members)

    def _of(self, incarnation: int) -> list[tuple[int, Worker]]:
        return [(number, worker) for number, worker in self.workers.items() if worker.incarnation == incarnation]

    def _hold_weights(self, numbers: Iterable[int]) -> bool:
        return any(0 < self.workers[number].joined <= self._trained for number in numbers)


def workers_of(command: Start | Resize, after: ElasticWorkers | None) -> tuple[ElasticWorkers, Seats]:
    """Return the workers of a new incarnation, in place ``after`` others or from a checkpoint, and its own seats."""
    if after is None:
        workers = ElasticWorkers(command.incarnation)
        workers.add(command.incarnation, command.placement.seats)
        workers.set_members(workers.workers)
        return workers, command.placement.seats
    seats = after.free_seats(command.placement, after.members)
    after.add(command.incarnation, seats)
    return after, seats
