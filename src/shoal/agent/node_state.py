"""The runs of a node and its devices: orders and changes of runs go in, actions come out.

Pure bookkeeping: no clock, no process, no file. Repeated orders change nothing. A device belongs to one run, or to
two that share it, from preparation until no process of the run is left; for a job that is resized in place, until no
process of the worker on it is left.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import structs

from shoal.agent import gates
from shoal.agent.node_run import MOST_CAUSE, Key, NodeRun, RunPhase
from shoal.wire.messages import AgentOrders, RankExit, Roster, RunOrder, RunReport, SessionReport, SuspensionReport


@dataclass(frozen=True, slots=True)
class Prepare:
    """Check that the run can start here and reserve a port; then call ``NodeState.prepared``."""

    order: RunOrder


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start the ranks; then call ``NodeState.started``, ``exited`` for each rank, and ``over``."""

    order: RunOrder
    devices: tuple[int | str, ...]
    """Positions among the node's devices; the agent puts their identifiers in place of them."""
    port: int
    gated: bool = False
    """Whether they wait at the gate; then call ``NodeState.arrived`` too."""


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
class OpenGate:
    """Let the ranks of a run use its devices."""

    key: Key


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete all files kept for a run."""

    key: Key


Action: TypeAlias = Prepare | StartRanks | SetMembers | StopRanks | SuspendRanks | ResumeRanks | OpenGate | Forget
Actions: TypeAlias = list[Action]


class NodeState:
    """The runs of a node with this many devices; a run resumes only on the ``real`` devices it was suspended on."""

    def __init__(self, devices: int, *, real: bool = False) -> None:
        self._devices = devices
        self._real = real
        self.gates = True
        """Whether runs may be started before their devices are free."""
        self._closing = False
        self.generation = -1
        self.runs: dict[Key, NodeRun] = {}

    def reports(self) -> list[RunReport]:
        """Return the reports of all runs."""
        return [report for run in self.runs.values() if (report := run.report())]

    def urgent_parts(self) -> tuple[tuple[object, ...], ...]:
        """Return the parts of the reports that are sent at once when they change: everything but progress."""
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

    def arrived(self, key: Key) -> Actions:
        """Record that a run is at the gate, or no longer awaited there: runs whose devices it gets leave."""
        self.runs[key].arrived = True
        return self._seat()

    def adopt(self, order: RunOrder, devices: tuple[int, ...]) -> None:
        """Take over a run that an earlier agent left suspended; then call ``turned``."""
        workers = range(order.first_rank, order.first_rank + order.local_ranks)
        run = NodeRun(order, RunPhase.RUNNING, devices, workers=workers, turning=True, up=True)
        self.runs[run.key] = run

    def close(self, left: Collection[Key] = (), longest: float | None = None) -> Actions:
        """Stop every run and accept no new one, since the agent is ending; runs in ``left`` stay for the next agent.

        No run gets more than ``longest`` seconds of grace.
        """
        self._closing = True
        for run in self.runs.values():
            if longest is not None and run.order.grace > longest:
                run.order = structs.replace(run.order, grace=longest)
        stopped = [run for run in self.runs.values() if run.key not in left]
        return [action for run in stopped for action in self._stop(run, "the agent was stopped")]

    @property
    def suspended(self) -> set[Key]:
        """The runs that are suspended."""
        return {run.key for run in self.runs.values() if run.suspended and run.phase is RunPhase.RUNNING}

    def prepared(self, key: Key, port: int, cause: str = "", blameless: bool = False) -> Actions:
        """Record that a run can start here, or why it cannot; ``blameless`` if the node is at fault."""
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
        run = self.runs[key]
        run.up = True
        if run.phase is RunPhase.STARTING and not run.gated:
            run.phase = RunPhase.RUNNING

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
        """Record the result of an order to suspend or to resume a run; with a ``cause`` it could not be carried out."""
        run = self.runs[key]
        run.suspended, run.turning = suspended, False
        run.suspension = SuspensionReport(
            turn=run.turn, suspended=suspended, bytes=host_bytes, seconds=seconds, cause=cause[:MOST_CAUSE]
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
        if order.phase == "stop":
            # One that yields leaves once the run that gets its devices is seated, or none does.
            return [] if order.yields and run.phase is RunPhase.RUNNING else self._stop(run, "")
        return [*self._go(run), *self._set_members(run)]

    def _turn(self, run: NodeRun) -> Actions:
        """Begin to suspend or to resume a run as ordered; it is resumed when its devices are free."""
        turn, suspend = run.order.turn, run.order.turn % 2 == 1
        if run.phase is not RunPhase.RUNNING or run.turning or turn <= run.turn:
            return []
        if suspend == run.suspended:
            run.turn, run.suspension = turn, SuspensionReport(turn=turn, suspended=suspend)
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
        return [StartRanks(run.order, run.devices, run.order.port or run.port, run.gated)]

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
            elif self.gates and not self._has_predecessor(run) and (devices := self._promised(run.order)):
                run.devices, run.phase, run.gated = devices, RunPhase.PREPARING, True
                actions.append(Prepare(run.order))
        return [*actions, *self._open_gates(), *self._dismiss()]

    def _promised(self, order: RunOrder) -> tuple[int, ...]:
        return gates.promised(self.runs.values(), order, self._devices)

    def _open_gates(self) -> Actions:
        """Open the gate for the runs there whose devices are free."""
        actions: Actions = []
        for run in self.runs.values():
            if run.gated and run.stays and run.phase is not RunPhase.ENDED and gates.is_free(self.runs.values(), run):
                run.gated = False
                if run.phase is RunPhase.STARTING:
                    run.phase = RunPhase.RUNNING if run.up else run.phase
                    actions.append(OpenGate(run.key))
        return actions

    def _dismiss(self) -> Actions:
        """Stop the runs that are to leave, except those that continue until another has arrived at the gate."""
        leavers = [run for run in self.runs.values() if run.order.phase == "stop" and run.phase is RunPhase.RUNNING]
        runs = self.runs.values()
        return [action for run in leavers if not gates.goes_on(runs, run) for action in self._stop(run, "")]

    def _has_predecessor(self, run: NodeRun) -> bool:
        """Return whether an earlier incarnation that the run does not join is here: both would write one checkpoint."""
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
