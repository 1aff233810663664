"""One incarnation of a job on its nodes: what is wanted of it, what each node said of it, and what follows.

Pure bookkeeping: reports go in, orders and events come out; no clock is read and nothing is sent. All ranks start or
none do: nobody gets the word to go before every node is ready, and the first rank that fails ends the incarnation.

A job that is resized in place has a lineage, and a gang for each of its incarnations: each has started the ranks that
came with it, and the last speaks for all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.core.job import BatchLimits, BatchSetting, Launch
from shoal.core.topology import Node, Placement
from shoal.core.units import JobId, JobNumber, Seconds
from shoal.live.elastic_workers import ElasticWorkers, Seats
from shoal.live.rate_tracker import RateTracker
from shoal.wire.messages import RankExit, RunOrder, RunReport, SessionReport


class NodePhase(StrEnum):
    """What a node is known to have of a gang."""

    UNKNOWN = "unknown"
    READY = "ready"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"

    @property
    def over(self) -> bool:
        """Whether nothing of the gang is left on the node."""
        return self in (NodePhase.ENDED, NodePhase.LOST)


_ORDER = tuple(NodePhase)


@dataclass(frozen=True, slots=True)
class Part:
    """The gang as one node last told it."""

    phase: NodePhase = NodePhase.UNKNOWN
    port: int = 0
    exits: Sequence[RankExit] = ()
    cause: str = ""
    blameless: bool = False
    finished: bool = False


class End(StrEnum):
    """How an incarnation ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    CRASHED = "crashed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """That an incarnation is at its end, and why; what is left of it is then only to be cleared away."""

    end: End
    cause: str = ""


@dataclass(slots=True, eq=False)
class Gang:
    """One incarnation of a job, on the seats it was given.

    ``resumed`` marks one that the control plane found in its journal: what its nodes were told before is not known.
    ``started`` is that all its ranks were seen up, ``told`` that the ring knows of its end, ``durable`` that this can
    no longer be forgotten, ``banked`` that its progress was counted.
    """

    job: JobNumber
    incarnation: int
    id: JobId
    launch: Launch
    placement: Placement
    partner: JobNumber | None
    pace: RateTracker
    base: float = 0.0
    """Progress it resumes from."""
    work: float | None = None
    batch: BatchSetting | None = None
    """The batch size it was granted, if the policy grants one."""
    limits: BatchLimits | None = None
    stopping: bool = False
    going: bool = False
    started: bool = False
    told: bool = False
    resumed: bool = False
    banked: bool = False
    durable: bool = False
    parts: dict[int, Part] = field(default_factory=dict)
    running_since: Seconds = 0.0
    done: float | None = None
    saved: float | None = None
    session: SessionReport | None = None
    lineage: ElasticWorkers | None = None
    kin: list["Gang"] = field(default_factory=list)
    """Those of its lineage, in order; one list for all of them."""
    foreign: bool = False
    """Whether a node runs it as one that joined a lineage of which nothing is known here."""
    own: Seats = ()
    """Where it starts ranks itself: on all its seats, but for those of ranks that it takes over."""

    def __post_init__(self) -> None:
        if not self.kin:
            self.own = self.placement.seats
        self.parts = {node: Part() for node, _ in self.own}
        self.kin.append(self)

    @property
    def latest(self) -> "Gang":
        """The one that speaks for its lineage; without one, itself."""
        return self.kin[-1]

    @property
    def head(self) -> int:
        """The node where its ranks meet."""
        return self.kin[0].placement.nodes[0]

    @property
    def nodes(self) -> set[int]:
        """Every node that has, or is to have, something of its lineage."""
        return {node for gang in self.kin for node in (*gang.placement.nodes, *gang.parts)}

    @property
    def over(self) -> bool:
        """Whether nothing of it is left anywhere; of its whole lineage, where it speaks for that."""
        mine = self.kin if self.latest is self else [self]
        return all(part.phase.over for gang in mine for part in gang.parts.values())

    def kept(self, placement: Placement) -> tuple[int, ...]:
        """The workers that could go on in place on other seats; none where it has to be stopped and started."""
        # Before its first ranks are up, or are seen again to be, there is nothing to go on with.
        first = self.kin[0]
        if self.lineage is None or self.stopping or self.told or not (first.started and first.up):
            return ()
        return self.lineage.keep(placement)

    @property
    def killed(self) -> bool:
        """Whether a rank ended by a signal: it had no time to save, or did not know how to."""
        return any(rank.status < 0 for part in self.parts.values() for rank in part.exits)

    def hear(self, node: int, report: RunReport) -> None:
        """Take in what a node says. Nothing there runs backwards: a message that comes late changes nothing."""
        phase = NodePhase(report.phase)
        if _ORDER.index(phase) > _ORDER.index(self.parts[node].phase):
            self.parts[node] = Part(phase, report.port, report.exits, report.cause, report.blameless, report.finished)
        if self.lineage is not None:
            self.lineage.hear(self.incarnation, node, report)
            self.foreign |= report.roster is not None and report.roster.origin != self.lineage.origin
            self.latest.note(report)
        elif node == self.placement.nodes[0]:
            self.done = report.done if report.done is not None else self.done
            self.saved = report.saved if report.saved is not None else self.saved
            self.session = report.session or self.session

    def note(self, report: RunReport) -> None:
        """Take in how far its lineage is; who tells it changes with who is rank 0, and who was may say it once more."""
        if report.done is not None and report.done >= (self.done or 0.0):
            self.done, self.session = report.done, report.session or self.session
        if report.saved is not None:
            self.saved = max(report.saved, self.saved or 0.0)

    def lose(self, node: int) -> None:
        """The node, or the agent on it, is gone, and everything it ran with it."""
        if not self.parts[node].phase.over:
            self.parts[node] = Part(NodePhase.LOST)

    def lost(self, node: int) -> bool:
        """Whether the node counts as gone."""
        return self.parts[node].phase is NodePhase.LOST

    def outcome(self, nodes: Sequence[Node]) -> RunEnd | None:
        """How it ended, as soon as that is certain; None while it goes on, or once it was told."""
        if self.told:
            return None
        if self.lineage is not None:
            return self._outcome_in_place(self.lineage, nodes)
        parts = self.parts
        lost = next((node for node, part in parts.items() if part.phase is NodePhase.LOST), None)
        if self.stopping:
            if not self.over:
                return None
            # It may have been done before the word to stop reached it.
            done = all(part.finished for part in parts.values())
            return RunEnd(End.COMPLETED if done else End.STOPPED)
        if lost is not None:
            return RunEnd(End.LOST, f"node {nodes[lost].name} was lost")
        for node, part in parts.items():
            if part.phase is NodePhase.ENDED and (part.cause or any(rank.status for rank in part.exits)):
                end = End.LOST if part.blameless else End.CRASHED
                return RunEnd(end, part.cause or _died(part.exits, nodes[node].name))
            if part.phase is NodePhase.ENDED and not part.exits:
                return RunEnd(End.LOST, _CALLED_OFF)
        if self.over:
            return RunEnd(End.COMPLETED)
        if self.resumed and self._broken():
            return RunEnd(End.LOST, "an agent was restarted while the control plane was away")
        return None

    def _outcome_in_place(self, lineage: ElasticWorkers, nodes: Sequence[Node]) -> RunEnd | None:
        """The same for the last of a lineage: what one rank does ends it only where the others cannot go on."""
        if self.stopping:
            return RunEnd(End.COMPLETED if lineage.finished else End.STOPPED) if self.over else None
        for gang, node, part in self._counted():
            keeps_store = gang is self.kin[0] and node == self.head
            if part.phase is NodePhase.LOST and (keeps_store or lineage.needs(gang.incarnation, node)):
                return RunEnd(End.LOST, f"node {nodes[node].name} was lost")
            if part.phase is NodePhase.ENDED and part.cause:
                return RunEnd(End.LOST if part.blameless else End.CRASHED, part.cause)
            if part.phase is NodePhase.ENDED and lineage.needs(gang.incarnation, node):
                return RunEnd(End.LOST, _CALLED_OFF)
        if lineage.finished:
            return RunEnd(End.COMPLETED)
        failed = [worker for worker in lineage.newcomers(self.incarnation) if worker.died]
        if not failed and lineage.lame:
            failed = [lineage.workers[number] for number in lineage.members if lineage.workers[number].died]
        if failed:
            exits = [worker.exit for worker in failed if worker.exit is not None]
            return RunEnd(End.CRASHED, _died(exits, nodes[failed[0].node].name))
        if self.resumed and (self._broken() or self.foreign):
            return RunEnd(End.LOST, "the control plane was away after it was resized in place, or an agent restarted")
        return None

    def _counted(self) -> Iterator[tuple["Gang", int, Part]]:
        """The parts of its lineage, but for those of ranks that were called off before they joined."""
        for gang in self.kin:
            if gang is self or not gang.stopping:
                yield from ((gang, node, part) for node, part in gang.parts.items())

    def _broken(self) -> bool:
        """Whether a node has not begun what others, or the journal, say was going on."""
        phases = {part.phase for part in self.parts.values()}
        waiting = NodePhase.READY in phases
        return waiting and (self.started or bool(phases & {NodePhase.RUNNING, NodePhase.ENDED}))

    def may_go(self, *, alone: bool) -> bool:
        """Whether the ranks may start: every node is ready, and no earlier incarnation is left anywhere (``alone``).

        On one node that has not been asked yet, getting ready and going are one step.
        """
        if self.stopping or not alone:
            return False
        phases = [part.phase for part in self.parts.values()]
        if len(phases) == 1 and not self.resumed:
            return phases[0] in (NodePhase.UNKNOWN, NodePhase.READY)
        return all(phase is NodePhase.READY for phase in phases)

    @property
    def up(self) -> bool:
        """Whether every node says that its ranks run, or have run: some may be done sooner than others."""
        return all(part.phase in (NodePhase.RUNNING, NodePhase.ENDED) for part in self.parts.values())

    def order(self, node: int, address: str) -> RunOrder | None:
        """What a node should be told; None when nothing of it should be there."""
        if self.parts[node].phase is NodePhase.LOST:
            return None
        seats, launch, head = self.placement.seats, self.launch, self.kin[0]
        counts = [1 if launch.ranks == "node" else count for _, count in seats]
        rank = self.placement.nodes.index(node)
        first, local, roster = sum(counts[:rank]), counts[rank], None
        if self.lineage is not None:
            workers = self.lineage.on(self.incarnation, node)
            first, local = workers[0][0], len(workers)
            keeps_store = self is head and node == self.head
            roster = self.lineage.roster(self.incarnation, node, keeps_store=keeps_store)
        return RunOrder(
            job=self.job,
            incarnation=self.incarnation,
            phase="stop" if self.stopping else "go" if self.going else "prepare",
            id=self.id,
            command=list(launch.command),
            env=dict(launch.env),
            workdir=launch.workdir,
            ranks="node" if launch.ranks == "node" else "gpu",
            grace=launch.grace,
            gpus=seats[rank][1] if roster is None else local,
            shared_with=self.partner,
            node_rank=rank,
            nodes=len(seats),
            first_rank=first,
            local_ranks=local,
            world=sum(counts),
            master=address,
            port=head.parts[self.head].port,
            work=self.work,
            batch=self.batch,
            limits=self.limits,
            roster=roster,
        )


_CALLED_OFF = "its ranks were called off before they started, by a control plane that has died since"

_SIGNALS = {
    6: "it aborted",
    9: "it was killed: out of memory?",
    11: "it broke memory protection",
    15: "it was terminated",
}


def _died(exits: Sequence[RankExit], node: str) -> str:
    """In words: which rank failed, where and how."""
    first = next(rank for rank in exits if rank.status)
    if first.status < 0:
        hint = _SIGNALS.get(-first.status, "")
        return f"rank {first.rank} on {node} ended by signal {-first.status}{f' ({hint})' if hint else ''}"
    return f"rank {first.rank} on {node} exited with status {first.status}"
