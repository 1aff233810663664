"""The runs of a node and its devices: orders and changes of runs go in, actions come out.

Pure bookkeeping: no clock, no process, no file. Repeated orders change nothing. A device belongs to one run, or to
two that share it, from preparation until no process of the run is left; for a job that is resized in place, until no
process of the worker on it is left.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from shoal.wire.messages import AgentOrders, RankExit, Roster, RunOrder, RunReport, SessionReport, SuspensionReport

Key: TypeAlias = tuple[int, int]
"""A job's number and its incarnation."""

_MOST_CAUSE = 2000
_IN_PLACE = "a job that is resized in place is not suspended"


class RunPhase(StrEnum):
    """The phases of a run, in order."""

    WAITING = "waiting"
    PREPARING = "preparing"
    READY = "ready"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


_REPORTED: dict[RunPhase, Literal["ready", "running", "ended"]] = {
    RunPhase.READY: "ready",
    RunPhase.STARTING: "ready",
    RunPhase.RUNNING: "running",
    RunPhase.STOPPING: "running",
    RunPhase.ENDED: "ended",
}
"""By phase, its name in reports to the control plane; a run that is not ready yet is not reported."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Check that the run can start here and reserve a port; then call ``NodeState.prepared``."""

    order: RunOrder


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start the ranks; then call ``NodeState.started``, ``exited`` for each rank, and ``over``."""

    order: RunOrder
    devices: tuple[int, ...]
    port: int


@dataclass(frozen=True, slots=True)
class SetMembers:
    """Order the workers of a run to train with these members, and the ``leavers`` to leave."""

    key: Key
    roster: Roster
    leavers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopRanks:
    """Warn the ranks and kill them after ``grace`` seconds; call ``NodeState.over`` when none is left."""

    key: Key
    grace: float


@dataclass(frozen=True, slots=True)
class SuspendRanks:
    """Suspend the ranks; then call ``NodeState.turned``."""

    key: Key


@dataclass(frozen=True, slots=True)
class ResumeRanks:
    """Resume the suspended ranks; then call ``NodeState.turned``."""

    key: Key


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete all files kept for a run."""

    key: Key


Action: TypeAlias = Prepare | StartRanks | SetMembers | StopRanks | SuspendRanks | ResumeRanks | Forget
Actions: TypeAlias = list[Action]


@dataclass(slots=True)
class NodeRun:
    """One incarnation of a job on this node."""

    order: RunOrder
    phase: RunPhase = RunPhase.WAITING
    devices: tuple[int, ...] = ()
    port: int = 0
    exits: dict[int, RankExit] = field(default_factory=dict)
    cleared_ranks: set[int] = field(default_factory=set)
    """Ranks of which no process is left."""
    workers: range = range(0)
    """The ranks it was started with."""
    roster: Roster | None = None
    """The members last written for its workers, if the job is resized in place."""
    cause: str = ""
    blameless: bool = False
    unstarted: bool = False
    """Whether this node could not start the ranks."""
    finished: bool = False
    unwanted: bool = False
    done: float | None = None
    saved: float | None = None
    session: SessionReport | None = None
    suspended: bool = False
    """Whether its processes are suspended and its devices free."""
    turn: int = 0
    """The last order to suspend or resume it that was begun."""
    turning: bool = False
    """Whether that order is being carried out."""
    suspension: SuspensionReport | None = None
    """The result of the last such order that was carried out."""

    @property
    def key(self) -> Key:
        """The job and the incarnation."""
        return self.order.job, self.order.incarnation

    @property
    def held(self) -> tuple[int, ...]:
        """The devices that are in use or reserved."""
        if self.suspended:
            return ()
        if self.roster is None:
            return self.devices
        pairs = zip(self.workers, self.devices, strict=True) if self.devices else ()
        return tuple(device for rank, device in pairs if rank not in self.cleared_ranks)

    @property
    def stays(self) -> bool:
        """Whether it keeps its devices by its orders: it is neither to be stopped nor to be suspended."""
        return not self.unwanted and self.order.phase != "stop" and self.order.turn % 2 == 0

    @property
    def silent_ranks(self) -> list[int]:
        """The ranks it was started with whose end was not reported."""
        return [rank for rank in self.workers if rank not in self.exits]

    @property
    def succeeded(self) -> bool:
        """Whether every rank it was started with ended by itself with status 0."""
        ends = [self.exits.get(rank) for rank in self.workers]
        return bool(ends) and all(end is not None and end.status == 0 and not end.warned for end in ends)

    def end(self, cause: str = "", *, blameless: bool = False) -> None:
        """Record that no process is left, with the cause and whether the job is blameless."""
        self.phase, self.devices = RunPhase.ENDED, ()
        self.cause, self.blameless = cause[:_MOST_CAUSE], blameless

    @property
    def leavers(self) -> tuple[int, ...]:
        """Live workers that are not members."""
        if self.roster is None or not self.roster.generation:
            return ()
        staying = {*self.roster.members, *self.exits}
        return tuple(number for number in self.workers if number not in staying)

    def report(self) -> RunReport | None:
        """Return the report for the control plane; None if the run is not ready yet."""
        phase = _REPORTED.get(self.phase)
        return phase and RunReport(
            job=self.order.job,
            incarnation=self.order.incarnation,
            phase=phase,
            port=self.port,
            exits=list(self.exits.values()),
            cause=self.cause,
            blameless=self.blameless,
            unstarted=self.unstarted,
            finished=self.finished,
            done=self.done,
            saved=self.saved,
            session=self.session,
            roster=self.roster,
            suspension=self.suspension,
        )


class NodeState:
    """The runs of a node with this many devices; on ``real`` ones a run is resumed only where it was suspended."""

    def __init__(self, devices: int, *, real: bool = False) -> None:
        self._devices = devices
        self._real = real
        self._closing = False
        self.generation = -1
        self.runs: dict[Key, NodeRun] = {}

    def reports(self) -> list[RunReport]:
        """Return the reports of all runs."""
        return [report for run in self.runs.values() if (report := run.report())]

    def urgent_parts(self) -> tuple[tuple[object, ...], ...]:
        """Return what of the reports is sent at once when it changes: everything but progress."""
        return tuple(map(_urgent_parts, self.reports()))

    def follow(self, orders: AgentOrders, *, first: bool = False) -> Actions:
        """Apply the orders, which name all runs the node should have; return the actions.

        Orders of an older generation are ignored, unless they are the ``first`` of a control plane.
        """
        if orders.generation < self.generation and not first:
            return []
        self.generation = orders.generation
        actions: Actions = []
        wanted = {(order.job, order.incarnation): order for order in orders.runs}
        for key in [key for key in self.runs if key not in wanted]:
            actions += self._drop(self.runs[key])
        for key, order in wanted.items():
            actions += self._take(key, order)
        return actions + self._seat()

    def close(self) -> Actions:
        """Stop every run and accept no new one: the agent is ending."""
        self._closing = True
        return [action for run in self.runs.values() for action in self._stop(run, "the agent was stopped")]

    def prepared(self, key: Key, port: int, cause: str = "", blameless: bool = False) -> Actions:
        """Record that a run can start here, or the cause for which it cannot; ``blameless`` if that is the node's."""
        run = self.runs.get(key)
        if run is None or run.phase is not RunPhase.PREPARING:
            return []
        if cause:
            run.end(cause, blameless=blameless)
            run.unstarted = True
            return self._seat()
        run.port = port
        run.phase = RunPhase.READY
        return self._go(run)

    def started(self, key: Key) -> None:
        """Record that all ranks have been exec'ed."""
        if self.runs[key].phase is RunPhase.STARTING:
            self.runs[key].phase = RunPhase.RUNNING

    def exited(self, key: Key, rank: int, status: int, *, warned: bool = False) -> None:
        """Record that a rank has ended, by itself or after it was warned."""
        self.runs[key].exits[rank] = RankExit(rank, status, warned)

    def cleared(self, key: Key, rank: int) -> Actions:
        """Record that no process of an ended rank is left."""
        self.runs[key].cleared_ranks.add(rank)
        return self._seat()

    def progressed(
        self, key: Key, done: float, saved: float | None = None, session: SessionReport | None = None
    ) -> None:
        """Record the progress that the job has written, and its trainer library's report."""
        run = self.runs[key]
        run.done, run.saved, run.session = done, saved, session

    def turned(self, key: Key, suspended: bool, host_bytes: int = 0, seconds: float = 0.0, cause: str = "") -> Actions:
        """Record how an order to suspend or to resume a run has ended; with a cause it could not be carried out."""
        run = self.runs[key]
        run.suspended, run.turning = suspended, False
        run.suspension = SuspensionReport(
            turn=run.turn, suspended=suspended, bytes=host_bytes, seconds=seconds, cause=cause[:_MOST_CAUSE]
        )
        return [*self._turn(run), *self._seat()]

    def over(self, key: Key, cause: str = "", *, blameless: bool = False, unwarned: bool = False) -> Actions:
        """Record that no process of a run is left; ``unwarned`` if it ended without being stopped."""
        run = self.runs[key]
        if not cause and run.phase is not RunPhase.STOPPING and (silent := run.silent_ranks):
            cause, blameless = f"its keeper ended without reporting how rank {silent[0]} ended", True
        run.unstarted = bool(cause) and run.phase is RunPhase.STARTING
        run.end(cause, blameless=blameless)
        run.finished = unwarned and not cause and run.succeeded
        return [*self._forget(run), *self._seat()]

    def _take(self, key: Key, order: RunOrder) -> Actions:
        run = self.runs.get(key)
        if run is None:
            if self._closing:
                return []
            run = self.runs[key] = NodeRun(order)
        if run.phase is RunPhase.READY and _origin(order) != _origin(run.order):
            run.end("it was to join workers of which the control plane knows nothing any more", blameless=True)
        sooner = run.phase is RunPhase.STOPPING and order.grace < run.order.grace
        run.order, run.unwanted = order, False
        if sooner:
            return [StopRanks(key, order.grace)]
        return (
            self._stop(run, "")
            if order.phase == "stop"
            else [*self._go(run), *self._set_members(run), *self._turn(run)]
        )

    def _turn(self, run: NodeRun) -> Actions:
        """Begin to suspend or to resume a run as ordered; it is resumed when its devices are free."""
        turn, suspend = run.order.turn, run.order.turn % 2 == 1
        if run.phase is not RunPhase.RUNNING or run.turning or turn <= run.turn:
            return []
        if suspend == run.suspended:
            run.turn, run.suspension = turn, SuspensionReport(turn=turn, suspended=suspend)
            return []
        if suspend and run.roster is not None:
            run.turn, run.suspension = turn, SuspensionReport(turn=turn, cause=_IN_PLACE)
            return []
        if suspend:
            run.turn, run.turning = turn, True
            return [SuspendRanks(run.key)]
        held = {device for other in self.runs.values() for device in other.held}
        devices = tuple(device for device in range(self._devices) if device not in held)[: len(run.devices)]
        if self._real:
            devices = () if held.intersection(run.devices) else run.devices
            if users := [other for other in self.runs.values() if {*other.held} & {*run.devices} and other.stays]:
                cause = f"its GPUs are in use by job {users[0].order.id}, and it can be resumed only on the same ones"
                run.turn = turn
                run.suspension = SuspensionReport(turn=turn, suspended=True, cause=cause)
        if len(devices) < len(run.devices) or run.turn == turn:
            return []
        run.devices, run.suspended, run.turn, run.turning = devices, False, turn, True
        return [ResumeRanks(run.key)]

    def _set_members(self, run: NodeRun) -> Actions:
        """Pass a newer roster of the same start on to running workers."""
        roster, known = run.order.roster, run.roster
        if roster is None or known is None or run.phase not in (RunPhase.STARTING, RunPhase.RUNNING):
            return []
        if roster.generation <= known.generation or roster.origin != known.origin:
            return []
        run.roster = roster
        return [SetMembers(run.key, roster, run.leavers)]

    def _go(self, run: NodeRun) -> Actions:
        if run.phase is not RunPhase.READY or run.order.phase != "go":
            return []
        run.phase, run.roster = RunPhase.STARTING, run.order.roster
        run.workers = range(run.order.first_rank, run.order.first_rank + run.order.local_ranks)
        return [StartRanks(run.order, run.devices, run.order.port or run.port)]

    def _drop(self, run: NodeRun) -> Actions:
        run.unwanted = True
        return [*self._stop(run, ""), *self._forget(run)]

    def _forget(self, run: NodeRun) -> Actions:
        if not run.unwanted or run.phase is not RunPhase.ENDED:
            return []
        del self.runs[run.key]
        return [Forget(run.key)]

    def _stop(self, run: NodeRun, cause: str) -> Actions:
        if run.phase in (RunPhase.STARTING, RunPhase.RUNNING):
            run.phase = RunPhase.STOPPING
            return [StopRanks(run.key, run.order.grace)]
        if run.phase in (RunPhase.WAITING, RunPhase.PREPARING, RunPhase.READY):
            run.end(cause, blameless=True)
        return []

    def _seat(self) -> Actions:
        """Assign devices to waiting runs in order of arrival; a run that shares comes after its partner."""
        actions = [action for run in self.runs.values() for action in self._turn(run)]
        waiting = [run for run in self.runs.values() if run.phase is RunPhase.WAITING]
        for run in sorted(waiting, key=lambda run: run.order.shared_with is not None):
            if run.order.gpus > self._devices:
                run.end(f"needs {run.order.gpus} devices, and this node has {self._devices}")
                run.unstarted = True
            elif not self._has_predecessor(run) and len(devices := self._choose(run.order)) == run.order.gpus:
                run.devices, run.phase = devices, RunPhase.PREPARING
                actions.append(Prepare(run.order))
        return actions

    def _has_predecessor(self, run: NodeRun) -> bool:
        """Return whether an incarnation of the job is here that this one does not join: both write one checkpoint."""
        return any(
            other.order.job == run.order.job
            and other.phase not in (RunPhase.WAITING, RunPhase.ENDED)
            and _origin(other.order) != _origin(run.order)
            for other in self.runs.values()
        )

    def _choose(self, order: RunOrder) -> tuple[int, ...]:
        """Return the devices for a run, those it shares first; fewer than it needs if it must wait."""
        shared: tuple[int, ...] = ()
        for run in self.runs.values():
            if run.order.job == order.shared_with and run.phase not in (RunPhase.STOPPING, RunPhase.ENDED):
                if run.phase is RunPhase.WAITING and run.order.shared_with != order.job:
                    return ()
                shared = run.devices
        held = {device for run in self.runs.values() for device in run.held}
        free = [device for device in range(self._devices) if device not in held]
        # A suspended run can be resumed only on its own devices, so those of others come first.
        free.sort(key=lambda device: any(device in run.devices for run in self.runs.values() if run.suspended))
        return (*shared, *free)[: order.gpus]


def _origin(order: RunOrder) -> int:
    """Return the incarnation in which the job last started from its checkpoint."""
    return order.incarnation if order.roster is None else order.roster.origin


def _urgent_parts(run: RunReport) -> tuple[object, ...]:
    session = None if run.session is None else (run.session.batch_size, run.session.generation)
    return run.job, run.incarnation, run.phase, len(run.exits), session, run.suspension
