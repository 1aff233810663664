"""One incarnation of a job on its nodes: what is wanted of it, what each node said of it, and what follows.

Pure bookkeeping: reports go in, orders and events come out; no clock is read and nothing is sent. All ranks start or
none do: nobody gets the word to go before every node is ready, and the first rank that fails ends the incarnation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.core.job import Launch
from shoal.core.topology import Node, Placement
from shoal.core.units import JobId, JobNumber, Seconds
from shoal.wire.messages import RankExit, RunOrder, RunReport


class Phase(StrEnum):
    """What a node is known to have of a gang."""

    UNKNOWN = "unknown"
    READY = "ready"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"

    @property
    def over(self) -> bool:
        """Whether nothing of the gang is left on the node."""
        return self in (Phase.ENDED, Phase.LOST)


_ORDER = tuple(Phase)


@dataclass(frozen=True, slots=True)
class Part:
    """The gang as one node last told it."""

    phase: Phase = Phase.UNKNOWN
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
class Outcome:
    """That an incarnation is at its end, and why; what is left of it is then only to be cleared away."""

    end: End
    cause: str = ""


@dataclass(slots=True)
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
    base: float = 0.0
    """Progress it resumes from."""
    rate: float = 0.0
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
    measured_at: Seconds = 0.0
    measured_done: float = 0.0

    def __post_init__(self) -> None:
        self.parts = {node: Part() for node in self.placement.nodes}

    @property
    def over(self) -> bool:
        """Whether nothing of it is left anywhere."""
        return all(part.phase.over for part in self.parts.values())

    def hear(self, node: int, report: RunReport) -> None:
        """Take in what a node says. Nothing there runs backwards: a message that comes late changes nothing."""
        phase = Phase(report.phase)
        if _ORDER.index(phase) > _ORDER.index(self.parts[node].phase):
            self.parts[node] = Part(phase, report.port, report.exits, report.cause, report.blameless, report.finished)
        if node == self.placement.nodes[0]:
            self.done = report.done if report.done is not None else self.done
            self.saved = report.saved if report.saved is not None else self.saved

    def lose(self, node: int) -> None:
        """The node, or the agent on it, is gone, and everything it ran with it."""
        if not self.parts[node].phase.over:
            self.parts[node] = Part(Phase.LOST)

    def lost(self, node: int) -> bool:
        """Whether the node counts as gone."""
        return self.parts[node].phase is Phase.LOST

    def outcome(self, nodes: Sequence[Node]) -> Outcome | None:
        """How it ended, as soon as that is certain; None while it goes on, or once it was told."""
        if self.told:
            return None
        parts = self.parts
        lost = next((node for node, part in parts.items() if part.phase is Phase.LOST), None)
        if self.stopping:
            if not self.over:
                return None
            # It may have been done before the word to stop reached it.
            done = all(part.finished for part in parts.values())
            return Outcome(End.COMPLETED if done else End.STOPPED)
        if lost is not None:
            return Outcome(End.LOST, f"node {nodes[lost].name} was lost")
        for node, part in parts.items():
            if part.phase is Phase.ENDED and (part.cause or any(rank.status for rank in part.exits)):
                end = End.LOST if part.blameless else End.CRASHED
                return Outcome(end, part.cause or _died(part.exits, nodes[node].name))
        if self.over:
            return Outcome(End.COMPLETED)
        if self.resumed and self._broken():
            return Outcome(End.LOST, "an agent was restarted while the control plane was away")
        return None

    def _broken(self) -> bool:
        """Whether a node has not begun what others, or the journal, say was going on."""
        phases = {part.phase for part in self.parts.values()}
        waiting = Phase.READY in phases
        return waiting and (self.started or bool(phases & {Phase.RUNNING, Phase.ENDED}))

    def may_go(self, *, alone: bool) -> bool:
        """Whether the ranks may start: every node is ready, and no earlier incarnation is left anywhere (``alone``).

        On one node that has not been asked yet, getting ready and going are one step.
        """
        if self.stopping or not alone:
            return False
        phases = [part.phase for part in self.parts.values()]
        if len(phases) == 1 and not self.resumed:
            return phases[0] in (Phase.UNKNOWN, Phase.READY)
        return all(phase is Phase.READY for phase in phases)

    @property
    def up(self) -> bool:
        """Whether every node says that its ranks run, or have run: some may be done sooner than others."""
        return all(part.phase in (Phase.RUNNING, Phase.ENDED) for part in self.parts.values())

    def order(self, node: int, address: str) -> RunOrder | None:
        """What a node should be told; None when nothing of it should be there."""
        if self.parts[node].phase is Phase.LOST:
            return None
        seats, launch = self.placement.seats, self.launch
        counts = [1 if launch.ranks == "node" else count for _, count in seats]
        rank = self.placement.nodes.index(node)
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
            gpus=seats[rank][1],
            shared_with=self.partner,
            node_rank=rank,
            nodes=len(seats),
            first_rank=sum(counts[:rank]),
            local_ranks=counts[rank],
            world=sum(counts),
            master=address,
            port=self.parts[self.placement.nodes[0]].port,
        )


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
