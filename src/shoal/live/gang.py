"""One incarnation of a job on its nodes: the nodes' reports, its end, and the orders for its nodes.

Pure bookkeeping: reports go in, orders and outcomes come out; no clock is read and nothing is sent. All ranks start or
none: no node is ordered to start before every node is ready, and the first rank that fails ends the incarnation.

A job that is resized in place has one gang for each incarnation since it started from its checkpoint, together a
*chain*. Each gang started the ranks that joined with it; the latest gang decides for all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec

from shoal.core.batch_limits import BatchLimits
from shoal.core.job import BatchSetting, Launch
from shoal.core.topology import Node, Placement
from shoal.core.units import JobId, JobNumber, Seconds, TenantId
from shoal.live.elastic_workers import ElasticWorkers, Seats
from shoal.live.exit_words import describe_exit, failed_status
from shoal.live.rate_tracker import RateTracker
from shoal.live.report_filter import possible_progress
from shoal.wire.batch_script import OPTIONS_VARIABLE
from shoal.wire.messages import RankExit, RunOrder, RunReport, SessionReport

_CALLED_OFF = "its ranks were stopped, or never started, by order of a control plane that has died since"
_ENDED_EARLY = "its ranks on node {} were stopped, or not all of them were reported to have ended"
_AGENT_RESTARTED = "an agent was restarted while the control plane was away"
_CHAIN_LOST = "the control plane was away after it was resized in place, or an agent restarted"


class NodePhase(StrEnum):
    """The phase of a gang on one node as last reported; it only moves down this list."""

    UNKNOWN = "unknown"
    READY = "ready"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"

    @property
    def over(self) -> bool:
        """Whether nothing of the gang is left on the node."""
        return self in (NodePhase.ENDED, NodePhase.LOST)


_PHASES = tuple(NodePhase)


@dataclass(frozen=True, slots=True)
class Part:
    """A gang's part on one node, by the node's last report."""

    phase: NodePhase = NodePhase.UNKNOWN
    port: int = 0
    exits: Sequence[RankExit] = ()
    cause: str = ""
    blameless: bool = False
    unstarted: bool = False
    forgotten: bool = False
    """Whether the agent that ran it has ended since: another must not start it again."""

    @property
    def crashed(self) -> bool:
        """Whether it ended with an error of a rank that was not warned, or for a reason the agent gave."""
        failed = any(rank.status and not rank.warned for rank in self.exits)
        return self.phase is NodePhase.ENDED and bool(self.cause or failed)


class End(StrEnum):
    """How an incarnation ended; LOST is no fault of the job."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    CRASHED = "crashed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of an incarnation and its cause. From then on its remaining processes only have to be stopped.

    ``failed_on`` is the index of a node that could not start its ranks; ``status`` that of the rank that failed first.
    """

    end: End
    cause: str = ""
    failed_on: int | None = None
    status: int | None = None


@dataclass(slots=True, eq=False)
class Gang:
    """One incarnation of a job, on the seats it was given."""

    job: JobNumber
    incarnation: int
    id: JobId
    launch: Launch
    placement: Placement
    partner: JobNumber | None
    tracker: RateTracker
    base: float = 0.0
    """Progress it resumes from."""
    work: float | None = None
    batch: BatchSetting | None = None
    """The batch size it was granted, if the policy grants one."""
    limits: BatchLimits | None = None
    tenant: TenantId = ""
    time: Seconds | None = None
    """The job's time limit."""
    stopping: bool = False
    forced: bool = False
    """Whether it is stopped without grace."""
    going: bool = False
    """Whether its nodes are ordered to start the ranks."""
    started: bool = False
    """Whether all its ranks were seen running."""
    resumed: bool = False
    """Whether it was restored from the journal: the orders its nodes have received are not known."""
    end_reported: bool = False
    """Whether its end has become an event, or the ring does not need it."""
    end_durable: bool = False
    """Whether its end is durable, so that its nodes may forget it."""
    progress_counted: bool = False
    """Whether its progress was added to the job's."""
    parts: dict[int, Part] = field(default_factory=dict)
    running_since: Seconds = 0.0
    done: float | None = None
    saved: float | None = None
    session: SessionReport | None = None
    workers: ElasticWorkers | None = None
    """The workers of its chain, if the job is resized in place."""
    chain: list["Gang"] = field(default_factory=list)
    """All gangs of its chain in order, itself included; all of them share this list."""
    joins_unknown: bool = False
    """Whether a node runs it as part of a chain that this control plane does not know."""
    turn: int = 0
    """Number of the last order to suspend it (odd) or to resume it (even)."""
    turned: int = 0
    """The last of these orders whose result was reported to the ring."""
    suspended_at: Seconds | None = None
    """Since when it is suspended."""
    limit_left: Seconds | None = None
    """Of a suspended gang with a time limit: the seconds of it that are left."""
    gate: bool = False
    """Whether its job waits at the gate, so that it can be started before its GPUs are free."""
    yields: bool = False
    """Whether it may continue until the run that gets its GPUs is at the gate."""
    own_seats: Seats = ()
    """The seats on which it starts ranks: all except those of ranks it takes over."""
    _orders: dict[int, tuple[tuple[object, ...], RunOrder]] = field(default_factory=dict)
    """By node, the order last made for it, after all that changes in it."""

    def __post_init__(self) -> None:
        if not self.chain:
            self.own_seats = self.placement.seats
        self.parts = {node: Part() for node, _ in self.own_seats}
        self.chain.append(self)

    @property
    def latest(self) -> "Gang":
        """The last gang of its chain; without one, itself."""
        return self.chain[-1]

    @property
    def head(self) -> int:
        """The index of the node with the ranks' rendezvous address."""
        return self.chain[0].placement.seats[0][0]

    @property
    def nodes(self) -> set[int]:
        """Every node with a part of its chain, now or soon."""
        return {node for gang in self.chain for node in (*gang.placement.nodes, *gang.parts)}

    @property
    def over(self) -> bool:
        """Whether it has no process left on any node; for the latest of a chain, whether the whole chain has none."""
        gangs = self.chain if self.latest is self else [self]
        return all(part.phase.over for gang in gangs for part in gang.parts.values())

    @property
    def up(self) -> bool:
        """Whether its ranks run, or have run, on every node: some may end sooner than others."""
        return all(part.phase in (NodePhase.RUNNING, NodePhase.ENDED) for part in self.parts.values())

    @property
    def goes_on(self) -> bool:
        """Whether all its ranks were reported running, and no order or expected report is outstanding."""
        return self.started and not (self.stopping or self.end_reported or self.suspended)

    @property
    def progress(self) -> float:
        """The progress last reported; before any report, the progress it resumes from."""
        return self.base if self.done is None else self.done

    @property
    def killed(self) -> bool:
        """Whether a signal ended a rank: it had no time to save, or does not handle the warning signal."""
        return any(rank.status < 0 for part in self.parts.values() for rank in part.exits)

    @property
    def suspended(self) -> bool:
        """Whether it is suspended, or an order to suspend or resume it is not yet carried out."""
        return self.turn % 2 == 1 or self.turned < self.turn

    def ran(self, now: Seconds) -> Seconds:
        """Return for how many seconds it has run, without the time in which it was suspended."""
        return max(0.0, (now if self.suspended_at is None else self.suspended_at) - self.running_since)

    def go_on(self, now: Seconds) -> None:
        """Note that it runs again, if it was suspended."""
        if self.suspended_at is not None:
            self.running_since += now - self.suspended_at
            self.suspended_at = None

    def workers_to_keep(self, placement: Placement) -> tuple[int, ...]:
        """Return the workers that can continue in place on other seats; none if the job has to be restarted."""
        first = self.chain[0]
        # Until the first ranks are reported up (also after a restart) there are no workers to keep.
        if self.workers is None or self.stopping or self.end_reported or not (first.started and first.up):
            return ()
        return self.workers.members_on(placement)

    def update(self, node: int, report: RunReport) -> None:
        """Process a node's report. A late report, of an earlier phase, changes none."""
        phase = NodePhase(report.phase)
        if _PHASES.index(phase) > _PHASES.index(self.parts[node].phase):
            self.parts[node] = Part(phase, report.port, report.exits, report.cause, report.blameless, report.unstarted)
        if self.workers is not None:
            self.workers.update(self.incarnation, node, report)
            self.joins_unknown |= report.roster is not None and report.roster.origin != self.workers.origin
            self.latest.update_progress(report)
        elif node == self.placement.seats[0][0]:
            self.done = report.done if possible_progress(report.done) else self.done
            self.saved = report.saved if possible_progress(report.saved) else self.saved
            self.session = report.session or self.session

    def update_progress(self, report: RunReport) -> None:
        """Process a report of the chain's progress. Rank 0, which reports it, may move: older progress is ignored."""
        if possible_progress(report.done) and report.done >= (self.done or 0.0):
            self.done, self.session = report.done, report.session or self.session
        if possible_progress(report.saved):
            self.saved = max(report.saved, self.saved or 0.0)

    def lose(self, node: int, *, rebooted: bool = False) -> None:
        """Mark the gang's part on a node as lost with the node, or with its agent if another was started there."""
        part = self.parts[node]
        self.parts[node] = (
            replace(part, forgotten=part.forgotten or rebooted) if part.phase.over else Part(NodePhase.LOST)
        )

    def fail(self, node: int, cause: str) -> None:
        """Mark the gang's part on a node as ended: it could not start there, through no fault of the job."""
        if not self.parts[node].phase.over:
            self.parts[node] = Part(NodePhase.ENDED, cause=cause, blameless=True)

    def lost(self, node: int) -> bool:
        """Return whether the gang's part on a node is lost."""
        return self.parts[node].phase is NodePhase.LOST

    def outcome(self, nodes: Sequence[Node]) -> RunEnd | None:
        """Return its end as soon as that is certain; None before, and after it was reported."""
        if self.end_reported:
            return None
        if self.stopping:
            return self._stopped() if self.over else None
        if self.workers is not None:
            return self._elastic_end(self.workers, nodes)
        return self._failed(nodes) or self._completed() or self._inconsistent(_AGENT_RESTARTED)

    def _stopped(self) -> RunEnd:
        # It may have completed before the order to stop reached it.
        finished = self._all_succeeded(warned=False) if self.workers is None else self.workers.finished
        return RunEnd(End.COMPLETED if finished else End.STOPPED)

    def _all_succeeded(self, *, warned: bool) -> bool:
        """Return whether every rank was reported to have exited with 0; unless ``warned``, without having been warned.

        Nothing else means that the incarnation completed.
        """
        return all(self._succeeded(node, part, warned=warned) for node, part in self.parts.items())

    def _succeeded(self, node: int, part: Part, *, warned: bool) -> bool:
        ended = {rank.rank for rank in part.exits if rank.status == 0 and (warned or not rank.warned)}
        return part.phase is NodePhase.ENDED and not part.cause and ended.issuperset(self.ranks_on(node))

    @property
    def all_left(self) -> bool:
        """Whether every rank was reported to have exited with status 0, by itself or after it was warned."""
        return self._all_succeeded(warned=True) if self.workers is None else self.workers.all_left

    def _failed(self, nodes: Sequence[Node]) -> RunEnd | None:
        lost = next((node for node, part in self.parts.items() if part.phase is NodePhase.LOST), None)
        if lost is not None:
            return RunEnd(End.LOST, f"node {nodes[lost].name} was lost")
        for node, part in self.parts.items():
            if part.crashed:
                end, failed_on = End.LOST if part.blameless else End.CRASHED, node if part.unstarted else None
                cause = part.cause or describe_exit(part.exits, nodes[node].name)
                return RunEnd(end, cause, failed_on, failed_status(part.exits))
            if part.phase is NodePhase.ENDED and not self._succeeded(node, part, warned=False):
                return RunEnd(End.LOST, _ENDED_EARLY.format(nodes[node].name) if part.exits else _CALLED_OFF)
        return None

    def _completed(self) -> RunEnd | None:
        return RunEnd(End.COMPLETED) if self._all_succeeded(warned=False) else None

    def _inconsistent(self, cause: str) -> RunEnd | None:
        """Return the end of a gang restored from the journal if a node has not started ranks that should be running."""
        phases = {part.phase for part in self.parts.values()}
        begun = self.started or bool(phases & {NodePhase.RUNNING, NodePhase.ENDED})
        if self.resumed and ((NodePhase.READY in phases and begun) or self.joins_unknown):
            return RunEnd(End.LOST, cause)
        return None

    def _elastic_end(self, workers: ElasticWorkers, nodes: Sequence[Node]) -> RunEnd | None:
        """Return the end of a chain; a rank's failure ends it only if the others cannot continue."""
        for gang, node, part in self._active_parts():
            if end := gang._part_end(node, part, nodes[node].name):
                return end
        if workers.finished:
            return RunEnd(End.COMPLETED)
        failed = [worker for worker in workers.newcomers(self.incarnation) if worker.failed]
        if not failed and workers.broken:
            failed = [workers.workers[number] for number in workers.members if workers.workers[number].failed]
        if failed:
            exits = [worker.exit for worker in failed if worker.exit is not None]
            cause = describe_exit(exits, nodes[failed[0].node].name)
            return RunEnd(End.CRASHED, cause, status=failed_status(exits))
        return self._inconsistent(_CHAIN_LOST)

    def _active_parts(self) -> Iterator[tuple["Gang", int, Part]]:
        """Yield the parts of its chain, except those of gangs whose ranks were stopped before they joined."""
        for gang in self.chain:
            if gang is self or not gang.stopping:
                yield from ((gang, node, part) for node, part in gang.parts.items())

    def _part_end(self, node: int, part: Part, name: str) -> RunEnd | None:
        assert self.workers is not None
        needed = self.workers.needs(self.incarnation, node)
        if part.phase is NodePhase.LOST and (needed or self._keeps_store(node)):
            return RunEnd(End.LOST, f"node {name} was lost")
        if part.phase is NodePhase.ENDED and part.cause:
            end = End.LOST if part.blameless else End.CRASHED
            return RunEnd(end, part.cause, node if part.unstarted else None)
        return RunEnd(End.LOST, _CALLED_OFF) if part.phase is NodePhase.ENDED and needed else None

    def _keeps_store(self, node: int) -> bool:
        return self is self.chain[0] and node == self.head

    def may_go(self, *, alone: bool) -> bool:
        """Return whether the ranks may start: every node is ready, and with ``alone`` no earlier incarnation is left.

        On a single node that has no order yet, one order prepares and starts them.
        """
        if self.stopping or not alone:
            return False
        phases = [part.phase for part in self.parts.values()]
        if len(phases) == 1 and not self.resumed:
            return phases[0] in (NodePhase.UNKNOWN, NodePhase.READY)
        return all(phase is NodePhase.READY for phase in phases)

    @property
    def _rank_counts(self) -> list[int]:
        return [1 if self.launch.ranks == "node" else count for _, count in self.placement.seats]

    def ranks_on(self, node: int) -> range:
        """Return the ranks on a node; for a job that is not resized in place."""
        counts, index = self._rank_counts, self.placement.nodes.index(node)
        first = sum(counts[:index])
        return range(first, first + counts[index])

    def order(self, node: int, address: str) -> RunOrder | None:
        """Return the order for a node, with the address of the head node; None if nothing should be there."""
        if self.lost(node) or self.parts[node].forgotten:
            return None
        first = self.chain[0]
        port = first.parts[first.placement.seats[0][0]].port
        changing = address, port, self.stopping, self.going, self.forced, self.turn, self.yields
        made = self._orders.get(node)
        if made is None or made[0] != changing or self.workers is not None:
            made = self._orders[node] = changing, self._order(node, address, port)
        return made[1]

    def _order(self, node: int, address: str, port: int) -> RunOrder:
        seats, launch = self.placement.seats, self.launch
        rank = self.placement.nodes.index(node)
        ranks, roster = self.ranks_on(node), None
        if self.workers is not None:
            here = self.workers.on(self.incarnation, node)
            ranks = range(here[0][0], here[0][0] + len(here))
            roster = self.workers.roster(self.incarnation, node, keeps_store=self._keeps_store(node))
        return RunOrder(
            job=self.job,
            incarnation=self.incarnation,
            phase="stop" if self.stopping else "go" if self.going else "prepare",
            id=self.id,
            command=list(launch.command),
            env=dict(launch.env),
            workdir=launch.workdir,
            ranks="node" if launch.ranks == "node" else "gpu",
            grace=0.0 if self.forced else launch.grace,
            gpus=seats[rank][1] if roster is None else len(ranks),
            shared_with=self.partner,
            node_rank=rank,
            nodes=len(seats),
            first_rank=ranks.start,
            local_ranks=len(ranks),
            world=sum(self._rank_counts),
            master=address,
            port=port,
            work=self.work,
            batch=self.batch,
            limits=self.limits,
            roster=roster,
            tenant=self.tenant,
            cpus=launch.cpus,
            memory=launch.memory,
            time=self.time,
            signal=launch.signal,
            turn=self.turn,
            code=launch.code,
            terminal=launch.terminal,
            gate=self.gate and len(seats) == 1 and not launch.terminal,
            yields=self.yields,
        )

    def with_hosts(self, order: RunOrder, address: Callable[[int], str]) -> RunOrder:
        """Return an order; for a batch script with the address and the GPUs of each node of the job."""
        if OPTIONS_VARIABLE not in order.env:
            return order
        return msgspec.structs.replace(order, hosts=[(address(node), gpus) for node, gpus in self.placement.seats])
